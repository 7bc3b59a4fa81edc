"""What clients send. An unknown field is refused, and so is one that this version does not carry out yet; the error
tells the two apart (`api/errors.py` reads `later` and `later_values`)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.agent.definition import SessionMode, SessionScope
from app.api.schemas.fields import (
    BUDGET,
    NAMES,
    PERMISSIONS,
    TEXT,
    Arguments,
    Budget,
    Label,
    Metadata,
    Milliseconds,
    NameOrDefinition,
    Permissions,
    Policy,
    Schema,
    Surface,
    Texts,
    Thinking,
    Time,
    open_object,
)
from app.sessions.requests import DelegationInput, OnBusy, ResumeInput, RunInput, SessionInput
from app.wire import microseconds_of

Definition = Annotated[
    dict[str, Any],
    open_object(
        "An agent: the keys of an agent file, `prompt` for its body. Further keys are kept as metadata.",
        name=TEXT,
        description=TEXT,
        prompt=TEXT,
        tools=NAMES,
        disallowed_tools=NAMES,
        model=TEXT,
        temperature={"type": "number"},
        max_tokens={"type": "integer"},
        max_steps={"type": "integer"},
        tool_choice=TEXT,
        mode={"type": "string", "enum": ["primary", "subagent", "all"]},
        agents=NAMES,
        effort=TEXT,
        thinking={"type": "string", "enum": ["on", "off"]},
        tool_name={**TEXT, "description": "The name of its own tool on the surface `per_agent`."},
        input_schema={"type": "object", "additionalProperties": True},
        output_schema={"type": "object", "additionalProperties": True},
        session_mode={"type": "string", "enum": [mode.value for mode in SessionMode]},
        session_scope={"type": "string", "enum": [scope.value for scope in SessionScope]},
        background={"type": "boolean", "description": "Nobody waits for it, unless a call says so."},
        detached={"type": "boolean", "description": "In the background it does not end with a run that was stopped."},
        inherit_context={**TEXT, "description": "`none`, `last:<n>` or `summary`."},
        surfaces={"type": "array", "items": {}},
        budget=BUDGET,
        handoff={"type": "object", "additionalProperties": True},
        permissions=PERMISSIONS,
    ),
]
Webhook = Annotated[
    str,
    Field(description="A URL that is sent the last event, signed, once this has ended; the server says which hosts."),
]
Scope = Literal["run", "read", "approve", "admin"]
MAX_MESSAGE_CHARS = 32_000


class Body(BaseModel):
    """A request body. `later` are fields of later versions, `later_values` values of known fields."""

    model_config = ConfigDict(extra="forbid", strict=True)
    later: ClassVar[frozenset[str]] = frozenset()
    later_values: ClassVar[Mapping[str, frozenset[str]]] = {}


class SessionBody(Body):
    """How a session is to be; everything may be left out."""

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
    thinking: Thinking | None = Field(None, description="Whether models are to think before they answer.")
    budget: Budget | None = Field(None, description="Of all turns of the session together.")
    permissions: Permissions | None = None
    texts: Texts | None = None
    default_subagent: Label | None = Field(None, description="To whom the surface `subagent` leads.")

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
            thinking=flag_of(self.thinking),
            budget=self.budget,
            texts=self.texts,
            default_subagent=self.default_subagent,
            permissions=self.permissions,
        )


class RunBody(Body):
    """One turn of a session."""

    input: str = Field(description="The task; an empty one is sent as `(empty task)`.")
    max_steps: int | None = Field(None, ge=1, description="Model calls before an answer is forced.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit from the start of the run; 0: none.")
    output_schema: Schema | None = None
    budget: Budget | None = Field(None, description="Of this turn, inside the session's.")
    webhook: Webhook | None = None
    on_busy: Literal["reject", "enqueue", "interrupt"] = Field(
        "reject",
        description="While a turn of the session goes on: answer 409; start after it and all that wait; or cancel "
        "these first.",
    )

    def run(self) -> RunInput:
        """What the service is asked for."""
        return RunInput(
            input=self.input,
            max_steps=self.max_steps,
            deadline_ms=self.deadline_ms,
            output_schema=self.output_schema,
            budget=self.budget,
            webhook=self.webhook,
            on_busy=OnBusy(self.on_busy),
        )


class ResumeBody(Body):
    """A run over the memory of one that has ended; everything may be left out."""

    input: str | None = Field(None, description="What to do; default: the text `resume`, to finish the task.")
    max_steps: int | None = Field(None, ge=1, description="Model calls before an answer is forced.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit from the start of the run; 0: none.")
    timeout_ms: Milliseconds = Field(0, description="Hard limit; 0: none.")
    output_schema: Schema | None = None
    budget: Budget | None = Field(None, description="Of this run and everything below it.")

    def resumption(self) -> ResumeInput:
        """What the service is asked for."""
        return ResumeInput(**{name: getattr(self, name) for name in type(self).model_fields})


class MessageBody(Body):
    """What somebody says to a run under way."""

    content: str = Field(min_length=1, max_length=MAX_MESSAGE_CHARS)


class ClearBody(Body):
    """Which tasks that have ended are removed from the lists; everything left out: all."""

    session_id: str | None = None
    older_than_s: int = Field(0, ge=0, le=10 * 366 * 86_400, description="Those that ended at least so long ago.")


class OneShotBody(SessionBody):
    """A session and its first turn in one request; `{"input": "…"}` alone is enough."""

    later = SessionBody.later | RunBody.later

    input: str = Field(description="The task; an empty one is sent as `(empty task)`.")
    max_steps: int | None = Field(None, ge=1, description="Model calls before an answer is forced.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit from the start of the run; 0: none.")
    output_schema: Schema | None = None
    webhook: Webhook | None = None
    on_busy: Literal["reject", "enqueue", "interrupt"] = Field("reject", description="Without effect: nobody is busy.")

    def run(self) -> RunInput:
        """What the service is asked for; the budget is the session's."""
        return RunInput(
            input=self.input,
            max_steps=self.max_steps,
            deadline_ms=self.deadline_ms,
            output_schema=self.output_schema,
            webhook=self.webhook,
        )


class SessionPatch(Body):
    """What to change; fields that are left out stay."""

    title: Label | None = None
    metadata: Metadata = Field(default_factory=dict, description="Replaces the whole map.")
    closed: Literal[True] | None = Field(None, description="Ends the session for good; its runs are cancelled.")

    def changes(self) -> dict[str, Any]:
        """The fields that were sent, `closed` apart."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"closed"}}


class DelegationBody(Body):
    """One task for one subagent. `user`, `metadata`, `workspace` and `texts` belong to the session that is made when
    `session_id` is left out."""

    agent: NameOrDefinition | None = Field(
        None, description="The name of an agent, or an inline definition; may be left out with `resume`."
    )
    task: str = Field(description="The work order; the subagent sees nothing else.")
    context: str | None = Field(None, description="Added to the task message.")
    name: Label | None = Field(None, description="A readable name for the subagent.")
    background: bool | None = Field(
        None, description="true: the answer is a task id, at once. Default: as the agent's definition has it."
    )
    resume: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None,
        description="Go on with the memory of an earlier task: its id, that of one of its runs, or with `session_id` "
        "its name.",
    )
    session_id: str | None = None
    tools: list[str] | None = Field(None, description="Narrows the tools of the agent.")
    max_steps: int | None = Field(None, ge=1)
    timeout_ms: Milliseconds = Field(0, description="Hard limit; 0: none.")
    deadline_ms: Milliseconds = Field(0, description="Soft limit: then an answer is forced; 0: none.")
    policy: Policy | None = None
    model: Label | None = None
    thinking: Thinking | None = Field(None, description="Whether the model is to think before it answers.")
    output_schema: Schema | None = None
    budget: Budget | None = Field(None, description="Of the subagent and everything below it.")
    permissions: Permissions | None = None
    session_key: Label | None = Field(
        None, description="Names the memory of an agent with `session_mode: reuse_session` and the scope `key`."
    )
    texts: Texts | None = None
    user: Label | None = None
    metadata: Metadata = Field(default_factory=dict)
    workspace: str = ""
    webhook: Webhook | None = None

    @model_validator(mode="after")
    def _one_session(self) -> "DelegationBody":
        given = self.model_fields_set & {"user", "metadata", "workspace", "texts"}
        there = "session_id" if self.session_id is not None else "resume" if self.resume is not None else None
        if there is not None and given:
            raise ValueError(f"{', '.join(sorted(given))}: only a new session takes these, so not with {there}")
        return self

    def delegation(self) -> DelegationInput:
        """What the service is asked for."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return DelegationInput(**fields | {"thinking": flag_of(self.thinking)})


class PermissionAnswer(Body):
    """An answer to a permission request."""

    decision: Literal["allow_once", "allow_session", "deny"] = Field(
        description="`allow_session` also allows what the request's `suggested_rule` says, for the whole session."
    )
    message: str | None = Field(None, max_length=4_000, description="Told to the model with a denial.")
    arguments: Arguments | None = Field(None, description="With `allow_once`: call it with these instead.")


class KeyBody(Body):
    """A new key of the own tenant."""

    name: Label = ""
    scopes: list[Scope] = Field(["run", "read"], min_length=1, description="What the key opens.")
    expires_in_s: int | None = Field(None, ge=1, le=10 * 366 * 86_400)
    expires_at: Time | None = Field(None, description="RFC 3339; at most one of the two.")
    tenant: Label | None = Field(None, description="The own one; other tenants' keys are made on the server.")

    def ends(self, now: int) -> int | None:
        """When the key expires, in µs."""
        if self.expires_in_s is not None:
            return now + self.expires_in_s * 1_000_000
        return None if self.expires_at is None else microseconds_of(self.expires_at)

    @model_validator(mode="after")
    def _one_end(self) -> "KeyBody":
        if self.expires_at is not None and self.expires_in_s is not None:
            raise ValueError("expires_at and expires_in_s say the same thing: send one of them")
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


def flag_of(thinking: Thinking | None) -> bool | None:
    """Whether models are to think; None: nobody said."""
    return None if thinking is None else thinking == "on"
