"""Work off the event loop: bounded, interruptible, and no reason for the process to stay."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from app.tools.threads import DaemonThreads, Effort, interruptible


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
