"""One table of the keys that an agent definition has, for files and for mappings: spellings, readers, and the keys
that this version knows but does not carry out yet.

Knows neither YAML nor JSON text: it gets keys with values and states what it finds in a `Reading`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.agent.definition import MAX_STEPS, MAX_TOOL_NAME, AgentDefinition, AgentMode, Source, normalised
from app.definitions.policy import read_policy, read_surfaces
from app.definitions.reading import (
    Reading,
    as_flag,
    as_integer,
    as_names,
    as_real,
    as_text,
    is_scalar,
    is_unset,
    shown,
)
from app.definitions.schemas import schema_of, schema_problem
from app.definitions.toolnames import AGENT, Grant, mapped, read_denied, read_tools, squeezed

MAX_NAME = 128
MAX_TOKENS = 10_000_000
_DEFAULT = "the default applies"


# ── readers ─────────────────────────────────────────────────────────────────────────────────────────────────────


_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _name(reading: Reading, key: str, value: Any) -> str | None:
    name = as_text(reading, key, value)
    if name is not None and "\n" in name and not reading.strict:  # a broken head may have put more lines behind it
        reading.remark(key, f"only the first line of {key} is used")
        name = name.split("\n", 1)[0].strip()
    if name is None:
        return None
    if len(name) > MAX_NAME:
        reading.error(key, f"{key} must have 1 to {MAX_NAME} characters, this one has {len(name)}")
    elif _NO_NAME.search(name):
        reading.error(key, f"{key} contains control characters: {shown(name)}")
    return name


def _prompt(reading: Reading, key: str, value: Any) -> str | None:
    return as_text(reading, key, value, strip=False)


def _mode(reading: Reading, key: str, value: Any) -> AgentMode | None:
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in AgentMode.__members__.values():
        return AgentMode(text)
    reading.warn(key, f"{key} must be primary, subagent or all, not {shown(value)}", "subagent applies")
    return None


def _model(reading: Reading, key: str, value: Any) -> str | None:
    text = as_text(reading, key, value)
    if text is None or text.lower() == "inherit":
        return None
    if " " in text:
        reading.remark(key, f"{key} {text!r} looks like a display name; a run needs `provider:model` or a profile")
    return text


def _temperature(reading: Reading, key: str, value: Any) -> float | None:
    return as_real(reading, key, value, 0, 2, _DEFAULT)


def _effort(reading: Reading, key: str, value: Any) -> str | None:
    return as_text(reading, key, str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _max_tokens(reading: Reading, key: str, value: Any) -> int | None:
    return as_integer(reading, key, value, 1, MAX_TOKENS, _DEFAULT)


def _max_steps(reading: Reading, key: str, value: Any) -> int | None:
    return as_integer(reading, key, value, 1, MAX_STEPS, _DEFAULT)


def _parallel(reading: Reading, key: str, value: Any) -> bool | None:
    return as_flag(reading, key, value, _DEFAULT)


def _tool_choice(reading: Reading, key: str, value: Any) -> str | None:
    text = as_text(reading, key, value)
    if text is None:
        return None
    if text.lower() in ("auto", "none", "required", "any"):
        return "required" if text.lower() == "any" else text.lower()
    name = mapped(text, reading.known_tools)
    if name == AGENT or len(name) > MAX_TOOL_NAME or not name.replace("-", "_").isidentifier():
        what = "name the delegation tool itself, such as dispatch_subagent" if name == AGENT else shown(text)
        reading.warn(key, f"{key} must be auto, none, required or the name of a tool ({what})", "the model chooses")
        return None
    return name


def _tool_name(reading: Reading, key: str, value: Any) -> str | None:
    text = as_text(reading, key, value)
    if text is None:
        return None
    name = normalised(text)
    if not 1 <= len(name) <= MAX_TOOL_NAME:
        reading.error(key, f"{key} must have 1 to {MAX_TOOL_NAME} of the characters a-z, 0-9 and _, not {shown(text)}")
        return None
    if name != text:
        reading.warn(key, f"{key} may hold a-z, 0-9 and _, such as {name!r}, not {shown(text)}", f"{name!r} is used")
    return name


def _input_schema(reading: Reading, key: str, value: Any) -> Mapping[str, Any] | None:
    schema = reading.plain(value)
    if isinstance(schema, str):
        schema = schema_of(schema)
    problem = schema_problem(schema)
    if problem is not None:
        reading.error(key, f"{key} must be a JSON Schema of an object, as a map or as JSON text: {problem}")
        return None
    return dict(schema)


def _agents(reading: Reading, key: str, value: Any) -> tuple[str, ...] | None:
    names = as_names(reading, key, value)
    return None if names == ("*",) else names


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A key of a definition. `limits`: it grants or takes away, so it may not be given twice."""

    attribute: str
    read: Callable[[Reading, str, Any], Any]
    limits: bool = False


def _spelled(field: Field, *more: str) -> dict[str, Field]:
    return {squeezed(name): field for name in (field.attribute, *more)}


FIELDS: Mapping[str, Field] = {
    **_spelled(Field(attribute="name", read=_name)),
    **_spelled(Field(attribute="description", read=as_text)),
    **_spelled(Field(attribute="prompt", read=_prompt)),
    **_spelled(Field(attribute="mode", read=_mode, limits=True)),
    **_spelled(Field(attribute="tools", read=read_tools, limits=True), "allowed_tools"),
    **_spelled(Field(attribute="disallowed_tools", read=read_denied, limits=True), "denied_tools"),
    **_spelled(Field(attribute="model", read=_model)),
    **_spelled(Field(attribute="temperature", read=_temperature)),
    **_spelled(Field(attribute="effort", read=_effort)),
    **_spelled(Field(attribute="max_tokens", read=_max_tokens)),
    **_spelled(Field(attribute="tool_choice", read=_tool_choice)),
    **_spelled(Field(attribute="max_steps", read=_max_steps), "max_turns", "steps", "max_iteration_per_run"),
    **_spelled(Field(attribute="parallel_tool_calls", read=_parallel)),
    **_spelled(Field(attribute="tool_name", read=_tool_name)),
    **_spelled(Field(attribute="input_schema", read=_input_schema)),
    **_spelled(Field(attribute="surfaces", read=read_surfaces, limits=True)),
    **_spelled(Field(attribute="agents", read=_agents, limits=True)),
    "handoff": Field(attribute="policy", read=read_policy, limits=True),
}
TOOLS_KEYS = frozenset(name for name, field in FIELDS.items() if field.attribute in ("tools", "disallowed_tools"))

# Known keys that nothing here carries out yet, each with the values that ask for nothing.
_FALSE = frozenset({"false", "no", "off", "0"})
LATER_KEYS: Mapping[str, frozenset[str]] = {
    **{
        squeezed(name): frozenset()
        for name in (
            "output_schema", "runner", "hooks", "mcp_servers", "mcp_config", "skills", "permission", "permissions",
            "initial_prompt", "top_p", "condenser", "limits", "budget", "max_budget_per_run", "max_budget_usd",
        )
    },
    **{squeezed(name): _FALSE for name in ("background", "detached", "disable", "readonly")},
    "sessionmode": frozenset({"new_session"}),
    "inheritcontext": frozenset({"none"}),
    "permissionmode": frozenset({"default"}),
    "isolation": frozenset({"none"}),
    "memory": frozenset({"none"}),
}  # fmt: skip
_LABELS = frozenset(
    {"color", "emoji", "vibe", "author", "version", "tags", "category", "license", "metadata", "hidden"}
)


def is_known(key: str) -> bool:
    """A key that ends a text which may hold lines that look like keys."""
    name = squeezed(key)
    return name in FIELDS or name in LATER_KEYS or name in _LABELS


def _asks_for_something(key: str, value: Any) -> bool:
    if not is_scalar(value):
        return bool(value)
    return value is not None and value != "" and str(value).strip().lower() not in LATER_KEYS[squeezed(key)]


# ── assembly ────────────────────────────────────────────────────────────────────────────────────────────────────


def assemble(entries: Iterable[tuple[str, Any, int]], reading: Reading) -> dict[str, Any]:
    """Read keys, values and lines into the attributes of a definition; what is unset is absent."""
    values: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for key, value, line in entries:
        reading.line = line
        name = squeezed(key)
        field = FIELDS.get(name)
        target = field.attribute if field is not None else f"metadata {key}"
        if target in seen:
            _state_twice(reading, key, seen[target], field)
            continue
        seen[target] = key
        if field is not None:
            _read_field(reading, field, key, value, values)
            continue
        plain = reading.plain(value)
        if name in LATER_KEYS and _asks_for_something(key, plain):
            reading.later(key, f"{key} is not carried out yet")
        if key == "metadata" and isinstance(plain, dict):
            metadata = plain | metadata
        elif key == "metadata" and reading.strict and plain is not None:
            reading.error(key, f"{key} must be a map, not {shown(plain)}")
        elif key != "metadata" or plain is not None:
            metadata[key] = plain
    return _merged(values, metadata)


def _state_twice(reading: Reading, key: str, first: str, field: Field | None) -> None:
    if field is not None and field.limits:
        reading.error(key, f"{key} is given twice (first as {first}), so it is not clear which one holds")
    else:
        reading.warn(key, f"{key} is given twice (first as {first})", "the first one holds")


def _read_field(reading: Reading, field: Field, key: str, value: Any, values: dict[str, Any]) -> None:
    if is_unset(value):
        if value is not None and field.attribute == "tools":
            reading.error(key, f"{key} is empty: write [] for no tools, or leave the key out to inherit")
        elif value is not None and field.attribute in ("agents", "surfaces"):
            reading.remark(key, f"{key} is empty and counts as not given; write [] for none")
        return
    found = field.read(reading, key, value)
    if found is not None:
        values[field.attribute] = found


def _merged(values: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Put together what two keys may say of one thing; where both speak, only what both allow is left."""
    grant: Grant | None = values.pop("tools", None)
    if grant is not None:
        values["tools"] = grant.names
        if grant.denied:
            values["disallowed_tools"] = tuple(dict.fromkeys((*grant.denied, *values.get("disallowed_tools", ()))))
        if grant.agents is not None:
            own = values.get("agents")
            values["agents"] = grant.agents if own is None else tuple(name for name in grant.agents if name in own)
    if metadata:
        values["metadata"] = metadata
    return values


def build(values: Mapping[str, Any], reading: Reading, source: Source) -> AgentDefinition | None:
    """The definition, or None after the errors that were stated."""
    if reading.failed:
        return None
    return AgentDefinition(source=source, **values)
