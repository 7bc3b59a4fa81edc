"""`python -m bench.fuzz [--requests 100000] [--connections 2000] [--seed N]`: what clients send that no client should.

Requests at random against the whole service in this process, then abused connections of a real server process
(tests/fuzz). Figures and one line for each violation go to standard output. Exit code 1: something was violated.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import abused, world

MOST_GROWN_KIB = 50 << 10  # of the process, whatever was asked of it
AT_ONCE = 200


async def _run(folder: Path, given: argparse.Namespace) -> list[str]:
    violations: list[str] = []
    if given.requests:
        place = folder / "requests"
        place.mkdir()
        report = await world.fuzz(place, requests=given.requests, seed=given.seed)
        if report.grown_kib > MOST_GROWN_KIB:
            report.violations.append(f"the process has grown by more than {MOST_GROWN_KIB >> 10} MiB")
        print(report.told(), flush=True)
        violations += report.violations
    if given.connections:
        place = folder / "connections"
        place.mkdir()
        sockets = await abused.abused(place, connections=given.connections, seed=given.seed, at_once=AT_ONCE)
        print(sockets.told(), flush=True)
        violations += sockets.violations
    return violations


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.fuzz", description="Send what no client should.")
    parser.add_argument("--requests", type=int, default=100_000, help="at random, in process; 0: none")
    parser.add_argument("--connections", type=int, default=2_000, help="that are abused; 0: none")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    given = parser.parse_args()
    given.seed = given.seed if given.seed is not None else int(time.time())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        violations = asyncio.run(_run(Path(folder), given))
    print(f"{time.monotonic() - began:.0f} s, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
