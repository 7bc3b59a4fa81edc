"""Attempts to break out of a box: each succeeds without one, none succeeds in one (`escapes.py` has the table)."""

from pathlib import Path

import pytest

from app.boxes.box import Level, Limits
from app.boxes.sandbox import Sandbox
from tests.boxes.escapes import ESCAPES, Escape, Without
from tests.boxes.outside import HELD, ROOT, SECRET, Outside, in_box, need, outside, without_box
from tests.longer import LONG

pytestmark = pytest.mark.slow

MB = 1 << 20
LIMITS = Limits(
    memory_bytes=200 * MB,
    processes=40,
    file_bytes=32 * MB,
    disk_bytes=120 * MB,
    files=20_000,
    temporary_bytes=32 * MB,
    open_files=256,
)

# The second of a pair that takes long; the first one is tried each time.
HEAVY = ("make 60,000 files in the temporary directory", "take 400 MB in five processes")


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", HELD)
@pytest.mark.parametrize("name", ESCAPES)
async def test_no_attempt_succeeds_in_a_box(name: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    need(level)
    attempt = ESCAPES[name]
    if name in HEAVY and not LONG:
        pytest.skip("part of make test-long")
    with outside() as world:
        _tempt(attempt, world, monkeypatch)
        said = await in_box(Sandbox(limits=LIMITS), level, world.filled(attempt.command), world.workspace)
        assert not attempt.succeeded(world, said), said[-2000:]


@pytest.mark.parametrize("name", ESCAPES)
async def test_each_attempt_succeeds_without_a_box(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(Level.LANDLOCK)
    attempt = ESCAPES[name]
    if name in HEAVY and not LONG:
        pytest.skip("part of make test-long")
    if attempt.without is Without.ROOT and not ROOT:
        pytest.skip("succeeds only for root")
    if attempt.reads and not any(_readable(path) for path in attempt.reads):
        pytest.skip(f"this machine keeps {attempt.reads} from root too")
    with outside() as world:
        _tempt(attempt, world, monkeypatch)
        said = await _unboxed(attempt, world)
        assert attempt.succeeded(world, said), said[-2000:]


def _readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


async def _unboxed(attempt: Escape, world: Outside) -> str:
    command = world.filled(attempt.command)
    if attempt.without is Without.LEVEL_NONE:
        return await in_box(Sandbox(), Level.NONE, command, world.workspace)
    return without_box(command, world.workspace, as_root=attempt.without is Without.ROOT)


def _tempt(attempt: Escape, world: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has been started with more than it should hand on. What shells run at their start says `ESCAPED`
    by itself, so it is there only for the attempt that is about it."""
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    if not attempt.led:
        return
    startup = Path(world.out / "startup")
    startup.write_text("echo ESCAPED\n")
    monkeypatch.setenv("BASH_ENV", str(startup))
