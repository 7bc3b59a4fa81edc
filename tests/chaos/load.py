"""What clients do while the server dies again and again: trees that are started, watched, cancelled, gone on with, and
questions that are answered at once, late, or by a person who tries until somebody hears it.

Knows the service by its routes only. What each tree is follows from the seed; when things happen does not.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.plans import Book, session
from tests.chaos.recorder import Answered, Lost, RecordingClient
from tests.chaos.server import TENANTS, Abilities, Server

CANCELLED, WATCHED, FOLLOWED, FOREIGN = 0.06, 0.4, 0.15, 0.05  # of the trees
LOOK_S = 0.1  # between two looks into the inbox, or at the tasks
Run = tuple[str, str]  # id, id of its session


class Load:
    """Keeps `trees` in flight until `finish`."""

    def __init__(
        self, server: Server, folder: Path, book: Book, *, trees: int, seed: int, abilities: Abilities
    ) -> None:
        self._server = server
        self._book = book
        self._folder = folder
        self._seed = seed
        self._abilities = abilities
        self._numbers: Iterator[int] = iter(range(10**9))
        self._going_on = True
        self.started = 0
        self.ended = 0
        self._known: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}  # runs, for those who may not see them
        self._workers = [asyncio.create_task(self._work(at), name=f"client {at}") for at in range(trees)]
        self._persons = [asyncio.create_task(self._answer(tenant), name=f"person {tenant}") for tenant in TENANTS]

    def _client(self, tenant: str, name: str) -> RecordingClient:
        path = self._folder / f"{name}.jsonl"
        return RecordingClient(self._server.url, self._server.keys[tenant], tenant, path, self._server.there)

    async def finish(self, within_s: float) -> None:
        """Start one tree with everything and no other, and wait until all have ended, and the tasks that nobody waited
        for: persons go on answering for that long. Raises `TimeoutError` when they do not."""
        self._going_on = False
        async with asyncio.timeout(within_s):
            await asyncio.gather(self._everything(), *self._workers)
            if self._abilities.background:
                for tenant in TENANTS:
                    await self._tasks_ended(tenant)

    async def stop(self) -> None:
        """Go, whatever is under way."""
        everybody = [*self._workers, *self._persons]
        for one in everybody:
            one.cancel()
        ends = await asyncio.gather(*everybody, return_exceptions=True)
        faults = [end for end in ends if isinstance(end, Exception)]
        if faults:
            raise faults[0]

    def check(self) -> None:
        """Raises what a client met that must not happen."""
        for one in (*self._workers, *self._persons):
            if one.done() and not one.cancelled() and (error := one.exception()) is not None:
                raise error

    # ── trees ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, at: int) -> None:
        tenant = TENANTS[at % len(TENANTS)]
        async with self._client(tenant, f"client-{at}") as client:
            while self._going_on:
                number = next(self._numbers)
                await self._tree(client, number, Random(f"{self._seed}-{number}"))

    async def _everything(self) -> None:
        """One tree with one of each kind of call, watched to its end."""
        async with self._client(TENANTS[0], f"everything-{next(self._numbers)}") as client:
            body, _ = session(Random(1))
            body.pop("budget", None)
            tag = f"{self._seed}-everything"
            client.note("tree", tag=tag, limit=None)
            body["input"] = self._book.everything(tag, background=self._abilities.background)
            answer = await client.insist("POST", "/v1/runs", body)
            path = f"/v1/sessions/{answer.body['session_id']}/events"
            async for _ in client.follow(path, until="idle"):
                pass
            await client.insist("GET", f"/v1/runs/{answer.body['id']}")

    async def _tasks_ended(self, tenant: str) -> None:
        """Wait until no background task of a tenant is open."""
        async with self._client(tenant, f"tasks-{tenant}") as client:
            while await self._any_open(client):
                await asyncio.sleep(LOOK_S)

    @staticmethod
    async def _any_open(client: RecordingClient) -> bool:
        cursor = ""
        while True:
            page = (await client.insist("GET", f"/v1/tasks?limit=500{cursor}")).body
            if any(task["ended_at"] is None for task in page["items"]):
                return True
            if page["next"] is None:
                return False
            cursor = f"&cursor={page['next']}"

    async def _tree(self, client: RecordingClient, number: int, rng: Random) -> None:
        body, limit = session(rng)
        tag = f"{self._seed}-{number}"
        body["input"] = self._book.tree(rng, tag, background=self._abilities.background)
        client.note("tree", tag=tag, limit=limit)
        run = await self._start(client, "/v1/runs", body, tag)
        if run is None:
            return
        self.started += 1
        self._known[client.tenant].append(run[0])
        await self._to_its_end(client, run, rng)
        if rng.random() < FOLLOWED:
            task = self._book.tree(rng, f"{tag}+", background=self._abilities.background, depth=1)
            turn = await self._start(client, f"/v1/sessions/{run[1]}/runs", {"input": task}, f"{tag}+")
            if turn is not None:
                await self._to_its_end(client, turn, rng)
        if rng.random() < FOREIGN:
            await self._pry(client, rng)
        self.ended += 1

    async def _start(self, client: RecordingClient, path: str, body: Any, tag: str) -> Run | None:
        """Start a run; None when nobody knows whether there is one, or the session has work of its own."""
        key = tag if self._abilities.idempotent else None
        answer = await (client.insist("POST", path, body, key=key) if key else self._once(client, path, body))
        return (str(answer.body["id"]), str(answer.body["session_id"])) if answer is not None and answer.ok else None

    @staticmethod
    async def _once(client: RecordingClient, path: str, body: Any) -> Answered | None:
        """Ask for something that must not be asked for twice; None when nobody knows whether it was heard."""
        while True:
            try:
                answer = await client.ask("POST", path, body)
                if answer.status != 503:
                    return answer
            except Lost as error:
                if not error.refused:
                    return None
            await client.pause()

    async def _to_its_end(self, client: RecordingClient, run: Run, rng: Random) -> None:
        cancel = asyncio.create_task(self._cancel(client, run, rng)) if rng.random() < CANCELLED else None
        if rng.random() < WATCHED:
            whole = rng.random() < 0.5
            path, query = (f"/v1/sessions/{run[1]}/events", {"until": "idle"}) if whole else _run_events(run)
            async for _ in client.follow(path, **query):
                pass
        while (await client.insist("GET", f"/v1/runs/{run[0]}?wait_ms=1000")).body["ended_at"] is None:
            pass
        if cancel is not None:
            await cancel

    @staticmethod
    async def _cancel(client: RecordingClient, run: Run, rng: Random) -> None:
        await asyncio.sleep(rng.random())
        door = rng.choice((f"/v1/runs/{run[0]}/cancel", f"/v1/sessions/{run[1]}/cancel"))
        await client.insist("POST", door)

    async def _pry(self, client: RecordingClient, rng: Random) -> None:
        """Ask for what belongs to somebody else."""
        others = [run for tenant, runs in self._known.items() if tenant != client.tenant for run in runs[-20:]]
        if others:
            run = rng.choice(others)
            answer = await client.insist("GET", f"/v1/runs/{run}")
            client.note("pried", run=run, status=answer.status)

    # ── persons ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, tenant: str) -> None:
        """Answer every question of a tenant, each in its own time."""
        async with self._client(tenant, f"person-{tenant}") as client:
            asked: dict[str, asyncio.Task[None]] = {}
            try:
                while True:
                    for question in await self._questions(client):
                        if question not in asked:
                            asked[question] = asyncio.create_task(self._settle(client, question))
                    await asyncio.sleep(LOOK_S)
            finally:
                for task in asked.values():
                    task.cancel()
                await asyncio.gather(*asked.values(), return_exceptions=True)

    @staticmethod
    async def _questions(client: RecordingClient) -> Sequence[str]:
        try:
            answer = await client.ask("GET", "/v1/permissions", status="pending", limit=200)
        except Lost:
            return ()
        return [item["id"] for item in answer.body["items"]] if answer.ok else ()

    async def _settle(self, client: RecordingClient, question: str) -> None:
        rng = Random(f"{self._seed}-{question}")
        late = rng.choices((0.0, rng.uniform(0.1, 0.5), rng.uniform(0.5, 2.0)), weights=(6, 3, 1))[0]
        await asyncio.sleep(late)
        decision = "deny" if rng.random() < 0.15 else "allow_once"
        await client.insist("POST", f"/v1/permissions/{question}", {"decision": decision})


def _run_events(run: Run) -> tuple[str, dict[str, str]]:
    return f"/v1/runs/{run[0]}/events", {}
