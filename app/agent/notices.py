"""What waits to be told to runs: the ends of background tasks, and what somebody says to them. Each exactly once.

A notice is for one run; where that one has ended, for whoever is responsible in its place: the nearest run above it
that is open, else the session's next turn. Knows neither how runs are driven nor rows: what was posted and told are
events, and the rows follow from those.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from app.agent import events
from app.agent.events import Event
from app.agent.governed import Noticed
from app.agent.ids import new_id
from app.agent.ports import Recorder
from app.agent.runs import Run, Session

Heir = Callable[[str], str | None]


class NoticeKind(StrEnum):
    """What is told."""

    TASK = "task"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to be told. `for_run`: whom it is for; `above`: the runs above that one, nearest first, as far as they
    are known; `lead`: it was a turn of the session itself."""

    id: str
    session_id: str
    kind: NoticeKind
    for_run: str
    content: str
    task_id: str | None = None
    lead: bool = False
    above: tuple[str, ...] = ()


class Notices:
    """All that is untold in this process, by session and in the order of posting."""

    def __init__(self, recorder: Recorder, heir: Heir) -> None:
        """`heir` says which open run is responsible for what is for a run: itself, or the nearest one above it; None
        when none of them is open."""
        self._recorder = recorder
        self._heir = heir
        self._untold: dict[str, dict[str, Notice]] = {}

    def post(
        self,
        session: Session,
        run: Run,
        kind: NoticeKind,
        content: str,
        *,
        scope: Run | None,
        task_id: str | None = None,
        status: str | None = None,
        above: tuple[str, ...] = (),
    ) -> Event:
        """State that something waits for a run. `scope`: the run, while it is open; else the session's fact. `above`:
        see `Notice`."""
        notice = Notice(
            id=new_id("ntc"),
            session_id=session.id,
            kind=kind,
            for_run=run.id,
            content=content,
            task_id=task_id,
            lead=run.depth == 0,
            above=above,
        )
        self._keep(notice)
        payload = Noticed(
            notice_id=notice.id,
            kind=kind.value,
            for_run=run.id,
            memory_id=run.memory_id,
            handoff_id=task_id,
            status=status,
            content=content,
        )
        return self._recorder.record(scope or session, events.NOTICE, payload)

    def _keep(self, notice: Notice) -> None:
        self._untold.setdefault(notice.session_id, {})[notice.id] = notice

    def restore(self, notices: Iterable[Notice]) -> None:
        """Those of an earlier process that were not told."""
        for notice in notices:
            self._keep(notice)

    def take(self, run: Run) -> tuple[Notice, ...]:
        """What is to be told to a run, which is told it now."""
        untold = self._untold.get(run.session_id)
        if not untold:
            return ()
        found = tuple(notice for notice in untold.values() if self._is_for(notice, run))
        for notice in found:
            self._remove(notice)
        return found

    def addressed(self, run: Run) -> tuple[Notice, ...]:
        """What somebody has said to this run itself, which is told it now."""
        said = [n for n in self._said_to(run) if n.for_run == run.id]
        for notice in said:
            self._remove(notice)
        return tuple(said)

    def is_addressed(self, run: Run) -> bool:
        """Whether somebody has said something to the run that it was not told."""
        return any(True for _ in self._said_to(run))

    def unread(self, run: Run) -> int:
        """How many messages to the run it was not told."""
        return sum(1 for _ in self._said_to(run))

    def _said_to(self, run: Run) -> Iterable[Notice]:
        untold = self._untold.get(run.session_id)
        return (n for n in (untold or {}).values() if n.kind is NoticeKind.MESSAGE and self._is_for(n, run))

    def acknowledge(self, run: Run, task_id: str) -> list[str]:
        """A run has the result of a task: it need not be told of its end. The ids of the notices that this settles."""
        untold = self._untold.get(run.session_id) or {}
        found = [n for n in untold.values() if n.task_id == task_id and self._is_for(n, run)]
        for notice in found:
            self._remove(notice)
        return [notice.id for notice in found]

    def _is_for(self, notice: Notice, run: Run) -> bool:
        if notice.for_run == run.id:
            return True
        heirs = map(self._heir, (notice.for_run, *notice.above))  # who has ended long ago is not known any more
        heir = next((found for found in heirs if found is not None), None)
        if heir == run.id:
            return notice.kind is NoticeKind.TASK
        # nobody above it is open: the session's next turn is told
        return run.depth == 0 and heir is None and (notice.kind is NoticeKind.TASK or notice.lead)

    def _remove(self, notice: Notice) -> None:
        untold = self._untold[notice.session_id]
        del untold[notice.id]
        if not untold:
            del self._untold[notice.session_id]

    def forget(self, session_id: str) -> None:
        """The session was deleted."""
        self._untold.pop(session_id, None)
