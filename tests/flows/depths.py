"""One run that meets a fault of its model: as the lead of a session, as a child and as a grandchild, side by side.

Knows no fault and not what holds after every one (`after_faults.py`): a `Case` says what the model sends, byte by byte,
and what must be true of the run that got it. The models are strict loopback servers of both dialects; whoever delegates
has a model of its own, so that only the run under test, named `subject`, meets the fault. Its memory lasts, so that a
second turn sends the whole history again.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from app.client import Client, Received
from tests.flows.odd_models import Odd, odd_service
from tests.service import WAIT_S, agent, events_of, finished
from tests.stubs import anthropic_stub
from tests.stubs.openai_stub import Answer, Request, calls, text

DEPTHS = (0, 1, 2)
FINAL = ("run.completed", "run.failed", "run.cancelled", "run.timed_out", "run.interrupted")
AGAIN = "Said again."
SUMMED_UP = "All went well so far."
WHO = re.compile(r"You are (\w+) of (\S+)\.")
Check = Callable[["Met"], None]
During = Callable[["Depths", str], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the model of the run under test sends, and what must be true of that run.

    `answers`: its replies in the first turn, all of which must be asked for. `again`: those of the second turn.
    `ran`: the calls that were carried out, in order, with their arguments. `results`: status and a part of the text of
    every call's result, in call order. `retried`: how often a step was tried again. `told`: a part of what the client
    (depth 0: the output) or the parent (its tool result) gets. `moved`: text that was shown turned out to be reasoning.
    `during`: what happens meanwhile. `check`: everything else. `more`: further keys of the run's definition.
    """

    answers: Sequence[Answer]
    again: Sequence[Answer] = ()
    model: str = "openai"
    tools: Sequence[str] = ("read_file", "glob", "grep")
    status: str = "completed"
    told: str = "Done."
    ran: Sequence[tuple[str, Mapping[str, Any]]] = ()
    results: Sequence[tuple[str, str]] = ()
    retried: int = 0
    moved: bool = False
    thinking: str | None = None
    task: str = "Begin."
    during: During | None = None
    check: Check | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anthropic(self) -> bool:
        """Whether its model speaks that dialect."""
        return self.model.endswith("anthropic")


@dataclass(frozen=True, kw_only=True)
class Met:
    """What came of the run under test. `requests`: those of its first turn, `again`: of its second; `frames`: what a
    client saw of the first turn; `events`: the whole log; `rows`: the run's messages; `told`: see `Case`."""

    case: Case
    depth: int
    run: Mapping[str, Any]
    root: Mapping[str, Any]
    later: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    frames: Sequence[Received]
    requests: Sequence[Request]
    again: Sequence[Request]
    told: str
    notes: Sequence[str]

    def own(self, *types: str) -> list[Mapping[str, Any]]:
        """The payloads of the run's own events of these types."""
        return [e["data"] for e in self.events if e.get("run_id") == self.run["id"] and e["type"] in types]

    @property
    def replies(self) -> list[Mapping[str, Any]]:
        """What the run's model said, as the audit log has it."""
        return [row for row in self.rows if row["role"] == "assistant"]

    def said(self) -> list[tuple[str, bool]]:
        """The texts of these, and whether one is only a part."""
        return [(row["content"], bool((row["metadata"] or {}).get("partial"))) for row in self.replies]


class Depths:
    """Plays cases in one service; what its models say follows from the prompt of whoever asks."""

    def __init__(self, odd: Odd) -> None:
        self.service, self.client = odd.service, odd.client
        self.openai, self.anthropic = odd.openai, odd.anthropic
        self.refused = odd.refused
        self._quiet = odd.quiet
        self._answers: dict[str, deque[Answer]] = {}
        self._tasks: dict[str, tuple[int, str]] = {}
        odd.openai.decide(self._openai)
        odd.anthropic.decide(self._anthropic)

    def play(self, case: Case, key: str, depth: int) -> None:
        """Let the models play a case from here on."""
        self._answers[key], self._tasks[key] = deque(case.answers), (depth, case.task)

    async def met(self, case: Case, name: str) -> list[Met]:
        """The case at every depth, at the same time, and nothing left of it afterwards."""
        found = await asyncio.gather(*(self._at(case, name, depth) for depth in DEPTHS))
        await self._quiet()
        return found

    async def _at(self, case: Case, name: str, depth: int) -> Met:
        try:
            return await self._played(case, f"{name.replace(' ', '_')}/{depth}", depth)
        except Exception as error:
            error.add_note(f"at depth {depth}")
            raise

    async def _played(self, case: Case, key: str, depth: int) -> Met:
        self.play(case, key, depth)
        session = await self.client.request("POST", "/v1/sessions", session_of(case, key, depth))
        where = f"/v1/sessions/{session['id']}"
        connected = asyncio.Event()
        watching = asyncio.create_task(watched(self.client, f"{where}/events", connected))
        async with asyncio.timeout(WAIT_S):
            await connected.wait()
        root = await self.client.request("POST", f"{where}/runs", {"input": case.task})
        if case.during is not None:
            await case.during(self, session["id"])
        frames = await watching
        assert not self._answers[key], f"{len(self._answers[key])} answers were never asked for"
        first = len(self.requests(case, key))
        self._answers[key] += case.again or (self._words(case, AGAIN),)
        later = await self.client.request("POST", f"{where}/runs", {"input": "And again."})
        later = await finished(self.client, later["id"])
        events = await events_of(self.client, f"{where}/events")
        run_id = next(e["run_id"] for e in events if e["type"] == "run.queued" and e["agent"] == "subject")
        run = await self.client.request("GET", f"/v1/runs/{run_id}")
        rows = (await self.client.page(f"/v1/runs/{run_id}/messages", order="oldest", limit=500))["items"]
        asked = self.requests(case, key)
        root = await self.client.request("GET", f"/v1/runs/{root['id']}")
        note = self.service.workspace / f"{session['id']}.txt"
        return Met(
            case=case,
            depth=depth,
            run=run,
            root=root,
            later=later,
            rows=rows,
            events=events,
            frames=frames,
            requests=asked[:first],
            again=asked[first:],
            told=_told(events, run, root),
            notes=note.read_text().splitlines() if note.exists() else (),
        )

    def requests(self, case: Case, key: str) -> list[Request]:
        """What the model of the run under test was asked so far."""
        stub = self.anthropic if case.anthropic else self.openai
        return [request for request in stub.requests if _who(request) == ("subject", key)]

    def _openai(self, request: Request) -> Answer:
        role, key = _who(request)
        if role == "subject":
            return self._next(key)
        if not role.startswith("caller"):
            return text(SUMMED_UP)
        last = request.messages[-1]
        if last["role"] == "tool":
            return text(f"Passed on: {last['content']}")
        depth, task = self._tasks[key]
        below = int(role.removeprefix("caller")) + 1
        target = "subject" if below == depth else f"caller{below}"
        return calls(("dispatch_subagent", json.dumps({"agent_type": target, "task": task})))

    def _anthropic(self, request: Request) -> Answer:
        role, key = _who(request)
        return self._next(key) if role == "subject" else self._words(None, SUMMED_UP)

    def _next(self, key: str) -> Answer:
        answers = self._answers[key]
        return answers.popleft() if answers else Answer(status=500)

    @staticmethod
    def _words(case: Case | None, said: str) -> Answer:
        if case is None or case.anthropic:
            return anthropic_stub.message(anthropic_stub.words(said))
        return text(said)


def _who(request: Request) -> tuple[str, str]:
    """Role and case of whoever asks; empty for a summary, which has no prompt."""
    first = request.body["system"][0]["text"] if "system" in request.body else request.messages[0]["content"]
    found = WHO.match(first) if isinstance(first, str) else None
    return (found[1], found[2]) if found else ("", "")


def session_of(case: Case, key: str, depth: int) -> dict[str, Any]:
    """The session in which the run under test has that depth."""
    agents = [
        agent(f"caller{at}", prompt=f"You are caller{at} of {key}.", mode="all", tools=["Agent"], model="callers")
        for at in range(depth)
    ]
    lasting = {"session_mode": "reuse_session"} if depth else {}
    subject = {"mode": "all", "tools": list(case.tools), "model": case.model, "max_steps": 60, **lasting, **case.more}
    agents.append(agent("subject", prompt=f"You are subject of {key}.", **subject))
    agents.append(agent("helper", prompt=f"You are helper of {key}.", tools=[], model="callers"))
    fields: dict[str, Any] = {"agent": agents[0]["name"], "agents": agents, "surfaces": ["dispatch", "task"]}
    fields["policy"] = {"max_depth": 3, "max_retries": 0}
    return fields if case.thinking is None else {**fields, "thinking": case.thinking}


async def watched(client: Client, path: str, connected: asyncio.Event) -> list[Received]:
    """What a client sees from the beginning of a session until it rests."""
    frames: list[Received] = []
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(path):
            frames.append(frame)
            connected.set()
            if frame.type == "session.idle":
                return frames
    raise AssertionError("the stream ended before the session was idle")


def _told(events: Sequence[Mapping[str, Any]], run: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """What the run's parent was told of it; at depth 0 its output."""
    if not run["depth"]:
        return str(root["output"])
    results = (e["data"] for e in events if e["type"] == "tool.result" and e["run_id"] == run["parent_run_id"])
    return str(next(results)["content"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def faulty_models(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Depths]:
    """One such service for a whole module; at its end, no request was refused that was not meant to be."""
    async with odd_service(tmp_path_factory.mktemp("depths")) as odd:
        yield Depths(odd)
        assert odd.refused() == []
