"""What a client says to a run that there is already: a message, or to go on when it has ended (spec 9.4, 9.7).

Knows no HTTP and no SQL.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.agent.errors import Conflict, NotFound
from app.agent.notices import NoticeKind
from app.agent.runs import FINAL_STATUSES, Run
from app.agent.supervisor import RunSupervisor
from app.sessions.delegations import Delegations
from app.sessions.idempotency import KeyInUse, Once
from app.sessions.journal import TAKE_S, Journal
from app.sessions.requests import DelegationInput, ResumeInput, RunInput
from app.sessions.service import Sessions, Started, not_taken_up
from app.sessions.views import started_view

MAX_UNREAD = 100  # messages that one run has not read: nobody means to say more at once


class FollowUps:
    """Messages to runs, and runs over the memory of earlier ones. One per process."""

    def __init__(
        self, *, sessions: Sessions, delegations: Delegations, supervisor: RunSupervisor, journal: Journal
    ) -> None:
        self._sessions = sessions
        self._delegations = delegations
        self._supervisor = supervisor
        self._journal = journal

    async def tell(self, tenant: str, run_id: str, content: str) -> dict[str, Any]:
        """Put a message into the inbox of an open run; it reads it before its next model call, and gives no answer
        before it has. Stored when this returns. Raises `Conflict` for a run that has ended."""
        run = await self._open(tenant, run_id)
        session = await self._sessions.known(tenant, run.session_id)
        run = await self._open(tenant, run_id)  # nothing is awaited between this and the notice
        notices = self._supervisor.notices
        if notices.unread(run) >= MAX_UNREAD:
            raise Conflict(
                f"run {run_id} has {MAX_UNREAD} messages that it has not read: wait until it has", code="inbox_full"
            )
        posted = notices.post(session, run, NoticeKind.MESSAGE, content, scope=run)
        await self._journal.flush(TAKE_S, of=session.id)  # like `committed`, with a bound
        shown = await self._sessions.run(tenant, run_id)
        return {"notice_id": posted.payload["notice_id"], "run_id": run_id, "status": shown["status"]}

    async def _open(self, tenant: str, run_id: str) -> Run:
        run = self._in_the_air(tenant, run_id)
        if run is not None:
            return run
        row = await self._sessions.run(tenant, run_id)
        if row["status"] not in FINAL_STATUSES:
            await self._sessions.gate(row["session_id"])  # an earlier process left it: it is about to go on
            run = self._in_the_air(tenant, run_id)
            if run is not None:
                return run
            row = await self._sessions.run(tenant, run_id)
            if row["status"] not in FINAL_STATUSES:
                self._sessions.check_open()  # the next process goes on with it
                raise not_taken_up(f"run {run_id}")
        raise Conflict(
            f"run {run_id} is {row['status']} and reads no messages any more: POST /v1/runs/{run_id}/resume starts a "
            "run that goes on with its memory",
            code="run_ended",
            run_status=row["status"],
        )

    def _in_the_air(self, tenant: str, run_id: str) -> Run | None:
        found = self._supervisor.find(run_id)
        is_open = found is not None and found.run.tenant == tenant and self._supervisor.is_open(run_id)
        return found.run if found is not None and is_open else None

    async def resume(self, tenant: str, run_id: str, given: ResumeInput) -> Started:
        """Start a run over the memory of one that has ended. Raises `Conflict` for one that has not, or when somebody
        else goes on with that memory."""
        row = await self._sessions.run(tenant, run_id)
        if row["status"] not in FINAL_STATUSES:
            raise Conflict(
                f"run {run_id} is {row['status']}: wait for its end, or cancel it, before it is resumed; POST "
                f"/v1/runs/{run_id}/messages tells it something meanwhile",
                code="run_open",
                run_status=row["status"],
            )
        session = await self._sessions.open_for_work(tenant, row["session_id"])
        given = replace(given, input=session.texts.resume if given.input is None else given.input)
        if row["handoff_id"] is None:
            try:
                return await self._sessions.start(tenant, session.id, _turn(given))
            except Conflict as error:
                if error.code != "session_busy":
                    raise
                raise Conflict(
                    "the session has a turn that is not finished: wait for it or cancel it, or start a turn of the "
                    f"session: POST /v1/sessions/{session.id}/runs with on_busy",
                    code=error.code,
                ) from None
        return await self._again(tenant, _delegation(given, session.id, run_id))

    async def _again(self, tenant: str, order: DelegationInput) -> Started:
        """Start a subagent's run as a delegation that no run made."""
        try:
            delegated = await self._delegations.start(tenant, order)
        except NotFound as error:
            if error.code != "unknown_task":
                raise
            raise NotFound(
                f"the task of {order.resume} was removed, or is older than tasks.retention_h: nothing goes on with it",
                code="task_gone",
            ) from None
        self._delegations.check(delegated)
        _, run_id = delegated.ids.result()
        found = self._supervisor.find(run_id or "")
        if found is None:
            why = delegated.result.result().error
            raise _not_resumed(delegated.handoff_id, why.as_dict() if why is not None else None)
        return Started(run=found.run, after=delegated.after)

    async def resumed(self, tenant: str, once: Once[Started]) -> Once[Started]:
        """What came of a resumption, with its run: the key of a subagent's is stored with the start of its handoff,
        before there is one. Raises `KeyInUse` while there is none, and what `resume` raised when there was none."""
        kept = once.kept
        if kept is None or not kept["id"].startswith("ho_"):
            return once
        if once.made is not None:
            return replace(once, kept=started_view(once.made.run, kept["after"]))
        await self._sessions.known(tenant, kept["session_id"])  # an earlier process may have begun it
        ended = await self._delegations.answered(tenant, kept["id"])
        run = await self._delegations.first_run(tenant, kept["id"])
        if run is not None:
            return replace(once, kept=started_view(run, kept["after"]))
        if ended is None:
            raise KeyInUse(
                f"the first request with this key is not answered yet: its delegation {kept['id']} has no run yet",
                handoff_id=kept["id"],
            )
        raise _not_resumed(kept["id"], ended["error"])


def _not_resumed(handoff_id: str, error: Mapping[str, Any] | None) -> Conflict:
    return Conflict(
        f"it could not be resumed: {error['message'] if error is not None else 'no run was started'}",
        code=error["code"] if error is not None else "not_resumed",
        handoff_id=handoff_id,
    )


def _turn(given: ResumeInput) -> RunInput:
    return RunInput(
        input=given.input or "",
        max_steps=given.max_steps,
        deadline_ms=given.deadline_ms,
        timeout_ms=given.timeout_ms,
        output_schema=given.output_schema,
        budget=given.budget,
    )


def _delegation(given: ResumeInput, session_id: str, run_id: str) -> DelegationInput:
    return DelegationInput(
        task=given.input or "",
        background=False,
        resume=run_id,
        session_id=session_id,
        max_steps=given.max_steps,
        deadline_ms=given.deadline_ms,
        timeout_ms=given.timeout_ms,
        output_schema=given.output_schema,
        budget=given.budget,
    )
