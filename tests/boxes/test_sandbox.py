"""Commands in boxes: how they end, that nothing of them is left, whose files they make, and which level is claimed."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.boxes import bubblewrap, process
from app.boxes.box import BoxRefused, End, Ended, Level, Limits, Standing
from app.boxes.ownership import Identity, adopt, identity_for
from app.boxes.sandbox import MAX_COMMAND_BYTES, Sandbox
from app.boxes.temporary import temporary
from app.boxes.usage import memory_of
from app.boxes.workspaces import Workspaces
from tests.boxes.outside import HELD, PYTHON, ROOT, a_nap, in_box, need, open_folder, own, running
from tests.processes import alive, until

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
LEVELS = list(Level)
GUARDED = (Level.LANDLOCK, Level.NONE)  # whose temporary directory is one of the machine
WAIT_S = 20.0


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A workspace that commands may write."""
    with open_folder() as folder:
        (folder / "workspace").mkdir()
        yield own(folder / "workspace")


async def ended(
    level: Level, command: str, place: Path, *, limit_s: float = WAIT_S, **limits: int
) -> tuple[Ended, str]:
    """Run it, within a bound that is far beyond its own limit."""
    if level is not Level.NONE:
        need(level)
    said = bytearray()
    box = Sandbox(limits=Limits(**limits))
    async with asyncio.timeout(WAIT_S):
        how, _ = await box.run_at(level, command, place, timeout_s=limit_s, output=said.extend)
    text = said.decode()
    if "fork: retry:" in text:
        # the kernel counts the processes of a user, and other tests have many for a moment: bash then tries again
        text = "".join(line for line in text.splitlines(keepends=True) if "fork: retry:" not in line)
    return how, text


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_command_works_in_its_workspace_and_its_output_keeps_its_order(level: Level, workspace: Path) -> None:
    (workspace / "given.txt").write_text("given\n")
    command = (
        f"pwd; cat given.txt; echo oops >&2; echo more; {PYTHON} -c 'print(6 * 7)'; cat; echo x > made; "
        'mkdir -p "$TMPDIR/a" && echo temporary > "$TMPDIR/a/b" && cat "$TMPDIR/a/b"; cat <(echo piped); exit 3'
    )
    how, said = await ended(level, command, workspace)
    assert said.split() == [str(workspace), "given", "oops", "more", "42", "temporary", "piped"]
    assert how == Ended(end=End.EXITED, code=3)
    assert (workspace / "made").read_text() == "x\n"


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_signal_is_an_exit_code(level: Level, workspace: Path) -> None:
    how, _ = await ended(level, "kill -TERM $$", workspace)
    assert how == Ended(end=End.EXITED, code=128 + signal.SIGTERM)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", HELD)
async def test_a_command_gets_a_clean_environment_and_what_the_operator_names(
    level: Level, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(level)
    monkeypatch.setenv("SERVICE_TOKEN", "secret")
    box = Sandbox(variables={"GREETING": "a b"})
    said = await in_box(box, level, "env | cut -d= -f1; echo $GREETING", workspace)
    names = {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "GREETING", "PWD", "SHLVL", "_"}
    assert set(said.splitlines()) == names | {"a b"}


@pytest.mark.spec("7.3", "5.7")
@pytest.mark.case("B074", "B075")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "command",
    [
        "(/bin/sleep {0} &); echo started",
        "setsid /bin/sleep {0} & echo started",
        "(setsid /bin/sleep {0} </dev/null >/dev/null 2>&1 &); echo started",
        "nohup setsid bash -c 'trap \"\" TERM HUP INT; /bin/sleep {0} & wait' & echo started",
        "echo started; yes | head -c 5000000000 >&2 &",
    ],
)
async def test_a_command_ends_with_its_shell_and_takes_all_with_it(level: Level, command: str, workspace: Path) -> None:
    nap = a_nap()
    how, said = await ended(level, command.format(nap), workspace, limit_s=10)
    assert (how.end, how.code) == (End.EXITED, 0)
    assert "started" in said[:100]
    assert running(nap) == []
    again, said = await ended(level, "echo next", workspace)
    assert (again.end, said) == (End.EXITED, "next\n")


@pytest.mark.spec("7.3", "5.7")
@pytest.mark.case("B074")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "command", ["yes >&2", "while :; do :; done", "trap '' TERM INT HUP; setsid /bin/sleep {0} & /bin/sleep {0}; wait"]
)
async def test_a_command_that_takes_too_long_is_ended_with_its_output_so_far(
    level: Level, command: str, workspace: Path
) -> None:
    nap = a_nap()
    how, said = await ended(level, f"echo begun; {command.format(nap)}", workspace, limit_s=1.0)
    assert (how, said[:5]) == (Ended(end=End.TIMED_OUT), "begun")
    assert running(nap) == []


@pytest.mark.spec("7.4", "5.7")
@pytest.mark.case("B074")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_cancelled_command_leaves_no_process(level: Level, workspace: Path) -> None:
    nap = a_nap()
    begun = asyncio.Event()
    command = (
        f"setsid /bin/sleep {nap} & (setsid bash -c '/bin/sleep {nap} & disown; exec /bin/sleep {nap}' &) ;"
        f" /bin/sleep {nap} & sleep 0.2; echo begun; wait"
    )
    run = asyncio.create_task(
        Sandbox().run_at(level, command, workspace, timeout_s=WAIT_S, output=lambda data: begun.set())
    )
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        assert len(running(nap)) >= 3
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert running(nap) == []


@pytest.mark.spec("7.4", "5.7")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_command_that_is_cancelled_while_it_starts_leaves_no_process(level: Level, workspace: Path) -> None:
    if level is not Level.NONE:
        need(level)
    nap = a_nap()

    async def cancelled_after(turns: int, pause_s: float) -> None:
        box = Sandbox()
        run = asyncio.create_task(
            box.run_at(level, f"/bin/sleep {nap}", workspace, timeout_s=WAIT_S, output=lambda data: None)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.sleep(pause_s)  # each at another moment of its beginning
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    async with asyncio.timeout(WAIT_S * 2):
        for turns in range(6):
            await cancelled_after(turns, 0)
        for start in range(0, 60, 5):
            await asyncio.gather(*(cancelled_after(0, (start + step) / 1000) for step in range(5)))
    assert running(nap) == []


@pytest.mark.spec("7.4", "5.7")
@pytest.mark.case("B074")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_command_that_is_cancelled_again_and_again_leaves_no_process(level: Level, workspace: Path) -> None:
    if level is not Level.NONE:
        need(level)
    nap = a_nap()

    async def cancelled_often(turns: int) -> None:
        begun = asyncio.Event()
        command = f"/bin/sleep {nap} & echo begun; /bin/sleep {nap}"
        run = asyncio.create_task(
            Sandbox().run_at(level, command, workspace, timeout_s=WAIT_S, output=lambda data: begun.set())
        )
        if turns > 2:  # the others while it starts
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        while not run.done():
            run.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await run

    async with asyncio.timeout(WAIT_S * 2):
        for turns in (1, 2, 3, 4, 5, 8):
            await cancelled_often(turns)
            assert running(nap) == []


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", GUARDED)
@pytest.mark.parametrize("broken_off", [False, True])
async def test_a_temporary_directory_is_gone_after_the_call_whatever_is_in_it(
    level: Level, broken_off: bool, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level is not Level.NONE:
        need(level)
    temporary = workspace.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (workspace.parent / "kept").write_text("kept")
    filling = (
        "import os\nos.chdir(os.environ['TMPDIR'])\nfor n in range(1100): os.mkdir('d'); os.chdir('d')\n"
        f"open('f', 'w').close(); os.symlink('{workspace.parent}', 'l')\nos.mkdir('c', 0o300); os.mkdir('c/in')"
    )
    command = f'{PYTHON} -c "{filling}"; echo filled; {"/bin/sleep 60" if broken_off else ""}'
    filled, said = asyncio.Event(), bytearray()

    def heard(data: bytes) -> None:
        said.extend(data)
        filled.set()

    run = asyncio.create_task(Sandbox().run_at(level, command, workspace, timeout_s=WAIT_S * 2, output=heard))
    async with asyncio.timeout(WAIT_S * 2):
        waiting = asyncio.create_task(filled.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if broken_off:
            run.cancel()
        await asyncio.wait({run})
    assert run.cancelled() if broken_off else run.result()[0].code == 0
    assert said == b"filled\n"
    assert list(temporary.iterdir()) == []
    assert (workspace.parent / "kept").read_text() == "kept"


@pytest.mark.spec("7.3")
async def test_the_server_removes_what_nobody_else_has_however_deep_it_is() -> None:
    before = os.getcwd()
    async with asyncio.timeout(WAIT_S), temporary(Identity(user=0, group=0, dropped=False)) as made:
        os.chdir(made.path)
        try:
            for _ in range(1100):
                os.mkdir("d")
                os.chdir("d")
        finally:
            os.chdir(before)
    assert not os.path.lexists(made.path)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", GUARDED)
async def test_a_command_may_not_fill_the_disk_of_its_temporary_directory(
    level: Level, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(workspace).st_dev:
        pytest.skip("there is no second disk")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    filling = "for i in {1..5}; do head -c 40M /dev/zero > $TMPDIR/big$i; done; sleep 60"
    how, _ = await ended(level, filling, workspace, disk_bytes=150 << 20)
    assert how == Ended(end=End.DISK)


@pytest.mark.spec("7.3")
async def test_the_memory_of_a_command_is_counted_while_the_loop_goes_on(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, counted = asyncio.get_running_loop(), list[bool]()

    def met_by_the_loop(top: int, most: int) -> int:
        met = threading.Event()
        loop.call_soon_threadsafe(met.set)
        counted.append(met.wait(WAIT_S / 4))
        return memory_of(top, most)

    monkeypatch.setattr(process, "memory_of", met_by_the_loop)
    how, _ = await ended(Level.NONE, "sleep 0.7", workspace)
    assert how.code == 0
    assert set(counted) == {True}


SERVER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from app.boxes.box import Level
from app.boxes.sandbox import Sandbox
def show(data): print(data, flush=True)
run = Sandbox().run_at(Level(sys.argv[2]), sys.argv[4], Path(sys.argv[3]), timeout_s=60, output=show)
asyncio.run(run)
"""


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_server_that_is_killed_takes_its_commands_with_it(level: Level, workspace: Path) -> None:
    if level is not Level.NONE:
        need(level)
    nap = a_nap()
    temporary = workspace.parent / "temporary"
    temporary.mkdir()
    command = f"echo x > $TMPDIR/x; (setsid /bin/sleep {nap} &); echo begun; /bin/sleep {nap}"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(REPOSITORY), level.value, str(workspace), command),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert server.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert b"begun" in await server.stdout.readline()
        server.kill()
        await server.wait()
    await until(lambda: not running(nap))
    await until(lambda: not list(temporary.iterdir()))


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_a_fork_bomb_goes_off_in_its_box(level: Level, workspace: Path) -> None:
    how, _ = await ended(level, "f() { f | f & }; f; sleep 60", workspace, limit_s=1.0, processes=40)
    assert how.end in (End.TIMED_OUT, End.EXITED)
    assert not how.output_lost
    again, said = await ended(level, "echo next", workspace)
    assert (again.end, said) == (End.EXITED, "next\n")


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", HELD)
async def test_a_command_that_takes_too_much_is_ended_and_the_reason_is_known(level: Level, workspace: Path) -> None:
    hungry = f"for i in 1 2 3 4; do {PYTHON} -c 'import time; x = b\"x\" * (60 << 20); time.sleep(60)' & done; wait"
    how, _ = await ended(level, hungry, workspace, memory_bytes=120 << 20)
    assert how == Ended(end=End.MEMORY)
    filling = "for i in {1..8}; do head -c 20M /dev/zero > big$i; done; sync -f .; sleep 60"
    how, _ = await ended(level, filling, workspace, disk_bytes=80 << 20)
    assert how == Ended(end=End.DISK)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", LEVELS)
async def test_what_cannot_be_a_command_is_refused_before_anything_runs(level: Level, workspace: Path) -> None:
    for command in ("echo a\0b", "echo \ud800", "#" * (MAX_COMMAND_BYTES + 1)):
        with pytest.raises(BoxRefused, match="was not run"):
            await ended(level, command, workspace)
    how, said = await ended(level, "echo ok #" + "é" * (MAX_COMMAND_BYTES // 2 - 9), workspace)
    assert (how.code, said) == (0, "ok\n")
    with pytest.raises(BoxRefused, match="workspace"):
        await ended(level, "true", workspace / "gone")


@pytest.mark.spec("7.3")
def test_all_of_this_holds_on_the_loop_that_the_service_runs_on(workspace: Path) -> None:
    async def some() -> None:
        for level in LEVELS:
            nap = a_nap()
            how, said = await ended(level, f"(setsid /bin/sleep {nap} &); echo a; echo b >&2; exit 4", workspace)
            assert (how.code, said) == (4, "a\nb\n")
            slow, _ = await ended(level, f"setsid /bin/sleep {nap} & yes", workspace, limit_s=0.5, fast_bytes=1000)
            assert slow == Ended(end=End.TIMED_OUT)
            assert running(nap) == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(some())


@pytest.mark.spec("7.3")
async def test_programs_that_use_shared_memory_start_without_files_in_memory(workspace: Path) -> None:
    """Through the bounded /dev/shm, which is another file system than /dev, where nothing can be made."""
    code = (
        "import multiprocessing, multiprocessing.shared_memory as s\n"
        "m = s.SharedMemory(create=True, size=8); m.unlink()\n"
        "with multiprocessing.Pool(2) as pool: print(sum(pool.map(abs, [-1, 2])))"
    )
    (workspace / "pool.py").write_text(code)
    node = "node -e 'console.log(4)'" if shutil.which("node", path="/usr/bin:/bin") else "echo 4"
    command = f"{PYTHON} pool.py; {node}; touch /dev/made 2>/dev/null || echo closed; echo x > /dev/null && echo open"
    how, said = await ended(Level.FULL, command, workspace)
    assert (how.end, said.split()) == (End.EXITED, ["3", "4", "closed", "open"]), said


# ── whose files ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
@pytest.mark.parametrize("level", HELD)
async def test_roots_workspace_is_handed_over_only_below_the_root_of_workspaces(level: Level) -> None:
    need(level)
    with open_folder() as root:
        inside, linked = root / "inside", root / "linked"
        inside.mkdir()
        (inside / "old.txt").write_text("old\n")
        (inside / "old.txt").chmod(0o644)
        (root / "outside.txt").write_text("outside\n")
        os.link(root / "outside.txt", inside / "hard.txt")
        linked.symlink_to("/etc")
        box, beneath = Sandbox(), Workspaces(root)
        command = "id -u; echo new >> old.txt; echo x > made.txt; echo x >> hard.txt"
        said = bytearray()
        _, identity = await box.run_at(level, command, inside, timeout_s=WAIT_S, output=said.extend, beneath=beneath)
        assert (identity.writes, said.decode().splitlines()[0]) == (True, "65534")
        assert ((inside / "old.txt").read_text(), (inside / "made.txt").read_text()) == ("old\nnew\n", "x\n")
        assert (root / "outside.txt").read_text() == "outside\n"
        assert (root / "outside.txt").stat().st_uid == 0
        _, identity = await box.run_at(
            level, "echo x > here.txt", root, timeout_s=WAIT_S, output=said.extend, beneath=beneath
        )
        assert (identity.writes, (root / "here.txt").exists(), root.stat().st_uid) == (False, False, 0)
        own(inside, 4321)
        said.clear()
        await box.run_at(level, "id -u", inside, timeout_s=WAIT_S, output=said.extend, beneath=beneath)
        assert said == b"4321\n"


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
def test_a_wide_workspace_is_handed_over_with_few_handles() -> None:
    with open_folder() as root:
        for number in range(200):
            (root / f"{number}/a/b/c").mkdir(parents=True)
        place = os.open(root, os.O_RDONLY)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (place + 20, before[1]))
            identity_for(place, 4321, may_hand_over=True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            os.close(place)
        assert {path.stat().st_uid for path in (root, *root.rglob("*"))} == {4321}


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
def test_a_workspace_for_which_the_handles_do_not_suffice_stays_roots() -> None:
    with open_folder() as root:
        (root / "/".join("d" * 60)).mkdir(parents=True)
        place = os.open(root, os.O_RDONLY)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (place + 20, before[1]))
            with pytest.raises(OSError, match="Too many open files"):
                identity_for(place, 4321, may_hand_over=True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            os.close(place)
        assert root.stat().st_uid == 0


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
async def test_a_workspace_that_could_not_be_handed_over_as_a_whole_runs_nothing_and_stays_roots() -> None:
    with open_folder() as root:
        deep = root / "workspace" / "/".join("d" * 150)
        deep.mkdir(parents=True)
        said, beneath = bytearray(), Workspaces(root)
        with pytest.raises(BoxRefused, match="cannot be given to the user 65534: its directories are more than 128"):
            await Sandbox().run_at(
                Level.NONE, "echo run", root / "workspace", timeout_s=WAIT_S, output=said.extend, beneath=beneath
            )
        assert not said
        assert (root / "workspace").stat().st_uid == 0


ORDINARY = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from app.boxes.box import Level
from app.boxes.sandbox import Sandbox
async def main():
    box = Sandbox(lowest=Level.NONE)
    print((await box.standing()).level, flush=True)
    for level in (Level.FULL, Level.LANDLOCK):
        print(level, await box._attacked(level), flush=True)
        said = bytearray()
        command = f"kill -9 {sys.argv[3]}; chmod 0 '{sys.argv[4]}'; prlimit --pid {sys.argv[3]} --nofile=7:7; id -u"
        await box.run_at(level, command, Path(sys.argv[2]), timeout_s=20, output=said.extend)
        print(said.decode().splitlines()[-1], flush=True)
asyncio.run(main())
"""


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="without root, the other tests show this")
async def test_a_server_that_is_no_root_holds_both_levels_though_commands_run_as_itself(workspace: Path) -> None:
    for level in HELD:
        need(level)
    own(workspace, 4322)
    database = own(workspace.parent / "database", 4322) if (workspace.parent / "database").write_text("x") else None
    assert database is not None
    decoy = subprocess.Popen(["/bin/sleep", "60"], user=4322, group=4322, extra_groups=())
    try:
        server = await asyncio.create_subprocess_exec(
            *(PYTHON, "-B", "-c", ORDINARY, str(REPOSITORY), str(workspace), str(decoy.pid), str(database)),
            stdout=asyncio.subprocess.PIPE,
            cwd="/",
            user=4322,
            group=4322,
            extra_groups=(),
            env={"PATH": os.environ["PATH"], "SERVICE_TOKEN": "secret"},
        )
        async with asyncio.timeout(WAIT_S):
            said = (await server.communicate())[0].decode().splitlines()
        assert said == ["full", "full None", "4322", "landlock None", "4322"]
        assert alive(decoy.pid)
        assert "7 " not in next(
            line for line in Path(f"/proc/{decoy.pid}/limits").read_text().splitlines() if "open files" in line
        )
        assert database.stat().st_mode & 0o777 == 0o644
    finally:
        decoy.kill()
        decoy.wait()


# ── which level ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("7.3")
async def test_the_level_is_found_by_attacking_it() -> None:
    for level in HELD:
        need(level)
    box = Sandbox()
    assert await box.standing() == Standing(level=Level.FULL)
    assert await box.refusal() is None
    reason = await box._attacked(Level.NONE)
    for what in ("read a file", "write a file", "TCP", "UDP", "signal a process"):
        assert what in (reason or "")


@pytest.mark.spec("7.3")
async def test_without_bubblewrap_the_second_level_counts_and_below_the_demanded_one_nothing_runs(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(Level.LANDLOCK)
    monkeypatch.setattr(bubblewrap, "missing", lambda: "there is no bwrap")
    strict, second = Sandbox(), Sandbox(lowest=Level.LANDLOCK)
    assert await strict.standing() == Standing(level=Level.LANDLOCK, missing=((Level.FULL, "there is no bwrap"),))
    with pytest.raises(BoxRefused, match=r"demands a sandbox of level full and has landlock .*there is no bwrap"):
        await strict.run("touch made", workspace, timeout_s=WAIT_S, output=lambda data: None)
    assert list(workspace.iterdir()) == []
    how, _ = await second.run("touch made", workspace, timeout_s=WAIT_S, output=lambda data: None)
    assert (how.code, (workspace / "made").exists()) == (0, True)


@pytest.mark.spec("7.3")
async def test_a_box_that_leaks_is_not_the_level_that_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    need(Level.FULL)
    whole = bubblewrap.command_line

    def leaking(*given: Any) -> list[str]:
        return [word for word in whole(*given) if word != "--unshare-net"]

    monkeypatch.setattr(bubblewrap, "command_line", leaking)
    standing = await Sandbox(lowest=Level.NONE).standing()
    assert standing.level is not Level.FULL
    assert "TCP connection" in standing.why()


@pytest.mark.spec("7.3")
async def test_a_box_that_cannot_be_built_runs_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(Level.FULL)
    whole = bubblewrap.command_line
    monkeypatch.setattr(
        bubblewrap,
        "command_line",
        lambda *given: [*whole(*given)[:-8], "--ro-bind", "/nowhere", "/nowhere", *whole(*given)[-8:]],
    )
    with pytest.raises(BoxRefused, match=r"not started: bwrap: .*nowhere"):
        await ended(Level.FULL, "touch made", workspace)
    assert list(workspace.iterdir()) == []


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return zip(["", *words], words, strict=False)


@pytest.mark.spec("7.3")
async def test_where_no_process_tree_can_be_mounted_the_box_holds_without_one(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(Level.FULL)
    whole = bubblewrap.command_line

    def refused(*given: Any) -> list[str]:
        return [
            "/usr/no/proc" if one == "/proc" and before == "--proc" else one for before, one in _pairs(whole(*given))
        ]

    monkeypatch.setattr(bubblewrap, "command_line", refused)
    box, said = Sandbox(), bytearray()
    assert (await box.standing()).level is Level.FULL
    how, _ = await box.run("ls -A /proc; echo fine", workspace, timeout_s=WAIT_S, output=said.extend)
    assert (how.code, said.decode()) == (0, "fine\n")


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("level", HELD)
async def test_further_places_can_be_read_and_not_written(level: Level, workspace: Path) -> None:
    need(level)
    more = workspace.parent / "more"
    more.mkdir()
    own(more)
    (more / "tool.txt").write_text("tool\n")
    own(more / "tool.txt")
    command = f"cat '{more}/tool.txt'; echo x > '{more}/made'; rm '{more}/tool.txt'"
    assert (await in_box(Sandbox(paths=(more,)), level, command, workspace)).startswith("tool\n")
    assert "tool\n" not in await in_box(Sandbox(), level, command, workspace)
    assert [path.name for path in more.iterdir()] == ["tool.txt"]


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
async def test_a_file_that_the_server_makes_can_be_given_to_those_who_run_commands(workspace: Path) -> None:
    place = os.open(workspace, os.O_RDONLY)
    with (workspace / "made.txt").open("w") as file:
        adopt(file.fileno(), place)
    os.close(place)
    need(Level.FULL)
    await in_box(Sandbox(), Level.FULL, "echo x >> made.txt", workspace)
    assert (workspace / "made.txt").read_text() == "x\n"
