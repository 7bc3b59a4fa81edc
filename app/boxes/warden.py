"""A program of its own, run as `python -I -S warden.py HANDLE`, the handle being that of an open file with the plan: it
starts one shell under restrictions and outlives it, so that nothing of it is left. Imports nothing of the service.

When its standard input ends, for instance because the server has died, it ends everything.
"""

import base64
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 36, 38, 22
_FILTER_MODE = 2
_RESTRICT_SELF = 446
_CLOSED_S = 5.0  # only a process that is stuck in the kernel outlives SIGKILL
_REMOVAL_S = 2.0  # for what the shell left in its temporary directory; a server that still lives goes on
_OWN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NOT_STARTED = 126
STARTED = b"+"  # what comes after it on the ready pipe is a problem


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def main() -> NoReturn:
    """Start the shell, wait for its end or for the word to end it, then end all that it left."""
    with open(int(sys.argv[1]), "rb") as file:
        plan: dict[str, Any] = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "the place of a reaper")
    shell = os.fork()
    if shell == 0:
        _become(plan, libc)
    _let_go()
    code = _watched(shell)
    _end_all()
    cleared_away(plan["temporary"], _REMOVAL_S)  # the server may be gone by now
    os._exit(code)


def _let_go() -> None:
    """Hold none of what the shell was given: whoever reads its output must see when it ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.closerange(3, 1 << 16)


def _watched(shell: int) -> int:
    """The exit code of the shell; 128 + SIGKILL when it had to end."""
    ended = os.pidfd_open(shell)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN)
    ready = {place for place, _ in poll.poll()}
    os.close(ended)
    if 0 in ready:
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
    return code if code >= 0 else 128 - code


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _end_all() -> None:
    """Kill everything below this process. All are stopped first: what is stopped starts no more, and it still takes up
    its place among the processes that the limit allows, so that this comes to an end whatever they do."""
    until = time.monotonic() + _CLOSED_S
    while time.monotonic() < until:
        stopped: set[int] = set()
        while new := set(_below(os.getpid())) - stopped:
            for number in new:
                _signal(number, signal.SIGSTOP)
            stopped |= new
        for number in stopped:
            _signal(number, signal.SIGKILL)
        if not _reaped():
            return
        time.sleep(0.002)


def cleared_away(directory: str, seconds: float) -> bool:
    """Remove a directory with all that is in it, so long and no longer; whether it is gone. It may be of any depth and
    hold directories that nobody may read: what is further down is moved to the top, so that no path grows."""
    if _gone(os.rmdir, directory):
        return True
    until = time.monotonic() + seconds
    _make_writable(directory)
    try:
        top = os.open(directory, _OWN_DIRECTORY)
    except OSError:
        return False
    try:
        while _thinned(top, until):
            pass
    finally:
        os.close(top)
    return _gone(os.rmdir, directory)


def _thinned(top: int, until: float) -> bool:
    """Remove each file of a directory, and the files of each directory in it; whether to do so again."""
    done = False
    for name in os.listdir(top):
        if time.monotonic() > until:
            return False
        if _gone(os.unlink, name, dir_fd=top) or _gone(os.rmdir, name, dir_fd=top):
            done = True
            continue
        _make_writable(name, top)
        try:
            below = os.open(name, _OWN_DIRECTORY, dir_fd=top)
        except OSError:
            continue
        done = _lifted(below, top, until) or done
        os.close(below)
    return done


def _lifted(below: int, top: int, until: float) -> bool:
    """Remove the files of a directory, and move its directories to the top; whether anything was done."""
    done = False
    for name in os.listdir(below):
        if time.monotonic() > until:
            break
        if _gone(os.unlink, name, dir_fd=below):
            done = True
            continue
        _make_writable(name, below)  # or it may not be moved
        try:
            os.rename(name, os.urandom(16).hex(), src_dir_fd=below, dst_dir_fd=top)
        except OSError:
            continue
        done = True
    return done


def _gone(remove: Callable[..., None], name: str, **where: int) -> bool:
    try:
        remove(name, **where)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _make_writable(name: str, above: int | None = None) -> None:
    """Through a handle: a name could be a link by now."""
    try:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        return
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    except OSError:  # it belongs to somebody else
        pass
    os.close(handle)


def _reaped() -> bool:
    """Collect what has ended; whether there are still children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _below(number: int) -> Iterator[int]:
    pending = [number]
    while pending:
        task = f"/proc/{pending.pop()}/task"
        try:
            threads = os.listdir(task)
        except OSError:  # it has ended
            continue
        for thread in threads:
            children = _children(f"{task}/{thread}")
            pending += children
            yield from children


def _children(thread: str) -> list[int]:
    try:
        return [int(number) for number in Path(f"{thread}/children").read_text().split()]
    except OSError:
        return []


def _signal(number: int, what: signal.Signals) -> None:
    try:
        os.kill(number, what)
    except OSError:  # it has ended
        pass


# ── the beginning ───────────────────────────────────────────────────────────────────────────────────────────────


def _become(plan: Mapping[str, Any], libc: ctypes.CDLL) -> NoReturn:
    """Turn into the shell. Any problem ends it before it begins: nothing runs with less than what was planned."""
    try:
        os.setsid()
        os.fchdir(plan["workspace"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if plan["user"] is not None:
            os.setgroups([])
            os.setresgid(plan["group"], plan["group"], plan["group"])
            os.setresuid(plan["user"], plan["user"], plan["user"])
        _done(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "to die with the warden")
        for name, most in plan["limits"].items():
            _limit(getattr(resource, name), most)
        _done(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "to have no new privileges")
        if plan["ruleset"] is not None:
            _done(libc.syscall(_RESTRICT_SELF, plan["ruleset"], 0), "the rules of Landlock")
        if plan["filter"] is not None:
            code = base64.b64decode(plan["filter"])
            program = _Filter(len(code) // 8, code)
            _done(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0), "the filter of system calls")
        _keep_only(plan["ready"])
        os.set_inheritable(plan["ready"], False)
        os.write(plan["ready"], STARTED)
        os.execve(plan["argv"][0], plan["argv"], plan["environment"])  # noqa: S606  the shell is what is asked for
    except BaseException as error:  # noqa: BLE001  border of a process: what failed is said, and nothing is run
        os.write(plan["ready"], f"{error}".encode())
    os._exit(NOT_STARTED)


def _limit(which: int, most: int) -> None:
    hard = resource.getrlimit(which)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _keep_only(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 16)


def _done(result: int, what: str) -> None:
    if result < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"{what} cannot be had: {os.strerror(problem)}")


if __name__ == "__main__":
    main()
