"""What clients send. An unknown field is refused, and so is one that this version does not carry out yet; the error
tells the two apart (`api/errors.py` reads `later` and `later_values`)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from app.sessions.requests import DelegationInput, RunInput, SessionInput

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


def _name_or_map(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("a name or an object is needed here")
    return _shallow(value)


def _object(description: str, /, **properties: Any) -> WithJsonSchema:
    """An open object whose fields the service checks itself, with their places in the error."""
    return WithJsonSchema(
        {"type": "object", "description": description, "properties": properties, "additionalProperties": True}
    )


_TEXT = {"type": "string"}
_NAMES = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "minimum": 0}
_SURFACE_KINDS = ("per_agent", "dispatch")

Metadata = Annotated[dict[str, Any], AfterValidator(_shallow)]
# Not by `max_length`, which refuses lone surrogates: those are cleaned further in, as everywhere.
Label = Annotated[str, AfterValidator(_short), Field(json_schema_extra={"maxLength": LABEL})]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS)]
Policy = Annotated[
    dict[str, Any],
    AfterValidator(_shallow),
    _object(
        "What may be delegated. Fields that are left out come from the agent; null is a value (unlimited, no list).",
        enabled={"type": "boolean"},
        max_depth={**_COUNT, "description": "1 by default; 0: no delegation, null: unlimited."},
        timeout_ms={**_COUNT, "description": "Of each delegation; 0: none."},
        allowed_tools={**_NAMES, "description": "Delegation tools, or `tool(agent)`; [] allows none."},
        denied_tools=_NAMES,
        on_denied={"type": "string", "enum": ["fail", "report"]},
        on_error={"type": "string", "enum": ["fail", "report"]},
    ),
]
Definition = Annotated[
    dict[str, Any],
    _object(
        "An agent: the keys of an agent file, `prompt` for its body. Further keys are kept as metadata.",
        name=_TEXT,
        description=_TEXT,
        prompt=_TEXT,
        tools=_NAMES,
        disallowed_tools=_NAMES,
        model=_TEXT,
        temperature={"type": "number"},
        max_tokens={"type": "integer"},
        max_steps={"type": "integer"},
        tool_choice=_TEXT,
        mode={"type": "string", "enum": ["primary", "subagent", "all"]},
        agents=_NAMES,
        handoff={"type": "object", "additionalProperties": True},
    ),
]
NameOrDefinition = Annotated[
    Any,
    AfterValidator(_name_or_map),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "object", "additionalProperties": True}]}),
]
Surface = Annotated[
    Any,
    AfterValidator(_name_or_map),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(_SURFACE_KINDS)},
                {
                    "type": "object",
                    "properties": {"kind": {"type": "string", "enum": list(_SURFACE_KINDS)}, "agents": _NAMES},
                    "required": ["kind"],
                },
            ]
        }
    ),
]


Scope = Literal["run", "read", "approve", "admin"]


class Body(BaseModel):
    """A request body. `later` are fields of later versions, `later_values` values of known fields."""

    model_config = ConfigDict(extra="forbid", strict=True)
    later: ClassVar[frozenset[str]] = frozenset()
    later_values: ClassVar[Mapping[str, frozenset[str]]] = {}


class SessionBody(Body):
    """How a session is to be; everything may be left out."""

    later = frozenset({"permissions", "thinking", "budget", "texts", "default_subagent"})

    agent: Label | None = Field(None, description="The lead agent; default: the setting `default_agent`.")
    title: Label | None = None
    user: Label | None = Field(None, description="For whom; a label of the caller's.")
    metadata: Metadata = Field(default_factory=dict)
    agents: list[NameOrDefinition] | None = Field(
        None, description="Whom the session may delegate to: names or inline definitions. Default: all subagents."
    )
    surfaces: list[Surface] | None = Field(None, description="The shapes in which delegation is shown to the model.")
    policy: Policy | None = None
    model: Label | None = Field(None, description="`provider:model` or a profile, for every run of the lead agent.")
    workspace: str = Field("", description="A directory below the server's workspace root; empty: the root itself.")
    parallel_tool_calls: bool | None = None

    def session(self) -> SessionInput:
        """What the service is asked for."""
        return SessionInput(
            agent=self.agent,
            title=self.title,
            user=self.user,
            metadata=self.metadata,
            agents=self.agents,
            surfaces=self.surfaces,
            policy=self.policy,
            model=self.model,
            workspace=self.workspace,
            parallel_tool_calls=self.parallel_tool_calls,
        )


class RunBody(Body):
    """One turn of a session."""

    later = frozenset({"output_schema", "webhook"})
    later_values = {"on_busy": frozenset({"enqueue", "interrupt"})}

    input: str = Field(description="The task; an empty one is sent as `(empty task)`.")
    max_steps: int | None = Field(None, ge=1, description="Model calls before an answer is forced.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit from the start of the run; 0: none.")
    on_busy: Literal["reject"] = Field("reject", description="What to do while a run of the session goes on: 409.")

    def run(self) -> RunInput:
        """What the service is asked for."""
        return RunInput(input=self.input, max_steps=self.max_steps, deadline_ms=self.deadline_ms)


class OneShotBody(SessionBody):
    """A session and its first turn in one request; `{"input": "…"}` alone is enough."""

    later = SessionBody.later | RunBody.later
    later_values = RunBody.later_values

    input: str = Field(description="The task; an empty one is sent as `(empty task)`.")
    max_steps: int | None = Field(None, ge=1, description="Model calls before an answer is forced.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit from the start of the run; 0: none.")
    on_busy: Literal["reject"] = "reject"

    def run(self) -> RunInput:
        """What the service is asked for."""
        return RunInput(input=self.input, max_steps=self.max_steps, deadline_ms=self.deadline_ms)


class SessionPatch(Body):
    """What to change; fields that are left out stay."""

    title: Label | None = None
    metadata: Metadata = Field(default_factory=dict, description="Replaces the whole map.")
    closed: Literal[True] | None = Field(None, description="Ends the session for good; its runs are cancelled.")

    def changes(self) -> dict[str, Any]:
        """The fields that were sent, `closed` apart."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"closed"}}


class DelegationBody(Body):
    """One task for one subagent. `user`, `metadata` and `workspace` belong to the session that is made when
    `session_id` is left out."""

    later = frozenset({"background", "resume", "output_schema"})

    agent: NameOrDefinition = Field(description="The name of an agent, or an inline definition.")
    task: str = Field(description="The work order; the subagent sees nothing else.")
    context: str | None = Field(None, description="Added to the task message.")
    name: Label | None = Field(None, description="A readable name for the subagent.")
    session_id: str | None = None
    tools: list[str] | None = Field(None, description="Narrows the tools of the agent.")
    max_steps: int | None = Field(None, ge=1)
    timeout_ms: Milliseconds = Field(0, description="Hard limit; 0: none.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit: then an answer is forced; 0: none.")
    policy: Policy | None = None
    model: Label | None = None
    user: Label | None = None
    metadata: Metadata = Field(default_factory=dict)
    workspace: str = ""

    @model_validator(mode="after")
    def _one_session(self) -> "DelegationBody":
        given = self.model_fields_set & {"user", "metadata", "workspace"}
        if self.session_id is not None and given:
            raise ValueError(f"{', '.join(sorted(given))}: only a new session takes these, so not with session_id")
        return self

    def delegation(self) -> DelegationInput:
        """What the service is asked for."""
        return DelegationInput(**{name: getattr(self, name) for name in type(self).model_fields})


class KeyBody(Body):
    """A new key of the own tenant."""

    name: Label = ""
    scopes: list[Scope] = Field(["run", "read"], min_length=1, description="What the key opens.")
    expires_in_s: int | None = Field(None, ge=1, le=10 * 366 * 86_400)
    expires_at: str | None = Field(None, description="RFC 3339; at most one of the two.")
    tenant: Label | None = Field(None, description="The own one; other tenants' keys are made on the server.")

    def ends(self, now: int) -> int | None:
        """When the key expires, in µs. Raises `ValueError` for a time that is none."""
        if self.expires_in_s is not None:
            return now + self.expires_in_s * 1_000_000
        return None if self.expires_at is None else microseconds(datetime.fromisoformat(self.expires_at))

    @model_validator(mode="after")
    def _one_end(self) -> "KeyBody":
        if self.expires_at is not None and self.expires_in_s is not None:
            raise ValueError("expires_at and expires_in_s say the same thing: send one of them")
        if self.expires_at is not None:
            try:
                self.ends(0)
            except ValueError:
                raise ValueError("expires_at is no RFC 3339 time, such as 2030-01-31T12:00:00Z") from None
        return self


class TicketBody(Body):
    """Which stream a ticket is to open: exactly one of these."""

    path: str | None = Field(None, description="The path of an event stream, without a query.")
    session_id: str | None = None
    run_id: str | None = None
    delegation_id: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "TicketBody":
        if len([value for value in (self.path, self.session_id, self.run_id, self.delegation_id) if value]) != 1:
            raise ValueError("send exactly one of path, session_id, run_id and delegation_id")
        return self

    def stream(self) -> str:
        """The path of the stream."""
        for kind in ("session", "run", "delegation"):
            value = getattr(self, f"{kind}_id")
            if value:
                return f"/v1/{kind}s/{value}/events"
        return self.path or ""


def microseconds(moment: datetime) -> int:
    """A time as the store has it; without a zone it is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)
