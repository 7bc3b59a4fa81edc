"""`python -m bench.chaos [--kills 200] [--terms 20] [--trees 200] [--seed N]`: a server that dies again and again.

Real processes under trees of agents, recorded by their clients and checked afterwards (tests/chaos). Figures and one
line for each violation go to standard output. Exit code 1: something was violated.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.world import Plan, chaos

READY_MS = 3000.0  # 95 of 100 starts


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True)
        yield kept


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.chaos", description="Kill a loaded server again and again.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--aimed", type=int, default=None, help="of them, at fault points; default: a fifth")
    parser.add_argument("--terms", type=int, default=20, help="ends in order, by SIGTERM")
    parser.add_argument("--trees", type=int, default=200, help="trees in flight")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--recovery", choices=("continue", "interrupt"), default=None, help="default: the service's")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder for what was recorded")
    given = parser.parse_args()
    plan = Plan(
        kills=given.kills,
        terms=given.terms,
        trees=given.trees,
        seed=given.seed if given.seed is not None else int(time.time()),
        aimed=given.aimed if given.aimed is not None else given.kills // 5,
        cold=True,
        recovery=given.recovery,
    )
    began = time.monotonic()
    with _folder(given.keep) as folder:
        report = asyncio.run(chaos(folder, plan))
    if report.ready_p95_ms > READY_MS:
        report.violations.append(f"95 of 100 starts took up to {report.ready_p95_ms:.0f} ms, not {READY_MS:.0f}")
    if report.hit.total() < plan.aimed:
        report.violations.append(f"{report.hit.total()} of {plan.aimed} aimed kills happened at their fault point")
    sys.stdout.write(f"{report.told()}\n{time.monotonic() - began:.0f} s\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
