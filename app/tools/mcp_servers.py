"""MCP servers while the service runs: one task owns each, begins its conversation, lays its tools out, begins again.

Knows neither settings nor where pins are kept. A server that is down costs nobody anything but its tools.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from app.agent.errors import ToolError
from app.agent.tools import ToolShelf
from app.tools.mcp_config import McpServer
from app.tools.mcp_connection import Connection, connected, load
from app.tools.mcp_names import cleaned, group_of
from app.tools.mcp_pins import Pins, reasons
from app.tools.mcp_tools import Masker, McpTool, state_of, usable

if TYPE_CHECKING:
    from mcp_types import Tool as Listed

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
_STEADY_S = 60.0  # a conversation that lasted so long was a good one: the next pause is the first again
_STARTED_S = 0.5  # for what comes before and after a start, so that its own limit is the one that is met
_CHECK_S = 5.0
_SETTLE_S, _LONGEST_SETTLE_S = 0.2, 30.0  # several changes of a list in a row are read once
_STOP_S = 6.0  # a little more than a process takes at worst
_WHY = 300  # characters of a reason


class State(StrEnum):
    """How a server is. `starting`: for the first time; `restarting`: it was there; `down`: the last try failed, the
    next one comes."""

    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    DOWN = "down"
    STOPPED = "stopped"


class Patience:
    """How long a list that changed is left alone before it is read: twice as long each time, so that a server which
    says all the time that its list has changed costs no more than one that does so now and then."""

    def __init__(self) -> None:
        self._pause_s = _SETTLE_S
        self._last: float | None = None

    def pause_s(self, now: float) -> float:
        """Before this reading. After a quiet time it is the first pause again."""
        quiet = self._last is None or now - self._last >= 2 * _LONGEST_SETTLE_S
        self._pause_s = _SETTLE_S if quiet else min(_LONGEST_SETTLE_S, 2 * self._pause_s)
        self._last = now
        return self._pause_s


class Owner:
    """One server. Its task alone enters and leaves conversations."""

    def __init__(
        self, server: McpServer, shelf: ToolShelf, pins: Pins, masker: Masker, *, first_pause_s: float
    ) -> None:
        self.server = server
        self.state = State.STARTING
        self.why = ""
        self._shelf = shelf
        self._pins = pins
        self._masker = masker
        self._first_pause_s = first_pause_s
        self._connection: Connection | None = None
        self._was_up = False
        self._digests: dict[str, str] = {}
        self._listed = ""  # the state of the list that was laid out last
        self._patience = Patience()
        self._settled = asyncio.Event()  # up, or known not to be
        self._stop = asyncio.Event()
        self._suspected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ── for others ──────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin, in the background."""
        self._shelf.expect(f"{self._source}__", self.settled, self.told)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {self.server.name}")

    async def stop(self) -> None:
        """End it; bounded in time."""
        self._stop.set()
        task = self._task
        if task is None:
            return
        if self.state is not State.UP:  # starting, or waiting for the next try
            task.cancel()
        await asyncio.wait({task}, timeout=_STOP_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_STOP_S)
        if not task.done():
            log.error("the MCP server %s could not be ended", self.server.name)

    def told(self) -> str:
        """How it is, in words."""
        return f"the MCP server {self.server.name} is {self.state}"

    async def settled(self) -> None:
        """Wait until it is up or known not to be, at most its `startup_ms`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.server.startup_ms / 1000 + _STARTED_S):
                await self._settled.wait()

    async def connection(self) -> Connection:
        """The present conversation. Raises `ToolError`."""
        if self._connection is not None and self._connection.ended.is_set():
            self._connection = None
            self._settled.clear()
        if self._connection is None:
            await self.settled()
        if self._connection is None:
            raise ToolError(f"Not called: {self.told()}. Go on without it, or try later.")
        return self._connection

    def current(self, tool: str) -> str | None:
        """The digest of a tool as it is now."""
        return self._digests.get(tool)

    def suspect(self) -> None:
        """See whether it is still there."""
        self._suspected.set()

    # ── the task ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        try:
            while not self._stop.is_set():
                began, self._was_up = loop.time(), False
                try:
                    await asyncio.to_thread(load)
                    await self._conversation()
                except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  border to the SDK and to a stranger
                    self._failed(error)
                if self._was_up and loop.time() - began >= _STEADY_S:
                    failures = 0
                failures += 1
                await self._pause(failures)
        finally:
            self.state = State.STOPPED
            self._settled.set()
            self._shelf.put(self._source, ())

    @property
    def _source(self) -> str:
        return group_of(self.server.name)

    def _failed(self, error: BaseException) -> None:
        self.why = _reason(error)
        if self._stop.is_set():
            return
        if not self._was_up:
            self._is_down()
        verb = "is lost" if self._was_up else "cannot be used"
        log.warning("the MCP server %s %s and is tried again: %s", self.server.name, verb, self.why)

    def _is_down(self) -> None:
        """Said as soon as it is known: to end one that hangs takes a while."""
        self.state = State.DOWN
        self._settled.set()

    async def _pause(self, failures: int) -> None:
        longest = min(LONGEST_PAUSE_S, self._first_pause_s * 2 ** min(failures - 1, 16))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest * random.uniform(0.75, 1.0)):
                await self._stop.wait()

    async def _conversation(self) -> None:
        """One from its beginning to its end."""
        async with contextlib.AsyncExitStack() as stack:
            late = asyncio.get_running_loop().call_later(self.server.startup_ms / 1000, self._is_down)
            try:
                async with asyncio.timeout(self.server.startup_ms / 1000):
                    connection = await stack.enter_async_context(connected(self.server))
                    found = await connection.tools()
            except TimeoutError:
                raise TimeoutError(f"it was not ready within {self.server.startup_ms} ms") from None
            finally:
                late.cancel()
            await self._lay_out(found)
            self._connection, self._was_up, self.state, self.why = connection, True, State.UP, ""
            self._settled.set()
            log.info("the MCP server %s is up with %s tools", self.server.name, len(self._digests))
            try:
                await self._until_lost(connection)
            finally:  # leaving takes a while: calls that come now wait for the next conversation
                self._connection, self.state = None, State.RESTARTING
                self._settled.clear()
        if not self._stop.is_set():
            raise ConnectionError("the conversation ended")

    async def _until_lost(self, connection: Connection) -> None:
        urgent = (connection.ended, self._suspected, self._stop)
        while True:
            await _any_of(connection.changed, *urgent)
            if not any(sign.is_set() for sign in urgent):
                await _any_of(*urgent, within_s=self._patience.pause_s(asyncio.get_running_loop().time()))
            if connection.ended.is_set() or self._stop.is_set():
                return
            connection.changed.clear()
            self._suspected.clear()
            found = await self._asked(connection)
            if found is None:
                return
            await self._lay_out(found)

    async def _asked(self, connection: Connection) -> Sequence["Listed"] | None:
        """Its list of tools; None when that does not matter any more. One that does not answer is gone, which is a
        TimeoutError. But while calls are under way it is asked again after them: many a server does one thing at a
        time, and each call has a limit of its own."""
        heard = -1
        while True:
            before = connection.answered
            try:
                async with asyncio.timeout(_CHECK_S):
                    return await connection.tools()
            except TimeoutError:
                if connection.answered == (before if connection.idle.is_set() else heard):
                    raise
            heard = connection.answered
            longest = self.server.timeout_ms / 1000  # of those that are under way now
            await _any_of(connection.idle, connection.ended, self._stop, within_s=longest)
            if connection.ended.is_set() or self._stop.is_set():
                return None

    async def _lay_out(self, found: Sequence["Listed"]) -> None:
        """Put the tools where runs find them."""
        listed = await asyncio.to_thread(state_of, found)
        if listed == self._listed:
            return
        kept, problems = await asyncio.to_thread(usable, self.server, found, self._masker)
        digests = {offered.title: offered.digest for offered in kept}
        for problem in problems:
            log.warning("the MCP server %s: a tool is left out: %s", self.server.name, cleaned(problem, _WHY))
        asks = await reasons(self._pins, self.server, digests)
        for name, why in asks.items():
            log.warning("the MCP server %s, tool %r: %s", self.server.name, cleaned(name, 64), why)
        self._digests, self._listed = digests, listed
        self._shelf.put(self._source, [McpTool(self, offered, ask=asks.get(offered.title, "")) for offered in kept])


async def _any_of(*signs: asyncio.Event, within_s: float | None = None) -> None:
    """Wait until one of them is set, or the time is over."""
    waits = [asyncio.ensure_future(sign.wait()) for sign in signs]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _reason(error: BaseException) -> str:
    """The innermost reason in a few words; of a stranger's text a bounded piece."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cleaned(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, _WHY)


class McpServers:
    """All servers of the service. `first_pause_s`: before the second try to begin; it doubles with each one."""

    def __init__(
        self,
        shelf: ToolShelf,
        pins: Pins,
        configured: Sequence[McpServer] = (),
        *,
        masker: Masker,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._configured = configured
        self._shelf = shelf
        self._pins = pins
        self._masker = masker
        self._first_pause_s = first_pause_s
        self._owners: dict[str, Owner] = {}

    def start(self) -> None:
        """Begin with those that are configured, in the background."""
        for server in self._configured:
            self.add(server)

    def add(self, server: McpServer) -> Owner:
        """Begin with one; at any time. Raises ValueError when there is one of that name."""
        if server.name in self._owners:
            raise ValueError(f"two MCP servers are named {server.name!r}: rename one")
        owner = self._owners[server.name] = Owner(
            server, self._shelf, self._pins, self._masker, first_pause_s=self._first_pause_s
        )
        owner.start()
        return owner

    async def remove(self, name: str) -> None:
        """End one; nothing happens when there is none of that name."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            await owner.stop()
            self._shelf.forget(f"{group_of(name)}__")

    async def close(self) -> None:
        """End all, side by side."""
        await asyncio.gather(*(owner.stop() for owner in self._owners.values()))

    def states(self) -> Mapping[str, str]:
        """How each server is, by name."""
        return {name: owner.state.value for name, owner in self._owners.items()}

    def server_of(self, tool: str) -> str | None:
        """The server of a tool name; None for a tool that is of none."""
        return next((name for name in self._owners if tool.startswith(f"{group_of(name)}__")), None)
