"""Work off the event loop: bounded, interruptible, and no reason for the process to stay."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import pytest

from app.tools.threads import DaemonThreads, Effort, in_thread, interruptible
from tests.processes import alive, linux, numbers_in, until
from tests.world import WAIT_S


@pytest.mark.spec("7.1")
def test_no_more_threads_work_at_once_than_allowed_and_all_work_is_done() -> None:
    threads = DaemonThreads(3, "work")
    lock = threading.Lock()
    full = threading.Event()
    now = most = 0

    def work(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == 3:
                full.set()
        full.wait(5)
        with lock:
            now -= 1
        return number

    futures = [threads.submit(work, number) for number in range(200)]

    assert not wait(futures, timeout=10).not_done
    assert sorted(future.result() for future in futures) == list(range(200))
    assert most == 3


@pytest.mark.spec("7.1")
def test_errors_reach_the_one_who_waits_and_the_thread_goes_on() -> None:
    threads = DaemonThreads(1, "work")

    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        threads.submit(fail).result(5)
    assert threads.submit(lambda: "still here").result(5) == "still here"


@pytest.mark.spec("7.1")
def test_work_that_was_given_up_before_it_began_is_not_done() -> None:
    threads = DaemonThreads(1, "work")
    release = threading.Event()
    done: list[str] = []
    threads.submit(release.wait, 5)
    given_up = threads.submit(done.append, "given up")
    assert given_up.cancel()
    release.set()

    threads.submit(done.append, "next").result(5)

    assert done == ["next"]


@pytest.mark.spec("7.1")
async def test_cancelling_the_caller_tells_the_thread() -> None:
    threads = DaemonThreads(1, "work")
    began, ended = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        began.set()
        if stop.wait(5):
            ended.set()

    call = asyncio.ensure_future(interruptible(threads, work))
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, began.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert await loop.run_in_executor(None, ended.wait, 5)


@pytest.mark.spec("7.8")
def test_work_that_never_ends_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from app.tools.threads import DaemonThreads\n"
        "began = threading.Event()\n"
        "DaemonThreads(1, 'work').submit(lambda: (began.set(), threading.Event().wait()))\n"
        "assert began.wait(5)\n"
        "print('done')\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)

    assert ended.stdout == "done\n"


@pytest.mark.spec("7.3")
def test_an_effort_ends_by_entries_time_or_wish_and_says_which() -> None:
    now = [0.0]
    stop = threading.Event()
    by_entries, by_time, by_wish = (
        Effort(stop, seconds=5, entries=entries, clock=lambda: now[0]) for entries in (2, 0, 0)
    )

    assert [by_entries.more() for _ in range(4)] == [True, True, False, False]
    assert by_entries.spent == "2 entries"
    assert all(by_time.more() for _ in range(1_000))
    now[0] = 5.1
    assert not by_time.in_time()
    assert by_time.spent == "5 seconds"
    now[0] = 0.0
    stop.set()
    assert not by_wish.more()
    assert by_wish.spent == "being cancelled"
    assert not by_time.more()  # what is spent stays spent


# ── work that is given up loses its processes ───────────────────────────────────────────────────────────────────────


async def given_up(work: Callable[[], object], ready: Callable[[], bool], threads: DaemonThreads) -> None:
    """Carry out `work` in a thread and cancel the caller when it is `ready`."""
    call = asyncio.ensure_future(in_thread(threads, work))
    await until(ready)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, WAIT_S)


@linux
@pytest.mark.spec("4.4", "7.4", "7.8")
@pytest.mark.case("B069")
@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("echo $$ >> pids; exec sleep 1000", 1),
        ("echo $$ >> pids; sleep 1000 & echo $! >> pids; sleep 1000 & echo $! >> pids; wait", 3),
        ("echo $$ >> pids; (sh -c 'echo $$ >> pids; sleep 1000 & echo $! >> pids; wait') & wait", 3),
        ("trap '' TERM HUP INT; echo $$ >> pids; setsid sleep 1000 & echo $! >> pids; wait", 2),
        ("echo $$ >> pids; kill -STOP $$; sleep 1000", 1),
    ],
)
async def test_cancelling_the_caller_kills_what_its_thread_has_started_with_all_below(
    tmp_path: Path, command: str, count: int
) -> None:
    ended: list[int] = []

    def work() -> None:
        ended.append(subprocess.run(command, shell=True, cwd=tmp_path, check=False).returncode)

    pids = tmp_path / "pids"
    await given_up(work, lambda: len(numbers_in(pids)) == count, DaemonThreads(1, "work"))

    assert [number for number in numbers_in(pids) if alive(number)] == []
    assert ended == [-signal.SIGKILL], "the thread is done with it as well"


@linux
@pytest.mark.spec("7.4", "7.8")
@pytest.mark.case("B069")
async def test_a_function_that_starts_one_process_after_the_other_loses_them_all(tmp_path: Path) -> None:
    pids, done = tmp_path / "pids", threading.Event()

    def work() -> None:
        for _ in range(5):
            subprocess.run("echo $$ >> pids; exec sleep 1000", shell=True, cwd=tmp_path, check=False)
            threading.Event().wait(0.03)  # it has other things to do in between
        done.set()

    await given_up(work, lambda: len(numbers_in(pids)) == 1, DaemonThreads(1, "work"))

    assert done.is_set(), "it had come to its end when the cancellation went on"
    assert [number for number in numbers_in(pids) if alive(number)] == []


@linux
@pytest.mark.spec("7.4", "7.8")
async def test_processes_of_other_threads_and_of_earlier_work_of_the_same_thread_live_on(tmp_path: Path) -> None:
    threads, gate = DaemonThreads(1, "work"), threading.Event()
    kept: dict[str, subprocess.Popen[bytes]] = {}

    def start(key: str) -> int:
        kept[key] = subprocess.Popen(["sleep", "1000"])
        return threading.get_native_id()

    def beside() -> None:
        start("beside")
        gate.wait(WAIT_S)

    def work() -> None:
        thread.append(threading.get_native_id())
        subprocess.run("echo $$ >> pids; exec sleep 1000", shell=True, cwd=tmp_path, check=False)

    start("caller")
    thread = [await in_thread(threads, lambda: start("earlier"))]
    other = asyncio.ensure_future(in_thread(DaemonThreads(1, "other"), beside))
    await until(lambda: "beside" in kept)
    try:
        await given_up(work, lambda: bool(numbers_in(tmp_path / "pids")), threads)
        assert thread[0] == thread[1]
        assert not alive(numbers_in(tmp_path / "pids")[0])
        assert {key: alive(process.pid) for key, process in kept.items()} == dict.fromkeys(kept, True)
        assert len(kept) == 3
    finally:
        gate.set()
        await other
        for process in kept.values():
            process.kill()
            process.wait(WAIT_S)


@linux
@pytest.mark.spec("7.4", "7.8")
async def test_what_a_given_up_function_starts_later_ends_with_it(tmp_path: Path) -> None:
    threads, began, gate = DaemonThreads(1, "work"), threading.Event(), threading.Event()
    late: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        began.set()
        gate.wait(WAIT_S)
        late.append(subprocess.Popen(["sleep", "1000"]))

    await given_up(work, began.is_set, threads)  # a thread that nothing can stop holds nobody up
    assert not late
    gate.set()
    assert await in_thread(threads, lambda: [process.wait(WAIT_S) for process in late]) == [-signal.SIGKILL]


@linux
@pytest.mark.spec("7.4", "7.8")
async def test_a_second_cancellation_breaks_off_the_wait_and_not_the_killing(tmp_path: Path) -> None:
    pids, gate = tmp_path / "pids", threading.Event()
    ended: list[int] = []

    def work() -> None:
        ended.append(
            subprocess.run("echo $$ >> pids; exec sleep 1000", shell=True, cwd=tmp_path, check=False).returncode
        )
        gate.wait(WAIT_S)

    call = asyncio.ensure_future(in_thread(DaemonThreads(1, "work"), work))
    await until(lambda: bool(numbers_in(pids)))
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: bool(ended))
    gate.set()

    assert ended == [-signal.SIGKILL]
    assert not alive(numbers_in(pids)[0])


@pytest.mark.spec("7.8")
async def test_work_of_a_thread_gives_back_results_and_errors_and_is_not_begun_for_a_caller_that_has_gone() -> None:
    threads, gate = DaemonThreads(1, "work"), threading.Event()
    done: list[str] = []

    def fail() -> None:
        raise LookupError("no such thing")

    assert await in_thread(threads, lambda: 7) == 7
    with pytest.raises(LookupError, match="no such thing"):
        await in_thread(threads, fail)
    threads.submit(gate.wait, WAIT_S)
    call = asyncio.ensure_future(in_thread(threads, lambda: done.append("given up")))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    await in_thread(threads, lambda: done.append("next"))

    assert done == ["next"]
