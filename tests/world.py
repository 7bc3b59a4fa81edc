"""The whole service in this process, without HTTP: real database file, real writer, scripted model, real tools.

    async with world(folder) as w:
        run = await w.run(task("Hello."))
        assert (await w.finished(run)).output == "Hello."

When the world ends, everything is closed and the log of every session must pass `tests.strict.log_problems`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.agent.admission import CONCURRENT_CHILDREN, CONCURRENT_RUNS
from app.agent.compaction import Compaction
from app.agent.delegation import Roster
from app.agent.duplicates import DuplicateLimits
from app.agent.events import StoredEvent
from app.agent.hooks import NO_HOOKS, HookRegistry
from app.agent.interruption import GRACE_MS
from app.agent.live_run import RunnerParts
from app.agent.orders import Pacing
from app.agent.patience import ModelGates, Patience
from app.agent.runs import MemoryState, Run
from app.agent.supervisor import RunSupervisor
from app.agent.tools import OutputLimit, Tool, ToolRegistry
from app.boxes.directory import Directories
from app.boxes.workspaces import Workspaces
from app.bus.memory import MAX_BYTES, MemoryBus
from app.definitions.catalog import Catalog
from app.definitions.reader import DefinitionReader
from app.llm.catalog import Models
from app.llm.profile import Profile
from app.masking import ValueMasker
from app.sessions.closing import Closing
from app.sessions.continuing import Continuing
from app.sessions.delegations import Delegated, Delegations
from app.sessions.feed import EventFeed, View
from app.sessions.inbox import Inbox
from app.sessions.journal import Journal
from app.sessions.opening import Opening
from app.sessions.ports import EventWriter
from app.sessions.records import Records
from app.sessions.recovery import Recovery
from app.sessions.rejecting import replacement
from app.sessions.requests import DelegationInput, RunInput, SessionInput
from app.sessions.service import Sessions
from app.sessions.tasks import Retention
from app.sessions.turn_requests import Defaults
from app.sessions.untold import Untold
from app.sessions.webhooks import Webhooks
from app.settings_rules import Permissions
from app.store.database import Database
from app.store.events import SqlEventLog
from app.store.memories import SqlMemoryStore
from app.store.runs import SqlRunStore
from app.store.tables import metadata
from app.store.tasks import SqlTaskStore
from app.store.webhooks import SqlWebhookStore
from app.tools.builtin import builtin_tools
from app.tools.function import load_object
from app.tools.schema import JsonSchemaChecker
from app.wire import decode, event_json
from app.wiring_permissions import Asking, asking
from tests import plan
from tests.migrated import migrated
from tests.strict import log_problems

WAIT_S = 10.0
QUICK = Pacing(backoff_ms=1, max_backoff_ms=4)
ROOT = Path(__file__).resolve().parent
Wrap = Callable[[EventWriter], EventWriter]


def agent(name: str, **fields: Any) -> dict[str, Any]:
    """An inline definition; without `tools` it may delegate and read."""
    given = {"tools": ["Agent", "read_file", "glob", "grep"], "mode": "all", **fields}
    return {"name": name, "description": f"The {name}.", "prompt": f"You are {name}.", **given}


class World:
    """One running service. `requests`: every request that the plan script was asked."""

    def __init__(self, folder: Path, database: Database, tenant: str) -> None:
        self.folder = folder
        self.database = database
        self.tenant = tenant
        self.requests = plan.SEEN
        self.tools: tuple[str, ...] = ()
        self.store = SqlRunStore(database.reader)
        self.task_store = SqlTaskStore(database.reader)
        self.memories = SqlMemoryStore(database.reader)
        self.log = SqlEventLog(database.reader)
        self.bus: MemoryBus
        self.journal: Journal
        self.models: Models
        self.supervisor: RunSupervisor
        self.sessions: Sessions
        self.delegations: Delegations
        self.feed: EventFeed
        self.asking: Asking
        self.recovery: Recovery
        self.inbox: Inbox

    async def load(self, tenant: str, memory_id: str) -> MemoryState:
        """A memory with all that was recorded before."""
        await self.journal.flush()
        return await self.memories.load(tenant, memory_id)

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────

    def node(self, name: str = "node", **fields: Any) -> dict[str, Any]:
        """A definition with every tool of this world."""
        return agent(name, **{"tools": ["Agent", "read_file", "glob", "grep", *self.tools], **fields})

    async def session(self, **fields: Any) -> str:
        """A session whose lead and only subagent is `node`, which may nest three deep; returns its id."""
        given = {
            "agent": "node",
            "agents": [self.node()],
            "policy": {"max_depth": 3},
            "surfaces": ["dispatch"],
            **fields,
        }
        return str((await self.sessions.create(self.tenant, SessionInput(**given)))["id"])

    async def turn(self, session_id: str, text: str, **limits: Any) -> Run:
        """Start a turn of a session."""
        return (await self.sessions.start(self.tenant, session_id, RunInput(input=text, **limits))).run

    async def run(self, text: str, *, limits: Mapping[str, Any] | None = None, **session: Any) -> Run:
        """Start a turn of a new session."""
        return await self.turn(await self.session(**session), text, **(limits or {}))

    async def delegate(self, text: str, **fields: Any) -> Delegated:
        """Start a direct delegation to `node`."""
        given = {"agent": self.node(surfaces=["dispatch"]), "task": text, **fields}
        return await self.delegations.start(self.tenant, DelegationInput(**given))

    # ── waiting and looking ─────────────────────────────────────────────────────────────────────────────────────

    async def row(self, run: Run | str, wait_s: float = 0.0) -> dict[str, Any]:
        """A run as a client sees it."""
        return await self.sessions.run(self.tenant, run if isinstance(run, str) else run.id, wait_s)

    async def finished(self, run: Run | str) -> dict[str, Any]:
        """Wait until a run is final; it as a client sees it."""
        row = await self.row(run, WAIT_S)
        assert row["ended_at"] is not None, row
        return row

    async def until(
        self, session_id: str, kind: str, count: int = 1, where: Callable[[Any], bool] | None = None
    ) -> Any:
        """Wait for the nth event of a type in a session; returns it."""
        view = View(tenant=self.tenant, session_id=session_id)
        async with asyncio.timeout(WAIT_S), contextlib.aclosing(frames(self.feed, view)) as seen:
            async for frame in seen:
                if frame["event"] == kind and (where is None or where(frame["data"])):
                    count -= 1
                    if count == 0:
                        return frame["data"]
        raise AssertionError(f"the stream ended before {kind}")

    async def events(self, session_id: str, *kinds: str) -> list[dict[str, Any]]:
        """Everything that the log holds of a session, or what is of these types."""
        await self.journal.flush()
        found = await stored_events(self.log, self.tenant, session_id)
        return [event for event in found if not kinds or event["type"] in kinds]

    async def rows(self, table: str, **equal: Any) -> list[dict[str, Any]]:
        """The rows of a table whose columns have these values, by their key."""
        await self.journal.flush()
        found = metadata.tables[table]
        wanted = [found.c[name] == value for name, value in equal.items()]
        return await self.database.reader.rows(select(found).where(*wanted).order_by(*found.primary_key.columns))

    async def verify(self) -> None:
        """Every session that is not erased tells the truth about itself."""
        for row in await self.rows("sessions", erased_at=None):
            events = await stored_events(self.log, row["tenant_id"], row["id"])
            problems = log_problems(events, quiet=not self.supervisor.busy(row["id"]))
            assert not problems, "\n".join(problems) + describe(events)


async def stored_events(log: SqlEventLog, tenant: str, session_id: str) -> list[dict[str, Any]]:
    """The whole log of a session."""
    found: list[StoredEvent] = []
    while page := await log.page(tenant, session_id, after=found[-1].seq if found else 0):
        found.extend(page)
    return [decode(event_json(event.envelope, event.data)) for event in found]


def describe(events: Sequence[Mapping[str, Any]]) -> str:
    """A log as a reader of a failed test wants it."""
    lines = [f"{e['id']:4} {'  ' * e.get('depth', 0)}{e['type']} {str(e['data'])[:80]}" for e in events]
    return "\n" + "\n".join(lines)


async def frames(feed: EventFeed, view: View, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
    """Follow a view: each frame as `{"event", "id", "data"}`; comments and `retry` are left out."""
    async with contextlib.aclosing(feed.follow(view, after)) as chunks:
        async for chunk in chunks:
            for frame in parsed(chunk):
                yield frame


def parsed(chunk: bytes) -> list[dict[str, Any]]:
    """The frames of some whole server-sent events."""
    found = []
    for block in chunk.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields or "id" in fields:
            data = decode(fields["data"]) if "data" in fields else None
            number = int(fields["id"]) if "id" in fields else None
            found.append({"event": fields.get("event"), "id": number, "data": data})
    return found


@contextlib.asynccontextmanager
async def world(
    folder: Path,
    *,
    tools: Sequence[Tool] = (),
    script: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    secrets: Sequence[str] = (),
    wrap: Wrap | None = None,
    max_bytes: int = 64 << 20,
    buffer_bytes: int = MAX_BYTES,
    output_limit: OutputLimit | None = None,
    profiles: Mapping[str, Profile] | None = None,
    pacing: Pacing | None = None,
    default_subagent: str = "node",
    compaction: Compaction | None = None,
    patience: Patience | None = None,
    gates: ModelGates | None = None,
    duplicates: DuplicateLimits | None = None,
    interrupt_grace_ms: int = GRACE_MS,
    concurrent_runs: int = CONCURRENT_RUNS,
    concurrent_children: int = CONCURRENT_CHILDREN,
    hooks: HookRegistry = NO_HOOKS,
    permissions: Permissions | None = None,
    tenant: str = "default",
    recover: bool = True,
    go_on: bool = False,
    max_attempts: int = 5,
    verify: bool = True,
) -> AsyncIterator[World]:
    """Build and end a service in `folder`; a second world in the same folder is the service after a restart.

    `go_on`: what was in flight is gone on with, else it is closed.
    `script`: YAML of the scripted model instead of `tests.plan`; `base_url`: an OpenAI stub instead of both.
    """
    path = folder / "world.db"
    if not path.exists():
        migrated(path)
        (folder / "workspace").mkdir()
        (folder / "scripts").mkdir()
        (folder / "scripts" / "plan.py").write_text("from tests.plan import reply\n")
    if script is not None:
        (folder / "scripts" / "play.yaml").write_text(script)
    plan.SEEN.clear()
    database = Database(path, synchronous="OFF")
    await database.open()
    made = World(folder, database, tenant)
    chosen = model or ("openai:stub" if base_url else "scripted:play" if script else "scripted:plan")
    made.models = Models(
        default=chosen,
        profiles=profiles,
        scripts_dir=folder / "scripts",
        openai_base_url=base_url,
        openai_api_key="key-of-the-stub",
    )
    made.tools = tuple(tool.spec.name for tool in tools)
    own: dict[str, Any] = {
        "output_limit": output_limit or OutputLimit(),
        "pacing": pacing or QUICK,
        "default_subagent": default_subagent,
        "compaction": compaction or Compaction(),
        # a test that wants a step tried again, or calls counted, says so
        "patience": patience or Patience(retries=0),
        "gates": gates or ModelGates(),
        "duplicates": duplicates or DuplicateLimits(repeats=10_000),
        "interrupt_grace_ms": interrupt_grace_ms,
        "concurrent_runs": concurrent_runs,
        "concurrent_children": concurrent_children,
        "hooks": hooks,
    }
    registry = ToolRegistry((*builtin_tools(), *tools))
    _assemble(made, registry, secrets, wrap, max_bytes, buffer_bytes, own, permissions or Permissions())
    made.recovery = Recovery(made.store, made.journal, hooks, lambda row: str(folder / "workspace"))
    if go_on:
        made.supervisor.drains = True
        made.recovery.going_on = Continuing(
            made.sessions, made.delegations, made.supervisor, Closing(made.journal), max_attempts
        )
    made.recovery.tell = Untold(made.sessions, made.supervisor).tell
    made.sessions.gate = made.inbox.gate = made.recovery.ready
    if recover:
        await made.recovery.run()
        await made.recovery.settled()
    try:
        yield made
        await _ended(made, verify=verify)
    finally:
        async with asyncio.timeout(WAIT_S):
            await made.recovery.close()
            await made.sessions.close(0)
            await made.journal.close()
        await made.models.close()
        await database.close()


async def _ended(made: World, *, verify: bool) -> None:
    """Nothing may be left over, and every log must be true."""
    async with asyncio.timeout(WAIT_S):
        made.sessions.stopping = True
        made.recovery.refuse()
        await made.sessions.close(0)
        await made.recovery.stop()
        await made.delegations.close()
        await made.journal.flush()
    if verify:
        await made.verify()
    left = (made.supervisor.in_flight, made.feed.readers, made.journal.waiting_bytes)
    assert left == (0, 0, 0), left
    if isinstance(made.recovery.going_on, Continuing):
        assert not made.recovery.going_on._left
    assert (made.supervisor.slots.in_use, made.supervisor.slots.waiting) == (0, 0)


def _assemble(
    made: World,
    tools: ToolRegistry,
    secrets: Sequence[str],
    wrap: Wrap | None,
    max_bytes: int,
    buffer_bytes: int,
    own: Mapping[str, Any],
    permissions: Permissions,
) -> None:
    database, masker = made.database, ValueMasker(secrets)
    writer: EventWriter = database.writer(replacement)
    made.bus = MemoryBus(buffer_bytes)
    made.journal = Journal(
        writer if wrap is None else wrap(writer), made.bus, made.log, masker=masker, max_bytes=max_bytes
    )
    known = frozenset(tools)
    catalog = Catalog(known_tools=known)
    catalog.reload()
    definitions = DefinitionReader(known, catalog.tool_names)
    workspaces = Workspaces(made.folder / "workspace")
    opening = Opening(definitions, workspaces)
    roster = Roster(catalog)
    made.asking = asking(permissions, known, made.journal, database.reader, definitions, Directories())
    made.inbox = made.asking.inbox
    made.supervisor = RunSupervisor(
        RunnerParts(
            recorder=made.journal,
            models=made.models,
            tools=tools,
            roster=roster,
            checker=JsonSchemaChecker(),
            masker=masker,
            workspace=lambda session: opening.workspace(session.tenant, session.workspace),
            find=load_object,
            load=made.load,
            records=Records(made.journal, made.store, made.task_store, Retention()),
            approvals=made.asking.approvals,
            parser=made.asking.parser,
            resolve_path=made.asking.resolver,
            **own,
        ),
        made.journal.release,
    )
    made.sessions = Sessions(
        supervisor=made.supervisor,
        journal=made.journal,
        store=made.store,
        roster=roster,
        models=made.models,
        opening=opening,
        defaults=Defaults(agent="lead", parent_steps=25),
        inbox=made.inbox,
        policies=made.asking.policies,
        webhooks=Webhooks(made.journal, SqlWebhookStore(database.reader)),
    )
    made.delegations = Delegations(
        sessions=made.sessions,
        supervisor=made.supervisor,
        journal=made.journal,
        store=made.store,
        roster=roster,
        models=made.models,
        reader=definitions,
    )
    made.feed = EventFeed(made.log, made.bus, made.journal)
