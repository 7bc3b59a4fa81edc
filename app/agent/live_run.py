"""A run in the air, and what every run is made of.

Knows neither how a run is driven (`runner.py`) nor who waits for it (`supervisor.py`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.agent.admission import CONCURRENT_CHILDREN, CONCURRENT_RUNS, Places, Slots
from app.agent.approvals import Approvals
from app.agent.budget import Amount, Budget, Meter
from app.agent.chat import ModelCatalog
from app.agent.compaction import Compaction
from app.agent.control import Control
from app.agent.definition import MAX_STEPS
from app.agent.delegation import Roster
from app.agent.duplicates import DuplicateLimits
from app.agent.events import Event
from app.agent.filters import Find
from app.agent.hooks import NO_HOOKS, NO_OWN_HOOKS, HookCatalog, HookRegistry
from app.agent.interruption import GRACE_MS
from app.agent.open_handoffs import HandoffRecords
from app.agent.orders import SUBAGENT_STEPS, Pacing
from app.agent.patience import ModelGates, Patience
from app.agent.permission_subjects import CommandParser, PathResolver
from app.agent.policy import ToolInherit
from app.agent.ports import Masker, Recorder
from app.agent.runs import MemoryState, Run, RunOutcome, RunRequest, Session
from app.agent.shared_memories import Load, MemorySeat
from app.agent.skills import NO_SKILLS, SkillCatalog
from app.agent.subagent_hooks import SubagentHooks
from app.agent.tools import OutputLimit, SchemaChecker, ToolRegistry
from app.agent.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What every run is made of. `workspace` gives the directory of a session, for its tools; `find` what stands at an
    import path; `load` reads a memory and `records` what there is of handoffs, with all that was recorded before.
    `concurrent_runs` may work at a time in the process, `concurrent_children` of these below each session. `parser`
    and `resolve_path` are what permission rules need to know of command lines and of paths in a workspace, `hides`
    whether commands run where what they may not read is hidden from them."""

    recorder: Recorder
    models: ModelCatalog
    tools: ToolRegistry
    roster: Roster
    checker: SchemaChecker
    masker: Masker
    output_limit: OutputLimit
    workspace: Callable[[Session], Path]
    find: Find
    load: Load
    records: HandoffRecords
    gates: ModelGates = field(default_factory=ModelGates)
    patience: Patience = field(default_factory=Patience)
    duplicates: DuplicateLimits = field(default_factory=DuplicateLimits)
    pacing: Pacing = field(default_factory=Pacing)
    hooks: HookRegistry = NO_HOOKS
    own_hooks: HookCatalog = NO_OWN_HOOKS
    approvals: Approvals | None = None
    parser: CommandParser | None = None
    resolve_path: Callable[[Path], PathResolver] | None = None
    hides: Callable[[], bool] = bool  # bool() is False
    compaction: Compaction = field(default_factory=Compaction)
    skills: SkillCatalog = NO_SKILLS
    default_subagent: str = ""
    subagent_steps: int = SUBAGENT_STEPS
    max_steps: int = MAX_STEPS
    concurrent_runs: int = CONCURRENT_RUNS
    concurrent_children: int = CONCURRENT_CHILDREN
    record_model_io: bool = False
    interrupt_grace_ms: int = GRACE_MS
    inherit_tools: ToolInherit = ToolInherit.OWN


class LiveRun:
    """A run in the air: its request, its control, and how it ended once it has.

    `budget` is the innermost one that bounds it, `clocks` are those whose wall time runs while it does, `own` those
    that begin with it. `seat` is its place at a shared memory, `places` those that it needs to work.
    """

    __slots__ = (
        "began",
        "budget",
        "clocks",
        "control",
        "ended",
        "ending",
        "holds",
        "hooks",
        "memory",
        "meter",
        "outcome",
        "own",
        "places",
        "request",
        "run",
        "seat",
        "started",
        "stated",
        "timer",
        "timer_left",
        "timing",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        request: RunRequest,
        *,
        above: Budget | None = None,
        seat: MemorySeat | None = None,
        waiting: Control | None = None,
        slots: Sequence[Slots] = (),
    ) -> None:
        """`above`: the budget that bounds it; `waiting`: the control of the run that waits for it; `slots`: where it
        needs places, besides those of its budgets."""
        self.run = run
        self.request = request
        self.control = Control(waiting)
        budgets = above.places() if above is not None and run.depth else ()
        self.places = Places((*budgets, *slots), run.tenant)
        own: list[Budget] = []
        spent = dict(request.progress.spent) if request.progress is not None else {}
        wall_ms = spent.pop("wall_ms", 0)
        for limits in request.budgets:
            above = Budget(limits, above, spent=Amount(**spent), wall_ms=wall_ms)
            own.append(above)
        self.budget = above
        self.own = tuple(own)
        root = request.parent is None or request.background  # nobody above keeps its time
        self.clocks = tuple(above.chain()) if root and above is not None else self.own
        self.timing = False
        self.seat = seat
        self.memory: MemoryState | None = request.memory
        self.meter: Meter | None = None
        self.outcome: RunOutcome | None = None
        self.ended: Event | None = None
        self.work: Work | None = None
        self.hooks: SubagentHooks | None = None
        self.stated = False  # the log says that this process works on it
        self.started = False  # as a subagent: its stop is due
        self.ending = False  # its hooks are told so, which takes a bounded time: nobody must break that off
        self.began = asyncio.get_running_loop().time()
        self.timer: asyncio.TimerHandle | None = None
        self.timer_left: float | None = None  # of a timer that stands still
        self.holds = 0

    @property
    def at_rest(self) -> bool:
        """Whether it only waits: for its turn, for a person, for other runs, or to begin a step."""
        if self.work is None:
            return not self.timing
        return self.work.resting or self.work.calls.at_rest

    def hold(self) -> None:
        """A person is asked by this run or below it: its clocks stand still."""
        self.control.hold()
        if self.timer is not None and self.timer_left is None:
            self.timer_left = max(0.0, self.timer.when() - asyncio.get_running_loop().time())
            self.timer.cancel()
        self.holds += 1

    def go_on(self, on_timeout: Callable[[], None]) -> None:
        """That question is settled."""
        self.control.go_on()
        self.holds -= 1
        if not self.holds and self.timer_left is not None and self.outcome is None:
            self.timer = asyncio.get_running_loop().call_later(self.timer_left, on_timeout)
            self.timer_left = None

    def give_back(self) -> None:
        """Everything that others may wait for."""
        if self.timing:
            self.timing = False
            for budget in self.clocks:
                budget.end()
        if self.meter is not None:
            self.meter.release()
        self.places.give()
        if self.seat is not None:
            memory = self.work.memory if self.work is not None else None
            state = None
            if memory is not None:
                messages = tuple(memory.messages)
                state = MemoryState(
                    messages=messages,
                    next_turn=self.run.turn + 1,
                    next_seq=memory.next_seq,
                    shortened=memory.shortened,
                )
            self.seat.leave(state)
