"""The bus of one process: each reader sees what is published after it came, in order, or is told that it did not."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.events import Event
from app.agent.ports import Ended, Lagging
from app.agent.runs import Run
from app.bus.memory import MemoryBus, Reader
from tests.store.facts import Facts
from tests.world import WAIT_S


class Session:
    """Makes the events of one session with one run, and counts its deltas as the journal does."""

    def __init__(self) -> None:
        self.facts = Facts(session_id="ses_x")
        self.run: Run = self.facts.run()
        self.step = 1
        self.at = 0

    def durable(self) -> Event:
        return self.facts.waiting(self.run)

    def step_end(self) -> Event:
        self.step += 1
        self.at = 0
        return self.facts.step_completed(self.run, self.step - 1)

    def delta(self, text: str, kind: str = "text.delta", call: str | None = None) -> Event:
        payload = {"run": self.run.ordinal, "step": self.step, "at": self.at, "text": text}
        if call is not None:
            payload["call"] = call
        self.at += len(text) if kind == "text.delta" else 0
        return Event(
            seq=0, type=kind, ts=0, tenant="default", session_id="ses_x", run=self.run, step=self.step,
            payload=payload, data=text.encode(),
        )  # fmt: skip


def waiting(bus: MemoryBus, limit: float = WAIT_S) -> asyncio.Timeout:
    """Bounds every wait."""
    return asyncio.timeout(limit)


@given(st.lists(st.sampled_from(["durable", "delta", "step", "join", "read", "leave"]), max_size=40))
@pytest.mark.spec("11.1", "11.5")
async def test_every_reader_sees_what_came_after_it_in_order_and_once(actions: list[str]) -> None:
    bus, session = MemoryBus(), Session()
    published: list[Event] = []
    readers: list[tuple[int, list[Event], Reader]] = []

    async def read(at: int, seen: list[Event], reader: Reader) -> None:
        if len(seen) < len(published) - at:
            seen.extend(await reader.next())

    for action in actions:
        if action == "join":
            readers.append((len(published), [], bus.subscribe("ses_x", head=0)))
        elif action == "read":
            for entry in readers:
                await read(*entry)
        elif action == "leave" and readers:
            readers.pop()[2].close()
        elif action in ("durable", "delta", "step"):
            event = {"durable": session.durable, "step": session.step_end}.get(action, lambda: session.delta("x"))()
            published.append(event)
            bus.publish("ses_x", [event])
    for at, seen, reader in readers:
        await read(at, seen, reader)
        assert seen == published[at:]


@given(st.lists(st.tuples(st.sampled_from(["text", "arguments", "step"]), st.text(max_size=3)), max_size=30), st.data())
@pytest.mark.spec("11.1")
async def test_a_reader_that_joins_within_a_step_gets_its_texts_so_far_and_then_the_rest(
    parts: list[tuple[str, str]], data: st.DataObject
) -> None:
    bus, session = MemoryBus(), Session()
    join_at = data.draw(st.integers(0, len(parts)))
    whole: dict[str, str] = {}
    snapshots: dict[str, str] = {}
    reader = None
    for at, (kind, text) in enumerate(parts):
        if at == join_at:
            reader = bus.subscribe("ses_x", head=0)
            snapshots = {shot["of"]: shot["text"] for _, shot in reader.snapshots}
            assert all(shot["at"] == len(shot["text"]) for _, shot in reader.snapshots)
            assert snapshots == whole
        if kind == "step":
            bus.publish("ses_x", [session.step_end()])
            whole = {}
        else:
            event = session.delta(text, "text.delta" if kind == "text" else "tool.arguments.delta")
            bus.publish("ses_x", [event])
            whole[event.type] = whole.get(event.type, "") + text


@pytest.mark.spec("11.1")
async def test_texts_of_different_calls_of_a_step_are_told_apart_in_snapshots() -> None:
    bus, session = MemoryBus(), Session()
    for call, text in (("call_a", "{1"), ("call_b", "{2"), ("call_a", "}")):
        bus.publish("ses_x", [session.delta(text, "tool.arguments.delta", call)])
    shots = {shot["call"]: shot["text"] for _, shot in bus.subscribe("ses_x", head=0).snapshots}
    assert shots == {"call_a": "{1}", "call_b": "{2"}


@pytest.mark.spec("11.5")
async def test_a_reader_that_falls_behind_is_told_how_many_deltas_it_lost_and_costs_no_memory() -> None:
    bus, session = MemoryBus(max_bytes=4000), Session()
    slow, quick = bus.subscribe("ses_x", head=0), bus.subscribe("ses_x", head=0)
    seen: list[Event] = []
    for _ in range(50):
        bus.publish("ses_x", [session.delta("y" * 100), session.durable()])
        seen.extend(await quick.next())
    assert len(seen) == 100
    with pytest.raises(Lagging) as lag:
        await slow.next()
    assert lag.value.deltas == 50
    assert slow._queue == []


@pytest.mark.spec("11.5")
async def test_one_batch_over_the_bound_is_for_the_log_and_not_for_the_queue() -> None:
    bus, session = MemoryBus(max_bytes=10), Session()
    reader = bus.subscribe("ses_x", head=0)
    bus.publish("ses_x", [session.durable()])
    with pytest.raises(Lagging) as lag:
        await reader.next()
    assert lag.value.deltas == 0


@pytest.mark.spec("11.3")
async def test_a_reader_that_is_ended_still_takes_what_was_there() -> None:
    bus, session = MemoryBus(), Session()
    reader = bus.subscribe("ses_x", head=0)
    event = session.durable()
    bus.publish("ses_x", [event])
    reader.end("shutdown")
    assert await reader.next() == [event]
    with pytest.raises(Ended) as ended:
        await reader.next()
    assert ended.value.reason == "shutdown"


@pytest.mark.spec("11.3", "17.2")
async def test_a_reader_that_is_ended_is_not_kept_by_what_comes_after() -> None:
    bus, session = MemoryBus(), Session()
    reader = bus.subscribe("ses_x", head=0)
    reader.end("revoked")
    bus.publish("ses_x", [session.durable()])
    with pytest.raises(Ended):
        await reader.next()


async def test_a_reader_that_waits_is_woken_by_an_event_and_by_its_end() -> None:
    bus, session = MemoryBus(), Session()
    reader = bus.subscribe("ses_x", head=0)

    async def after_a_moment(events: Sequence[Event]) -> None:
        await asyncio.sleep(0)
        bus.publish("ses_x", events) if events else reader.end("revoked")

    async with waiting(bus):
        event = session.durable()
        got, _ = await asyncio.gather(reader.next(), after_a_moment([event]))
        assert got == [event]
        answers = await asyncio.gather(reader.next(), after_a_moment([]), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Ended, type(None)]


@pytest.mark.case("B168")
async def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    bus, session = MemoryBus(), Session()
    reader = bus.subscribe("ses_x", head=0)
    waiter = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    event = session.durable()
    bus.publish("ses_x", [event])
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    async with waiting(bus):
        assert await reader.next() == [event]


@pytest.mark.case("B168")
async def test_nothing_is_kept_of_a_session_that_nobody_reads_and_that_says_nothing() -> None:
    bus, session = MemoryBus(), Session()
    readers = [bus.subscribe("ses_x", head=0) for _ in range(3)]
    bus.publish("ses_x", [session.delta("half a")])
    assert bus.readers == 3
    for reader in readers:
        reader.close()
        reader.close()
    assert bus.readers == 0
    bus.publish("ses_x", [session.step_end()])
    assert bus._topics == {}


async def test_sessions_do_not_hear_each_other() -> None:
    bus, session = MemoryBus(), Session()
    other = bus.subscribe("ses_other", head=0)
    bus.publish("ses_x", [session.durable()])
    other.end("shutdown")
    with pytest.raises(Ended):
        await other.next()
