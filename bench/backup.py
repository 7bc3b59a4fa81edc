"""`python -m bench.backup [--sessions 20] [--copies 5]`: copies of a loaded database, and the service on the last one.

Each copy must be whole, the restored service must go on with what was in flight and its rows must be what its log leads
to, and each reader who knows more than the copy must be told so and then be shown everything. Exit code 1 otherwise.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.readers.restoring import restored


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.backup", description="Copies of a loaded database.")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--copies", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(restored(Path(folder), sessions=given.sessions, copies=given.copies))
    copies = ", ".join(f"{ms:.0f} ms ({size >> 10} KiB)" for ms, size in found.copies)
    sys.stdout.write(
        f"copies under load: {copies}\n{found.resets} of {found.readers} readers were told to begin anew, then shown "
        f"{found.read.events} events: {found.read.doubles} doubles, {found.read.gaps} gaps, "
        f"{found.read.changed} changed\n" + "".join(f"{problem}\n" for problem in found.problems[:20])
    )
    return int(bool(found.problems) or found.resets != found.readers or not found.read.right)


if __name__ == "__main__":
    sys.exit(main())
