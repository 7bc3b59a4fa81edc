"""The composition root: the only module that names concrete classes. Builds the service and ends it, in order.

Everything below gets plain values and ports; nothing below sees the settings.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.agent.compaction import Compaction
from app.agent.delegation import Roster
from app.agent.duplicates import DuplicateLimits
from app.agent.errors import SubagentdError, Unavailable
from app.agent.hooks import HookRegistry
from app.agent.live_run import RunnerParts
from app.agent.orders import Pacing
from app.agent.patience import Patience
from app.agent.runs import MemoryState
from app.agent.shared_memories import Load
from app.agent.supervisor import RunSupervisor
from app.agent.tools import OutputLimit, ToolShelf
from app.boxes.directory import Directories
from app.boxes.workspaces import Workspaces
from app.bus.memory import MemoryBus
from app.definitions.catalog import Catalog
from app.definitions.reader import DefinitionReader
from app.definitions.reading import Checks
from app.definitions.watching import Watcher
from app.llm.catalog import Models
from app.masking import ValueMasker
from app.masking.in_force import mask_with
from app.masking.shapes import patterns_of
from app.sessions.access import Access, check_bind
from app.sessions.artifacts import Artifacts
from app.sessions.closing import Closing
from app.sessions.continuing import Continuing
from app.sessions.delegations import Delegations
from app.sessions.explaining import Explaining
from app.sessions.feed import EventFeed
from app.sessions.follow_ups import FollowUps
from app.sessions.idempotency import Idempotency
from app.sessions.journal import TAKE_S, Journal
from app.sessions.opening import Opening
from app.sessions.records import Records
from app.sessions.recovery import Recovery
from app.sessions.rejecting import replacement
from app.sessions.service import Sessions
from app.sessions.services import Services
from app.sessions.skills import SkillListing
from app.sessions.tasks import Retention, Tasks
from app.sessions.tenant_agents import TenantAgents
from app.sessions.turn_requests import Defaults
from app.sessions.untold import Untold
from app.sessions.verifying import Verifying
from app.settings import TOML_FILE, RecoveryMode, Settings
from app.store.agents import SqlAgentStore
from app.store.artifacts import SqlArtifactStore
from app.store.database import Database
from app.store.events import SqlEventLog
from app.store.idempotency import SqlIdempotencyStore
from app.store.keys import SqlKeyStore
from app.store.memories import SqlMemoryStore
from app.store.messages import SqlAuditStore
from app.store.migrate import MigrationError, upgrade
from app.store.runs import SqlRunStore
from app.store.tasks import SqlTaskStore
from app.store.verifying import SqlChainStore
from app.telemetry.metrics import Metrics
from app.tools.function import load_object
from app.tools.mcp_servers import McpServers
from app.tools.schema import JsonSchemaChecker
from app.wiring_definitions import catalog_of, skills_of, watcher_of
from app.wiring_hooks import OwnHooks, directory_of, hooks_of, webhooks_of
from app.wiring_mcp import OwnServers, mcp_groups, mcp_servers, own_server_problem
from app.wiring_models import models_of, secrets_of, texts_of
from app.wiring_permissions import Asking, asking
from app.wiring_tools import commands_of, hiding_of, record_names, record_tools_of, tools_of
from app.wiring_upkeep import Upkeep, upkeep_of

log = logging.getLogger(__name__)

CLOSE_S = 3.0  # for what is still to be stored when the service ends, after the time that a drain has had for it


class Refused(Exception):
    """The service cannot start with these settings; the text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """A service that is ready, and how it ends."""

    services: Services
    database: Database
    models: Models
    watcher: Watcher
    mcp: McpServers
    recovery: Recovery
    upkeep: Upkeep

    async def drain(self, grace_s: float) -> None:
        """Readiness red, streams closed, runs given the grace and then interrupted. Requests may still be answered;
        when this is cancelled, those that wait for the store are."""
        try:
            await self._drain(grace_s)
        except asyncio.CancelledError:
            self.services.journal.give_up()
            raise

    async def _drain(self, grace_s: float) -> None:
        services = self.services
        services.sessions.stopping = True
        services.feed.close()
        services.idempotency.refuse()
        self.recovery.refuse()
        await self.watcher.close()
        await self.upkeep.close()
        await services.access.close()
        await services.sessions.close(grace_s)
        await self.recovery.stop()  # whatever it still reads had the grace as well
        await asyncio.gather(services.delegations.close(), services.idempotency.close())

    async def close(self) -> None:
        """Store what is left and give everything back; the last call."""
        async with AsyncExitStack() as held:  # whatever fails, all the rest is closed
            held.push_async_callback(self.database.close)
            held.push_async_callback(self.models.close)
            held.push_async_callback(self.mcp.close)
            await self._store_what_is_left()

    async def _store_what_is_left(self) -> None:
        until = asyncio.get_running_loop().time() + CLOSE_S
        async with AsyncExitStack() as held:
            for last in (
                self.services.journal.close,
                self.services.sessions.webhooks.close,
                partial(self.services.sessions.close, 0),
                self.recovery.close,
                self.watcher.close,
                self.upkeep.close,
            ):
                held.push_async_callback(_until, until, last)


async def _until(moment: float, closing: Callable[[], Awaitable[None]]) -> None:
    """Close something, for which there is time up to a moment: each is broken off by itself, since a limit around all
    of them would break off only one."""
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout_at(moment):
            await closing()


async def build(settings: Settings) -> Wired:
    """Everything, ready to serve: migrated, recovered, definitions read. Raises `Refused`."""
    try:
        return await _build(settings)
    except (SubagentdError, MigrationError, OSError, ValueError) as error:
        raise Refused(f"the service cannot start: {error}") from error


async def _build(settings: Settings) -> Wired:
    patterns = patterns_of(settings.masking.known, settings.masking.patterns)
    masker = ValueMasker(secrets_of(settings), patterns)
    mask_with(masker)
    database = Database(
        settings.store.url, synchronous=settings.store.synchronous, busy_timeout_ms=settings.store.busy_timeout_ms
    )
    await database.lock()  # first: nothing is changed under a server that is running
    try:
        await asyncio.to_thread(upgrade, settings.store.url, locked=True)
        await database.open()
        return await _assemble(settings, masker, database)
    except BaseException:  # whatever it is: the lock and the connections are given back
        await database.close()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What the services stand on."""

    settings: Settings
    masker: ValueMasker
    database: Database
    store: SqlRunStore
    tasks: SqlTaskStore
    retention: Retention
    event_log: SqlEventLog
    bus: MemoryBus
    metrics: Metrics
    journal: Journal
    tools: ToolShelf
    artifacts: Artifacts
    catalog: Catalog
    definitions: DefinitionReader
    opening: Opening
    roster: Roster
    models: Models
    asking: Asking
    hooks: HookRegistry
    own_hooks: OwnHooks


def _ground(settings: Settings, masker: ValueMasker, database: Database) -> _Ground:
    event_log = SqlEventLog(database.reader)
    bus, metrics = MemoryBus(settings.stream.buffer_bytes), Metrics()
    skills = skills_of(settings)
    workspaces = Workspaces(_root(settings, database))
    directories = Directories(lambda path: workspaces.open(path).handle)
    given = tools_of(settings, skills, directories, workspaces)
    known = record_names(settings).union((tool.spec.name for tool in given), mcp_groups(settings))
    own_hooks = OwnHooks(settings, masker)
    catalog = catalog_of(settings, known, skills, checks_with(own_hooks))
    definitions, models = DefinitionReader(known, catalog.tool_names), models_of(settings)
    if settings.models.default:
        models.resolve(settings.models.default)  # a name that means nothing is said now, not by the first run
    journal = Journal(
        database.writer(replacement, audit_key=audit_key_of(settings)),
        bus,
        event_log,
        masker=masker,
        linger_ms=settings.store.linger_ms,
        max_bytes=settings.store.max_waiting_bytes,
        listeners=(metrics.observe,),
    )
    artifacts = Artifacts(SqlArtifactStore(database.reader), journal)
    return _Ground(
        settings=settings,
        masker=masker,
        database=database,
        store=SqlRunStore(database.reader),
        tasks=SqlTaskStore(database.reader),
        retention=Retention(hours=settings.tasks.retention_h),
        event_log=event_log,
        bus=bus,
        metrics=metrics,
        journal=journal,
        tools=ToolShelf([*given, *record_tools_of(settings, database, journal, artifacts)]),
        artifacts=artifacts,
        catalog=catalog,
        definitions=definitions,
        opening=Opening(definitions, workspaces, texts=texts_of(settings)),
        roster=Roster(catalog),
        models=models,
        asking=asking(settings.permissions, known, journal, database.reader, definitions, directories),
        hooks=hooks_of(settings, masker),
        own_hooks=own_hooks,
    )


def checks_with(hooks: OwnHooks) -> Checks:
    """Whether what agent files bring along can be used by this service."""
    return Checks(hook=hooks.problem, server=own_server_problem)


def _root(settings: Settings, database: Database) -> Path:
    """The root of all workspaces. The service's own files belong outside: what agents may write could otherwise say how
    it starts the next time."""
    root = settings.tools.workspace
    if "workspace" not in settings.tools.model_fields_set:
        root.mkdir(exist_ok=True)
    for path in (Path(TOML_FILE), database.location.path):
        if path is not None and path.resolve().is_relative_to(root.resolve()):
            log.warning(
                "%s lies in the workspace %s, where agents with tools that write may change it: keep it elsewhere, or "
                "name another directory with --workspace",
                path,
                root,
            )
    return root


def _supervisor(ground: _Ground) -> RunSupervisor:
    settings, opening, loop = ground.settings, ground.opening, ground.settings.loop
    parts = RunnerParts(
        recorder=ground.journal,
        models=ground.models,
        tools=ground.tools,
        roster=ground.roster,
        checker=JsonSchemaChecker(),
        masker=ground.masker,
        output_limit=OutputLimit(
            max_chars=settings.tools.max_output_chars,
            head_chars=settings.tools.output_head_chars,
            tail_chars=settings.tools.output_tail_chars,
        ),
        workspace=lambda session: opening.workspace(session.tenant, session.workspace),
        find=load_object,
        load=_memory_loader(ground),
        records=Records(ground.journal, ground.store, ground.tasks, ground.retention),
        approvals=ground.asking.approvals,
        parser=ground.asking.parser,
        resolve_path=ground.asking.resolver,
        hides=hiding_of(ground.tools),
        pacing=Pacing(**settings.handoff.model_dump()),
        patience=Patience(**loop.model_dump(include={"retries", "backoff_ms", "max_backoff_ms", "max_wait_ms"})),
        duplicates=DuplicateLimits(repeats=loop.duplicate_repeats, blocks=loop.duplicate_blocks),
        compaction=Compaction(**settings.compaction.model_dump()),
        hooks=ground.hooks,
        own_hooks=ground.own_hooks,
        skills=ground.catalog.skills,
        record_model_io=settings.debug.record_model_io,
        default_subagent=settings.default_subagent,
        subagent_steps=settings.limits.subagent_steps,
        max_steps=settings.limits.max_steps,
        concurrent_runs=settings.limits.concurrent_runs,
        concurrent_children=settings.limits.concurrent_children,
        interrupt_grace_ms=settings.tools.interrupt_grace_ms,
        inherit_tools=settings.tools.inherit,
    )
    return RunSupervisor(parts, ground.journal.release)


def _memory_loader(ground: _Ground) -> Load:
    """Reads a memory with all that was recorded before."""
    memories = SqlMemoryStore(ground.database.reader)

    async def load(tenant: str, memory_id: str) -> MemoryState:
        await ground.journal.flush(TAKE_S)
        return await memories.load(tenant, memory_id)

    return load


def _sessions(ground: _Ground, supervisor: RunSupervisor) -> Sessions:
    settings = ground.settings
    return Sessions(
        supervisor=supervisor,
        journal=ground.journal,
        store=ground.store,
        roster=ground.roster,
        models=ground.models,
        opening=ground.opening,
        defaults=Defaults(
            agent=settings.default_agent,
            parent_steps=settings.limits.parent_steps,
            max_steps=settings.limits.max_steps,
        ),
        inbox=ground.asking.inbox,
        policies=ground.asking.policies,
        webhooks=webhooks_of(settings, ground.journal, ground.database.reader, ground.masker, ground.metrics),
    )


def _tenant_agents(ground: _Ground, own_servers: OwnServers) -> TenantAgents:
    return TenantAgents(
        ground.catalog,
        ground.definitions,
        SqlAgentStore(ground.database.reader),
        ground.journal,
        ground.tools,
        ground.masker,
        ground.settings.tools.inherit,
        own_servers.settle,
    )


async def _assemble(settings: Settings, masker: ValueMasker, database: Database) -> Wired:
    """The services on their ground: definitions are read, what a crash left open is closed, then it may be asked."""
    ground = _ground(settings, masker, database)
    await asyncio.to_thread(ground.catalog.reload)
    supervisor = _supervisor(ground)
    sessions = _sessions(ground, supervisor)
    mcp = mcp_servers(settings, ground.tools, ground.journal, database.reader, masker)
    own_servers = OwnServers(mcp, lambda: ground.catalog.own_servers, masker.learn)
    agents = _tenant_agents(ground, own_servers)
    key = settings.http.key.get_secret_value() if settings.http.key else None
    access = Access(SqlKeyStore(database.reader), ground.journal, key)
    await agents.load()
    await access.load()
    check_bind(settings.http.host, has_keys=access.has_keys)
    commands = await commands_of(ground.tools)
    watcher = watcher_of(settings, ground.catalog, agents.reread)
    delegations = _delegations(ground, supervisor, sessions)
    recovery = _recovery(settings, ground, sessions, delegations, supervisor)
    upkeep = upkeep_of(settings, ground.journal, database.reader)
    services = Services(
        sessions=sessions,
        delegations=delegations,
        follow_ups=FollowUps(sessions=sessions, delegations=delegations, supervisor=supervisor, journal=ground.journal),
        tasks=_tasks(ground, supervisor, sessions),
        idempotency=_idempotency(ground),
        feed=_feed(ground),
        inbox=ground.asking.inbox,
        explaining=_explaining(ground, sessions),
        audit=SqlAuditStore(database.reader),
        verifying=_verifying(settings, database),
        artifacts=ground.artifacts,
        access=access,
        agents=agents,
        skills=SkillListing(ground.catalog.skills),
        models=ground.models,
        tools=ground.tools,
        journal=ground.journal,
        supervisor=supervisor,
        metrics=ground.metrics,
        check_store=database.check,
        commands=commands,
        mcp=mcp,
        indexing=upkeep.indexing,
        data_path=database.location.path,
    )
    await sessions.webhooks.start()
    mcp.start()
    await own_servers.settle()
    await recovery.run()
    await upkeep.start()
    watcher.start()
    return Wired(
        services=services,
        database=database,
        models=ground.models,
        recovery=recovery,
        watcher=watcher,
        mcp=mcp,
        upkeep=upkeep,
    )


def audit_key_of(settings: Settings) -> bytes | None:
    """The key of the seals, if there is one."""
    return settings.audit.key.get_secret_value().encode() if settings.audit.key else None


def _verifying(settings: Settings, database: Database) -> Verifying:
    key = audit_key_of(settings)
    return Verifying(SqlChainStore(database.looking, key), keyed=key is not None)


def _idempotency(ground: _Ground) -> Idempotency:
    keep_s = ground.settings.http.idempotency_h * 3600
    return Idempotency(SqlIdempotencyStore(ground.database.reader), ground.journal, keep_s)


def _recovery(
    settings: Settings, ground: _Ground, sessions: Sessions, delegations: Delegations, supervisor: RunSupervisor
) -> Recovery:
    """What becomes of runs that another process has left open; sessions wait for that."""
    recovery = Recovery(
        ground.store,
        ground.journal,
        ground.hooks,
        directory_of(ground.opening),
        partial(ground.own_hooks.of_files, ground.catalog.of_files),
    )
    if settings.recovery.mode is RecoveryMode.CONTINUE:
        supervisor.drains = True
        closing, attempts = Closing(ground.journal), settings.recovery.max_attempts
        recovery.going_on = Continuing(sessions, delegations, supervisor, closing, attempts)
    recovery.tell = Untold(sessions, supervisor).tell
    sessions.gate = ground.asking.inbox.gate = recovery.ready
    return recovery


def _delegations(ground: _Ground, supervisor: RunSupervisor, sessions: Sessions) -> Delegations:
    return Delegations(
        sessions=sessions,
        supervisor=supervisor,
        journal=ground.journal,
        store=ground.store,
        roster=ground.roster,
        models=ground.models,
        reader=ground.definitions,
    )


def _tasks(ground: _Ground, supervisor: RunSupervisor, sessions: Sessions) -> Tasks:
    return Tasks(
        sessions=sessions,
        supervisor=supervisor,
        journal=ground.journal,
        store=ground.tasks,
        retention=ground.retention,
    )


def _explaining(ground: _Ground, sessions: Sessions) -> Explaining:
    return Explaining(
        sessions=sessions,
        inbox=ground.asking.inbox,
        roster=ground.roster,
        opening=ground.opening,
        reader=ground.definitions,
        tools=ground.tools,
        parser=ground.asking.parser,
        resolver=ground.asking.resolver,
        hides=hiding_of(ground.tools),
        agent=ground.settings.default_agent,
        inherit=ground.settings.tools.inherit,
        default_subagent=ground.settings.default_subagent,
    )


def _feed(ground: _Ground) -> EventFeed:
    stream = ground.settings.stream
    return EventFeed(
        ground.event_log,
        ground.bus,
        ground.journal,
        max_readers=stream.max_readers,
        max_per_owner=stream.max_per_owner,
        cursor_every_s=stream.heartbeat_s,
    )
