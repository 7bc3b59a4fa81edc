"""A machine outside a box, with things that only the box keeps a command from, and commands with and without one."""

import ctypes
import os
import secrets
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from app.boxes.box import Level
from app.boxes.sandbox import NOBODY, Sandbox, missing_for
from app.boxes.syscalls import this_machine

SECRET = "canary-7c1f0b"
PYTHON = "/usr/bin/python3"
ROOT = os.geteuid() == 0
USER = NOBODY if ROOT else os.geteuid()
STRANGER = 54321
WAIT_S = 20.0
LIBC = ctypes.CDLL(None, use_errno=True)
IPC_PRIVATE = 0
HELD = (Level.FULL, Level.LANDLOCK)


@cache
def _refused_by_the_system() -> str | None:
    """Why nobody can make namespaces here, by asking the program itself: None where it can be done."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return None
    plain = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(plain, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return tried.stderr.strip() or f"it ended with {tried.returncode}" if tried.returncode else None


def need(level: Level) -> None:
    """Skip where the system itself refuses a level; where only a program is missing, that is a failure in CI."""
    refused = _refused_by_the_system() if level is Level.FULL else None
    if refused is not None:
        pytest.skip(f"this system lets nobody make namespaces: {refused}")
    reason = missing_for(level) or (None if os.path.exists(PYTHON) else f"no {PYTHON} for the attempts")
    if reason is None:
        return
    if os.environ.get("CI") == "true" and (level is Level.FULL or not os.path.exists(PYTHON)):
        pytest.fail(f"the level {level} cannot be tested here: {reason}")
    pytest.skip(reason)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that other users can go through, as those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="subagentd-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own(path: Path, user: int = USER) -> Path:
    """Give a path to a user, if that is possible here."""
    if ROOT:
        os.chown(path, user, user)
    return path


@dataclass(kw_only=True)
class Outside:
    """What there is."""

    folder: Path
    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    stream: socket.socket
    datagram: socket.socket
    fifo: int
    decoy: "subprocess.Popen[bytes]"
    database: int
    queue: int
    semaphore: int
    given: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def out(self) -> Path:
        return self.folder / "outside"

    def filled(self, text: str) -> str:
        """A command with the places of this machine put in."""
        numbers = this_machine().numbers  # type: ignore[union-attr]
        words = {
            "OUT": self.out,
            "FOLDER": self.folder,
            "DECOY": self.decoy.pid,
            "SERVER": os.getpid(),
            "TCP": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "QUEUE": self.queue,
            "SEMAPHORE": self.semaphore,
            "ABSTRACT": str(self.abstract.getsockname()[1:], "ascii"),
            **{f"NR_{name}": number for name, number in numbers.items()},
        }
        for name in sorted(words, key=len, reverse=True):
            text = text.replace(f"@{name}@", str(words[name]))
        return text


@contextmanager
def outside() -> Iterator[Outside]:
    """All of it, taken away afterwards."""
    with ExitStack() as held:
        folder = held.enter_context(open_folder())
        _files(folder)
        unix = socket.AF_UNIX
        fifo = os.open(folder / "outside" / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        database = os.open(folder / "database", os.O_RDWR)
        os.set_inheritable(database, True)
        for handle in (fifo, database):
            held.callback(os.close, handle)
        decoy = subprocess.Popen(
            ["/bin/sleep", "60"],
            env={"CANARY": SECRET},
            cwd="/",
            user=USER if ROOT else None,
            group=USER if ROOT else None,
            extra_groups=() if ROOT else None,
        )
        held.callback(decoy.wait)
        held.callback(decoy.kill)
        world = Outside(
            folder=folder,
            tcp=held.enter_context(socket.create_server(("127.0.0.1", 0))),
            udp=held.enter_context(_bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))),
            abstract=held.enter_context(_bound(unix, socket.SOCK_STREAM, f"\0canary-{os.getpid()}-{folder.name}")),
            stream=held.enter_context(_bound(unix, socket.SOCK_STREAM, str(folder / "outside" / "stream"))),
            datagram=held.enter_context(_bound(unix, socket.SOCK_DGRAM, str(folder / "outside" / "datagram"))),
            fifo=fifo,
            decoy=decoy,
            database=database,
            queue=_made(held, "msgget", "msgctl", IPC_PRIVATE, 0o666),
            semaphore=_made(held, "semget", "semctl", IPC_PRIVATE, 1, 0o666),
        )
        LIBC.msgsnd(world.queue, struct.pack("l32s", 1, SECRET.encode()), 32, 0)
        for listener in (world.tcp, world.abstract, world.stream):
            listener.listen()
        for name in ("stream", "datagram"):
            (world.out / name).chmod(0o777)
        for one in (world.tcp, world.udp, world.abstract, world.stream, world.datagram):
            one.setblocking(False)
        yield world


def _made(held: ExitStack, make: str, control: str, *arguments: int) -> int:
    """An object of System V that every user may use; taken away afterwards."""
    number = int(getattr(LIBC, make)(*arguments))
    assert number >= 0, f"{make} failed: {os.strerror(ctypes.get_errno())}"
    more = (0, None) if control == "msgctl" else (0, 0, 0)
    held.callback(getattr(LIBC, control), number, *more)
    return number


def _files(folder: Path) -> None:
    (folder / "workspace").mkdir()
    own(folder / "workspace")
    out = folder / "outside"
    out.mkdir()
    out.chmod(0o777)
    other = folder / "other"
    other.mkdir()
    own(other)
    for path in (out / "canary", other / "note", out / "own", out / "movable", out / "removable"):
        path.write_text(SECRET)
        path.chmod(0o644)
    for name in ("own", "movable", "removable"):
        own(out / name)
    own(other / "note")
    os.setxattr(out / "canary", "user.note", SECRET.encode())
    for name, user in (("private", 0), ("strange", STRANGER), ("database", 0)):
        (folder / name).write_text(SECRET)
        (folder / name).chmod(0o600)
        own(folder / name, user)
    os.mkfifo(out / "fifo")
    (out / "fifo").chmod(0o666)
    if ROOT:
        shutil.copy("/usr/bin/id", folder / "workspace" / "whoami")
        (folder / "workspace" / "whoami").chmod(0o4755)


def _bound(family: int, kind: int, address: object) -> socket.socket:
    made = socket.socket(family, kind)
    made.bind(address)  # type: ignore[arg-type]
    return made


def python(code: str) -> str:
    """A command that runs Python code, with the system's interpreter, since the tests' may lie in somebody's home."""
    return f"{PYTHON} -I -c {shlex.quote(_PRELUDE + code)}"


_PRELUDE = """
import ctypes, mmap, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    return libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
def say(ok):
    print("ESCAPED" if ok else "held", flush=True)
"""


async def in_box(box: Sandbox, level: Level, command: str, workspace: Path, timeout_s: float = WAIT_S) -> str:
    """What a command says in a box."""
    said = bytearray()
    await box.run_at(level, command, workspace, timeout_s=timeout_s, output=said.extend)
    return said.decode(errors="replace")


def without_box(command: str, workspace: Path, *, as_root: bool, env: Mapping[str, str] | None = None) -> str:
    """What a command says as an ordinary child of this process, as careless code would start it."""
    user = USER if ROOT and not as_root else None
    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        cwd=workspace,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        user=user,
        group=user,
        extra_groups=() if user is not None else None,
        close_fds=False,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=WAIT_S)[0].decode(errors="replace")
    finally:
        process.kill()
        process.wait()


def a_nap() -> str:
    """A time to sleep, in seconds, that tells the processes of one test from those of others."""
    return f"120.{secrets.randbelow(10**12)}"


def running(argument: str) -> list[int]:
    """The processes that have this text on their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if argument.encode() in line and int(name) != os.getpid():
            found.append(int(name))
    return found
