"""A server under load that is killed at random moments and at named fault points, and ended in order now and then.

    report = await chaos(folder, Plan(kills=25, terms=2, trees=24, seed=7))
    assert report.violations == []

Used by a test (a short form) and by `python -m bench.chaos`. Everything that was seen stays in the folder, so that
`checker.violations(folder)` can be asked again.
"""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.chaos import checker
from tests.chaos.load import Load
from tests.chaos.plans import Model
from tests.chaos.recorder import Recorder
from tests.chaos.server import Server

SETTLE_S = 20.0  # from the last start until every run has ended or goes on
END_S = 90.0  # from then on until the last has ended
AIMED_S = 3.0  # for a fault point to be passed
FULL = 60  # trees in flight, from which on the points are passed as often as is counted here
# Where the server ends itself, and up to which time of passing it.
POINTS = {
    "before_commit": 60,  # a batch is about to go to the writer
    "store.commit": 60,  # all of it is written, the commit comes next
    "store.committed": 60,  # nobody knows of the commit yet
    "after_commit": 60,  # the loop knows, no client does
    "run_opened": 30,
    "tool_started": 30,
    "tool_returned": 30,
    "after_tools": 20,
    "before_terminal": 20,
    "recovery.session": 3,
    "recovery.recorded": 1,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything. `aimed` of the kills are at fault points; the others after `moments` (s) at random.
    `cold`: servers start from nothing, and times count. `recovery`: of runs in flight, None: as the service does by
    itself. `background`: children that nobody waits for, where the service has them."""

    kills: int
    terms: int
    trees: int
    seed: int
    aimed: int
    moments: tuple[float, float] = (0.2, 2.0)
    cold: bool = False
    recovery: str | None = None
    background: bool = True


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    plan: Plan
    started: int = 0
    seen: int = 0
    hit: Counter[str] = field(default_factory=Counter)
    ready_ms: list[float] = field(default_factory=list)
    drained_ms: list[float] = field(default_factory=list)
    figures: dict[str, float | str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def told(self) -> str:
        """For people."""
        plan, ready, drained = self.plan, sorted(self.ready_ms), sorted(self.drained_ms)
        hits = ", ".join(f"{count} {name}" for name, count in sorted(self.hit.items())) or "none"
        lines = [
            f"seed {plan.seed}: {plan.kills} kills, {self.hit.total()} of them at fault points ({hits}), "
            f"{plan.terms} SIGTERMs, {plan.trees} trees at a time",
            f"start to ready: p50 {_share(ready, 0.5):.0f} ms, p95 {self.ready_p95_ms:.0f} ms, most {ready[-1]:.0f} ms",
            f"SIGTERM to end: most {drained[-1] if drained else 0:.0f} ms",
            *(f"{name}: {value}" for name, value in self.figures.items()),
            f"{len(self.violations)} violations",
        ]
        return "\n".join([*lines, *self.violations[:200]])

    @property
    def ready_p95_ms(self) -> float:
        """Of 100 starts 95 are ready after this."""
        return _share(sorted(self.ready_ms), 0.95)


def _share(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


@contextlib.asynccontextmanager
async def _playing(folder: Path, seed: int) -> AsyncIterator[Model]:
    """The model server, and what it was asked."""
    recorder = Recorder(folder / "model.jsonl")
    async with Model(recorder, seed) as model:
        try:
            yield model
        finally:
            recorder.close()


class Nemesis:
    """Brings the server to its ends, as the seed says."""

    def __init__(self, server: Server, plan: Plan, report: Report) -> None:
        self._server = server
        self._plan = plan
        self._report = report
        self._rng = Random(f"{plan.seed}-nemesis")
        self._points = list(POINTS)
        self._rng.shuffle(self._points)

    async def rage(self, load: Load) -> None:
        """All kills and ends in order, one after the other. The server is down afterwards."""
        plan, server = self._plan, self._server
        terms = set(self._rng.sample(range(plan.kills), min(plan.terms, plan.kills)))
        for number in range(plan.kills):
            load.check()
            if number:
                await self._life(aimed=self._report.hit.total() < min(plan.aimed, self._due(number)))
            else:
                await server.killed(self._rng.uniform(*plan.moments), aimed=False)
            if number in terms:
                if await server.begin():
                    await asyncio.sleep(self._rng.uniform(*plan.moments))
                await server.terminated()

    def _due(self, number: int) -> int:
        """How many fault points must have been hit after so many kills; time is left for those that are missed."""
        return math.ceil(self._plan.aimed * number / (0.9 * self._plan.kills))

    async def _life(self, *, aimed: bool) -> None:
        """One start, and its end."""
        server = self._server
        point = self._points[self._report.hit.total() % len(self._points)]
        often = max(1, POINTS[point] * min(self._plan.trees, FULL) // FULL)
        fault = f"{point}:{self._rng.randint(1, often)}" if aimed else ""
        await server.begin(fault)
        if await server.killed(AIMED_S if aimed else self._rng.uniform(*self._plan.moments), aimed=aimed):
            self._report.hit[point] += 1
        elif aimed:  # try another one next time
            self._points.append(self._points.pop(self._report.hit.total() % len(self._points)))


async def chaos(folder: Path, plan: Plan) -> Report:
    """Carry a plan out in a folder, and check what was recorded."""
    report = Report(plan=plan)
    recorder = Recorder(folder / "nemesis.jsonl")
    async with _playing(folder, plan.seed) as model:
        server = Server(folder, recorder, model_url=model.base_url, cold=plan.cold, recovery=plan.recovery)
        try:
            await server.begin()
            abilities = await server.abilities()
            abilities = replace(abilities, background=abilities.background and plan.background)
            load = Load(server, folder, model.book, trees=plan.trees, seed=plan.seed, abilities=abilities)
            try:
                await Nemesis(server, plan, report).rage(load)
                await server.begin()
                await _settled(load, recorder)
                report.started = report.figures["trees started"] = load.started
            finally:
                await load.stop()
            await server.terminated()
        finally:
            if server.process is not None and server.process.returncode is None:
                await server.kill()
            recorder.close()
    report.ready_ms, report.drained_ms = server.ready_ms[1:], server.drained_ms
    began = time.monotonic()
    found = checker.check(folder, timed=plan.cold)
    report.seen = int(found.figures["events seen by clients"])
    report.figures |= {**found.figures, "checked in s": round(time.monotonic() - began, 1)}
    report.violations = [f"{rule}: {text}" for rule, texts in found.violations.items() for text in texts]
    return report


async def _settled(load: Load, recorder: Recorder) -> None:
    """Wait until everything has ended; what does not is left to the checker."""
    try:
        await load.finish(END_S)
    except TimeoutError:
        recorder.note("unsettled", after_s=END_S)
