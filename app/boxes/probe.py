"""Tries to break out of a box from inside, with means that every machine has, and looks from outside what came of it.

A level that is claimed by settings, or by the absence of an error, is no level. Knows no kind of box.
"""

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

Attempt = Callable[[str, Path, float], Awaitable[str]]  # runs a command in a workspace and gives what it wrote
HIDDEN, _SEEN = "hidden", "seen"
_PROBE_S = 10.0
_DECOY_S = 60
_DAEMON = "/bin/sleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What the attack aims at."""

    folder: Path
    secret: str
    tcp: socket.socket
    udp: socket.socket
    decoy: subprocess.Popen[bytes]
    nap: str  # seconds that a process left behind sleeps: it is found by them

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"


async def attack(attempt: Attempt, user: int) -> str | None:
    """Which attempts succeeded, or why the box does not work at all; None when it holds. `user`: as whom commands run
    when the server is root."""
    with await asyncio.to_thread(_prepared, user) as held:
        world = held.world
        said = await attempt(_script(world), world.workspace, _PROBE_S)
        escapes = await asyncio.to_thread(_successes, world, said)
    if escapes:
        return f"a command could {', '.join(escapes)}"
    return None


async def hides(attempt: Attempt) -> bool:
    """Whether a command that runs sees nothing of the file `HIDDEN` of its workspace."""
    with tempfile.TemporaryDirectory(prefix="subagentd-probe-") as folder:
        workspace = await asyncio.to_thread(_with_a_file, Path(folder))
        said = await attempt(f"cat {HIDDEN}; echo finished", workspace, _PROBE_S)
    return _SEEN not in said and "finished" in said


def _with_a_file(folder: Path) -> Path:
    (folder / HIDDEN).write_text(_SEEN)
    folder.chmod(0o755)
    return folder


class _Held:
    """The world, put away at the end."""

    def __init__(self, stack: ExitStack, world: _World) -> None:
        self._stack = stack
        self.world = world

    def __enter__(self) -> "_Held":
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()


def _prepared(user: int) -> _Held:
    stack = ExitStack()
    try:
        return _Held(stack, stack.enter_context(_world(user)))
    except BaseException:  # whatever it is: what was made so far is put away
        stack.close()
        raise


@contextmanager
def _world(user: int) -> Iterator[_World]:
    """Things that only a box keeps a command from: all are open to the user that commands run as."""
    folder = Path(tempfile.mkdtemp(prefix="subagentd-probe-"))
    with ExitStack() as held:
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        secret = secrets.token_hex(16)
        folder.chmod(0o755)
        (folder / "workspace").mkdir()
        (folder / "outside").mkdir()
        (folder / "outside").chmod(0o777)
        canary = folder / "outside" / "canary"
        canary.write_text(secret)
        canary.chmod(0o644)
        root = os.geteuid() == 0
        if root:
            os.chown(folder / "workspace", user, user)
        tcp = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        for listener in (tcp, udp):
            listener.setblocking(False)
        whom, groups = (user, ()) if root else (None, None)
        decoy = subprocess.Popen(
            [_DAEMON, str(_DECOY_S)], env={"CANARY": secret}, cwd="/", user=whom, group=whom, extra_groups=groups
        )
        held.callback(_put_down, decoy)
        nap = f"{_DECOY_S}.{secrets.randbelow(10**9)}"
        yield _World(folder=folder, secret=secret, tcp=tcp, udp=udp, decoy=decoy, nap=nap)


def _put_down(decoy: "subprocess.Popen[bytes]") -> None:
    decoy.kill()
    decoy.wait()


def _script(world: _World) -> str:
    outside, decoy = world.outside, world.decoy.pid
    tcp, udp = (listener.getsockname()[1] for listener in (world.tcp, world.udp))
    return f"""
exec 2>/dev/null
cat '{outside}/canary' /proc/{decoy}/environ
ln -s '{outside}/canary' link; cat link
(echo x > '{outside}/written')
(echo x > /dev/tcp/127.0.0.1/{tcp})
(echo x > /dev/udp/127.0.0.1/{udp})
kill -9 {decoy}
(setsid {_DAEMON} {world.nap} </dev/null >/dev/null &)
echo inside > inside
echo finished
"""


def _successes(world: _World, said: str) -> list[str]:
    """What worked, in words that follow `could`."""
    found = {
        "read a file or an environment outside": world.secret in said,
        "write a file outside": (world.outside / "written").exists(),
        "open a TCP connection": _accepted(world.tcp),
        "send a UDP packet": _received(world.udp),
        "signal a process outside": world.decoy.poll() is not None,
        "leave a process behind": _runs(world.nap),
    }
    works = (world.workspace / "inside").exists() and "finished" in said
    return [what for what, happened in found.items() if happened] + (
        [] if works else ["not run: " + said[:200].strip()]
    )


def _accepted(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _received(listener: socket.socket) -> bool:
    try:
        return bool(listener.recv(16))
    except BlockingIOError:
        return False


def _runs(argument: str) -> bool:
    wanted = argument.encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and words[0] == _DAEMON.encode():
            return True
    return False
