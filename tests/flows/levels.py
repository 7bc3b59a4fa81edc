"""The same behaviour of a model as a lead, as a child and as a grandchild in one service, and what holds after it.

Knows no case. Ancestors only pass the work on.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from app.client import Client, Received
from tests.flows.levels_model import ABOVE, AGAIN, Play, StrictStub, passing_on
from tests.flows.levels_own import HOOKS, TOOLS, own_things
from tests.processes import alive, until
from tests.service import WAIT_S, Service, agent, events_of, finished, serving
from tests.strict import FINAL, log_problems
from tests.stubs.openai_stub import Request


@dataclass
class Case:
    """One session with the run under test at a depth."""

    levels: "Levels"
    tag: str
    depth: int
    part: str
    root: dict[str, Any]
    frames: list[Received] = field(default_factory=list)
    reading: "asyncio.Task[None] | None" = None

    @property
    def client(self) -> Client:
        """Of the service."""
        return self.levels.client

    @property
    def session(self) -> str:
        """The path of the session."""
        return f"/v1/sessions/{self.root['session_id']}"

    def asked(self, part: str = "") -> list[Request]:
        """The requests for one part, by default the one under test."""
        prompt = f"You are {part or self.part} {self.tag}."
        return [r for r in self.levels.stub.requests if str(r.messages[0]["content"]).split("\n")[0] == prompt]

    async def seen(self, kind: str, count: int = 1, **data: Any) -> list[dict[str, Any]]:
        """Wait until the client was shown that many events of the part under test; the events."""
        found: list[dict[str, Any]] = []

        def shown() -> bool:
            found[:] = [
                f.data for f in self.frames
                if f.type == kind and f.data.get("depth", self.depth) == self.depth
                and all(f.data["data"].get(name) == value for name, value in data.items())
            ]  # fmt: skip
            return len(found) >= count or self.reading is None or self.reading.done()

        await until(shown)
        assert len(found) >= count, f"{kind} was shown {len(found)} times"
        return found

    async def events(self, *types: str, depth: int | None = None) -> list[dict[str, Any]]:
        """Durable events of the session; of those with a run only the depth under test, or another."""
        wanted = self.depth if depth is None else depth
        every = await events_of(self.client, f"{self.session}/events", **({"types": ",".join(types)} if types else {}))
        return [e for e in every if e.get("depth") == wanted]

    async def results(self, depth: int | None = None) -> list[tuple[str, str]]:
        """Status and text of the tool results of the part under test (or of another depth), in the order of calls."""
        found = [e["data"] for e in await self.events("tool.result", depth=depth)]
        return [(one["status"], one["content"]) for one in sorted(found, key=lambda one: one["memory_seq"])]

    async def runs(self) -> list[dict[str, Any]]:
        """All runs of the session, by ordinal."""
        tree = await self.client.request("GET", f"{self.session}/tree")
        found, ahead = [], list(tree["runs"])
        while ahead:
            run = ahead.pop()
            found.append(run)
            ahead += run["children"]
        return sorted(found, key=lambda run: int(run["run"]))

    async def ended(self) -> dict[str, Any]:
        """Wait for the end of the turn and of its stream; the run under test."""
        self.root = await finished(self.client, self.root["id"])
        async with asyncio.timeout(WAIT_S):
            await (self.reading or _read(self))
        return [run for run in await self.runs() if (run["depth"], run["agent"]) == (self.depth, self.part)][-1]

    async def cancel(self) -> dict[str, Any]:
        """Cancel the turn."""
        answer: dict[str, Any] = await self.client.request("POST", f"/v1/runs/{self.root['id']}/cancel")
        return answer

    async def questions(self, count: int) -> list[dict[str, Any]]:
        """Wait for that many questions on the stream of the root; their data with `path` and `depth`."""
        events = await self.seen("permission.requested", count)
        return [{**event["data"], "path": event["path"], "depth": event["depth"]} for event in events]

    async def answer(self, approval_id: str, decision: str, **more: Any) -> dict[str, Any]:
        """Answer a question by its id."""
        body = {"decision": decision, **more}
        answered: dict[str, Any] = await self.client.request("POST", f"/v1/permissions/{approval_id}", body)
        return answered

    # ── what has to hold after every case ───────────────────────────────────────────────────────────────────────────

    async def settled(self, status: str = "completed", *, again: bool = True) -> dict[str, Any]:
        """End the turn, and check the four things; the run under test, which has that status."""
        run = await self.ended()
        assert run["status"] == status, run
        await self._one_end_everywhere()
        await self._nothing_left()
        await self._shown_is_audited()
        if again:
            await self._next_turn_is_accepted()
        return run

    async def _one_end_everywhere(self) -> None:
        log = await events_of(self.client, f"{self.session}/events")
        assert log_problems(log) == []
        for run in await self.runs():
            ends = [e["type"] for e in log if e.get("run_id") == run["id"] and e["type"] in FINAL]
            shown = [f.type for f in self.frames if f.data.get("run_id") == run["id"] and f.type in FINAL]
            alone = await self.client.request("GET", f"/v1/runs/{run['id']}")
            assert ends == shown == [f"run.{run['status']}"]
            assert {name: alone[name] for name in ("status", "stop_reason", "output", "error")} == {
                name: run[name] for name in ("status", "stop_reason", "output", "error")
            }

    async def _nothing_left(self) -> None:
        await until(lambda: self.levels.stub.playing == 0)
        questions = await self.client.page("/v1/permissions", session_id=self.root["session_id"], status="pending")
        assert questions["items"] == []
        assert (await self.client.request("GET", self.session))["status"] == "idle"
        await until(lambda: self.levels.children() <= self.levels.before)
        gauges = await self.levels.gauges()
        assert gauges["subagentd_runs_in_flight"] == 0

    async def _shown_is_audited(self) -> None:
        log = {e["id"]: e for e in await events_of(self.client, f"{self.session}/events")}
        shown = {f.id: {name: value for name, value in f.data.items() if name != "prev"} for f in self.frames if f.id}
        assert [event for number, event in shown.items() if event != log.get(number)] == []
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await self.client.page(
                "/v1/audit", session_id=self.root["session_id"], limit=200, order="oldest", cursor=cursor
            )
            rows += page["items"]
            if not (cursor := page["next"]):
                break
        kept = {(row["run_id"], row["step"], row["sub"]): row["content"] for row in rows}
        told = [f.data for f in self.frames if f.type in ("message", "tool.result")]
        assert told
        for event in told:
            place = (event["run_id"], event.get("step", 0), event["data"]["sub"])
            assert kept.get(place) == event["data"]["content"], event
        ordinals = {run["run"]: run["id"] for run in await self.runs()}
        for (ordinal, step), piece in self._streamed().items():
            assert kept.get((ordinals[ordinal], step, 0), "").startswith(piece), (ordinal, step, piece)

    def _streamed(self) -> dict[tuple[int, int], str]:
        """The text that stayed on the client's screen, by run and step: what a further try withdrew is gone."""
        shown: dict[tuple[int, int], str] = {}
        for frame in self.frames:
            if frame.type in ("text.delta", "text.snapshot"):
                key = frame.data["run"], frame.data["step"]
                old = shown.get(key, "")
                if frame.data.get("at", 0) in (0, len(old)):  # else the beginning was not seen
                    shown[key] = (old if frame.data.get("at", 0) else "") + frame.data["text"]
            elif frame.type == "step.retried":
                shown.pop((frame.data["run"], frame.data["step"]), None)
        return shown

    async def _next_turn_is_accepted(self) -> None:
        """The lead passes the second turn down to the same memories, which are sent to the strict server again."""
        before = len(self.asked())
        began = any(f.type == "message" and f.data.get("depth") == self.depth for f in self.frames)
        second = await self.client.request("POST", f"{self.session}/runs", {"input": AGAIN})
        run = await finished(self.client, second["id"])
        assert run["status"] == "completed", run
        assert self.levels.stub.refused == []
        request = self.asked()[before]
        assert request.messages[-1]["content"].startswith(AGAIN)
        assert (len(request.messages) > 2) == began, "the memory of the first turn went on"
        assert log_problems(await events_of(self.client, f"{self.session}/events")) == []


class Levels:
    """One service and one strict model server for many cases."""

    def __init__(self, service: Service, client: Client, stub: StrictStub) -> None:
        self.service = service
        self.client = client
        self.stub = stub
        self._tags = itertools.count(1)
        self.before: set[int] = set()

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the hook at all points was told, in order."""
        path = self.service.folder / "told.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def told_of(self, case: Case) -> list[dict[str, Any]]:
        """What it was told of one session."""
        return [each for each in self.told if each["session"] == case.root["session_id"]]

    def ran(self, case: Case) -> list[str]:
        """The commands that were run for a case; they name it by its tag."""
        path = self.service.workspace / "ran.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split(" ")[0] == case.root["session_id"]]

    def children(self) -> set[int]:
        """The processes below the server."""
        assert self.service.process is not None
        found: set[int] = set()
        for file in Path(f"/proc/{self.service.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.update(int(number) for number in file.read_text().split())
        return {number for number in found if alive(number)}

    async def gauges(self) -> dict[str, float]:
        """The metrics without labels."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.service.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in pairs}

    async def begin(
        self,
        depth: int,
        play: Play,
        *,
        part: str = "worker",
        worker: Mapping[str, Any] | None = None,
        helpers: Mapping[str, tuple[Play, Mapping[str, Any]]] | None = None,
        above: Mapping[str, Any] | None = None,
        task: str = "Do it.",
        watched: bool = True,
        **session: Any,
    ) -> Case:
        """Start a session whose run at `depth` behaves like `play`. `helpers`: agents that this run may start.

        `worker` and `above` are fields of the definitions of the part under test and of its ancestors. `watched` False:
        no client is there until the turn has ended.
        """
        tag = f"c{next(self._tags)}"
        chain = [*ABOVE[:depth], part]
        below = dict(helpers or {})
        agents = [self._agent(name, tag, tools=["Agent"], **(above or {})) for name in chain[:-1]]
        agents += [self._agent(part, tag, **{"tools": [], **(worker or {})})]
        agents += [self._agent(name, tag, **fields) for name, (_, fields) in below.items()]
        for name, following in itertools.pairwise(chain):
            self.stub.plays[f"You are {name} {tag}."] = passing_on(following)
        for name, each in {part: play, **{name: helper for name, (helper, _) in below.items()}}.items():
            self.stub.plays[f"You are {name} {tag}."] = each
        body = {"agent": chain[0], "agents": agents, "surfaces": ["dispatch"], "policy": {"max_depth": depth + 1}}
        root = await self.client.request("POST", "/v1/runs", {**body, "input": task, **session})
        case = Case(levels=self, tag=tag, depth=depth, part=part, root=root)
        case.reading = asyncio.create_task(_read(case)) if watched else None
        return case

    def _agent(self, name: str, tag: str, **fields: Any) -> dict[str, Any]:
        prompt = f"You are {name} {tag}."
        own = {"mode": "all", "session_mode": "reuse_session", "prompt": prompt + fields.pop("more", "")}
        return agent(name, **{**own, **fields})


async def _read(case: Case) -> None:
    async for frame in case.client.events(f"/v1/runs/{case.root['id']}/events"):
        case.frames.append(frame)


@contextlib.asynccontextmanager
async def levels(
    folder: Path, settings: Mapping[str, str] | None = None, *, hooks: bool = False
) -> AsyncIterator[Levels]:
    """A service with the operator's own tools, and hooks if wanted. `settings`: by the names of variables.

    The only traceback that its log may hold is that of the tool which is there to fail.
    """
    async with StrictStub() as stub:
        env = {
            "OPENAI_BASE_URL": stub.base_url,
            "OPENAI_API_KEY": "test",
            "SUBAGENTD_MODEL": "openai:test",
            "SUBAGENTD_LOOP__RETRIES": "1",
            "SUBAGENTD_LOOP__BACKOFF_MS": "1",
            **own_things(folder, TOOLS, HOOKS if hooks else ()),
            **{name: value.replace("{stub}", stub.base_url) for name, value in (settings or {}).items()},
        }
        async with serving(folder, env=env, check_log=False) as service, service.client() as client:
            made = Levels(service, client, stub)
            made.before = made.children()
            yield made
        told = [line for line in service.log.splitlines() if "Traceback" in line]
        assert [line for line in told if "tool boom raised" not in line] == [], service.log
