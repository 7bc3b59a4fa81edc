"""Stories that are told by processes which die one after another, and what must be true of what the last one leaves.

story = Story(begin, tools)
whole = await story.whole(folder)           # how many events there are when nobody dies
await story.dies(folder, 17)                # the process dies after so many events; once more: the next one
async with story.ends(folder) as w:         # the last one comes to the end
    assert await row_problems(w) == []
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.agent.events import Event, Write
from app.agent.tools import Tool, ToolContext
from app.sessions.ports import EventWriter, Rejected
from tests.agent.probes import Probe
from tests.sessions.test_recovery import Mortal
from tests.strict import FINAL
from tests.world import World, world

WAIT_S = 20.0
Begin = Callable[[World], Awaitable[object]]


class OneBreath(Mortal):
    """A process that does not die between the stop of a subagent and its end: these are stored together."""

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `Mortal.write`."""
        if 0 < self.life < len(batch) and batch[self.life - 1].type == "subagent.stop":
            self.life += 1
        return super().write(batch, writes)


class Story:
    """What somebody begins in a service, and goes on in the processes that come after it."""

    def __init__(self, begin: Begin, tools: Sequence[Tool] = (), beside: Begin | None = None, **arguments: Any) -> None:
        """`beside` runs in every process, for its time: a person who answers, say. `arguments` of every world."""
        self.begin = begin
        self._beside = beside
        self.arguments = arguments
        self.done: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()
        self.touch = Probe("touch", self._touch)
        self.look = Probe("look", self._look, read_only=True, concurrency_safe=True)
        self._tools = (self.touch, self.look, *tools)
        self._mortal: Mortal | None = None

    @property
    def dead(self) -> bool:
        """Whether the process has died: what it does from here on does not happen."""
        return self._mortal is not None and self._mortal.died

    def die(self) -> None:
        """The process dies now: nothing more is stored."""
        assert self._mortal is not None
        self._mortal.life, self._mortal.died = 0, True

    async def _touch(self, arguments: Mapping[str, Any], _context: ToolContext) -> str:
        if not self.dead:
            self.done[str(arguments["key"])] += 1
        return f"touched {arguments['key']}"

    async def _look(self, arguments: Mapping[str, Any], _context: ToolContext) -> str:
        if not self.dead:
            self.looked[str(arguments["key"])] += 1
        return f"looked at {arguments['key']}"

    def _wrap(self, life: int) -> Callable[[EventWriter], EventWriter]:
        def wrapped(real: EventWriter) -> EventWriter:
            self._mortal = OneBreath(real, life)
            return self._mortal

        return wrapped

    async def whole(self, folder: Path) -> int:
        """Tell it without a death, in a folder of its own; the number of its events."""
        own = folder / "whole"
        own.mkdir()
        async with world(own, tools=self._tools, go_on=True, **self.arguments) as w, self._accompanied(w):
            await self.begin(w)
            await still(w)
            assert await row_problems(w) == []
            count = len(await w.rows("events"))
        self.done.clear()
        self.looked.clear()
        return count

    async def dies(self, folder: Path, life: int, *, first: bool = False) -> bool:
        """One process, which dies after so many events, if it comes to so many; whether it did."""
        arguments = {"wrap": self._wrap(life), "verify": False, "go_on": True, "recover": first, **self.arguments}
        async with world(folder, tools=self._tools, **arguments) as w, self._accompanied(w):
            with contextlib.suppress(Exception):  # what is read may not have been stored
                if first:
                    await self.begin(w)
                else:
                    await w.recovery.run()
            async with asyncio.timeout(WAIT_S):
                while not (self.dead or quiet(w)):
                    await asyncio.sleep(0.001)
                await w.journal.flush()  # a short story is over before its events are stored
            died = self.dead
            assert self._mortal is not None
            self._mortal.life, self._mortal.died = 0, True
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "read memory"))
        self._mortal = None
        return died

    async def after(self, folder: Path, *lives: int) -> None:
        """Processes that die after so many events each: of the first one, then of those that go on. Anew for each
        folder."""
        self.done.clear()
        self.looked.clear()
        folder.mkdir()
        await self.dies(folder, lives[0], first=True)
        for life in lives[1:]:
            if not await self.dies(folder, life):
                return

    @contextlib.asynccontextmanager
    async def begun(self, folder: Path, *, take_up: bool = True, **arguments: Any) -> AsyncIterator[World]:
        """The process that does not die, while it takes up what the others have left; or before that."""
        given = {"go_on": True, "recover": False, **self.arguments, **arguments}
        async with world(folder, tools=self._tools, **given) as w, self._accompanied(w):
            if take_up:
                await w.recovery.run()
            yield w

    @contextlib.asynccontextmanager
    async def ends(self, folder: Path, **arguments: Any) -> AsyncIterator[World]:
        """The same; all is done when this is entered."""
        async with self.begun(folder, **arguments) as w:
            await still(w)
            yield w

    @contextlib.asynccontextmanager
    async def _accompanied(self, w: World) -> AsyncIterator[None]:
        """With what goes on beside the service."""
        task = asyncio.create_task(_going_on(self._beside, w)) if self._beside is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])


async def _going_on(beside: Begin, w: World) -> None:
    await beside(w)


def forget_agent(w: World, gone: str) -> None:
    """There is no agent of that name any more."""
    find = w.sessions._roster.find
    w.sessions._roster.find = lambda session, name: None if name == gone else find(session, name)  # type: ignore[method-assign]


def quiet(w: World) -> bool:
    """Whether nothing is in the air."""
    return not (w.recovery._waiting or w.supervisor.in_flight or w.supervisor.handoffs.open.in_flight)


async def still(w: World) -> None:
    """Wait until nothing is in the air."""
    async with asyncio.timeout(WAIT_S):
        while not quiet(w):
            await asyncio.sleep(0.002)
    await w.journal.flush()


async def row_problems(w: World) -> list[str]:
    """Where the rows of a service say something else than its log, once nothing is in the air."""
    found: list[str] = []
    for session in await w.rows("sessions"):
        events = await w.events(session["id"])
        found += _runs(events, await w.rows("runs", session_id=session["id"]))
        found += _handoffs(events, await w.rows("handoffs", session_id=session["id"]))
        found += _messages(events, await w.rows("messages", session_id=session["id"]))
        found += _calls(events, await w.rows("tool_calls", session_id=session["id"]))
        found += _questions(events, await w.rows("approvals", session_id=session["id"]))
        found += _notices(events, await w.rows("notices", session_id=session["id"]))
    return found


Rows = Sequence[Mapping[str, Any]]


def _runs(events: Rows, rows: Rows) -> list[str]:
    found: list[str] = []
    ends = {e["run_id"]: e for e in events if e["type"] in FINAL}
    attempts = Counter(e["run_id"] for e in events if e["type"] == "run.resumed" and e["data"]["reason"] == "restart")
    for row in rows:
        end = ends.get(row["id"])
        if end is None:
            found.append(f"{row['id']} has no end, its row is {row['status']}")
            continue
        of_end = ("status", "stop_reason", "output", "steps", "usage", "usage_total", "forced", "partial")
        found += _other(row, end["data"], of_end)
        if row["attempt"] != attempts[row["id"]] + 1:
            found.append(f"{row['id']}: attempt {row['attempt']} after {attempts[row['id']]} restarts")
    return found


def _handoffs(events: Rows, rows: Rows) -> list[str]:
    ends = {e["data"]["handoff_id"]: e["data"] for e in events if e["type"] == "handoff.end"}
    found = [f"handoff {row['id']} is open" for row in rows if row["id"] not in ends]
    for row in rows:
        found += _other(row, ends.get(row["id"], row), ("status", "attempts", "output", "run_ids"))
    return found


def _other(row: Mapping[str, Any], logged: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [
        f"{row['id']}: {name} is {row[name]} in its row, {logged[name]} in the log"
        for name in names
        if row[name] != logged[name]
    ]


def _messages(events: Rows, rows: Rows) -> list[str]:
    said = {e["data"]["message_id"]: e["data"]["content"] for e in events if e["type"] in ("message", "tool.result")}
    kept = {row["id"]: row["content"] for row in rows}
    return [] if said == kept else [f"{len(said)} messages in the log, {len(kept)} rows"]


def _calls(events: Rows, rows: Rows) -> list[str]:
    results = {e["data"]["call_id"]: e["data"]["status"] for e in events if e["type"] == "tool.result"}
    kept = {row["id"]: row["status"] for row in rows}
    return [] if results == kept else [f"the results of calls are {results}, their rows {kept}"]


def _questions(events: Rows, rows: Rows) -> list[str]:
    asked = Counter(e["data"]["approval_id"] for e in events if e["type"] == "permission.requested")
    settled = Counter(
        e["data"]["approval_id"] for e in events if e["type"] == "permission.resolved" and e["data"].get("approval_id")
    )
    found = [f"question {one} was put {n} times" for one, n in asked.items() if n != 1]
    found += [f"question {one} was settled {settled[one]} times" for one in asked if settled[one] != 1]
    found += [f"{row['id']} is pending" for row in rows if row["status"] == "pending"]
    return found + ([] if {row["id"] for row in rows} == set(asked) else ["questions and their rows differ"])


def _notices(events: Rows, rows: Rows) -> list[str]:
    """Each task of a run is told of once, and no notice twice."""
    posted = Counter(e["data"]["notice_id"] for e in events if e["type"] == "notice")
    about = Counter(e["data"]["handoff_id"] for e in events if e["type"] == "notice" and e["data"].get("handoff_id"))
    told: Counter[str] = Counter()
    for event in events:
        if event["type"] == "message":
            told.update(event["data"].get("notices") or ())
        elif event["type"] == "tool.result":
            told.update(event["data"].get("acknowledges") or ())
    found = [f"task {one} has {n} notices" for one, n in about.items() if n != 1]
    found += [f"notice {one} was told {n} times" for one, n in told.items() if n != 1]
    due = {
        e["data"]["handoff_id"]
        for e in events
        if e["type"] == "handoff.start" and e["data"]["background"] and e.get("run_id")
    }
    found += [f"task {one} has no notice" for one in due - set(about)]
    pending = {row["id"] for row in rows if row["status"] == "pending"}
    if pending != set(posted) - set(told):
        found.append(f"notices {pending} are pending, {set(posted) - set(told)} were not told")
    return found
