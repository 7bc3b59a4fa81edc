"""The kinds of fields that request bodies are made of. Objects that the service reads itself are open here: what is
wrong in them is told with its place by `definitions/`; OpenAPI shows what they may hold."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from app.agent.definition import SurfaceKind
from app.agent.texts import LANGUAGES, TEXT_NAMES
from app.wire import EXAMPLE, microseconds_of

MAX_DEPTH = 50  # as of definitions; deeper values would cost more to walk than they can be worth
MAX_MS = 7 * 24 * 3_600_000
LABEL = 500  # characters of a title, user or name


def _shallow(value: Any) -> Any:
    """The value, unless it would cost too much to walk through."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _short(value: str) -> str:
    if len(value) > LABEL:
        raise ValueError(f"has {len(value)} characters, at most {LABEL} are accepted")
    return value


def _moment(value: str) -> str:
    try:
        microseconds_of(value)
    except ValueError as error:
        raise ValueError(f"{error}: write {EXAMPLE}") from None
    return value


def _name_or_map(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("a name or an object is needed here")
    return _shallow(value)


def open_object(description: str, /, **properties: Any) -> WithJsonSchema:
    """An open object whose fields the service checks itself, with their places in the error."""
    return WithJsonSchema(
        {"type": "object", "description": description, "properties": properties, "additionalProperties": True}
    )


TEXT = {"type": "string"}
NAMES = {"type": "array", "items": TEXT}
_COUNT = {"type": "integer", "minimum": 0}
_LIMIT = {"type": ["integer", "null"], "minimum": 1}
_SURFACE_KINDS = [kind.value for kind in SurfaceKind]
BUDGET = {
    "type": "object",
    "description": "Limits of the tree below; what is left out is not limited.",
    "properties": {
        "model_calls": _LIMIT,
        "tokens": {**_LIMIT, "description": "Input and output together."},
        "cost_micros": {**_LIMIT, "description": "Money in millionths of `currency`."},
        "currency": {"type": "string", "pattern": "^[A-Za-z]{3}$", "default": "USD"},
        "tool_calls": _LIMIT,
        "delegations": _LIMIT,
        "max_concurrent": {**_LIMIT, "description": "Subagents that work at the same time."},
        "wall_ms": _LIMIT,
    },
    "additionalProperties": False,
}
PERMISSIONS = {
    "type": "object",
    "description": "Rules such as `Bash(git *)`. What they allow must be allowed by the server as well.",
    "properties": {
        "allow": {**NAMES, "description": "With a pattern: all else of the tool is asked."},
        "ask": NAMES,
        "deny": {**NAMES, "description": "Wins over ask, which wins over allow."},
        "default": {"type": ["string", "null"], "enum": ["allow", "ask", "deny", None]},
    },
    "additionalProperties": False,
}
_TARGET = {"type": "string", "minLength": 1}


def _reaction(*fallbacks: str) -> dict[str, Any]:
    """What a denied or failed delegation leads to."""
    words = {"type": "string", "enum": ["fail", "report", "fallback_to_primary"]}
    maps = [
        {"type": "object", "properties": {name: _TARGET}, "required": [name], "additionalProperties": False}
        for name in fallbacks
    ]
    return {"anyOf": [words, *maps, {"type": "null"}]}


_FILTER = {
    "anyOf": [
        {"type": "string", "enum": ["mask_secrets", "cut_context"]},
        {
            "type": "object",
            "properties": {"cut_context": {"type": "integer", "minimum": 1}},
            "required": ["cut_context"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"inject": {"type": "object", "additionalProperties": True}},
            "required": ["inject"],
            "additionalProperties": False,
        },
    ]
}

Metadata = Annotated[dict[str, Any], AfterValidator(_shallow)]
# Not by `max_length`, which refuses lone surrogates: those are cleaned further in, as everywhere.
Label = Annotated[str, AfterValidator(_short), Field(json_schema_extra={"maxLength": LABEL})]
Time = Annotated[str, AfterValidator(_moment), Field(json_schema_extra={"format": "date-time"})]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS)]
Policy = Annotated[
    dict[str, Any],
    AfterValidator(_shallow),
    open_object(
        "What may be delegated. Fields that are left out come from the agent; null is a value (unlimited, no list).",
        enabled={"type": "boolean"},
        max_depth={
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "Default 1; 0: none, null: 200, the most there is.",
        },
        max_retries={**_COUNT, "description": "Further attempts after an error that can pass."},
        timeout_ms={**_COUNT, "description": "Of each attempt; 0: none."},
        deadline_ms={**_COUNT, "description": "Of all attempts together; 0: none."},
        allowed_tools={
            "type": ["array", "null"],
            "items": TEXT,
            "description": "Delegation tools, or `tool(agent)`; [] allows none.",
        },
        denied_tools={"type": ["array", "null"], "items": TEXT},
        on_denied=_reaction("agent", "answer"),
        on_error=_reaction("agent", "model", "answer"),
        inherit_tools={
            "enum": ["own", "intersect"],
            "description": "intersect: no subagent has a tool that whoever delegates to it does not have.",
        },
        input_filter={"anyOf": [_FILTER, {"type": "array", "items": _FILTER}, {"type": "null"}]},
        budget=BUDGET,
    ),
]
NameOrDefinition = Annotated[
    Any,
    AfterValidator(_name_or_map),
    WithJsonSchema({"anyOf": [TEXT, {"type": "object", "additionalProperties": True}]}),
]
Surface = Annotated[
    Any,
    AfterValidator(_name_or_map),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": _SURFACE_KINDS},
                {
                    "type": "object",
                    "properties": {
                        "kind": {"type": "string", "enum": _SURFACE_KINDS},
                        "agents": NAMES,
                        "templates": {
                            "type": "object",
                            "description": "Texts of the surface by name; null or false switches a heading off.",
                            "additionalProperties": {"type": ["string", "boolean", "null"]},
                        },
                        "heading": {
                            "type": ["string", "boolean", "null"],
                            "description": "The same as `templates.heading`, for the kind `subagent`.",
                        },
                    },
                    "required": ["kind"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Permissions = Annotated[dict[str, Any], AfterValidator(_shallow), WithJsonSchema(PERMISSIONS)]
Arguments = Annotated[
    dict[str, Any], AfterValidator(_shallow), WithJsonSchema({"type": "object", "additionalProperties": True})
]
Budget = Annotated[dict[str, Any], AfterValidator(_shallow), WithJsonSchema(BUDGET)]
Schema = Annotated[
    dict[str, Any],
    AfterValidator(_shallow),
    WithJsonSchema(
        {"type": "object", "description": "A JSON Schema that the answer is to satisfy.", "additionalProperties": True}
    ),
]
Texts = Annotated[
    Any,
    AfterValidator(_name_or_map),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": sorted(LANGUAGES)},
                {
                    "type": "object",
                    "properties": {
                        "language": {"type": "string", "enum": sorted(LANGUAGES)},
                        **dict.fromkeys(sorted(TEXT_NAMES), TEXT),
                    },
                    "additionalProperties": False,
                },
            ],
            "description": "What the service says to models: a language, or single texts by name.",
        }
    ),
]
Thinking = Literal["on", "off"]
