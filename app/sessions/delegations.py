"""Delegations: one task for one subagent, for a caller that has no parent run here (spec 3.6).

The same core, policy, events and audit as a model's delegation. Knows no HTTP and no SQL.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.agent.chat import ModelCatalog
from app.agent.definition import AgentDefinition, tool_name_of
from app.agent.delegation import Roster, chosen
from app.agent.errors import Denied, InvalidRequest, NotFound
from app.agent.orders import DIRECT, Delegator, HandoffOrder, HandoffResult
from app.agent.policy import HandoffPolicy
from app.agent.runs import HandoffStatus, RunStore, Session
from app.agent.supervisor import RunSupervisor
from app.sessions.feed import View
from app.sessions.journal import TAKE_S, Journal
from app.sessions.requests import AgentReader, DelegationInput, SessionInput, policy_of
from app.sessions.service import Sessions
from app.sessions.views import handoff_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """A delegation under way. `after`: its events begin behind this number; `ids`: handoff and run."""

    session: Session
    after: int
    ids: asyncio.Future[tuple[str, str | None]]
    result: asyncio.Task[HandoffResult]

    @property
    def handoff_id(self) -> str:
        """Its id; known by the time that `Delegations.start` returns."""
        return self.ids.result()[0]


class Delegations:
    """Starts delegations and reads them back. One per process."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        supervisor: RunSupervisor,
        journal: Journal,
        store: RunStore,
        roster: Roster,
        models: ModelCatalog,
        reader: AgentReader,
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._journal = journal
        self._store = store
        self._roster = roster
        self._models = models
        self._reader = reader
        self._tasks: set[asyncio.Task[HandoffResult]] = set()

    async def start(self, tenant: str, given: DelegationInput) -> Delegated:
        """Start a delegation; it goes on when the caller goes away. Its start is stored when this returns."""
        inline = None if isinstance(given.agent, str) else dict(given.agent)
        own = _session_for(given, inline)
        if given.session_id is None:
            session = self._sessions.draft(tenant, own, lead=False)
        else:
            session = await self._sessions.open_for_work(tenant, given.session_id)
        by, order = self._order(session, given, inline)
        if given.session_id is None:
            self._sessions.begin(session, own)
        await self._journal.open(session.tenant, session.id)
        after = self._journal.recorded(session.id) if given.session_id is not None else 0
        ids: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._carry_out(by, order, ids), name="delegation")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((ids, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()  # raises what kept it from starting
        await self._journal.flush(TAKE_S)
        return Delegated(session=session, after=after, ids=ids, result=task)

    def _order(
        self, session: Session, given: DelegationInput, inline: Mapping[str, Any] | None
    ) -> tuple[Delegator, HandoffOrder]:
        """Everything that can be refused is refused here."""
        inherited = {d.tool_name for d in session.inline.values() if d.tool_name}
        names = self._reader.tool_names([] if inline is None else [inline], session.tenant) | inherited
        definition = self._target(session, given.agent, inline, names)
        policy = HandoffPolicy().replaced(definition.policy).replaced(policy_of(self._reader, given.policy, "policy"))
        # what a caller says itself holds against the definition, as a session's model does against its lead's
        if given.model is not None:
            definition = replace(definition, model=given.model)
        if given.thinking is not None:
            definition = replace(definition, thinking=given.thinking)
        model = given.model or session.model
        own = None if given.budget is None else self._reader.budget(given.budget, "budget")
        schema = None if given.output_schema is None else self._reader.schema(given.output_schema, "output_schema")
        rules = None if given.permissions is None else self._reader.permissions(given.permissions, "permissions")
        if definition.runner is None:
            self._models.resolve(definition.model or model)
        limits = [limits for limits in (definition.budget, policy.budget, own) if limits is not None]
        self._sessions.check_fallbacks(policy)
        self._sessions.check_prices(session, limits, [(definition, definition.model or model)])
        order = HandoffOrder(
            tool=_tool_name(definition),
            surface=DIRECT,
            definition=definition,
            task=given.task,
            context=given.context or "",
            name=given.name,
            max_steps=self._sessions.steps(given.max_steps),
            tools=None if given.tools is None else self._reader.tools(given.tools, "tools", names),
            timeout_ms=given.timeout_ms,
            deadline_ms=given.deadline_ms,
            session_key=given.session_key,
            budget=own,
            output_schema=schema,
        )
        by = Delegator(
            session=session,
            run=None,
            policy=policy,
            surfaces=chosen(session.surfaces),
            model=model,
            thinking=session.thinking if given.thinking is None else given.thinking,
            parallel_tool_calls=session.parallel_tool_calls is not False,
            permissions=self._sessions.policies.caller(session, rules),
            find=lambda name: self._roster.find(session, name),
        )
        return by, order

    def _target(
        self,
        session: Session,
        agent: str | Mapping[str, Any],
        inline: Mapping[str, Any] | None,
        tool_names: frozenset[str],
    ) -> AgentDefinition:
        if inline is not None:
            return self._reader.definition(inline, "agent", agent_tools=tool_names)
        definition = self._roster.find(session, str(agent))
        if definition is None:
            raise InvalidRequest(
                f"there is no agent {agent!r}: GET /v1/agents lists those that exist",
                code="unknown_agent",
                errors=[{"at": "agent", "message": "unknown agent"}],
            )
        return definition

    async def _carry_out(
        self, by: Delegator, order: HandoffOrder, ids: asyncio.Future[tuple[str, str | None]]
    ) -> HandoffResult:
        async with self._sessions.opened(by.session):
            await self._sessions.open_for_work(by.session.tenant, by.session.id)  # it may have been closed meanwhile
            by = replace(by, budget=self._supervisor.budget(by.session.id))
            handoffs = self._supervisor.handoffs
            result = await handoffs.delegate(by, order, lambda handoff, run: ids.set_result((handoff, run)))
        if not ids.done():
            ids.set_result((result.handoff_id, None))
        await self._journal.flush()
        return result

    async def result(self, tenant: str, delegated: Delegated) -> dict[str, Any]:
        """Wait for the end. Raises `Denied` when it was not admitted; a failed child is a result."""
        ended = await asyncio.shield(delegated.result)
        if ended.status is HandoffStatus.DENIED:
            reason = ended.error.message if ended.error else "denied"
            raise Denied(f"the delegation was denied: {reason}", code="handoff_denied", handoff_id=ended.handoff_id)
        return await self.get(tenant, ended.handoff_id)

    async def get(self, tenant: str, handoff_id: str) -> dict[str, Any]:
        """A delegation as a client sees it, also while it goes on."""
        row = await self._row(tenant, handoff_id)
        return handoff_view(row, await self._store.handoff_runs(tenant, handoff_id))

    async def _row(self, tenant: str, handoff_id: str) -> Mapping[str, Any]:
        await self._journal.settle()
        row = await self._store.handoff(tenant, handoff_id)
        if row is None:
            raise NotFound(f"there is no delegation {handoff_id!r}")
        return row

    async def stream(self, tenant: str, handoff_id: str) -> View:
        """The view of a delegation: its own two events and everything of its attempts."""
        row = await self._row(tenant, handoff_id)
        runs = await self._store.handoff_runs(tenant, handoff_id)
        return View(
            tenant=tenant,
            session_id=row["session_id"],
            handoff_id=handoff_id,
            paths=tuple(tuple(run["path"]) for run in runs),
            ended_seq=row["end_seq"],
        )

    async def close(self) -> None:
        """Wait for what is still being told; the runs themselves are the supervisor's to end."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)


def _session_for(given: DelegationInput, inline: Mapping[str, Any] | None) -> SessionInput:
    """The session that is made for a delegation without one."""
    return SessionInput(
        user=given.user,
        metadata=given.metadata,
        model=given.model,
        workspace=given.workspace,
        texts=given.texts,
        agents=None if inline is None else [inline],
    )


def _tool_name(definition: AgentDefinition) -> str:
    """By which name the policy's lists know the agent; one that cannot have a tool name is known as `delegate`."""
    try:
        return tool_name_of(definition)
    except ValueError:
        return "delegate"
