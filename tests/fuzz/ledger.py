"""What must be so in the service, by what was done to it: sessions, runs, tasks and questions with their states.

Knows the rules of the contract (spec 1, 5.7, 8.2, 9.2, 9.5, 14.2), not the service.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum, auto

OPEN = frozenset({"queued", "running", "waiting"})


class Doing(StrEnum):
    """What an open run waits for; it does nothing else by itself."""

    MODEL = auto()
    PERSON = auto()
    CHILDREN = auto()
    NOTHING = auto()  # it has ended


@dataclass(kw_only=True, eq=False)
class Node:
    """A run. `news`: somebody may have told it something that it has not read; `told`: somebody has."""

    job: str
    session: "Session"
    parent: "Node | None" = None
    background: bool = False
    run_id: str = ""
    task_id: str = ""
    doing: Doing = Doing.MODEL
    status: str = "open"
    question: str = ""
    told: bool = False
    news: bool = False
    removed: bool = False
    children: list["Node"] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.doing is not Doing.NOTHING

    @property
    def depth(self) -> int:
        """How many runs are above it."""
        return 0 if self.parent is None else self.parent.depth + 1

    def below(self) -> Iterator["Node"]:
        """It and everything under it."""
        yield self
        for child in self.children:
            yield from child.below()

    def asked(self) -> None:
        """Its model is asked again: it has read what there was."""
        self.doing, self.told, self.news, self.question = Doing.MODEL, False, False, ""

    def end(self, status: str) -> "Node | None":
        """It has ended; the run above that its model is asked of next, if there is one."""
        self.doing, self.status = Doing.NOTHING, status
        if self.background or self.news or self.told:
            above = self.parent
            while above is not None and not above.open:
                above = above.parent
            if above is not None:
                above.news = True
        above = self.parent
        if above is None or self.background or above.doing is not Doing.CHILDREN:
            return None
        return None if any(child.open and not child.background for child in above.children) else above

    def cancel(self) -> "Node | None":
        """It is cancelled with all that is below it; the run above that goes on, if there is one."""
        if not self.open:
            return None
        for node in self.below():
            if node.open and node is not self:
                node.close()
        self.close_question()
        return self.end("cancelled")

    def close(self) -> None:
        """It is cancelled together with what is above it."""
        self.close_question()
        self.doing, self.status = Doing.NOTHING, "cancelled"

    def close_question(self) -> None:
        """Nobody needs its answer any more."""
        if self.question:
            self.session.questions[self.question] = "cancelled"
            self.question = ""


@dataclass(kw_only=True, eq=False)
class Session:
    """A session. `cursor`: up to where its events were read; `ends`: the runs whose end was among them."""

    id: str
    closed: bool = False
    deleted: bool = False
    leads: list[Node] = field(default_factory=list)
    questions: dict[str, str] = field(default_factory=dict)
    cursor: int = 0
    ends: dict[str, str] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        """All runs."""
        return [node for lead in self.leads for node in lead.below()]

    @property
    def busy(self) -> Node | None:
        """The turn that is under way."""
        return next((lead for lead in self.leads if lead.open), None)

    def cancel(self) -> None:
        """Everything in it is cancelled."""
        for node in self.nodes():
            if node.open:
                node.close()

    def tasks(self) -> dict[str, str]:
        """The tasks that are listed, with their states."""
        return {node.task_id: node.status for node in self.nodes() if node.background and not node.removed}

    def seen(self, event: dict[str, object]) -> None:
        """An event that the service has told; raises when it must not follow those before."""
        assert event["id"] == self.cursor + 1, (event, self.cursor)
        self.cursor += 1
        run, kind = str(event.get("run_id", "")), str(event["type"])
        assert run not in self.ends, f"{kind} of {run} after its {self.ends.get(run)}"
        if kind.startswith("run.") and kind[4:] in ENDS:
            self.ends[run] = kind[4:]


ENDS = frozenset({"completed", "failed", "cancelled", "timed_out", "interrupted"})
