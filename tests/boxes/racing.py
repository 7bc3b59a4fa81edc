"""Reads and writes in a workspace whose names are swapped against links that lead outside, all the while."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.boxes.beneath import Opener
from app.boxes.directory import BoxError, Directory
from app.boxes.writing import slot

INSIDE, SECRET = b"inside", b"the secret that lies outside"

# `d` is a directory or a link to the one outside, `f` a file or a link to the one outside, `p` nothing or a link, and
# `m` is a directory that is moved, so that `..` in it leads elsewhere.
_SWAP = """
import contextlib, os, shutil, sys
os.chdir(sys.argv[1])
def attempt(do, *arguments):
    if len(sys.argv) > 2:  # one after the other, each when it is asked for
        sys.stdin.readline()
    with contextlib.suppress(OSError):
        do(*arguments)
    if len(sys.argv) > 2:
        print(flush=True)
def fresh():
    with open("t", "wb") as file:
        file.write(b"inside")
    os.rename("t", "f")
print("swapping", flush=True)
while True:
    attempt(os.rename, "d", "e")
    attempt(os.symlink, "../outside", "d")
    attempt(os.symlink, "../outside/secret.txt", "l")
    attempt(os.rename, "l", "f")
    attempt(os.symlink, "../outside", "p")
    attempt(os.unlink, "d")
    attempt(os.rename, "e", "d")
    attempt(os.unlink, "p")
    if os.path.isdir("p") and not os.path.islink("p"):
        attempt(os.rename, "p", "old")
        shutil.rmtree("old", ignore_errors=True)
    attempt(fresh)
    attempt(os.rename, "x/m", "m")
    attempt(os.rename, "m", "x/m")
"""


@dataclass(slots=True, kw_only=True)
class Race:
    """What came of the tries."""

    tries: int = 0
    done: int = 0
    refused: int = 0
    escapes: int = 0


@contextlib.contextmanager
def swapped(folder: Path, *, stepwise: bool = False) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A workspace beside `outside`, in which a process swaps names until the end; `stepwise`: one each time that the
    function is called that comes with it."""
    box, outside = folder / "box", folder / "outside"
    for made in (box / "d", box / "x" / "m", outside):
        made.mkdir(parents=True)
    (box / "d" / "secret.txt").write_bytes(INSIDE)
    (box / "f").write_bytes(INSIDE)
    (box / "x" / "secret.txt").write_bytes(INSIDE)
    (outside / "secret.txt").write_bytes(SECRET)
    command = [sys.executable, "-c", _SWAP, str(box), *(["stepwise"] if stepwise else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said, asked = process.stdout, process.stdin

        def step() -> None:
            asked.write(b"\n")
            asked.flush()
            said.readline()

        try:
            assert said.readline() == b"swapping\n"
            yield box, step
        finally:
            process.kill()


def raced(folder: Path, opener: Opener, tries: int, *, least: int = 0) -> Race:
    """Read and write through a confined directory, `tries` times and on until `least` were done and as many refused."""
    race = Race()
    with swapped(folder) as (box, _):
        directory = Directory(box, opener=opener)
        while race.tries < tries or min(race.done, race.refused) < least:
            number = race.tries
            race.tries += 1
            try:
                if number % 2:
                    path = ("d/secret.txt", "f", "x/m/../secret.txt")[number // 2 % 3]
                    race.escapes += _read(directory, path) == SECRET
                else:
                    path = ("d/secret.txt", "f", "d/new", "p/q/new")[number // 2 % 4]
                    _write(directory, path)
                race.done += 1
            except BoxError:
                race.refused += 1
            if os.listdir(folder / "outside") != ["secret.txt"]:
                race.escapes += 1
                break
            race.escapes += (folder / "outside" / "secret.txt").read_bytes() != SECRET
    return race


def naive(folder: Path, most: int, *, stepwise: bool = False) -> Race:
    """What a check of the resolved path is worth: until it has escaped, at most `most` times. `stepwise`: one name is
    swapped between each check and its use, and none besides."""
    race = Race()
    with swapped(folder, stepwise=stepwise) as (box, step):
        root = os.path.realpath(box)
        while race.tries < most and not race.escapes:
            race.tries += 1
            path = box / ("d/secret.txt" if race.tries % 2 else "f")
            with contextlib.suppress(OSError):  # it may vanish at any moment
                inside = os.path.realpath(path).startswith(root + "/")
                if stepwise:
                    step()
                if not inside:
                    race.refused += 1
                    continue
                race.escapes += path.read_bytes() == SECRET
                race.done += 1
    return race


def _read(directory: Directory, path: str) -> bytes:
    with os.fdopen(directory.open_file(path), "rb") as file:
        return file.read()


def _write(directory: Directory, path: str) -> None:
    with slot(directory, path, make_parents=True) as place:
        place.replace(INSIDE, place.state())
