"""With what runs and tasks of an earlier process were started, made once more from rows and log.

Knows neither which of them go on nor how.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.agent.budget import Amount, Budget
from app.agent.errors import InvalidRequest
from app.agent.orders import Delegator, HandoffOrder, ResumePoint
from app.agent.runs import RunRequest, Session
from app.agent.supervisor import RunSupervisor
from app.sessions.closing import Left, run_of
from app.sessions.delegations import Delegations
from app.sessions.reckoning import spent_by
from app.sessions.service import Sessions

Row = Mapping[str, Any]


class OrdersAgain:
    """Makes them. Everything raises `InvalidRequest` where that cannot be any more, since an agent is gone."""

    def __init__(self, sessions: Sessions, delegations: Delegations, supervisor: RunSupervisor) -> None:
        self._sessions = sessions
        self._delegations = delegations
        self._supervisor = supervisor

    def caller(self, session: Session, left: Left, handoff: Row) -> tuple[Delegator, HandoffOrder]:
        """What was asked for with a delegation that no run made, whether it goes on or has ended."""
        given = left.starts.get(handoff["id"], {}).get("given")
        if given is None:
            raise InvalidRequest("what was asked for is not known")
        by, order = self._delegations.again(session, handoff, given, resume_point(left, handoff))
        return replace(by, budget=self._supervisor.budget(session.id)), order

    def delegator(self, session: Session, left: Left, row: Row) -> Delegator:
        """What a run delegates as, whether it goes on or has ended."""
        request = self._supervisor.request_of(row["id"])
        if request is not None:
            budget = self._supervisor.budget_of(row["id"])
            return self._supervisor.equipment.delegator(run_of(row), request, budget)
        request, budget = self._request(session, left, row)
        if row["id"] not in left.budgets:  # one for all tasks of the run
            spent = dict(spent_by(left, [row]))
            wall_ms = spent.pop("wall_ms")
            for limits in request.budgets:
                budget = Budget(limits, budget, spent=Amount(**spent), wall_ms=wall_ms)
            left.budgets[row["id"]] = budget
        return self._supervisor.equipment.delegator(run_of(row), request, left.budgets[row["id"]])

    def _request(self, session: Session, left: Left, row: Row) -> tuple[RunRequest, Budget | None]:
        """With what a run that has ended was started, and what bounds it from above."""
        if not row["depth"]:
            return self._sessions.requests.again(session, row, left.given.get(row["id"])), self._supervisor.budget(
                session.id
            )
        asked = self._by_run if row["parent_id"] is not None else self._by_caller
        by, order = asked(session, left, row)
        spent = spent_by(left, left.runs_of(row["handoff_id"]))
        request = self._supervisor.handoffs.request_again(by, order, spent)
        return request, request.above if isinstance(request.above, Budget) else None

    def _by_caller(self, session: Session, left: Left, row: Row) -> tuple[Delegator, HandoffOrder]:
        handoff = next(each for each in left.all_handoffs if each["id"] == row["handoff_id"])
        if row["agent"] != handoff["agent"]:
            raise InvalidRequest(f"the run that began it stood in for agent {handoff['agent']!r}")
        return self.caller(session, left, handoff)

    def _by_run(self, session: Session, left: Left, row: Row) -> tuple[Delegator, HandoffOrder]:
        by = self.delegator(session, left, left.row(row["parent_id"]))
        definition = by.find(row["agent"])
        if definition is None:
            raise InvalidRequest(f"there is no agent {row['agent']!r} any more")
        order = HandoffOrder(
            tool="",
            surface="",
            definition=definition,
            task=row["input"],
            name=row["name"],
            max_steps=row["max_steps"],
        )
        return by, order

    @staticmethod
    def order(by: Delegator, handoff: Row, left: Left) -> HandoffOrder:
        """What was asked for with a task."""
        start = left.starts[handoff["id"]]
        definition = by.find(handoff["agent"])
        if definition is None:
            raise InvalidRequest(f"there is no agent {handoff['agent']!r} any more")
        return HandoffOrder(
            tool=handoff["tool"],
            surface=handoff["surface"],
            definition=definition,
            task=handoff["input"],
            call_id=handoff["call_id"],
            name=handoff["name"],
            purpose=handoff["purpose"],
            max_steps=start.get("max_steps"),
            session_key=start.get("session_key"),
            resume=resume_point(left, handoff),
            inherited=start.get("inherited"),
            detached=bool(start.get("detached")),
        )


def resume_point(left: Left, handoff: Row) -> ResumePoint | None:
    """With whose memory a handoff goes on; None for its own. Raises `InvalidRequest` when that is not known."""
    start = left.starts[handoff["id"]]
    resumes = start.get("resumes")
    if not resumes:
        return None
    runs = left.runs_of(handoff["id"]) or left.runs_of(resumes)
    if not runs:
        raise InvalidRequest(f"there is no task {resumes} any more that it could go on with")
    wanted = (start.get("given") or {}).get("resume")  # the id of one of its runs, maybe
    run = next((row for row in runs if row["id"] == wanted), runs[-1])
    earlier = next((each for each in left.all_handoffs if each["id"] == resumes), None)
    return ResumePoint(
        task_id=resumes,
        agent=handoff["agent"],
        name=handoff["name"],
        memory_id=run["memory_id"],
        shared=earlier is not None and earlier["session_scope"] is not None,
    )
