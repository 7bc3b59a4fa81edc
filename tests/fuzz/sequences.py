"""Many sequences of steps against one server after the other, by a seed.

report = play(folder, count=5, steps=12, hasty=False, seed=7)
assert report.violations == []
"""

import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.cancels.leftovers import store_problems
from tests.fuzz.keeper import Keeper
from tests.fuzz.machine import Service


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    seed: int
    hasty: bool
    sequences: int = 0
    requests: int = 0
    jobs: int = 0
    restarts: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def told(self) -> str:
        """For people."""
        who = "nobody answers" if self.hasty else "persons answer"
        done = f"{self.requests} requests, {self.jobs} runs, {self.restarts} restarts"
        steps = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.steps.most_common())
        lines = [f"seed {self.seed}, {who}: {self.sequences} sequences, {done}", f"steps: {steps}"]
        lines.append(f"{len(self.violations)} violations")
        return "\n".join([*lines, *self.violations])


def play(folder: Path, *, count: int, steps: int, hasty: bool, seed: int) -> Report:
    """So many sequences of so many steps at most; the first fault ends them, made as short as it can be."""
    report = Report(seed=seed, hasty=hasty)
    keeper = Keeper(folder, hasty=hasty)

    class Sequence(Service):
        """Those of this report."""

        def teardown(self) -> None:
            """One is over."""
            super().teardown()
            report.sequences += 1

    Sequence.keeper, Sequence.steps = keeper, report.steps
    order = settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seeded(seed)(Sequence), settings=order)
    except Exception as error:  # noqa: BLE001  border of the tool: whatever was found is told with its steps
        told = traceback.format_exception_only(error) + list(getattr(error, "__notes__", ()))
        report.violations.append("\n".join(told))
    finally:
        report.requests, report.jobs, report.restarts = keeper.requests, Sequence.count, keeper.restarts
        keeper.close()
    report.violations += store_problems(keeper.service.database)
    return report
