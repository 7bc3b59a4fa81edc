"""Whoever looks at a session, whenever, from wherever and however slowly: every event once, in order, to the end."""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.errors import TooMany
from app.sessions import streams as streams_module
from app.sessions.feed import CHUNK_BYTES, EventFeed, View
from app.sessions.recent import Recent
from app.wire import decode
from tests.longer import examples
from tests.sessions.writers import Room, Talk, writing
from tests.world import WAIT_S, frames, parsed


def close(facts: Any, _run: Any) -> Any:
    """The last event of a session."""
    return facts.closed()


def idle(facts: Any, _run: Any) -> Any:
    """Nothing is open any more."""
    return facts.idle()


def view(talk: Talk, **more: Any) -> View:
    """The view of a session."""
    return View(tenant=talk.session.tenant, session_id=talk.session.id, **more)


async def seen_by(
    feed: EventFeed,
    what: View,
    after: int = 0,
    pauses: tuple[int, ...] = (),
    moved: asyncio.Event | None = None,
) -> list[dict[str, Any]]:
    """All frames until the view ends, for a reader that pauses so many moments after each chunk. `moved` is set at a
    frame that only moves the cursor."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(feed.follow(what, after)) as chunks:
        at = 0
        async for chunk in chunks:
            found += parsed(chunk)
            if moved is not None and found and found[-1]["event"] is None:
                moved.set()
            for _ in range(pauses[at % len(pauses)] if pauses else 0):
                await asyncio.sleep(0)
            at += 1
    return found


DURABLE = frozenset({"session.created", "run.queued", "run.waiting", "session.closed"})
READERS = st.tuples(st.integers(0, 40), st.integers(0, 40), st.lists(st.integers(0, 9), min_size=1, max_size=4))
STORY = st.lists(st.sampled_from(["record", "emit", "emit", "step", "yield", "yield", "flush"]), max_size=40)


@given(STORY, st.lists(READERS, min_size=1, max_size=4), st.sampled_from([40, 3000, 1 << 20]), st.booleans())
@settings(max_examples=examples(60), deadline=None)
@pytest.mark.spec("11.1", "11.3", "11.5")
async def test_any_reader_sees_exactly_what_follows_its_cursor_once_and_in_order(
    story: list[str], readers: list[tuple[int, int, list[int]]], buffer: int, recent: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with asyncio.timeout(WAIT_S), writing(Path(folder), buffer_bytes=buffer) as room:
            if not recent:
                room.journal.recent = Recent(0, 0)
            feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
            tasks = {}
            step = 1
            for at in range(len(story) + 1):
                for number, (joins, after, pauses) in enumerate(readers):
                    if number not in tasks and (joins <= at or at == len(story)):
                        start = min(after, room.journal.head(talk.session.id) or 0)
                        job = seen_by(feed, view(talk), start, tuple(pauses))
                        tasks[number] = (start, asyncio.create_task(job))
                if at == len(story):
                    break
                match story[at]:
                    case "record":
                        talk.record()
                    case "emit":
                        talk.emit(f"<{at}>", step)
                    case "step":
                        talk.record(lambda facts, run, step=step: facts.step_completed(run, step))  # type: ignore[misc]
                        step += 1
                    case "yield":
                        await asyncio.sleep(0)
                    case _:
                        await room.journal.flush()
            talk.record(close)
            for start, task in tasks.values():
                check(talk, start, await task)
            assert (feed.readers, room.bus.readers) == (0, 0)


def check(talk: Talk, after: int, seen: list[dict[str, Any]]) -> None:
    """Durable events without gap or repeat, each delta after the event before it, each offset right."""
    assert [f["id"] for f in seen if f["id"] is not None] == list(range(after + 1, talk.facts.seq + 1))
    before = {}  # each delta: the number of the event before it, its step and its offset
    last, step, at = 0, 1, 0
    steps: dict[int, str] = {}
    for item in talk.said:
        if isinstance(item, int):
            last = item
            continue
        step = talk.steps[item]
        at = len(steps.get(step, ""))
        steps[step] = steps.get(step, "") + item
        before[item] = (last, step, at)
    last, skipped = after, False
    reached: dict[int, int] = {}
    for frame in seen:
        data = frame["data"]
        if frame["id"] is not None:
            last = frame["id"]
        elif frame["event"] == "stream.skipped":
            skipped = True
        elif frame["event"] == "text.snapshot":
            assert steps[data["step"]].startswith(data["text"])
            assert data["at"] == len(data["text"])
            reached[data["step"]] = data["at"]
        else:
            assert (last, data["step"], data["at"]) == before[data["text"]]
            assert skipped or data["at"] == reached.get(data["step"], 0)
            reached[data["step"]] = data["at"] + len(data["text"])


@pytest.mark.spec("11.3")
async def test_a_cursor_beyond_the_head_is_reset_and_gets_everything(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        talk.record(close)
        await room.journal.flush()
        seen = await seen_by(feed, view(talk), 99)
        assert (seen[0]["event"], seen[0]["data"]) == ("stream.reset", {"head": 3})
        assert [f["id"] for f in seen[1:]] == [1, 2, 3]


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("at_hand", [True, False])
async def test_a_view_until_idle_ends_with_the_last_idle_and_not_with_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_hand: bool
) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        talk.record(idle)
        talk.record()
        talk.record(idle)
        await room.journal.flush()
        if not at_hand:  # as after a restart
            monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)
            room.journal.release(talk.session.id)
            room.journal.recent.forget(talk.session.id)
            assert room.journal.head(talk.session.id) is None
        seen = await seen_by(feed, view(talk, until_idle=True))
        assert [f["id"] for f in seen] == [1, 2, 3, 4, 5]
        page = await feed.page(view(talk, until_idle=True), 0, 100, 0)
        assert (len(page["items"]), page["next"]) == (5, None)


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("live", [True, False])
async def test_a_view_until_idle_ends_also_when_the_session_got_another_title_since(tmp_path: Path, live: bool) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), await begin(room)
        what = view(talk, until_idle=True)
        task = asyncio.create_task(seen_by(feed, what))
        while live and not feed.readers:
            await asyncio.sleep(0)
        talk.record(idle)
        talk.record(lambda facts, _run: facts.updated(title="Another"))  # in the same batch
        await room.journal.flush()
        assert [f["id"] for f in await task] == [1, 2, 3, 4]
        assert [f["id"] for f in await seen_by(feed, what, 2)] == [3, 4]
        page = await feed.page(what, 0, 100, 0)
        assert (len(page["items"]), page["next"]) == (4, None)


@pytest.mark.spec("11.3")
async def test_a_view_until_idle_goes_on_when_something_was_started_at_once(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        task = asyncio.create_task(seen_by(feed, view(talk, until_idle=True)))
        await asyncio.sleep(0)
        talk.record(idle)
        talk.record()  # in the same batch
        await room.journal.flush()
        talk.record(idle)
        assert [f["id"] for f in await task] == [1, 2, 3, 4, 5]


@pytest.mark.spec("11.3")
async def test_a_session_that_is_opened_while_a_reader_joins_is_shown_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        await room.journal.flush()
        monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)
        room.journal.release(talk.session.id)
        room.journal.recent.forget(talk.session.id)
        task = asyncio.create_task(seen_by(feed, view(talk)))
        await room.journal.open("default", talk.session.id)
        for at in range(20):
            talk.emit(f"<{at}>")
            talk.record()
            await asyncio.sleep(0)
        talk.record(close)
        check(talk, 0, await task)


@pytest.mark.spec("11.3")
async def test_a_filtered_stream_says_which_frame_came_before_and_moves_the_cursor_with_an_empty_one(
    tmp_path: Path,
) -> None:
    async with writing(tmp_path) as room:
        feed = EventFeed(room.log, room.bus, room.journal, cursor_every_s=0.02)
        talk = room.begin()
        wanted = frozenset({"message", "session.closed", "text.delta"})
        moved = asyncio.Event()
        task = asyncio.create_task(seen_by(feed, view(talk, types=wanted), moved=moved))
        talk.record(lambda facts, run: facts.message(run, "user", "one"))
        talk.record()
        talk.record()
        async with asyncio.timeout(WAIT_S):
            await moved.wait()  # nothing that the view shows happens for a while
        talk.emit("delta")
        talk.record(lambda facts, run: facts.message(run, "user", "two"))
        talk.record(close)
        seen = await task
        assert [(f["event"], f["id"]) for f in seen if f["event"]] == [
            ("message", 3), ("text.delta", None), ("message", 6), ("session.closed", 7),
        ]  # fmt: skip
        assert {f["id"] for f in seen if f["event"] is None} == {5}
        assert [f["data"]["prev"] for f in seen if f["event"] and f["id"]] == [0, 5, 6]


@pytest.mark.spec("11.1", "11.3")
@pytest.mark.parametrize("wanted", ["text.snapshot", "text.delta"])
async def test_who_asks_for_snapshots_or_for_what_they_are_of_gets_them(tmp_path: Path, wanted: str) -> None:
    async with writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        await room.journal.flush()
        talk.emit("under way")
        joined = seen_by(feed, view(talk, types=frozenset({wanted, "session.closed"})), moved=asyncio.Event())
        task = asyncio.create_task(joined)
        async with asyncio.timeout(WAIT_S):
            while not feed.readers:
                await asyncio.sleep(0)
        await room.journal.flush()
        for _ in range(10):
            await asyncio.sleep(0)
        talk.emit(" still")
        talk.record(close)
        found = [(f["event"], f["data"].get("text")) for f in await task if f["event"]]
        pieces = [("text.delta", " still")] if wanted == "text.delta" else []
        assert found == [("text.snapshot", "under way"), *pieces, ("session.closed", None)]


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("filters", [{"deltas": False}, {"types": DURABLE}], ids=["deltas", "types"])
async def test_a_view_without_deltas_shows_neither_deltas_nor_snapshots_nor_what_was_skipped(
    tmp_path: Path, filters: dict[str, Any]
) -> None:
    async with writing(tmp_path, buffer_bytes=50) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        await room.journal.flush()
        talk.emit("under way")
        task = asyncio.create_task(seen_by(feed, view(talk, **filters), 0, (5,)))
        for _ in range(10):
            await asyncio.sleep(0)
            talk.emit("more")
            talk.record()
        talk.record(close)
        assert {f["event"] for f in await task} == DURABLE


@pytest.mark.spec("11.3")
async def test_a_page_waits_for_its_first_event_and_no_longer_than_asked(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path, buffer_bytes=10) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        await room.journal.flush()
        assert await feed.page(view(talk), 2, 10, 0.01) == {"items": [], "next": "2", "oldest": None, "bounded": None}
        task = asyncio.create_task(feed.page(view(talk), 2, 10, WAIT_S))
        await asyncio.sleep(0)
        talk.emit("a delta wakes nobody")
        assert not task.done()
        talk.record()
        page = await task
        assert ([decode(item)["id"] for item in page["items"]], page["next"]) == ([3], "3")
        assert feed.readers == 0


@pytest.mark.spec("11.3")
async def test_a_page_stops_after_so_many_events_that_do_not_fit_says_so_and_does_not_wait(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal, looked_at=500), room.begin()
        for _ in range(1_100):
            talk.record()
        talk.record(close)
        await room.journal.flush()
        what = view(talk, types=frozenset({"session.closed"}))
        first = await feed.page(what, 0, 10, 10 * WAIT_S)
        second = await feed.page(what, int(first["next"]), 10, 10 * WAIT_S)
        third = await feed.page(what, int(second["next"]), 10, 10 * WAIT_S)
        assert [(page["bounded"], len(page["items"]), page["next"]) for page in (first, second, third)] == [
            (True, 0, "500"), (True, 0, "1000"), (None, 1, None),
        ]  # fmt: skip


@pytest.mark.spec("11.3")
@given(st.integers(1, 7), st.integers(0, 12))
@settings(max_examples=examples(20), deadline=None)
async def test_pages_put_together_are_the_log(limit: int, extra: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with asyncio.timeout(WAIT_S), writing(Path(folder)) as room:
            feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
            for _ in range(extra):
                talk.record()
            talk.record(close)
            await room.journal.flush()
            cursor: str | None = "0"
            found = []
            while cursor is not None:
                page = await feed.page(view(talk), int(cursor), limit, 0)
                assert len(page["items"]) <= limit
                found += [decode(item)["id"] for item in page["items"]]
                cursor = page["next"]
            assert found == list(range(1, extra + 4))


@pytest.mark.case("B168", "B156")
async def test_readers_that_leave_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        for rounds in range(12):
            task = asyncio.create_task(seen_by(feed, view(talk)))
            for _ in range(rounds):
                await asyncio.sleep(0)
            talk.record()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (feed.readers, room.bus.readers, feed.owners()) == (0, 0, ())


@pytest.mark.spec("11.3", "17.2")
async def test_streams_are_ended_by_owner_or_all_and_say_why(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), await begin(room)

        async def watch(owner: str) -> list[dict[str, Any]]:
            return [f async for chunk in feed.follow(view(talk), 0, owner) for f in parsed(chunk)]

        tasks = {owner: asyncio.create_task(watch(owner)) for owner in ("key_a", "key_b")}
        while feed.readers < 2:
            await asyncio.sleep(0)
        feed.end("key_a", "revoked")
        assert (await tasks["key_a"])[-1]["data"] == {"reason": "revoked"}
        assert feed.owners() == ("key_b",)
        feed.close()
        assert (await tasks["key_b"])[-1]["data"] == {"reason": "shutdown"}
        assert (await watch("late"))[-1]["data"] == {"reason": "shutdown"}
        assert [f["id"] for f in (await watch("late"))[:-1]] == [1, 2], "what is there is still shown"


@pytest.mark.spec("11.5", "17.2")
async def test_a_stream_that_is_ended_while_it_says_what_was_skipped_ends(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path, buffer_bytes=10) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), await begin(room)
        async with contextlib.aclosing(feed.follow(view(talk), 0, "key_a")) as stream:
            await anext(stream)
            talk.emit("more than the reader holds")
            assert [f["event"] for f in parsed(await anext(stream))] == ["stream.skipped"]
            feed.end("key_a", "revoked")  # while that is being sent
            rest = [f["event"] async for chunk in stream for f in parsed(chunk)]
        assert rest[-1] == "stream.closing"


@pytest.mark.spec("17.2")
async def test_a_stream_that_is_ended_does_not_read_the_rest_of_a_long_log(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        room.journal.recent = Recent(0, 0)
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        for _ in range(20):
            talk.record(lambda facts, run: facts.message(run, "user", "x" * CHUNK_BYTES))
        await room.journal.flush()
        async with contextlib.aclosing(feed.follow(view(talk), 0, "key_a")) as stream:
            shown = parsed(await anext(stream))
            feed.end("key_a", "revoked")
            shown += [f async for chunk in stream for f in parsed(chunk)]
        assert shown[-1]["event"] == "stream.closing"
        assert len(shown) < 10


async def test_one_stream_too_many_is_refused_for_a_key_and_for_the_process(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        feed = EventFeed(room.log, room.bus, room.journal, max_readers=2, max_per_owner=1)
        talk = room.begin()
        async with contextlib.AsyncExitStack() as held:
            for owner in ("a", "b"):
                feed.check(owner)
                stream = await held.enter_async_context(contextlib.aclosing(feed.follow(view(talk), 0, owner)))
                await anext(stream)
                with pytest.raises(TooMany):
                    feed.check(owner)
            with pytest.raises(TooMany, match="limit"):
                feed.check("c")
        feed.check("a")


@pytest.mark.spec("11.3", "17.2")
async def test_pages_that_wait_count_as_streams_of_their_key_and_end_with_it(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        feed = EventFeed(room.log, room.bus, room.journal, max_readers=5, max_per_owner=2)
        what = view(await begin(room))
        tasks = []
        for _ in range(2):
            feed.check("greedy")
            tasks.append(asyncio.create_task(feed.page(what, 2, 10, 10 * WAIT_S, "greedy")))
            await asyncio.sleep(0)
        with pytest.raises(TooMany, match="max_per_owner"):
            feed.check("greedy")
        feed.check("other")
        feed.end("greedy", "revoked")
        assert [await task for task in tasks] == [{"items": [], "next": "2", "oldest": None, "bounded": None}] * 2
        assert (feed.readers, feed.owners()) == (0, ())


@pytest.mark.spec("11.3")
async def test_a_page_whose_client_has_gone_away_waits_no_longer(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path, buffer_bytes=10) as room:
        feed, talk = EventFeed(room.log, room.bus, room.journal), await begin(room)
        gone = asyncio.get_running_loop().create_future()
        page = asyncio.create_task(feed.page(view(talk, types=frozenset({"message"})), 2, 10, 10 * WAIT_S, "key", gone))
        await asyncio.sleep(0)
        talk.record()  # nothing of the view: it is read from the log, and the page waits on
        await room.journal.flush()
        assert not page.done()
        gone.set_result(None)
        assert (await page)["items"] == []
        assert feed.readers == 0


async def begin(room: Room) -> Talk:
    """A session whose first events are stored."""
    talk = room.begin()
    await room.journal.flush()
    return talk


@pytest.mark.spec("17.1")
async def test_another_tenants_view_of_a_session_id_shows_nothing_from_the_log(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        talk = await begin(room)
        assert await room.log.page("other", talk.session.id, after=0) == []
        assert await room.log.head("other", talk.session.id) is None
        assert [f async for f in _first(EventFeed(room.log, room.bus, room.journal), talk)] == [1, 2]


async def _first(feed: EventFeed, talk: Talk) -> Any:
    async with contextlib.aclosing(frames(feed, view(talk))) as seen:
        async for frame in seen:
            yield frame["id"]
            if frame["id"] == 2:
                return


@pytest.mark.spec("11.3")
async def test_a_view_that_begins_late_does_not_read_what_lies_before(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), writing(tmp_path) as room:
        room.journal.recent = Recent(0, 0)  # so that all is read from the log
        feed, talk = EventFeed(room.log, room.bus, room.journal), room.begin()
        for _ in range(8):
            talk.record()
        talk.record(close)
        await room.journal.flush()
        late = view(talk, begins=6, depth=0)
        for after, first in ((0, 7), (3, 7), (8, 9)):
            page = await feed.page(late, after, 1, 0.0)
            assert [decode(item)["id"] for item in page["items"]] == [first]
            frames_ = [frame for frame in await seen_by(feed, late, after) if frame["id"] is not None]
            assert frames_[0]["id"] == first
