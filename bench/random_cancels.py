"""`python -m bench.random_cancels [--count 1000] [--seed N]`: cancels at random moments, and what they leave behind.

One server, trees of depth 3 with open model streams, tools with child processes, questions to persons, hooks and
pauses; figures and violations go to standard output. Exit code 1: something was violated.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.cancels.world import AT_ONCE, cancels


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.random_cancels", description="Cancel at random moments.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="sessions in flight")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int(time.time())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(cancels(Path(folder), count=given.count, seed=seed, at_once=given.at_once))
    sys.stdout.write(f"{report.figures()}\n{time.monotonic() - began:.0f} s, {given.at_once} sessions at a time\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
