"""`python -m bench.fuzz [--requests 100000] [--connections 2000] [--cases 30] [--sequences 500] [--seed N]`: what no
client should send, and whatever clients may do in any order (tests/fuzz).

Requests at random against the whole service in this process, abused connections, cases that schemathesis makes from the
OpenAPI document (`make fuzz` installs it), and sequences that are compared with a ledger, each against real server
processes. 0 leaves a part out. Figures and one line for each violation go to standard output. Exit code 1: something
was violated.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from app.cli.heap import bound_heap
from tests.fuzz import abused, by_schema, sequences, world

MOST_GROWN_KIB = 50 << 10  # of the process, whatever was asked of it
AT_ONCE = 200
TOOL = Path(".make/schemathesis/bin/schemathesis")


def _parts(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What each part says, and its violations."""
    if given.requests:
        asked = asyncio.run(world.fuzz(_place(folder, "requests"), requests=given.requests, seed=given.seed))
        if asked.grown_kib > MOST_GROWN_KIB:
            asked.violations.append(f"the process has grown by more than {MOST_GROWN_KIB >> 10} MiB")
        yield asked.told(), asked.violations
    if given.connections:
        place = _place(folder, "connections")
        work = abused.abused(place, connections=given.connections, seed=given.seed, at_once=AT_ONCE)
        sockets = asyncio.run(work)
        yield sockets.told(), sockets.violations
    for keyed in (True, False) if given.cases else ():
        place = _place(folder, f"schema-{keyed}")
        schema = asyncio.run(
            by_schema.by_schema(place, TOOL.absolute(), cases=given.cases, keyed=keyed, seed=given.seed)
        )
        yield schema.told(), schema.violations
    for hasty in (False, True) if given.sequences else ():
        place, count = _place(folder, f"sequences-{hasty}"), given.sequences // 2
        played = sequences.play(place, count=count, steps=given.steps, hasty=hasty, seed=given.seed)
        yield played.told(), played.violations


def _place(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.fuzz", description="Send what no client should; 0 leaves a part out.")
    parser.add_argument("--requests", type=int, default=100_000, help="at random, in process")
    parser.add_argument("--connections", type=int, default=2_000, help="that are abused")
    parser.add_argument("--cases", type=int, default=30, help="by schema, of each operation and kind")
    parser.add_argument("--sequences", type=int, default=500, help="of steps")
    parser.add_argument("--steps", type=int, default=30, help="of one sequence, at most")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    given = parser.parse_args()
    given.seed = given.seed if given.seed is not None else int(time.time())
    if given.cases and not TOOL.exists():
        parser.error(f"{TOOL} is not there: `make fuzz` installs it, `--cases 0` leaves it out")
    bound_heap()  # as a server does
    began, count = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for told, violations in _parts(Path(folder), given):
            print(f"{told}\n{time.monotonic() - began:.0f} s\n", flush=True)
            count += len(violations)
    print(f"{count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
