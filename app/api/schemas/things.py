"""What clients get when they ask what there is: agents, tools, models, event types, keys, tickets, health."""

from typing import Any, Literal

from pydantic import Field

from app.api.schemas.answers import Answer, Page


class Source(Answer):
    """Where a definition came from."""

    kind: Literal["inline", "tenant", "directory", "library"]
    path: str | None


class Agent(Answer):
    """An agent in force. Its definition stands beside these fields, as in an agent file."""

    name: str
    description: str
    mode: Literal["primary", "subagent", "all"]
    prompt: str | None = None
    tools: list[str] | None = None
    model: str | None = None
    max_steps: int | None = None
    source: Source
    version: int | None
    effective_tools: list[str] = Field(description="What a run without a parent run is given.")
    delegation_tools: list[str]
    missing_tools: list[str]


class Shadowed(Answer):
    """A valid agent that another one of its name hides."""

    name: str
    description: str
    source: Source
    by: Source


class FileProblem(Answer):
    """Something wrong with a file of an agent or skill."""

    path: str
    line: int
    message: str
    key: str | None


class AgentList(Page):
    """All agents, and everything wrong with agent files."""

    items: list[Agent]
    shadowed: list[Shadowed]
    broken: list[FileProblem]
    warnings: list[FileProblem]


class Skill(Answer):
    """A skill in force; `folder` is the end of where its files lie on the server."""

    name: str
    description: str
    folder: str


class ShadowedSkill(Skill):
    """A valid skill that another one of its name hides."""

    by: str = Field(description="The folder of that one.")


class SkillList(Page):
    """All skills, and everything wrong with their files."""

    items: list[Skill]
    shadowed: list[ShadowedSkill]
    broken: list[FileProblem]
    warnings: list[FileProblem]


class Tool(Answer):
    """A tool of this service; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool
    concurrency_safe: bool
    timeout_ms: int
    server: str | None = Field(None, description="The MCP server whose tool it is.")
    state: str | None = Field(None, description="How that server is: up, starting, restarting, down, stopped.")
    asks: str | None = Field(None, description="Why a person is asked before each call that no rule speaks of.")


class ToolPage(Page):
    """All tools."""

    items: list[Tool]
    mcp: dict[str, str] | None = Field(None, description="How each MCP server is, by name; absent without any.")


class Model(Answer):
    """Something that can be named as a model."""

    name: str


class ModelPage(Page):
    """All models that are known by name."""

    items: list[Model]


class EventSchemas(Answer):
    """JSON Schemas of the envelope, of the frame of a delta, and of `data` for every type."""

    envelope: dict[str, Any]
    events: dict[str, Any]


class Key(Answer):
    """A key, without what opens anything."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class NewKey(Key):
    """A key just made; `key` is shown only here."""

    key: str


class KeyPage(Page):
    """The keys of the tenant, newest first."""

    items: list[Key]


class Ticket(Answer):
    """A ticket for one stream, once, within a minute."""

    ticket: str
    expires_at: str
    url: str = Field(description="The path of the stream with the ticket.")


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]


class SandboxLevel(Answer):
    """In what commands of agents run: the level that held, and why each higher one did not."""

    level: Literal["full", "landlock", "none"]
    missing: dict[str, str]


class Readiness(Answer):
    """Whether the service can take work; `checks` say `ok` or what is wrong. `sandbox`: only with `run_command`."""

    ready: bool
    checks: dict[str, str]
    sandbox: SandboxLevel | None = None
    search: str | None = Field(
        None, description="`ok`, or why texts are looked for without an index, which is slower and no fault here."
    )
    mcp: dict[str, int] | None = Field(
        None, description="How many MCP servers are in each state; one that is down is no fault here."
    )
