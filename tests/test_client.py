"""The client of our own API: against servers, proxies and lines that do everything wrong, and against the service."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.client import (
    BlockingClient,
    BrokenStream,
    Client,
    CursorExpired,
    Received,
    ServiceError,
    Texts,
    Unreachable,
    _seconds,
)  # fmt: skip
from tests.hostile import CHUNKED, NOTHING_MORE, Hostile, chunked, hostile, refusal
from tests.service import WAIT_S, agent, events_of, script, serving

PATH = "/v1/sessions/ses_1/events"
LAST = 4


def frame(number: int, kind: str = "message", **more: Any) -> bytes:
    """A durable frame."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), json.dumps({"id": number, **more}).encode())


def story(after: int) -> bytes:
    """All that follows an event, with what may stand between."""
    parts = [frame(n, "session.closed" if n == LAST else "message") for n in range(after + 1, LAST + 1)]
    return b"retry: 1\n\n: ping\n\n" + b"event: text.delta\ndata: {}\n\n".join(parts)


def quick(server: Hostile, **options: Any) -> Client:
    """A client that does not pause."""
    return Client(server.url, **{"reconnect_s": 0.0, **options})


async def ids(client: Client, after: int = 0) -> list[int | None]:
    """The ids of the durable events of the view."""
    async with asyncio.timeout(WAIT_S):
        return [frame.id async for frame in client.events(PATH, after) if frame.id is not None]


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("ended", [True, False])
async def test_a_stream_that_is_cut_at_any_byte_is_taken_up_without_a_gap_or_a_repeat(ended: bool) -> None:
    # A proxy that speaks HTTP/1.0 to the service ends an answer cleanly when the service dies: the end says nothing.
    cuts = iter(range(len(story(0))))
    whole = False

    def answer(cursor: int) -> bytes:
        nonlocal whole
        whole = not whole
        body = story(cursor)
        return chunked(body, ended=True) if not whole else chunked(body[: next(cuts)], ended=ended)

    async with hostile(answer) as server, quick(server) as client:
        for at in range(len(story(0))):
            assert await ids(client) == [1, 2, 3, 4], at
        assert (client.gaps, client.repeats) == (0, 0)
        assert set(server.asked) == {0, 1, 2, 3}


@pytest.mark.spec("11.3")
async def test_a_view_is_over_when_its_last_event_came_or_the_server_has_nothing_more() -> None:
    async with hostile(lambda cursor: chunked(story(cursor), ended=True)) as server, quick(server) as client:
        assert await ids(client) == [1, 2, 3, 4]
        assert server.asked == [0]
    seen = iter([chunked(frame(1), ended=True), NOTHING_MORE])
    async with hostile(lambda cursor: next(seen)) as server, quick(server) as client:
        assert await ids(client) == [1]
        assert server.asked == [0, 1]


@pytest.mark.spec("11.3", "16.3")
async def test_a_view_of_what_was_deleted_is_over_when_its_last_event_was_filtered_out() -> None:
    gone, moved = refusal(404, code="not_found"), frame(1) + b"id: 2\n\n"
    seen = iter([chunked(moved, ended=True), gone])
    async with hostile(lambda cursor: next(seen)) as server, quick(server) as client:
        assert await ids(client) == [1]
        assert server.asked == [0, 2]
    for cut in (chunked(moved, ended=False), chunked(frame(1), ended=True)):  # these say nothing of an end
        seen = iter([cut, gone])
        async with hostile(lambda cursor, seen=seen: next(seen)) as server, quick(server) as client:  # type: ignore[misc]
            with pytest.raises(ServiceError, match="404"):
                await ids(client)


@pytest.mark.spec("11.3")
async def test_a_gap_is_asked_for_again_and_what_came_before_is_not_shown_twice() -> None:
    seen = iter([frame(1) + frame(3), frame(1) + frame(2) + frame(3), story(3)])
    async with hostile(lambda cursor: chunked(next(seen), ended=False)) as server, quick(server) as client:
        assert await ids(client) == [1, 2, 3, 4]
        assert server.asked == [0, 1, 3]
        assert (client.gaps, client.repeats) == (1, 1)


@pytest.mark.spec("11.3")
async def test_an_event_that_stays_missing_is_said_and_never_passed_over() -> None:
    async with hostile(lambda cursor: chunked(frame(5), ended=True)) as server, quick(server) as client:
        with pytest.raises(BrokenStream, match="event 5 comes after 4, but the last one here is 2"):
            await ids(client, 2)
        assert server.asked == [2, 2, 2]


@pytest.mark.spec("11.3")
async def test_a_reset_is_shown_and_the_stream_follows_from_its_first_event() -> None:
    reset = b'event: stream.reset\ndata: {"head":4}\n\n'
    seen = iter([reset + frame(1), story(1)])
    async with hostile(lambda cursor: chunked(next(seen), ended=False)) as server, quick(server) as client:
        found = [f async for f in client.events(PATH, 70) if f.type != "text.delta"]
    assert [(f.type, f.id) for f in found][:2] == [("stream.reset", None), ("message", 1)]
    assert [f.id for f in found[1:]] == [1, 2, 3, 4]
    assert (server.asked, client.gaps) == ([70, 1], 0)


@pytest.mark.spec("11.3", "12.5")
@pytest.mark.parametrize("before", [{}, {"prev": 2}])
async def test_a_log_without_its_front_is_followed_from_the_first_event_that_is_kept(before: dict[str, int]) -> None:
    front = b'event: stream.reset\ndata: {"head":4,"oldest":3}\n\n'
    seen = iter([front, front + frame(3, **before), story(3)])
    async with hostile(lambda cursor: chunked(next(seen), ended=False)) as server, quick(server) as client:
        assert await ids(client) == [3, 4]
        assert (server.asked, client.gaps) == ([0, 2, 3], 0)


TAKEN = refusal(200)
QUESTION = chunked(frame(1, "permission.requested", data={"approval_id": "a"}), ended=False)


async def answered(*answers: bytes, **options: Any) -> tuple[list[int | None], list[int]]:
    """Deny what event 1 asks; `answers` are those to that. The ids of the view, and the cursors that were asked."""
    seen = iter([QUESTION, *answers, chunked(story(1), ended=True)])
    async with (
        hostile(lambda cursor: next(seen)) as server,
        quick(server, **options) as client,
        asyncio.timeout(WAIT_S),
    ):
        view = client.events(PATH, decide=lambda asked: {"decision": "deny"})
        return [frame.id async for frame in view if frame.id is not None], server.asked


@pytest.mark.spec("11.3", "14.11")
@pytest.mark.parametrize(
    "failed",
    [refusal(429, "Retry-After: 0\r\n"), refusal(503), refusal(502), b""],
    ids=["full", "not ready", "proxy", "no answer"],
)
async def test_an_answer_to_a_question_is_sent_until_it_is_taken(failed: bytes) -> None:
    assert await answered(failed, failed, TAKEN) == ([1, 2, 3, 4], [0, 0, 0, 0, 1])
    assert await answered(failed, refusal(409)) == ([1, 2, 3, 4], [0, 0, 0, 1])


@pytest.mark.spec("11.3", "14.11")
async def test_an_answer_that_is_never_taken_is_told_to_the_caller() -> None:
    with pytest.raises(ServiceError) as refused:
        await answered(refusal(403))
    assert refused.value.status == 403
    seen = itertools.chain([QUESTION], itertools.repeat(refusal(503)))
    dead = itertools.chain([QUESTION], itertools.repeat(b""))
    for answers, kind in ((seen, ServiceError), (dead, Unreachable)):
        async with (
            hostile(lambda cursor, answers=answers: next(answers)) as server,
            quick(server, patience_s=0.05) as client,
        ):
            with pytest.raises(kind):
                async with asyncio.timeout(WAIT_S):
                    async for _ in client.events(PATH, decide=lambda asked: {"decision": "deny"}):
                        pass


@pytest.mark.spec("14.11")
async def test_what_fails_in_the_callers_own_code_is_no_fault_of_the_line() -> None:
    def decide(asked: dict[str, Any]) -> None:
        raise FileNotFoundError("the list of what is allowed")

    async with hostile(lambda cursor: QUESTION) as server, quick(server) as client:
        with pytest.raises(FileNotFoundError):
            async with asyncio.timeout(WAIT_S):
                async for _ in client.events(PATH, decide=decide):
                    pass


@pytest.mark.spec("11.3")
async def test_the_time_that_the_caller_takes_for_an_event_is_no_silence_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.pauses.time", SimpleNamespace(monotonic=lambda: at))
    seen = iter([chunked(frame(1), ended=False), chunked(story(1), ended=True)])
    found, at = list[int | None](), 0.0
    async with hostile(lambda cursor: next(seen)) as server, quick(server) as client, asyncio.timeout(WAIT_S):
        async for event in client.events(PATH):
            found.append(event.id)
            at += 1000.0
    assert [number for number in found if number] == [1, 2, 3, 4]


@pytest.mark.spec("11.3")
async def test_a_farewell_is_no_end_and_its_retry_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    closing = b'event: stream.closing\ndata: {"reason":"shutdown"}\n\nretry: 1\n\n'
    seen = iter([chunked(frame(1) + closing, ended=True), chunked(story(1), ended=True)])
    async with hostile(lambda cursor: next(seen)) as server, Client(server.url) as client:
        assert await ids(client) == [1, 2, 3, 4]
        assert server.asked == [0, 1]


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_refusal_for_now_is_waited_out(status: int) -> None:
    seen = iter([refusal(status, "Retry-After: 0\r\n"), chunked(frame(1), ended=False), refusal(status)])
    rest = itertools.repeat(None)

    def answer(cursor: int) -> bytes:
        return next(seen, None) or chunked(story(cursor), ended=next(rest) is None)

    async with hostile(answer) as server, quick(server) as client:
        assert await ids(client) == [1, 2, 3, 4]
        assert server.asked == [0, 0, 1, 1]


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("status", [400, 401, 404, 410, 500])
async def test_a_refusal_that_stays_is_raised_at_once(status: int) -> None:
    seen = iter([chunked(frame(1), ended=False), refusal(status, code="some_code", oldest=7)])
    async with hostile(lambda cursor: next(seen)) as server, quick(server) as client:
        with pytest.raises(ServiceError) as refused:
            await ids(client)
    assert (refused.value.status, refused.value.problem["code"]) == (status, "some_code")
    assert isinstance(refused.value, CursorExpired) is (status == 410)


@pytest.mark.spec("11.3")
async def test_a_line_that_falls_silent_is_taken_for_dead() -> None:
    seen = iter([chunked(frame(1), ended=False), chunked(story(1), ended=True)])
    async with hostile(lambda cursor: next(seen), silent=True) as server, quick(server, idle_s=0.05) as client:
        assert await ids(client) == [1, 2, 3, 4]
        assert server.asked == [0, 1]


@pytest.mark.spec("11.3")
async def test_nobody_at_the_address_and_a_stranger_at_it_are_told_apart() -> None:
    async with hostile(lambda cursor: b"") as server:
        pass
    async with quick(server, patience_s=0.05) as client:
        with pytest.raises(Unreachable) as nobody:
            await ids(client)
    assert not isinstance(nobody.value, BrokenStream)
    page = CHUNKED.replace(b"text/event-stream", b"text/html") + b"0\r\n\r\n"
    for stranger in (page, chunked(b"data: {\n\n", ended=True)):
        async with hostile(lambda cursor, answer=stranger: answer) as server, quick(server) as client:
            with pytest.raises(BrokenStream):
                await ids(client)


def test_retry_after_may_be_seconds_a_date_or_nonsense() -> None:
    assert [_seconds(text) for text in ("7", "", None, "soon", "-3")] == [7.0, None, None, None, None]
    assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _seconds("Mon, 01 Jan 0001 00:00:00 -0000") in (0.0, None)
    assert _seconds("9" * 400) == float("inf")
    far = _seconds("Wed, 21 Oct 2099 07:28:00 GMT")
    assert far is not None
    assert far > 1e6


# ── against the service ─────────────────────────────────────────────────────────────────────────────────────────

PLAY = """
defaults: {chunks: 6}
agents:
  - turns:
      - text: "I will look, 我来看看."
        cut: true
        times: 1
        calls: [{tool: glob, arguments: {pattern: "*"}}]
      - {text: "Seen: {{ result[0] }} 🎈 and more."}
"""
BODY = {
    "agent": "solo",
    "agents": [agent("solo", mode="all", tools=["glob"], permissions={"ask": ["glob"]})],
    "input": "Go.",
}


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[str]:
    """The address of a service with that script."""
    async with serving(folder, env={**script(folder, PLAY), "SUBAGENTD_LOOP__BACKOFF_MS": "1"}) as running:
        yield running.url


def allowed(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer of a person to whom nothing matters."""
    return {"decision": "allow_once"} if asked["tool"] == "glob" else {"decision": "deny"}


@pytest.mark.spec("11.1", "11.3", "14.11")
async def test_a_run_is_followed_its_question_answered_and_its_text_put_together(tmp_path: Path) -> None:
    async with service(tmp_path) as url, Client(url) as client, asyncio.timeout(WAIT_S):
        started = await client.request("POST", "/v1/runs", BODY)
        path, texts, frames = f"/v1/runs/{started['id']}/events", Texts(), list[Received]()
        async for frame in client.events(path, decide=allowed):
            if frame.type == "message" and frame.data["data"]["role"] == "assistant":
                assert texts.text(1, frame.data["step"]) == frame.data["data"]["content"]
            texts.feed(frame)
            frames.append(frame)
        run = await client.request("GET", f"/v1/runs/{started['id']}")
        assert (run["status"], texts.text(1, 2)) == ("completed", run["output"])
        assert "step.retried" in [frame.type for frame in frames]
        again = [frame async for frame in client.events(path, decide=allowed)]  # answered already: that is no fault
        assert [f.text for f in again if f.id] == [f.text for f in frames if f.id]


@pytest.mark.spec("11.3", "14.11")
async def test_code_without_an_event_loop_does_the_same(tmp_path: Path) -> None:
    def follow(url: str) -> tuple[list[Received], dict[str, Any], list[Any], bytes]:
        with BlockingClient(url) as client:
            started = client.request("POST", "/v1/runs", BODY)
            path = f"/v1/runs/{started['id']}/events"
            with contextlib.closing(client.events(path)) as stream:
                for frame in stream:
                    if frame.type == "permission.requested":
                        client.answer(frame.data["data"]["approval_id"], "allow_once")
                        break
            frames = list(client.events(path))
            pages = list(_pages(client, path))
            export = b"".join(client.download(f"/v1/sessions/{started['session_id']}/export"))
            return frames, client.request("GET", f"/v1/runs/{started['id']}"), pages, export

    async with service(tmp_path) as url, asyncio.timeout(WAIT_S):
        frames, run, pages, export = await asyncio.to_thread(follow, url)
        assert run["status"] == "completed"
        shown = [{k: v for k, v in frame.data.items() if k != "prev"} for frame in frames if frame.id]
        assert shown == pages
        assert b"Seen:" in export


def _pages(client: BlockingClient, path: str) -> Iterator[dict[str, Any]]:
    after = 0
    while items := client.page(path, after=after, limit=5)["items"]:
        yield from items
        after = items[-1]["id"]


@pytest.mark.spec("11.3")
async def test_a_view_whose_end_is_filtered_out_ends_for_one_who_comes_again(tmp_path: Path) -> None:
    async with service(tmp_path) as url, Client(url, reconnect_s=0.0) as client, asyncio.timeout(WAIT_S):
        started = await client.request("POST", "/v1/runs", BODY)
        path = f"/v1/runs/{started['id']}/events"
        found = [frame.type async for frame in client.events(path, decide=allowed, types="permission.requested")]
        assert found == ["permission.requested"]
        head = (await events_of(client, path))[-1]["id"]
        raw = [piece async for piece in client.download(path, types="step.started")]
        assert b"".join(raw).endswith(f"\n\nid: {head}\n\n".encode())


@pytest.mark.spec("11.3", "16.3")
@pytest.mark.parametrize("kind", ["sessions", "runs"])
async def test_a_view_whose_end_is_filtered_out_ends_also_with_the_deletion_of_its_session(
    tmp_path: Path, kind: str
) -> None:
    async with service(tmp_path) as url, Client(url, reconnect_s=0.0) as client, asyncio.timeout(WAIT_S):
        started = await client.request("POST", "/v1/runs", BODY)
        of = started["session_id"] if kind == "sessions" else started["id"]
        found = []
        async for frame in client.events(f"/v1/{kind}/{of}/events", types="permission.requested"):
            found.append(frame.type)
            await client.request("DELETE", f"/v1/sessions/{started['session_id']}")
        assert found == ["permission.requested"]
