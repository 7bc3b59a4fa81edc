"""Many sessions on one server, each cancelled at a random moment through a random door, and checked afterwards.

    report = await cancels(folder, count=120, seed=1)
    assert report.problems == []

Used by a test (a short form) and by `python -m bench.random_cancels`.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from app.client import Client, Received, ServiceError
from tests.cancels.checks import Diary, ended_problems, open_things, shown_problems
from tests.cancels.leftovers import Leftovers, census, store_problems
from tests.cancels.plans import DEPTH, LEAVES, SEEN_AS, SURFACES, TOOLS, Model, next_turn, tree
from tests.service import WAIT_S, Service, agent, events_of, finished, serving
from tests.strict import FINAL

AT_ONCE = 16  # sessions in flight
GRACE_MS = 1500
QUIET_S = 0.3  # without a frame: everything is open that will be
WARM_UP = AT_ONCE
DOORS = ("session", "root", "run", "run", "twice", "everything at once", "run and session", "delete", "close")
WHOLE = ("session", "everything at once", "run and session", "delete", "close")  # end all that is open


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    seed: int
    cancels: int = 0
    problems: list[str] = field(default_factory=list)
    doors: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    refused: int = 0
    next_turns: int = 0
    took_ms: list[float] = field(default_factory=list)

    def figures(self) -> str:
        """For people."""
        took = sorted(self.took_ms) or [0.0]
        middle, late, most = took[len(took) // 2], took[int(len(took) * 0.99)], took[-1]
        lines = [
            f"{self.cancels} cancels, seed {self.seed}: {len(self.problems)} problems, "
            f"{self.refused} histories refused",
            f"{self.runs} runs ended: {_listed(self.ended)}",
            f"{self.next_turns} next turns completed",
            f"doors: {_listed(self.doors)}",
            f"open when cancelled: {_listed(self.hit)}",
            f"answered after {middle:.0f} ms (median), {late:.0f} ms (99 %), {most:.0f} ms (most)",
        ]
        return "\n".join([*lines, *self.problems[:50]])


def _faults(log: str) -> list[str]:
    return [line[:2000] for line in log.splitlines() if "Traceback" in line]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


@contextlib.asynccontextmanager
async def crowded(folder: Path) -> AsyncIterator[tuple[Service, Model]]:
    """A server with slow tools, hooks, rules and a strict model."""
    names = ("diary", "slow", "slow_after")
    points = {
        "diary": ["OnSubagentStart", "PreToolUse", "PostToolUse", "OnSubagentStop"],
        "slow": ["OnSubagentStart", "PreToolUse", "OnSubagentStop"],
        "slow_after": ["PostToolUse"],
    }
    entries: list[dict[str, Any]] = [
        {"name": name, "kind": "function", "path": f"tests.cancels.tools:{name}", "points": points[name],
         "timeout_s": 120} for name in names
    ]  # fmt: skip
    command = {"name": "command", "kind": "command", "command": "sleep 120 & sleep 120; wait", "timeout_s": 120}
    entries.append({**command, "points": ["PreToolUse"], "matcher": "commanded"})
    async with Model() as model:
        profile = {"provider": "openai", "model": "busy", "base_url": model.base_url, "api_key_env": "OPENAI_API_KEY"}
        env = {
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "test",
            "SUBAGENTD_MODEL": "openai:test",
            "SUBAGENTD_MODELS__PROFILES": json.dumps({"busy": profile}),
            "SUBAGENTD_LOOP__RETRIES": "2",
            "SUBAGENTD_LOOP__BACKOFF_MS": "300",
            "SUBAGENTD_HANDOFF__BACKOFF_MS": "1000",
            "SUBAGENTD_TOOLS__FUNCTIONS": '["tests.cancels.tools:everything"]',
            "SUBAGENTD_TOOLS__INTERRUPT_GRACE_MS": str(GRACE_MS),
            "SUBAGENTD_PERMISSIONS__RULES__ASK": '["guarded"]',
            "SUBAGENTD_HOOKS__ENTRIES": json.dumps(entries),
            "CANCELS_DIARY": str(folder / "diary.jsonl"),
        }
        async with serving(folder, env=env, check_log=False) as service:
            yield service, model


def _session(rng: Random, bounded: bool) -> dict[str, Any]:
    tools = ["Agent", *TOOLS]
    return {
        "agent": "lead",
        "agents": [
            agent("lead", mode="primary", tools=tools),
            agent("node", tools=tools),
            agent("pool", tools=tools, session_mode="reuse_session"),
            agent("tired", tools=[], model="busy"),
        ],
        "surfaces": list(SURFACES),
        "default_subagent": "node",
        "policy": {"max_depth": DEPTH, "max_retries": 1},
        **({"budget": {"max_concurrent": 2}} if bounded and rng.random() < 0.15 else {}),
    }


class Watcher:
    """A client's view of a session's stream."""

    def __init__(self, client: Client, session: str) -> None:
        self.frames: list[Received] = []
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._read(client, session))

    async def _read(self, client: Client, session: str) -> None:
        async for frame in client.events(f"/v1/sessions/{session}/events"):
            self.frames.append(frame)
            async with self._changed:
                self._changed.notify_all()

    async def until(self, condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
        """Wait for frames that satisfy this."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def moment(self, rng: Random) -> None:
        """A random frame, or the first quiet moment, whichever is first."""
        last = rng.randint(1, 80) if rng.random() < 0.5 else 100_000
        while len(self.frames) < last:
            seen = len(self.frames)
            try:
                await self.until(lambda seen=seen: len(self.frames) > seen, QUIET_S if seen > 4 else WAIT_S)  # type: ignore[misc]
            except TimeoutError:
                return

    def open_runs(self) -> list[str]:
        """Runs that have not ended, as far as seen."""
        ended = {frame.data["run_id"] for frame in self.frames if frame.type in FINAL}
        queued = [frame.data["run_id"] for frame in self.frames if frame.type == "run.queued"]
        return [run for run in queued if run not in ended]

    async def close(self) -> None:
        """Leave."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Trial:
    """One session that is cancelled."""

    def __init__(self, client: Client, report: Report, rng: Random, first: str, sure: bool = False) -> None:
        """`sure`: a chain without company, ended as a whole and only once the thing at its end is open."""
        self.sure = sure and first in SEEN_AS
        self.client = client
        self.report = report
        self.rng = rng
        self.first = first
        self.session = ""
        self.events: list[dict[str, Any]] = []
        self.problems: list[str] = []

    async def run(self) -> None:
        """Start, cancel, check, go on."""
        made = await self.client.request("POST", "/v1/sessions", _session(self.rng, bounded=not self.sure))
        self.session = made["id"]
        watcher = Watcher(self.client, self.session)
        try:
            body = {"input": tree(self.rng, self.first, alone=self.sure)}
            root = (await self.client.request("POST", f"/v1/sessions/{self.session}/runs", body))["id"]
            if self.sure:
                await watcher.until(lambda: SEEN_AS[self.first] in open_things(watcher.frames))
            else:
                await watcher.moment(self.rng)
            door = self.rng.choice(WHOLE if self.sure else DOORS)
            self.report.doors[door] += 1
            await self._through(door, root, watcher)
            await self._afterwards(door, watcher)
        finally:
            await watcher.close()

    async def _through(self, door: str, root: str, watcher: Watcher) -> None:
        path = f"/v1/sessions/{self.session}"
        target = self.rng.choice(watcher.open_runs() or [root]) if door.startswith("run") else root
        everything = door in WHOLE
        self.report.hit.update(open_things(watcher.frames, None if everything else target))
        runs = {"twice": [root, root], "everything at once": [*watcher.open_runs(), root], "root": [root]}
        paths = [f"/v1/runs/{run}/cancel" for run in runs.get(door, [target] if door.startswith("run") else [])]
        if door in ("session", "everything at once", "run and session"):
            paths.append(f"{path}/cancel")
        began = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            if door == "delete":
                await self.client.request("DELETE", path)
            elif door == "close":
                await self.client.request("PATCH", path, {"closed": True})
            answers = await asyncio.gather(*(self.client.request("POST", each) for each in paths))
        self.report.took_ms.append((time.monotonic() - began) * 1000)
        self.report.cancels += 1
        if door in ("delete", "close"):
            return
        ended = [run for answer in answers for run in answer["cancelled"]]
        if len(set(ended)) != len(ended):
            self.problems.append(f"{door}: a run was ended twice: {ended}")
        events = await events_of(self.client, f"{path}/events")
        self.problems += ended_problems(events, ended)
        if door not in WHOLE:  # beside that run others go on, or tasks whose parent has completed
            await self.client.request("POST", f"{path}/cancel")

    async def _afterwards(self, door: str, watcher: Watcher) -> None:
        path = f"/v1/sessions/{self.session}"
        last = "session.closed" if door in ("delete", "close") else "session.idle"
        await watcher.until(lambda: any(frame.type == last for frame in watcher.frames))
        if door == "delete":
            self._take([frame.data for frame in watcher.frames if frame.id is not None])
            await self._gone(path)
            return
        if door != "close":
            await self._goes_on(path)
            await watcher.until(lambda: sum(frame.type == last for frame in watcher.frames) >= 2)
        self._take(await events_of(self.client, f"{path}/events"))
        self.problems += await shown_problems(self.client, self.session, self.events, watcher.frames)

    def _take(self, events: Sequence[dict[str, Any]]) -> None:
        self.events = list(events)
        ends = [event["type"].removeprefix("run.") for event in events if event["type"] in FINAL]
        self.report.ended.update(ends)
        self.report.runs += len(ends)

    async def _goes_on(self, path: str) -> None:
        started = await self.client.request("POST", f"{path}/runs", {"input": next_turn(self.rng)})
        run = await finished(self.client, started["id"])
        if (run["status"], run["output"]) == ("completed", "Next."):
            self.report.next_turns += 1
        else:
            self.problems.append(f"the next turn ended {run['status']}: {run['output']!r} {run['error']}")

    async def _gone(self, path: str) -> None:
        try:
            await self.client.request("GET", path)
        except ServiceError as error:
            if error.status == 404:
                return
        self.problems.append("the session was deleted and is still there")


async def cancels(folder: Path, *, count: int, seed: int, at_once: int = AT_ONCE) -> Report:
    """So many cancels on one server; the same seed makes the same trees and doors."""
    report = Report(seed=seed)
    trials: list[tuple[int, Trial]] = []
    async with crowded(folder) as (service, model):
        assert service.process is not None
        leftovers = Leftovers(service.process.pid)
        firsts = list(LEAVES)

        async def batch(numbers: range) -> None:
            left = iter(numbers)

            async def worker() -> None:
                for number in left:
                    async with service.client() as client:
                        first = firsts[number % len(firsts)]
                        trial = Trial(client, report, Random(f"{seed}-{number}"), first, sure=number < len(firsts))
                        trials.append((number, trial))
                        try:
                            await trial.run()
                        except (TimeoutError, ServiceError) as error:
                            trial.problems.append(f"{type(error).__name__}: {error}")

            await asyncio.gather(*(worker() for _ in range(at_once)))

        await batch(range(min(WARM_UP, count)))
        await leftovers.settled(service, model)
        leftovers.remember()
        await batch(range(min(WARM_UP, count), count))
        await leftovers.settled(service, model)
        report.problems += leftovers.problems() + await census(service)
    if service.process.returncode != 0 or "Traceback" in service.log:
        report.problems.append(f"the server ended with {service.process.returncode}, its log: {_faults(service.log)}")
    report.refused = len(model.refused)
    report.problems += [f"the model refused a history: {problem}" for problem in model.refused]
    report.problems += store_problems(service.database)
    diary = Diary(folder / "diary.jsonl")
    for number, trial in trials:
        found = trial.problems + diary.problems(trial.events)
        report.problems += [f"#{number} ({trial.first}, {trial.session}): {problem}" for problem in found]
    return report
