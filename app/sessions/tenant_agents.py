"""The agents of a tenant over the API: put, taken away, listed with everything that is wrong (spec 10.3, 14.14).

Knows neither files nor SQL: a catalog says what is in force, and every change is a row of its own version.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from app.agent.definition import AgentCatalog, AgentDefinition, Source
from app.agent.delegation import tool_names
from app.agent.errors import Conflict, InvalidRequest, NotFound, Outdated, SubagentdError, Unavailable, Unsupported
from app.agent.events import Write
from app.agent.ids import now_us
from app.agent.policy import ToolInherit
from app.agent.tools import ToolRegistry
from app.masking import ValueMasker
from app.sessions.agents import AgentStore
from app.sessions.grants import Grants
from app.sessions.journal import TAKE_S, Journal
from app.sessions.requests import AgentReader
from app.wire import clean

log = logging.getLogger(__name__)

TENANT = "tenant"
T = TypeVar("T")


class FileProblem(Protocol):
    """Something wrong with a file: `severity` `error` kept it from loading."""

    @property
    def severity(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def key(self) -> str | None: ...


class ShadowedAgent(Protocol):
    """A valid definition that another one of its name hides."""

    @property
    def definition(self) -> AgentDefinition: ...
    @property
    def by(self) -> Source: ...


class Report(Protocol):
    """All that there is for a tenant."""

    @property
    def agents(self) -> Sequence[AgentDefinition]: ...
    @property
    def shadowed(self) -> Sequence[ShadowedAgent]: ...
    @property
    def problems(self) -> Sequence[FileProblem]: ...


class ChangingCatalog(AgentCatalog, Protocol):
    """The catalog with what changes it."""

    def report(self, tenant: str) -> Report:
        """Agents in force, shadowed ones, and everything wrong with files."""

    def reload(self) -> None:
        """Read all files anew; blocks on the disk."""

    def set_tenant(self, tenant: str, name: str, definition: AgentDefinition) -> None:
        """Put a tenant's own agent in force."""

    def drop_tenant(self, tenant: str, name: str) -> bool:
        """Take a tenant's own agent away; says whether there was one."""


async def _nothing() -> None:
    pass


class TenantAgents:
    """Changes and lists agents. One per process. `tools`: the ordinary tools of this service. `settle` is awaited when
    files were read anew: what they bring along begins and ends with them."""

    def __init__(
        self,
        catalog: ChangingCatalog,
        reader: AgentReader,
        store: AgentStore,
        journal: Journal,
        tools: ToolRegistry,
        masker: ValueMasker,
        inherit: ToolInherit = ToolInherit.OWN,
        settle: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._store = store
        self._journal = journal
        self._tools = tools
        self._grants = Grants(tools, inherit)
        self._masker = masker
        self._settle = settle
        self._versions: dict[tuple[str, str], int] = {}
        self._changing = asyncio.Lock()  # versions are numbered one after the other
        self._changes: set[asyncio.Task[Any]] = set()
        self._reloading = asyncio.Lock()

    async def load(self) -> None:
        """Put the stored agents of all tenants in force; one that cannot be read any more is logged and left out."""
        for stored in await self._store.all():
            self._versions[stored.tenant, stored.name] = stored.version
            try:
                definition = self._reader.definition(stored.definition, "agent", stored=True)
            except SubagentdError as error:
                log.error("agent %r of tenant %s cannot be used: %s", stored.name, stored.tenant, error)
                continue
            self._catalog.set_tenant(stored.tenant, stored.name, _owned(definition, stored.version))

    async def put(
        self, tenant: str, name: str, data: Mapping[str, Any], expected: Sequence[str] = ()
    ) -> tuple[dict[str, Any], bool]:
        """Store an agent and put it in force; the second value says whether the tenant had none of that name.
        `expected`: the versions of which it must be one until now.

        Raises `Outdated`, `InvalidRequest` with the places of everything that is wrong, `Unsupported` for what comes
        later.
        """
        if "markdown" in data:
            raise Unsupported(
                "an agent as Markdown is not read over the API yet: send its fields as JSON, `prompt` is the body",
                errors=[{"at": "markdown", "message": "not supported yet"}],
            )
        if data.get("name", name) != name:
            raise InvalidRequest(
                f"the path names the agent {name!r}, the body {data['name']!r}: leave `name` out, or make them equal",
                errors=[{"at": "name", "message": "differs from the path"}],
            )
        # masked and cleaned before it is in force, so that it is the same after a restart
        name = self._masker.text(clean(name))
        given = clean(self._masker.value({**data, "name": name}))
        agent_tools = self._reader.tool_names([given], tenant)
        definition = self._reader.definition(given, "", agent_tools=agent_tools)
        if definition.name != name:  # a blank at an end would make an agent that no request can name
            raise InvalidRequest(
                f"the path names the agent {name!r}: without blanks at its ends it is {definition.name!r}, use that",
                errors=[{"at": "name", "message": "blanks at an end"}],
            )
        definition, made = await self._in_time(self._put(tenant, name, definition, expected))
        return self._view(definition, tenant, self._agent_tools(tenant)), made

    async def _put(
        self, tenant: str, name: str, definition: AgentDefinition, expected: Sequence[str]
    ) -> tuple[AgentDefinition, bool]:
        async with self._changing:
            self._check(tenant, name, expected)
            made = not self._own(tenant, name)
            version = await self._write(tenant, name, self._reader.mapping(definition), deleted=False)
            definition = _owned(definition, version)
            self._catalog.set_tenant(tenant, name, definition)
        return definition, made

    async def delete(self, tenant: str, name: str, expected: Sequence[str] = ()) -> None:
        """Take a tenant's own agent away; a file's agent of that name is in force again."""
        await self._in_time(self._delete(tenant, name, expected))

    async def _in_time(self, change: Coroutine[Any, Any, T]) -> T:
        """What comes of a change, which is carried out to its end whether its caller waits or not: what is stored and
        what is in force are to be the same. Raises `Unavailable` when the store does not take it in time."""
        task = asyncio.create_task(change, name="change of an agent")
        self._changes.add(task)
        task.add_done_callback(self._changed)
        await asyncio.wait((task,), timeout=TAKE_S)
        if not task.done():
            raise Unavailable(
                "the store did not take this in time; it is kept, and in force when the store is back: look before "
                "you try again",
                code="store_unavailable",
            )
        return task.result()

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # fetched here for callers that are not there any more

    async def _delete(self, tenant: str, name: str, expected: Sequence[str]) -> None:
        async with self._changing:
            self._check(tenant, name, expected)
            if not self._own(tenant, name):
                if self._catalog.get(tenant, name) is not None:
                    raise Conflict(
                        f"agent {name!r} comes from a file: change the file, or PUT one of the same name over it",
                        code="agent_of_a_file",
                    )
                raise _unknown(name)
            await self._write(tenant, name, {}, deleted=True)
            self._catalog.drop_tenant(tenant, name)

    def _own(self, tenant: str, name: str) -> bool:
        definition = self._catalog.get(tenant, name)
        return definition is not None and definition.source.kind == TENANT

    async def _write(self, tenant: str, name: str, definition: Mapping[str, Any], *, deleted: bool) -> int:
        now = now_us()
        version = await self._store.version(tenant, name) + 1
        values = {
            "tenant_id": tenant,
            "name": name,
            "version": version,
            "definition": dict(definition),
            "created_at": now,
            "deleted_at": now if deleted else None,
        }
        self._journal.need_room()
        await self._journal.write(Write(table="agents", values=values), timeout_s=None)
        self._versions[tenant, name] = version
        return version

    def _check(self, tenant: str, name: str, expected: Sequence[str]) -> None:
        """Raises `Outdated` unless one of the versions (`*`: any) is that of the tenant's agent; none: nothing is
        expected."""
        if not expected:
            return
        version = self._versions[tenant, name] if self._own(tenant, name) else None
        if version is None or not {"*", str(version)} & set(expected):
            there = "there is none of yours" if version is None else f"it has version {version} now"
            raise Outdated(f"agent {name!r} is not the version that you changed: {there}; read it again")

    def get(self, tenant: str, name: str, parents: Sequence[str] = ()) -> dict[str, Any]:
        """The agent that is in force, with the tools that it has below `parents`, which are named from the root down.
        Raises `NotFound`, `InvalidRequest` for a parent that does not exist."""
        definition = self._catalog.get(tenant, name)
        if definition is None:
            raise _unknown(name)
        above: list[AgentDefinition] = []
        for parent in parents:
            found = self._catalog.get(tenant, parent)
            if found is None:
                raise InvalidRequest(
                    f"parent: there is no agent {parent!r}: GET /v1/agents lists those that exist",
                    code="unknown_agent",
                    errors=[{"at": "parent", "message": "unknown agent"}],
                )
            above.append(found)
        return self._view(definition, tenant, self._agent_tools(tenant), above)

    def list(self, tenant: str) -> dict[str, Any]:
        """Valid agents with their effective tools, shadowed ones, broken files and remarks with file, line, reason."""
        report = self._catalog.report(tenant)
        agent_tools = self._agent_tools(tenant)
        problems = [(problem.severity == "error", problem_view(problem)) for problem in report.problems]
        return {
            "items": [self._view(definition, tenant, agent_tools) for definition in report.agents],
            "next": None,  # all of them
            "shadowed": [
                {
                    "name": item.definition.name,
                    "description": item.definition.description,
                    "source": source_view(item.definition.source),
                    "by": source_view(item.by),
                }
                for item in report.shadowed
            ],
            "broken": [shown for is_error, shown in problems if is_error],
            "warnings": [shown for is_error, shown in problems if not is_error],
        }

    async def reload(self, tenant: str) -> dict[str, Any]:
        """Read the files anew and list what there is."""
        await self.reread()
        return self.list(tenant)

    async def reread(self) -> None:
        """Read the files anew, off the event loop."""
        async with self._reloading:
            await asyncio.to_thread(self._catalog.reload)
            await self._settle()

    def _agent_tools(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """Which agent a name means that an agent has as its tool."""
        found = (self._catalog.get(tenant, name) for name in self._catalog.names(tenant))
        return tool_names(agent for agent in found if agent is not None)

    def _view(
        self,
        definition: AgentDefinition,
        tenant: str,
        agent_tools: Mapping[str, tuple[str, ...]],
        above: Sequence[AgentDefinition] = (),
    ) -> dict[str, Any]:
        """The definition, and what its whitelist comes to here: `effective_tools` are those that a run below these
        agents is given, or one without a parent, `delegation_tools` the names that bring delegation tools,
        `missing_tools` those that do not exist."""
        granted = self._grants.of([*above, definition], agent_tools)
        named, delegation = granted.names, granted.delegation
        own = definition.source.kind == TENANT
        return {
            **self._reader.mapping(definition),
            "mode": definition.mode.value,
            "source": source_view(definition.source),
            "version": self._versions.get((tenant, definition.name)) if own else None,
            "effective_tools": [name for name in named if name in self._tools],
            "delegation_tools": list(delegation),
            "missing_tools": [name for name in named if name not in self._tools and name not in delegation],
        }


def _owned(definition: AgentDefinition, version: int) -> AgentDefinition:
    return replace(definition, source=Source(kind=TENANT, version=version))


def source_view(source: Source) -> dict[str, str | None]:
    """Where a definition came from; `path`: see `near`."""
    return {"kind": source.kind, "path": near(source.path) or None}


def near(path: str) -> str:
    """A path of an operator's file as whoever may read is shown it: one that was given whole loses its beginning, since
    how the server's disk is laid out is nobody's business. The log and `check` name it whole."""
    parts = PurePosixPath(path).parts
    if not path.startswith("/"):
        return path
    kept = 3 if parts[-1] == "SKILL.md" else 2  # the name with its directory, which is what tells two apart
    return path if len(parts) - 1 <= kept else "/".join(("…", *parts[-kept:]))


def problem_view(problem: FileProblem) -> dict[str, Any]:
    """What is wrong with a file, and where."""
    return {"path": near(problem.path), "line": problem.line, "message": problem.message, "key": problem.key}


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no agent {name!r}: GET /v1/agents lists those that exist")
