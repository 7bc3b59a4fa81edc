"""Webhooks that wait: any number in the store, few under way, one receiver's silence nobody else's."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from app.agent.events import Write
from app.agent.ids import now_us
from app.sessions.deliveries import PAGE, Heard, Retries, SendFailed
from app.sessions.webhooks import Webhooks
from app.store.database import writing_connection
from app.store.webhooks import SqlWebhookStore
from tests.sessions.writers import Room, writing
from tests.world import WAIT_S

PER_HOST = 3


class Post:
    """A sender in memory. `silent` hosts are answered when the test says so, `broken` ones raise what they hold."""

    def __init__(self) -> None:
        self.silent: dict[str, asyncio.Event] = {}
        self.broken: dict[str, list[Exception]] = {}
        self.sent: list[tuple[str, str]] = []
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def host(self, url: str) -> str:
        """See `Sender`."""
        return url.split("/")[2]

    async def send(self, url: str, message_id: str, body: bytes) -> Heard:
        """See `Sender`."""
        host = self.host(url)
        self.under_way[host] += 1
        self.most[host] = max(self.most[host], self.under_way[host])
        try:
            if host in self.silent:
                await self.silent[host].wait()
            if self.broken.get(host):
                raise self.broken[host].pop()
            self.sent.append((url, message_id))
            return Heard(status=200)
        finally:
            self.under_way[host] -= 1


class Counting(SqlWebhookStore):
    """Counts the rows that are read at a time."""

    most = 0

    async def due(self, tenant: str, host: str, now: int, limit: int) -> Any:
        """See `WebhookStore`."""
        rows = await super().due(tenant, host, now, limit)
        self.most = max(self.most, len(rows))
        return rows


def row(session_id: str, number: int, host: str, tenant: str = "default", **fields: Any) -> Write:
    """One that is due since its session's first event."""
    now = now_us()
    values = {
        "tenant_id": tenant,
        "id": f"run_{host}_{number}",
        "session_id": session_id,
        "host": host,
        "url": f"https://{host}/{number}",
        "status": "pending",
        "attempts": 0,
        "event_seq": 1,
        "next_at": now,
        "until": now + 10**12,
        "created_at": now,
    }
    return Write(table="webhooks", values={**values, **fields})


@contextlib.asynccontextmanager
async def waiting(folder: Path, post: Post, **hosts: int) -> AsyncIterator[tuple[Room, Webhooks, Counting]]:
    """A store in which so many wait for each host, and the webhooks, not begun."""
    async with writing(folder) as room:
        talk = room.begin()
        store = Counting(room.database.reader)
        retries = Retries(first_s=0.001, most_s=0.002)
        webhooks = Webhooks(room.journal, store, post, retries=retries, per_host=PER_HOST)
        rows = [row(talk.session.id, number, host) for host, count in hosts.items() for number in range(count)]
        await asyncio.gather(*(room.journal.write(write) for write in rows))
        try:
            yield room, webhooks, store
        finally:
            await webhooks.close()


async def until(post: Post, host: str, count: int) -> None:
    """Wait until so many were sent to a host."""
    async with asyncio.timeout(WAIT_S):
        while sum(f"//{host}/" in url for url, _ in post.sent) < count:
            await asyncio.sleep(0.005)


@pytest.mark.spec("9.9")
async def test_however_many_wait_few_are_in_memory_and_fewer_under_way(tmp_path: Path) -> None:
    post = Post()
    post.silent["dead"] = asyncio.Event()
    async with waiting(tmp_path, post, dead=400, alive=20) as (_, webhooks, store):
        await webhooks.start()
        await until(post, "alive", 20)
        assert post.under_way["dead"] == PER_HOST
        post.silent["dead"].set()
        await until(post, "dead", 400)
        assert post.most["dead"] == PER_HOST
        assert store.most == PAGE
        assert max(Counter(url for url, _ in post.sent).values()) == 1


@pytest.mark.spec("9.9")
async def test_what_cannot_be_sent_is_tried_again_and_holds_up_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    post = Post()
    post.broken["odd"] = [RuntimeError("a fault of ours"), SendFailed("no answer from odd")]
    async with waiting(tmp_path, post, odd=2) as (_, webhooks, store):
        await webhooks.start()
        await until(post, "odd", 2)
        async with asyncio.timeout(WAIT_S):
            while (await store.next_at("default", "odd")) is not None:
                await asyncio.sleep(0.005)
        rows = [await store.webhook("default", f"run_odd_{number}") for number in range(2)]
    assert [each["status"] for each in rows if each] == ["delivered", "delivered"]
    assert sum(each["attempts"] for each in rows if each) == 4
    assert "could not be sent" in caplog.text


@pytest.mark.spec("9.9", "12.3")
async def test_ends_that_a_damaged_store_cannot_tell_hold_up_no_others(tmp_path: Path) -> None:
    post = Post()
    async with waiting(tmp_path, post, host=PER_HOST + 1) as (room, webhooks, store):
        damaged, whole = await store.webhook("default", "run_host_0"), room.begin()
        assert damaged is not None
        await room.journal.flush()
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            spoiled = text("UPDATE events SET data = X'7b7d' WHERE session_id = :id AND seq = 1")
            connection.execute(spoiled, {"id": damaged["session_id"]})
        await room.journal.write(row(whole.session.id, 99, "host"))
        await webhooks.start()
        await until(post, "host", 1)
        assert [url for url, _ in post.sent] == ["https://host/99"]


@pytest.mark.spec("9.9")
async def test_a_state_that_is_written_after_the_row_was_erased_makes_none(tmp_path: Path) -> None:
    post = Post()
    post.silent["slow"] = asyncio.Event()
    async with waiting(tmp_path, post, slow=1) as (room, webhooks, store):
        await webhooks.start()
        async with asyncio.timeout(WAIT_S):
            while not post.under_way["slow"]:
                await asyncio.sleep(0.005)
        gone = {"tenant_id": "default", "id": "run_slow_0"}
        await room.journal.write(Write(table="webhooks", values=gone, key=("id",), delete=True))
        post.silent["slow"].set()
        await until(post, "slow", 1)
        await room.journal.flush()
        assert await store.webhook("default", "run_slow_0") is None


@pytest.mark.spec("9.9")
@given(tries=st.integers(1, 10_000), wanted=st.none() | st.floats(0, 1e9))
def test_pauses_grow_to_a_bound_and_are_at_least_what_a_receiver_wants_below_it(
    tries: int, wanted: float | None
) -> None:
    retries = Retries(first_s=5, most_s=3600)
    pause = retries.pause_s(tries, wanted)
    full = min(3600, 5 * 2.0 ** min(tries - 1, 40))
    assert full / 2 <= pause <= 3600
    assert pause >= min(wanted or 0, 3600)
