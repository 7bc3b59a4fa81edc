"""When a turn is complete and when it is not: half an answer never comes out as a reply."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.agent.chat import ChatRequest, Delta, Finish
from app.agent.errors import IncompleteReply, ModelError
from app.llm.failures import MAX_WAIT_MS
from tests.llm.asking import TASK, World, ask
from tests.net.listening import listening
from tests.stubs.openai_stub import Answer, End, call_chunk, chunk, refusal, sse, stream, text, usage_chunk

pytestmark = pytest.mark.spec("13.2")

TEXTS = [chunk({"content": piece}) for piece in ("Half ", "a ", "sent")]
HALF_CALL = [call_chunk(0, id="c", name="glob", arguments='{"patt')]


async def failure(world: World, answer: Answer, **profile: Any) -> tuple[ModelError, str]:
    """The error that an answer leads to, and the text that was shown before it."""
    world.stub.script(answer)
    deltas: list[Delta] = []
    with pytest.raises(ModelError) as caught:
        await world.model(**profile).stream(ChatRequest(messages=TASK), deltas.append)
    return caught.value, "".join(delta.text for delta in deltas)


@pytest.mark.case("B015")
@pytest.mark.spec("5.8")
@pytest.mark.parametrize("payloads", [TEXTS, HALF_CALL])
@pytest.mark.parametrize(("end", "framed"), [("complete", True), ("close", False), ("close", True), ("reset", True)])
async def test_a_stream_without_an_end_signal_is_incomplete_and_may_be_tried_again(
    world: World, payloads: list[dict[str, Any]], end: End, framed: bool
) -> None:
    error, _ = await failure(world, stream(*payloads, done=False, end=end, framed=framed))
    assert isinstance(error, IncompleteReply)
    assert (error.code, error.retryable) == ("model_incomplete", True)


@pytest.mark.case("B015")
async def test_what_came_before_a_stream_broke_was_shown(world: World) -> None:
    assert (await failure(world, stream(*TEXTS, done=False)))[1] == "Half a sent"


@pytest.mark.case("B016")
@pytest.mark.parametrize(
    "answer",
    [
        stream(chunk({"content": "All "}), chunk({"content": "done"}, "stop")),
        stream(chunk({"content": "All done"}), chunk({}, "stop"), usage_chunk(3, 2)),
        stream(chunk({"content": "All done"}, "stop"), done=False, end="close", framed=False),
        stream(chunk({"content": "All done"}, "stop"), done=False, end="close"),  # not even a proper end of the body
        stream(chunk({"content": "All done"})),  # no finish reason, but the end marker
        Answer(writes=(b"".join(sse(chunk({"content": "All done"}, "stop"), done=False)),), end="reset"),
        Answer(writes=(b"".join(sse(chunk({"content": "All done"}))).rstrip(b"\n"),)),  # marker without line end
    ],
)
async def test_a_turn_with_a_positive_end_signal_is_complete_however_the_stream_ends(
    world: World, answer: Answer
) -> None:
    asked = await world.answered(answer)
    assert asked.reply.text == "All done"
    assert len(world.stub.requests) == 1


@pytest.mark.case("B016")
async def test_usage_after_the_finish_reason_is_waited_for_but_not_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.llm.openai.TAIL_SILENCE_S", 0.05)
    reply = (await world.answered(stream(chunk({"content": "x"}, "stop"), done=False, end="hang"))).reply
    assert (reply.text, reply.usage) == ("x", None)
    await world.stub.client_left()


@pytest.mark.case("B017")
@pytest.mark.parametrize("error", [{"message": "quota exceeded", "code": 429}, "quota exceeded"])
@pytest.mark.parametrize("before", [[], TEXTS])
async def test_an_error_object_inside_a_stream_is_an_error_that_names_the_cause(
    world: World, error: Any, before: list[dict[str, Any]]
) -> None:
    failed, shown = await failure(world, stream(*before, {"error": error}))
    assert not isinstance(failed, IncompleteReply)
    assert "quota exceeded" in failed.message and failed.retryable
    assert shown == "".join(piece["choices"][0]["delta"]["content"] for piece in before)


@pytest.mark.case("B014")
@pytest.mark.parametrize(
    "data",
    ['{"message": "Overloaded", "type": "overloaded_error"}', '{"error": {"message": "Overloaded"}}', "Overloaded"],
)
async def test_an_event_named_error_is_an_error(world: World, data: str) -> None:
    error, shown = await failure(world, stream(*TEXTS, f"event: error\ndata: {data}\n\n".encode()))
    assert "Overloaded" in error.message and error.retryable
    assert shown == "Half a sent"


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"message": "m", "code": "insufficient_quota"}, "model_quota", False),
        ({"message": "m", "type": "invalid_request_error"}, "model_error", False),
        ({"message": "m", "code": "context_length_exceeded"}, "model_context_overflow", False),
        ({"message": "prompt is too long: 210000 tokens > 200000 maximum"}, "model_context_overflow", False),
        ({"message": "m", "code": "500"}, "model_error", True),
        ({"message": "m", "code": 401}, "model_auth", False),
        ({"code": 400}, "model_error", False),
        (["m"], "model_error", True),
    ],
)
async def test_whether_an_error_in_a_stream_can_pass_is_read_from_its_words(
    world: World, error: Any, code: str, retryable: bool
) -> None:
    failed, _ = await failure(world, stream({"error": error}))
    assert (failed.code, failed.retryable) == (code, retryable)


@pytest.mark.parametrize("reason", ["error", "abort"])
async def test_a_finish_reason_that_says_broken_is_no_end(world: World, reason: str) -> None:
    error, _ = await failure(world, stream(*TEXTS, chunk({}, reason)))
    assert isinstance(error, IncompleteReply) and error.retryable


@pytest.mark.parametrize(
    "answer", [stream(), Answer(), Answer(content_type="application/json"), stream({"choices": []})]
)
async def test_an_answer_with_nothing_in_it_is_incomplete(world: World, answer: Answer) -> None:
    error, _ = await failure(world, answer)
    assert isinstance(error, IncompleteReply)


@pytest.mark.parametrize("payload", ['{"choices":[{"index":0,"delta":{"content":"lo', '{"choices": 5}'])
async def test_a_chunk_that_cannot_be_read_fails_the_turn(world: World, payload: str) -> None:
    error, _ = await failure(world, stream(chunk({"content": "x"}), payload, chunk({}, "stop")))
    assert (error.code, error.retryable) == ("model_malformed", True)


@pytest.mark.case("B015")
@pytest.mark.parametrize(("word", "finish"), [("length", Finish.LENGTH), ("content_filter", Finish.FILTERED)])
async def test_a_turn_cut_by_length_or_filter_runs_nothing(world: World, word: str, finish: Finish) -> None:
    whole = call_chunk(0, id="a", name="glob", arguments='{"pattern":"*"}')
    half = call_chunk(1, id="b", name="glob", arguments='{"pat')
    reply = (await world.answered(stream(chunk({"content": "I will"}), whole, half, chunk({}, word)))).reply
    assert (reply.finish, reply.tool_calls, reply.text) == (finish, (), "I will")


async def test_reasoning_cut_by_length_is_not_taken_for_the_answer(world: World) -> None:
    reply = (await world.answered(stream(chunk({"content": "<think>so far"}), chunk({}, "length")))).reply
    assert (reply.text, reply.reasoning) == ("", "so far")


async def test_an_unknown_finish_word_still_ends_a_turn(world: World) -> None:
    reply = (await world.answered(stream(chunk({"content": "x"}), chunk({}, "bored")))).reply
    assert (reply.text, reply.finish) == ("x", Finish.UNKNOWN)


@pytest.mark.case("B072", "B077")
@pytest.mark.spec("5.8")
@pytest.mark.parametrize(
    "before",
    [
        (),
        sse(chunk({"content": "x"}), done=False),
        (b'data: {"choices":[{"index"',),
    ],
)
async def test_a_model_that_falls_silent_is_given_up_and_its_connection_closed(
    world: World, before: tuple[bytes, ...]
) -> None:
    error, _ = await failure(world, Answer(writes=before, end="hang"), idle_s=0.1)
    assert (error.code, error.retryable) == ("model_timeout", True)
    assert "no content for 0.1 s" in error.message
    await world.stub.client_left()


@pytest.mark.case("B072", "B077")
@pytest.mark.parametrize(
    "noise", [b": keep-alive\n\n", b"\n", b'data: {"choices":[]}\n\n', b"data: ping\n\n", b"event: ping\n\n"]
)
async def test_keep_alives_are_no_progress(world: World, noise: bytes) -> None:
    gates = [asyncio.Event() for _ in range(200)]
    loop = asyncio.get_running_loop()
    for n, gate in enumerate(gates):
        loop.call_later(0.02 * (n + 1), gate.set)
    writes = tuple(item for gate in gates for item in (noise, gate))
    error, _ = await failure(world, Answer(writes=writes, end="hang"), idle_s=0.2)
    assert error.code == "model_timeout"
    assert not gates[-1].is_set()  # given up while the noise was still coming


@pytest.mark.case("B072")
async def test_a_server_that_accepts_and_never_answers_is_given_up(world: World) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(silent) as port:
        with pytest.raises(ModelError, match=r"no answer within 0\.1 s") as caught:
            await ask(world.model(base_url=f"http://127.0.0.1:{port}/v1", idle_s=0.1))
        assert (caught.value.code, caught.value.retryable) == ("model_timeout", True)


@pytest.mark.spec("5.8")
async def test_content_that_keeps_coming_is_ended_by_the_total_limit_only(world: World) -> None:
    gates = [asyncio.Event() for _ in range(200)]
    loop = asyncio.get_running_loop()
    for n, gate in enumerate(gates):
        loop.call_later(0.02 * (n + 1), gate.set)
    (piece,) = sse(chunk({"content": "x"}), done=False)
    writes = tuple(item for gate in gates for item in (piece, gate))
    error, shown = await failure(world, Answer(writes=writes, end="hang"), idle_s=0.2, total_s=0.5)
    assert "took more than 0.5 s" in error.message and error.code == "model_timeout"
    assert len(shown) > 10  # it went on well beyond the idle limit of ten gaps


@pytest.mark.spec("5.7")
async def test_cancelling_closes_the_connection_at_once(world: World) -> None:
    world.stub.script(stream(chunk({"content": "x"}), done=False, end="hang"))
    shown = asyncio.Event()
    task = asyncio.ensure_future(world.model().stream(ChatRequest(messages=TASK), lambda _: shown.set()))
    async with asyncio.timeout(5):
        await shown.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await world.stub.client_left()


async def test_a_consumer_that_raises_closes_the_connection(world: World) -> None:
    world.stub.script(stream(chunk({"content": "x"}), done=False, end="hang"))

    def emit(_: Delta) -> None:
        raise LookupError("full")

    with pytest.raises(LookupError):
        await world.model().stream(ChatRequest(messages=TASK), emit)
    await world.stub.client_left()


async def test_a_complete_reply_gives_its_connection_back(world: World) -> None:
    for _ in range(3):
        await world.answered(text("hello"))
    assert {request.connection for request in world.stub.requests} == {0}


async def test_a_body_that_ends_after_the_reply_still_gives_its_connection_back(world: World) -> None:
    gate = asyncio.Event()
    world.stub.script(Answer(writes=(*text("hello").writes, gate)))
    assert (await ask(world.model())).reply.text == "hello"
    (response,) = world.transport._lingering
    gate.set()
    async with asyncio.timeout(5):
        while response.connection is not None:  # until the end has arrived
            await asyncio.sleep(0)
    await world.answered(text("again"))
    assert [request.connection for request in world.stub.requests] == [0, 0]


async def test_a_reply_does_not_wait_for_a_body_that_stays_open_after_the_end_marker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.llm.http.LINGER_S", 0.05)
    reply = (await world.answered(stream(chunk({"content": "x"}, "stop"), end="hang"))).reply
    assert reply.text == "x"
    await world.stub.client_left()


async def test_a_request_that_meets_a_closed_kept_connection_is_sent_again(world: World) -> None:
    answer = text("hello")
    closing = Answer(writes=(*answer.writes,), headers={"Keep-Alive": "timeout=5"})
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Promises to keep the connection, and closes it after one answer, as llama.cpp does."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
        served.append(1)
        body = b"".join(b"%x\r\n%s\r\n" % (len(w), w) for w in closing.writes if isinstance(w, bytes))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(body + b"0\r\n\r\n")
        writer.close()

    async with listening(serve) as port:
        model = world.model(base_url=f"http://127.0.0.1:{port}/v1")
        for _ in range(10):
            assert (await ask(model)).reply.text == "hello"
    assert len(served) == 10


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"retry_after": "3"}, 3000),
        ({"retry_after": "0.5"}, 500),
        ({"retry_after_ms": "120", "retry_after": "9"}, 120),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "1_0"}, None),
        ({"retry_after": "1e308"}, MAX_WAIT_MS),
        ({"retry_after": "9" * 400}, MAX_WAIT_MS),
        ({"retry_after": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_WAIT_MS),
        ({"retry_after_ms": "1e400", "retry_after": "3"}, MAX_WAIT_MS),
        ({}, None),
    ],
)
@pytest.mark.spec("5.8")
async def test_a_rate_limit_says_how_long_to_wait(world: World, headers: Mapping[str, str], waits: int | None) -> None:
    error, _ = await failure(world, refusal(429, {"message": "slow down"}, **headers))
    assert (error.code, error.status, error.retryable) == ("model_rate_limited", 429, True)
    assert error.retry_after_ms == waits
