"""Whether a path can be made to lead outside while it is opened: tries, what was done and refused, and escapes.

    python -m bench.symlink_race [TRIES]

Both ways of opening, and for comparison a check of the resolved path, which escapes.
"""

import sys
import tempfile
from pathlib import Path

from app.boxes.beneath import open_by_kernel, open_by_walk
from tests.boxes.racing import Race, naive, raced

TRIES = 20_000


def main() -> None:
    """Measure and print; ends with 1 after an escape."""
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else TRIES
    escapes = 0
    for name, opener in (("openat2", open_by_kernel), ("walk", open_by_walk)):
        with tempfile.TemporaryDirectory() as folder:
            race = raced(Path(folder), opener, tries)
        escapes += race.escapes
        _print(name, race)
    with tempfile.TemporaryDirectory() as folder:
        _print("resolve, check, open (until it escapes)", naive(Path(folder), 50 * tries))
    if escapes:
        sys.exit(1)


def _print(name: str, race: Race) -> None:
    text = f"{name}: {race.tries:,} tries, {race.done:,} done, {race.refused:,} refused, {race.escapes:,} escapes"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
