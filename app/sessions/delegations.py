"""Delegations: one task for one subagent, for a caller that has no parent run here (spec 3.6).

The same core, policy, events and audit as a model's delegation. Knows no HTTP and no SQL.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from app.agent.chat import ModelCatalog
from app.agent.definition import AgentDefinition, tool_name_of
from app.agent.delegation import Roster, chosen
from app.agent.errors import Conflict, Denied, InvalidRequest, NotFound, Unavailable
from app.agent.open_handoff import OpenHandoff
from app.agent.orders import DIRECT, MEMORY_BUSY, Delegator, HandoffOrder, HandoffResult, ResumePoint
from app.agent.policy import HandoffPolicy
from app.agent.run_ports import RunStore
from app.agent.runs import HandoffStatus, Run, Session
from app.agent.supervisor import RunSupervisor
from app.sessions.closing import run_of
from app.sessions.feed import View
from app.sessions.journal import TAKE_S, Journal
from app.sessions.requests import AgentReader, DelegationInput, SessionInput, policy_of
from app.sessions.service import Sessions
from app.sessions.views import handoff_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """A delegation under way. `after`: its events begin behind this number; `ids`: handoff and run; `background`:
    nobody waits for it."""

    session: Session
    background: bool
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
        self._sessions.webhooks.check(given.webhook)
        inline = dict(given.agent) if isinstance(given.agent, Mapping) else None
        own = _session_for(given, inline)
        there = await self._session_of(tenant, given)
        session = there or self._sessions.draft(tenant, own, lead=False)
        point = None
        if given.resume is not None:
            point = await self._supervisor.handoffs.open.resume_point(session, given.resume)
        by, order = self._order(session, given, inline, point)
        background = order.definition.background if given.background is None else given.background
        if there is None:
            self._sessions.begin(session, own)
        await self._journal.open(session.tenant, session.id)
        after = 0 if there is None else self._journal.recorded(session.id)
        ids: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
        carried = self._carry_out(by, order, ids, given.webhook, background=background)
        task = asyncio.create_task(carried, name="delegation")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait((ids, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()  # raises what kept it from starting
        await self._journal.flush(TAKE_S, of=session.id)
        return Delegated(session=session, background=background, after=after, ids=ids, result=task)

    async def _session_of(self, tenant: str, given: DelegationInput) -> Session | None:
        """The session that it belongs to, also when only what is resumed says so; None: a new one is made."""
        if given.session_id is not None:
            return await self._sessions.open_for_work(tenant, given.session_id)
        wanted = given.resume
        if wanted is None:
            return None
        if not wanted.startswith(("ho_", "run_")):
            raise InvalidRequest(
                "resume takes the id of a task (ho_…) or of one of its runs (run_…); the name of a task is known in "
                "its session only: send session_id as well",
                errors=[{"at": "session_id", "message": "a name needs one"}],
            )
        await self._journal.settle()
        read = self._store.handoff if wanted.startswith("ho_") else self._store.run
        row = await read(tenant, wanted)
        if row is None:
            raise NotFound(f"there is no task {wanted[:80]!r}: there is nothing to resume", code="unknown_task")
        return await self._sessions.open_for_work(tenant, row["session_id"])

    def _order(
        self,
        session: Session,
        given: DelegationInput,
        inline: Mapping[str, Any] | None,
        point: ResumePoint | None = None,
    ) -> tuple[Delegator, HandoffOrder]:
        """Everything that can be refused is refused here, but the webhook, which a later process has a row of."""
        inherited = {d.tool_name for d in session.inline.values() if d.tool_name}
        names = self._reader.tool_names([] if inline is None else [inline], session.tenant) | inherited
        definition = self._target(session, _agent_of(given, point), inline, names)
        _check_agent(definition, point)
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
        self._sessions.requests.check_fallbacks(policy)
        self._sessions.requests.check_prices(session, limits, [(definition, definition.model or model)])
        order = HandoffOrder(
            tool=_tool_name(definition),
            surface=DIRECT,
            definition=definition,
            task=given.task,
            context=given.context or "",
            name=given.name or (point.name if point is not None else None),
            resume=point,
            max_steps=self._sessions.requests.steps(given.max_steps),
            tools=None if given.tools is None else self._reader.tools(given.tools, "tools", names),
            timeout_ms=given.timeout_ms,
            deadline_ms=given.deadline_ms,
            session_key=given.session_key,
            budget=own,
            output_schema=schema,
            given=_given(given),
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

    def again(
        self, session: Session, handoff: Mapping[str, Any], given: Mapping[str, Any], point: ResumePoint | None
    ) -> tuple[Delegator, HandoffOrder]:
        """What was asked for with a delegation that an earlier process had begun; `point`: what it resumes. Raises
        `InvalidRequest` where that cannot be any more, since its agent is gone for example."""
        wanted = DelegationInput(**{**given, "task": handoff["input"], "name": handoff["name"]})
        inline = dict(wanted.agent) if isinstance(wanted.agent, Mapping) else None
        return self._order(session, replace(wanted, agent=wanted.agent or handoff["agent"]), inline, point)

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
        self,
        by: Delegator,
        order: HandoffOrder,
        ids: asyncio.Future[tuple[str, str | None]],
        webhook: str | None,
        *,
        background: bool,
    ) -> HandoffResult:
        async with self._sessions.opened(by.session):
            await self._sessions.open_for_work(by.session.tenant, by.session.id)  # it may have been closed meanwhile
            by = replace(by, budget=self._supervisor.budget(by.session.id))
            handoffs = self._supervisor.handoffs
            self._sessions.check_open()  # nothing is awaited between this and the start of the handoff
            with self._sessions.webhooks.asked(by.session, "ho", webhook) as handoff_id:
                order = replace(order, id=handoff_id)
                begin = handoffs.background if background else handoffs.delegate
                self._supervisor.worked(by.session.id)  # also by one that is denied: it is idle again behind its end
                begun = begin(by, order, lambda handoff, run: ids.set_result((handoff, run)))
                result = None if isinstance(begun, OpenHandoff) else await begun
        if isinstance(begun, OpenHandoff):  # keeps the session open itself, and leaves it in one breath with its end
            result = await begun.ended()
        assert result is not None
        if not ids.done():
            ids.set_result((result.handoff_id, None))
        await self._journal.flush()
        return result

    async def result(self, tenant: str, delegated: Delegated) -> dict[str, Any]:
        """Wait for the end. Raises what `check` raises; a failed child is a result."""
        ended = await asyncio.shield(delegated.result)
        self.check(delegated)
        shown = await self.get(tenant, ended.handoff_id)
        if shown["ended_at"] is None:
            self._journal.need_whole(delegated.session.id)  # it has ended, and that cannot be stored
            raise Unavailable(
                f"the service is stopping: the delegation goes on, GET /v1/delegations/{ended.handoff_id} shows what "
                "comes of it",
                code="stopping",
            )
        return shown

    async def answered(self, tenant: str, handoff_id: str) -> dict[str, Any] | None:
        """What `result` gave for a delegation, raising as it did; None while it goes on."""
        shown = await self.get(tenant, handoff_id)
        _need_begun(handoff_id, shown["status"], shown["error"], shown["run_ids"])
        return None if shown["ended_at"] is None else shown

    @staticmethod
    def check(delegated: Delegated) -> None:
        """Raises `Denied` for one that was not admitted, `Conflict` for one whose memory somebody else goes on with."""
        if not delegated.result.done():
            return
        ended = delegated.result.result()
        error = ended.error.as_dict() if ended.error is not None else None
        _need_begun(ended.handoff_id, ended.status.value, error, ended.run_ids)

    async def get(self, tenant: str, handoff_id: str) -> dict[str, Any]:
        """A delegation as a client sees it, also while it goes on."""
        row = await self._row(tenant, handoff_id)
        runs = await self._store.handoff_runs(tenant, handoff_id)
        shown = handoff_view(row, await self._sessions.with_late_tasks(tenant, row["session_id"], runs))
        return shown | (await self._sessions.webhooks.view(tenant, handoff_id) if row["has_webhook"] else {})

    async def first_run(self, tenant: str, handoff_id: str) -> Run | None:
        """The run of its first attempt, once there is one."""
        await self._journal.settle()
        runs = await self._store.handoff_runs(tenant, handoff_id)
        return run_of(runs[0]) if runs else None

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
            begins=row["start_seq"] - 1,
            ended_seq=row["end_seq"],
        )

    async def close(self) -> None:
        """Wait for what is still being told; the runs themselves are the supervisor's to end."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)


def _check_agent(definition: AgentDefinition, point: ResumePoint | None) -> None:
    """A task is resumed by the agent that it is one of."""
    if point is not None and definition.name != point.agent:
        raise InvalidRequest(
            f"task {point.task_id} is one of the agent {point.agent!r}, not of {definition.name!r}: leave agent out",
            code="other_agent",
            errors=[{"at": "agent", "message": f"the task is one of {point.agent!r}"}],
        )


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


_OF_THE_SESSION = ("session_id", "texts", "workspace", "user", "metadata")
_ELSEWHERE = ("task", "context", "name")
_NOT_SHOWN = ("webhook",)  # whoever knows such a URL may often post to it; its row is erased once it was used


def _given(given: DelegationInput) -> dict[str, Any]:
    """What of a delegation's input stands nowhere else in the log, and may stand there."""
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    left_out = (*_OF_THE_SESSION, *_ELSEWHERE, *_NOT_SHOWN)
    return {name: value for name, value in values.items() if value is not None and name not in left_out}


def _need_begun(handoff_id: str, status: str, error: Mapping[str, Any] | None, run_ids: Sequence[str]) -> None:
    """Raises as `Delegations.check` does."""
    reason = error["message"] if error is not None else status
    if status == HandoffStatus.DENIED.value:
        raise Denied(f"the delegation was denied: {reason}", code="handoff_denied", handoff_id=handoff_id)
    if error is not None and error["code"] == MEMORY_BUSY and not run_ids:
        raise Conflict(reason, code=MEMORY_BUSY, handoff_id=handoff_id)


def _agent_of(given: DelegationInput, point: ResumePoint | None) -> str | Mapping[str, Any]:
    if given.agent is not None:
        return given.agent
    if point is not None:
        return point.agent
    raise InvalidRequest(
        "say which agent is to do it, or what is to be resumed", errors=[{"at": "agent", "message": "Field required"}]
    )


def _tool_name(definition: AgentDefinition) -> str:
    """By which name the policy's lists know the agent; one that cannot have a tool name is known as `delegate`."""
    try:
        return tool_name_of(definition)
    except ValueError:
        return "delegate"
