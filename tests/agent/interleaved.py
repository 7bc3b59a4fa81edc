"""Sessions whose tasks, steps, ends and restarts meet in every order that a seed makes, and what they were told.

    report = await interleavings(folder, count=500, seed=1)
    assert report.problems == []

The task of an agent is its course as JSON: `start` tasks in the background, `pause` for some turns of the event loop,
`fetch` or `cancel` the nth task that it has started, `fail`, or end.
"""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from app.agent.chat import ChatRequest
from app.agent.messages import Role
from app.agent.tools import ToolContext
from tests.agent.probes import Probe
from tests.plan import call
from tests.strict import history_problem
from tests.world import World, world

BATCH = 100  # sessions in flight in one process
Course = list[list[dict[str, Any]]]


@dataclass(kw_only=True)
class Report:
    """What came of it. `ways`: how often an end reached whoever was to know it, by the way that it took."""

    seed: int
    sessions: int = 0
    tasks: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def _pausing() -> Probe:
    async def body(arguments: Any, _context: ToolContext) -> str:
        for _ in range(arguments["turns"]):
            await asyncio.sleep(0)
        return "rested"

    return Probe("pause", body, read_only=True, concurrency_safe=True)


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


def reply(request: ChatRequest) -> dict[str, Any]:
    """The next turn of the course that came last."""
    problem = history_problem(request.messages)
    if problem is not None:
        return {"error": {"code": "bad_history", "message": problem}}
    messages = request.messages
    at = max(at for at, m in enumerate(messages) if m.role is Role.USER and m.content.startswith("[["))
    course: Course = json.loads(messages[at].content)
    done = sum(message.role is Role.ASSISTANT for message in messages[at:])
    turn = course[done] if done < len(course) and request.tools else []
    results = (message.content for message in messages if message.role is Role.TOOL)
    started = [task for text in results for task in re.findall(r"^task_id: (ho_\w+)$", text, re.MULTILINE)]
    if any("fail" in act for act in turn):
        return {"error": {"code": "model_error", "message": "no more"}}
    calls = [_called(act, started) for act in turn if started or not {"fetch", "cancel"} & act.keys()]
    return {"calls": calls} if calls else {"text": f"done after {done}"}


def _called(act: dict[str, Any], started: Sequence[str]) -> dict[str, Any]:
    if "start" in act:
        order = {"name": "node", "description": "some of the work", "prompt": json.dumps(act["start"])}
        return call("execute_task", **order, run_in_background=True)
    if "pause" in act:
        return call("pause", turns=act["pause"])
    task = started[act.get("fetch", act.get("cancel", 0)) % len(started)]
    if "fetch" in act:
        return call("get_task_output", task_id=task, block=act["block"])
    return call("cancel_task", task_id=task)


def course(rng: Random, slow: int = 1, depth: int = 0) -> Course:
    """What an agent does, turn after turn; `slow`: times longer pauses."""
    turns: Course = []
    if depth < 2 and rng.random() < (1.0 if not depth else 0.3):
        turns.append([{"start": course(rng, slow, depth + 1)} for _ in range(rng.choice((1, 1, 2, 3)))])
    for _ in range(rng.choice((0, 1, 1, 2))):
        turns.append([_act(rng, slow) for _ in range(rng.choice((1, 1, 2)))])
    if depth and rng.random() < 0.15:
        turns.append([{"fail": True}])
    return turns or [[]]


def _act(rng: Random, slow: int) -> dict[str, Any]:
    kind = rng.choices(("pause", "fetch", "cancel"), (5, 3, 1))[0]
    if kind == "pause":
        return {"pause": slow * rng.choice((0, 1, 2, 5, 10, 20, 40))}
    return {kind: rng.randrange(3), "block": rng.random() < 0.5} if kind == "fetch" else {kind: rng.randrange(3)}


# ── one session ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _first(w: World, session: str, rng: Random) -> None:
    """A turn that comes to an end of some kind."""
    run = await w.turn(session, json.dumps(course(rng)))
    end = rng.choice(("wait", "wait", "cancel", "cancel all"))
    if end != "wait":
        await _some_time(rng)
    if end == "cancel":
        await w.sessions.cancel(w.tenant, run.id)
    elif end == "cancel all":
        await w.sessions.cancel_session(w.tenant, session)
    await w.finished(run)


async def _left(w: World, session: str, rng: Random) -> None:
    """A turn whose process ends a moment later."""
    await w.turn(session, json.dumps(course(rng, slow=10)))
    await _some_time(rng)


async def _some_time(rng: Random) -> None:
    for _ in range(rng.randrange(80)):
        await asyncio.sleep(0)


async def _last(w: World, session: str) -> None:
    """Once nothing goes on any more, a turn that only listens."""
    while w.supervisor.busy(session):
        await asyncio.sleep(0.001)
    await w.finished(await w.turn(session, "[[]]"))


async def _judge(w: World, session: str, report: Report) -> None:
    events = await w.events(session)
    ended = {e["data"]["handoff_id"]: e["data"]["status"] for e in events if e["type"] == "handoff.end"}
    of = {e["data"]["notice_id"]: e["data"]["handoff_id"] for e in events if e["type"] == "notice"}
    told: Counter[str] = Counter()
    for event in events:
        for way in ("notices", "acknowledges"):
            for notice in event["data"].get(way) or ():
                told[of[notice]] += 1
                report.ways[f"{way} at depth {event['depth']}"] += 1
    shown: Counter[str] = Counter()
    for row in await w.rows("messages", session_id=session):
        if row["role"] == "user":
            shown.update(re.findall(r"^\[Notice: the background task (ho_\w+) ", row["content"], re.MULTILINE))
    report.sessions += 1
    report.tasks += len(ended)
    report.ended.update(ended.values())
    for task in ended:
        if told[task] != 1 or shown[task] > 1:
            report.problems.append(f"{session}: {task} was told {told[task]} times, shown {shown[task]} times")
    pending = await w.rows("notices", session_id=session, status="pending")
    if pending or set(shown) - set(ended):
        report.problems.append(f"{session}: {len(pending)} notices are kept for nobody")


async def interleavings(folder: Path, *, count: int, seed: int) -> Report:
    """So many sessions, in one process after the other: what one leaves open is told in the next."""
    report, left = Report(seed=seed), list[str]()
    for first in range(0, count, BATCH):
        async with _service(folder) as w:
            await _listened(w, left, report)
            rngs = [Random(f"{seed}-{number}") for number in range(first, min(count, first + BATCH))]
            made = [await w.session(surfaces=["task"], agents=[w.node()]) for _ in rngs]
            here, left = made[1::2], made[::2]
            await asyncio.gather(*(_first(w, *each) for each in zip(here, rngs[1::2], strict=True)))
            await _listened(w, here, report)
            await asyncio.gather(*(_left(w, *each) for each in zip(left, rngs[::2], strict=True)))
    async with _service(folder) as w:
        await _listened(w, left, report)
    return report


async def _listened(w: World, sessions: Sequence[str], report: Report) -> None:
    await asyncio.gather(*(_last(w, session) for session in sessions))
    for session in sessions:
        await _judge(w, session, report)


@contextlib.asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[World]:
    async with world(folder, tools=[_pausing()], model="scripted:interleaved.py") as w:
        (folder / "scripts" / "interleaved.py").write_text("from tests.agent.interleaved import reply\n")
        yield w
