"""The server of a stateful test, asked over HTTP, and compared with the ledger after every step.

Knows the routes. Waits only for what must come.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.fuzz.checks import answer_faults
from tests.fuzz.ledger import OPEN, Node, Session
from tests.fuzz.stage import Stage
from tests.service import Service, agent

T = TypeVar("T")
WAIT_S = 20.0
EXPIRES_S = 0.2
TOOLS = ["Agent", "read_file"]
BODY = {
    "agent": "lead",
    "agents": [
        agent("lead", mode="primary", tools=TOOLS, max_steps=200),
        agent("node", tools=TOOLS, max_steps=200),
    ],
    "surfaces": ["task"],
    "policy": {"max_depth": 3},
}


class Keeper:
    """One loop, one stage, one server process after the other. `hasty`: nobody has time to answer questions."""

    def __init__(self, folder: Path, *, hasty: bool) -> None:
        self.hasty = hasty
        self._loop = asyncio.new_event_loop()
        self.stage = Stage()
        self.restarts = 0
        self.requests = 0
        self._folder = folder
        self.service: Service
        self._http: httpx.AsyncClient
        self.do(self._open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry something out, within a bound."""
        return self._loop.run_until_complete(asyncio.wait_for(work, 2 * WAIT_S))

    async def _open(self) -> None:
        await self.stage.start()
        env = {
            "OPENAI_BASE_URL": self.stage.base_url,
            "OPENAI_API_KEY": "test",
            "SUBAGENTD_MODEL": "openai:test",
            "SUBAGENTD_PERMISSIONS__RULES__ASK": '["read_file"]',
            "SUBAGENTD_PERMISSIONS__EXPIRES_S": str(EXPIRES_S if self.hasty else 300),
            "SUBAGENTD_HTTP__GRACE_S": "0.1",
            "SUBAGENTD_RECOVERY__MAX_ATTEMPTS": "1000",
        }
        self.service = await Service(self._folder, env=env).start()
        self._http = httpx.AsyncClient(base_url=self.service.url, timeout=WAIT_S)

    def close(self) -> None:
        """End in order; the exit code and the log must be those of a server that nothing has hurt."""
        code = self.do(self._close())
        self._loop.close()
        assert code == 0, self.service.log[-4000:]
        assert "Traceback" not in self.service.log, self.service.log[-8000:]

    async def _close(self) -> int:
        await self._http.aclose()
        code = await self.service.stop()
        await self.stage.stop()
        return code

    async def ask(self, method: str, path: str, body: Any = None, *, expect: int | None = None, **query: Any) -> Any:
        """One request; its answer must have that status, and be a problem if it is an error."""
        self.requests += 1
        answer = await self._http.request(method, path, json=body, params=query, headers={"Accept": "application/json"})
        faults = answer_faults(answer.status_code, answer.headers, answer.content, head=False)
        assert not faults, (method, path, faults)
        assert expect is None or answer.status_code == expect, (method, path, expect, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def restart(self, *, kill: bool) -> None:
        """Another process on the same database."""
        self.restarts += 1
        await self._http.aclose()
        if kill:
            await self.service.kill()
        else:
            assert await self.service.stop() == 0
        await self.service.start()
        self._http = httpx.AsyncClient(base_url=self.service.url, timeout=WAIT_S)

    # ── what must come ──────────────────────────────────────────────────────────────────────────────────────────

    async def goes_on(self, *nodes: Node | None) -> None:
        """The models of these runs are asked."""
        for node in nodes:
            if node is not None:
                await self.stage.arrived(node.job)
                node.asked()

    async def asked_or_ended(self, node: Node) -> bool:
        """Whether the model of a run is asked once more; otherwise it has completed."""
        async with asyncio.timeout(WAIT_S):
            while not self.stage.asked(node.job):
                run = await self.ask("GET", f"/v1/runs/{node.run_id}", expect=200, wait_ms=20)
                if run["status"] not in OPEN:
                    assert run["status"] == "completed", run
                    return False
        return True

    async def question_of(self, node: Node, status: str) -> str:
        """The id of the newest question of a run, once it has this state."""
        async with asyncio.timeout(WAIT_S):
            while True:
                page = await self.ask("GET", "/v1/permissions", session_id=node.session.id, status=status, limit=500)
                found = [q["id"] for q in page["items"] if q["run_id"] == node.run_id]
                if found and found[0] not in node.session.questions:
                    return str(found[0])
                await asyncio.sleep(0.005)

    # ── the comparison ──────────────────────────────────────────────────────────────────────────────────────────

    async def compare(self, session: Session) -> None:
        """The service shows what the ledger says, at once or, for what ends a moment after its run, soon."""
        if session.deleted:
            for path in ("", "/tree", "/runs", "/events", "/messages"):
                await self.ask("GET", f"/v1/sessions/{session.id}{path}", expect=404)
            return
        await self._read_on(session)
        try:
            async with asyncio.timeout(WAIT_S):
                while found := await self._differences(session):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError("\n".join(found)) from None
        await self._read_on(session)
        wanted = {node.run_id: node.status for node in session.nodes() if not node.open}
        assert session.ends == wanted, (session.ends, wanted)

    async def _differences(self, session: Session) -> list[str]:
        tree = await self.ask("GET", f"/v1/sessions/{session.id}/tree", expect=200)
        shown = {run["input"].partition(" ")[0]: run for run in _flat(tree)}
        found = []
        for node in session.nodes():
            run = shown.get(node.job)
            if run is None:
                found.append(f"{node.job} is not shown")
                continue
            node.run_id = run["id"]
            if (run["status"] in OPEN) != node.open or not (node.open or run["status"] == node.status):
                found.append(f"{node.job} is {run['status']}, not {node.status} ({node.doing})")
        if len(shown) != len(session.nodes()):
            found.append(f"runs that nobody began: {sorted(shown)}")
        return found + await self._listed(session)

    async def _listed(self, session: Session) -> list[str]:
        asked = await self.ask("GET", "/v1/permissions", expect=200, session_id=session.id, limit=500)
        questions = {item["id"]: item["status"] for item in asked["items"]}
        listed = await self.ask("GET", "/v1/tasks", expect=200, session_id=session.id, limit=500)
        tasks = {item["task_id"]: item["status"] for item in listed["items"]}
        tasks = {task: "open" if status in OPEN else status for task, status in tasks.items()}
        found = [] if questions == session.questions else [f"questions {questions}, not {session.questions}"]
        found += [] if tasks == session.tasks() else [f"tasks {tasks}, not {session.tasks()}"]
        about = await self.ask("GET", f"/v1/sessions/{session.id}", expect=200)
        wanted = "closed" if session.closed else "active" if any(n.open for n in session.nodes()) else "idle"
        return found + ([] if about["status"] == wanted else [f"the session is {about['status']}, not {wanted}"])

    async def _read_on(self, session: Session) -> None:
        path = f"/v1/sessions/{session.id}/events"
        while items := (await self.ask("GET", path, expect=200, after=session.cursor, limit=500))["items"]:
            for event in items:
                session.seen(event)

    async def stream_again(self, session: Session, after: int) -> None:
        """A stream that begins behind a number has all that follows, each event once."""
        number, headers = after, {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        path = f"/v1/sessions/{session.id}/events?deltas=false"
        async with self._http.stream("GET", path, headers=headers) as answer:
            if answer.status_code == 204:
                assert session.closed, "a stream that is not over says that it is"
                return
            assert answer.status_code == 200, answer.status_code
            lines = answer.aiter_lines()
            while number < session.cursor:
                line = await anext(lines)
                if line.startswith("id: "):
                    number += 1
                    assert line == f"id: {number}", (line, number)


def _flat(tree: Any) -> list[dict[str, Any]]:
    found = []
    waiting = list(tree["runs"])
    while waiting:
        run = waiting.pop()
        found.append(run)
        waiting += run.get("children", [])
    return found
