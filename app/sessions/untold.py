"""Tells runs of tasks that ended without anybody saying so: their process went away in between (spec 9.3).

Knows neither why a task has ended nor when its run reads that.
"""

from app.agent.runs import Session
from app.agent.supervisor import RunSupervisor
from app.sessions.closing import Left, run_of
from app.sessions.service import Sessions


class Untold:
    """Posts the notices that are missing."""

    def __init__(self, sessions: Sessions, supervisor: RunSupervisor) -> None:
        self._sessions = sessions
        self._supervisor = supervisor

    async def tell(self, left: Left) -> None:
        """In a session that nobody has opened. Raises `NotFound` when it is gone."""
        if left.untold:
            session = await self._sessions.known(left.tenant, left.session_id, at_once=True)
            async with self._sessions.opened(session):
                self.tell_in(session, left)

    def tell_in(self, session: Session, left: Left) -> None:
        """In a session that is kept open."""
        untold = {handoff["id"]: handoff for handoff in left.all_handoffs if handoff["id"] in left.untold}
        left.untold.clear()
        for handoff in untold.values() if not session.closed else ():
            run = run_of(left.row(handoff["run_id"]))
            self._supervisor.handoffs.tell_of(session, run, handoff, tuple(left.above(run.id)))
