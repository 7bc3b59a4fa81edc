"""Session values: made from a request, or from the row that an earlier request left. One place for both directions.

Knows no HTTP and no SQL.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from app.agent.definition import AgentDefinition, Source
from app.agent.delegation import Roster
from app.agent.errors import InvalidRequest
from app.agent.ids import new_id, now_us
from app.agent.policy import OnProblem, Reaction
from app.agent.runs import Session
from app.agent.texts import DEFAULT, Texts
from app.sessions.access import DEFAULT_TENANT
from app.sessions.requests import AgentReader, SessionInput, budget_of, policy_of

INLINE = Source(kind="inline")
MAX_AGENTS = 2_000  # of one session: each may be a tool that a model is shown, which no model reads by thousands
_SHOWN_CHARS = 100
_THINKING = {"on": True, "off": False}


class Workspaces(Protocol):
    """Where workspaces lie."""

    def find(self, tenant: str | None, name: str) -> Path | None:
        """The directory of that name below the root of a tenant, or of the operator's own for None; the root itself
        for an empty name. None when there is none that can be reached without links. Raises `Unavailable`."""


class Opening:
    """Makes and remakes sessions. `workspaces` says where they work; `texts` are what the service says to models where
    a session has no words of its own."""

    def __init__(self, reader: AgentReader, workspaces: Workspaces, texts: Texts = DEFAULT) -> None:
        self.reader = self._reader = reader
        self._texts = texts
        self._workspaces = workspaces

    def new(self, tenant: str, given: SessionInput, agent: str | None) -> Session:
        """The session that a request describes. Raises `InvalidRequest`, `Unsupported`."""
        self.workspace(tenant, given.workspace)
        if given.agents is not None and len(given.agents) > MAX_AGENTS:
            raise InvalidRequest(
                f"agents has {len(given.agents):,} entries, at most {MAX_AGENTS:,} are accepted: name those that this "
                "session needs, or leave `agents` out to allow all subagents",
                code="too_many_agents",
                errors=[{"at": "agents", "message": f"more than {MAX_AGENTS:,} entries"}],
            )
        return self._session(
            tenant,
            config_of(given),
            stored=False,
            id=new_id("ses"),
            memory_id=new_id("mem"),
            agent=agent,
            created_at=now_us(),
            title=given.title,
            user=given.user,
            metadata=dict(given.metadata),
        )

    def again(self, row: Mapping[str, Any]) -> Session:
        """The session of a row."""
        return self._session(
            row["tenant_id"],
            row["config"] or {},
            stored=True,
            id=row["id"],
            memory_id=row["memory_id"],
            agent=row["agent"],
            created_at=row["created_at"],
            title=row["title"],
            user=row["user"],
            metadata=row["metadata"] or {},
            closed=row["closed_at"] is not None,
        )

    def _session(self, tenant: str, config: Mapping[str, Any], *, stored: bool, **fields: Any) -> Session:
        agents, surfaces, texts = config.get("agents"), config.get("surfaces"), config.get("texts")
        rules = config.get("permissions")
        names, inline = self._agents(tenant, agents or (), stored=stored)
        return Session(
            tenant=tenant,
            agents=None if agents is None else names,
            inline=inline,
            surfaces=None if surfaces is None else self._reader.surfaces(surfaces, "surfaces"),
            policy=policy_of(self._reader, config.get("policy"), "policy"),
            model=config.get("model"),
            workspace=config.get("workspace") or "",
            parallel_tool_calls=config.get("parallel_tool_calls"),
            thinking=_THINKING.get(config.get("thinking") or ""),
            budget=budget_of(self._reader, config.get("budget")),
            texts=self._texts if texts is None else self._reader.texts(texts, "texts", self._texts),
            default_subagent=config.get("default_subagent"),
            permissions=None if rules is None else self._reader.permissions(rules, "permissions"),
            **fields,
        )

    def _agents(
        self, tenant: str, entries: Sequence[str | Mapping[str, Any]], *, stored: bool
    ) -> tuple[tuple[str, ...], dict[str, AgentDefinition]]:
        """The names of a session's agents, and the definitions that it brings itself. Their whitelists may name each
        other's tools, wherever in the list they stand."""
        agent_tools = self._reader.tool_names(entries, tenant)
        names: list[str] = []
        inline: dict[str, AgentDefinition] = {}
        for index, entry in enumerate(entries):
            if isinstance(entry, str):
                names.append(entry)
                continue
            definition = self._reader.definition(entry, f"agents[{index}]", stored=stored, agent_tools=agent_tools)
            if definition.name in inline:
                raise InvalidRequest(
                    f"two inline agents are named {definition.name!r}: give one another name",
                    code="duplicate_agent",
                    errors=[{"at": f"agents[{index}].name", "message": "this name is taken"}],
                )
            inline[definition.name] = definition
            names.append(definition.name)
        return tuple(dict.fromkeys(names)), inline

    def workspace(self, tenant: str, name: str) -> Path:
        """The directory of a tenant's workspace. Raises `InvalidRequest` when it is none below the tenant's root,
        `Unavailable` when this root cannot be had."""
        path = self._workspaces.find(None if tenant == DEFAULT_TENANT else tenant, name)
        if path is None:
            raise InvalidRequest(
                f"workspace {name[:_SHOWN_CHARS]!r} is no directory below the server's workspace root, or a link leads "
                "there: make it first, or leave `workspace` out to use the root itself",
                code="no_workspace",
                errors=[{"at": "workspace", "message": "no such directory below the root"}],
            )
        return path


def config_of(given: SessionInput) -> dict[str, Any]:
    """What of a request is kept as it was sent, so that the session can be made again after a restart."""
    config = {
        "agents": None if given.agents is None else [a if isinstance(a, str) else dict(a) for a in given.agents],
        "surfaces": None if given.surfaces is None else list(given.surfaces),
        "policy": None if given.policy is None else dict(given.policy),
        "model": given.model,
        "workspace": given.workspace or None,
        "parallel_tool_calls": given.parallel_tool_calls,
        "thinking": None if given.thinking is None else "on" if given.thinking else "off",
        "budget": None if given.budget is None else dict(given.budget),
        "texts": given.texts if given.texts is None or isinstance(given.texts, str) else dict(given.texts),
        "default_subagent": given.default_subagent,
        "permissions": None if given.permissions is None else dict(given.permissions),
    }
    return {key: value for key, value in config.items() if value is not None}


def checked_agents(session: Session, roster: Roster) -> None:
    """Raises `InvalidRequest` when the session names an agent that does not exist."""
    for at, name in _named(session):
        if roster.find(session, name) is None:
            raise InvalidRequest(
                f"{at}: there is no agent {name!r}: GET /v1/agents lists those that exist",
                code="unknown_agent",
                errors=[{"at": at, "message": "unknown agent"}],
            )


def _named(session: Session) -> Iterator[tuple[str, str]]:
    """The agents that a session names, each with the field that does."""
    for name in session.agents or ():
        yield "agents", name
    for index, surface in enumerate(session.surfaces or ()):
        for name in surface.agents or ():
            yield f"surfaces[{index}].agents", name
    if session.default_subagent is not None:
        yield "default_subagent", session.default_subagent
    for field in ("on_denied", "on_error"):
        wanted: OnProblem | None = getattr(session.policy, field)
        if wanted is not None and wanted.reaction is Reaction.AGENT:
            yield f"policy.{field}.agent", wanted.target
