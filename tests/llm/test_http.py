"""What a refused request, a dead endpoint and a strange answer become; and that no key ever comes out."""

import asyncio
from typing import Any

import pytest

from app.agent.errors import ModelError
from app.llm.http import Transport
from tests.llm.asking import KEY, World, ask
from tests.stubs.openai_stub import Answer, chunk, refusal, sse, text


async def failure(world: World, answer: Answer) -> ModelError:
    world.stub.script(answer)
    with pytest.raises(ModelError) as caught:
        await ask(world.model())
    return caught.value


@pytest.mark.spec("5.8")
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_error", False),
        (401, "model_auth", False),
        (403, "model_auth", False),
        (404, "model_not_found", False),
        (408, "model_error", True),
        (422, "model_error", False),
        (429, "model_rate_limited", True),
        (500, "model_error", True),
        (501, "model_error", False),
        (503, "model_overloaded", True),
        (529, "model_overloaded", True),
    ],
)
async def test_a_status_says_whether_trying_again_may_help(
    world: World, status: int, code: str, retryable: bool
) -> None:
    error = await failure(world, refusal(status, {"message": "because"}))
    assert (error.status, error.code, error.retryable) == (status, code, retryable)
    assert f"answered {status}: because" in error.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "You exceeded your current quota", "code": "insufficient_quota"}, "model_quota"),
        ({"message": "too long", "type": "exceed_context_size_error"}, "model_context_overflow"),
    ],
)
async def test_an_exhausted_quota_or_window_is_not_tried_again(world: World, error: dict[str, str], code: str) -> None:
    failed = await failure(world, refusal(429, error))
    assert (failed.code, failed.retryable) == (code, False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "plain"}', "plain"),
        (b'{"message": "top"}', "top"),
        (b'{"detail": "fastapi"}', "fastapi"),
        (b'{"error": {"error": {"message": "wrapped"}}}', "wrapped"),
        (b'{"detail": [{"loc": ["model"], "msg": "missing"}]}', "missing"),
        (b"<html>bad gateway</html>", "bad gateway"),
        (b"\xff\xfe", "answered 502"),
        (b"", "answered 502"),
    ],
)
async def test_the_providers_message_is_found_in_every_form(world: World, body: bytes, said: str) -> None:
    assert said in (await failure(world, Answer(writes=(body,), status=502, content_type="text/html"))).message


async def test_a_message_is_bounded_and_never_repeats_the_key(world: World) -> None:
    error = await failure(world, refusal(400, {"message": f"key {KEY} and Bearer {KEY} are wrong. " + "x" * 5000}))
    assert KEY not in error.message and "[masked]" in error.message
    assert len(error.message) < 700


async def test_keys_in_extra_headers_are_masked_too(world: World) -> None:
    world.stub.script(refusal(400, {"message": "no such key: abcdef-secret"}))
    with pytest.raises(ModelError) as caught:
        await ask(world.model(headers={"X-Api-Key": "abcdef-secret"}))
    assert "abcdef-secret" not in caught.value.message


async def test_an_endless_error_page_is_not_read_to_its_end(world: World) -> None:
    page = Answer(writes=(b"x" * 30_000,) * 3, status=500, content_type="text/html", end="hang")
    assert (await failure(world, page)).status == 500
    await world.stub.client_left()


async def test_a_redirect_is_not_followed_but_explained(world: World) -> None:
    error = await failure(world, Answer(status=307, headers={"Location": "http://127.0.0.1:1/elsewhere"}))
    assert "redirects to http://127.0.0.1:1/elsewhere" in error.message and not error.retryable
    assert len(world.stub.requests) == 1


async def test_an_endpoint_that_is_not_there_may_be_there_later(world: World) -> None:
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        await ask(world.model(base_url=f"http://127.0.0.1:{port}/v1"))
    assert (caught.value.code, caught.value.retryable) == ("model_unreachable", True)


async def test_a_server_that_hangs_up_without_an_answer_may_answer_later(world: World) -> None:
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelError) as caught:
            await ask(world.model(base_url=f"http://127.0.0.1:{port}/v1"))
    assert (caught.value.code, caught.value.retryable) == ("model_unreachable", True)


async def test_an_address_that_is_none_stays_wrong(world: World) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(world.model(base_url="http://exa mple:80:80/v1"))
    assert (caught.value.code, caught.value.retryable) == ("model_unreachable", False)


async def test_proxies_of_the_environment_are_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await world.answered(text("hello"))).reply.text == "hello"


async def test_requests_carry_the_key_and_ask_for_an_uncompressed_stream(world: World) -> None:
    await world.answered(text("hello"), headers={"X-Team": "blue"})
    (request,) = world.stub.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert (request.headers["accept-encoding"], request.headers["content-type"]) == ("identity", "application/json")
    assert request.headers["x-team"] == "blue"


async def test_without_a_key_no_authorization_is_sent(world: World) -> None:
    await world.answered(text("hello"), api_key="")
    assert "authorization" not in world.stub.requests[0].headers


async def test_requests_at_the_same_time_are_not_limited_by_the_transport(world: World) -> None:
    gate = asyncio.Event()
    world.stub.decide(lambda _: Answer(writes=(gate, *text("hello").writes)))
    asked = [asyncio.ensure_future(ask(world.model())) for _ in range(150)]
    await world.stub.seen(150)
    gate.set()
    async with asyncio.timeout(10):
        assert {one.reply.text for one in await asyncio.gather(*asked)} == {"hello"}


async def test_closing_the_transport_ends_what_is_open(world: World) -> None:
    transport = Transport()
    world.stub.script(Answer(writes=text("x").writes[:1], end="hang"))
    stream = await transport.post_stream(
        f"{world.stub.base_url}/chat/completions", {}, b'{"messages": []}', connect_s=1, idle_s=5, total_s=5
    )
    assert await stream.read()
    await transport.close()
    with pytest.raises(ModelError):
        await stream.read()
    stream.close()
    await world.stub.client_left()


async def test_a_longer_stream_needs_no_more_timers_and_tasks(world: World) -> None:
    loop, made = asyncio.get_running_loop(), {"timers": 0, "tasks": 0}
    call_at = loop.call_at

    def counting(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        made["timers"] += 1
        return call_at(*args, **kwargs)

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
        made["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    async def count(chunks: int) -> dict[str, int]:
        await world.answered(text("x" * chunks, pieces=chunks))
        made.update(timers=0, tasks=0)
        asked = await world.answered(text("x" * chunks, pieces=chunks))
        assert len(asked.deltas) > chunks / 4  # they really came in many reads
        return dict(made)

    loop.set_task_factory(factory)
    loop.call_at = counting  # type: ignore[method-assign, assignment]
    try:
        short, long = await count(4), await count(200)
        # A few come and go with a connection that could be kept or not; none with the chunks.
        assert long["tasks"] <= short["tasks"] + 5
        assert long["timers"] <= short["timers"] + 5
    finally:
        loop.set_task_factory(None)
        loop.call_at = call_at  # type: ignore[method-assign]


async def test_what_came_before_a_connection_broke_is_read_before_the_error(world: World) -> None:
    (head,) = sse(chunk({"content": "x"}, "stop"), done=False)
    world.stub.script(Answer(writes=(head,), end="close"))
    stream = await world.transport.post_stream(
        f"{world.stub.base_url}/chat/completions", {}, b'{"messages": []}', connect_s=1, idle_s=5, total_s=5
    )
    async with asyncio.timeout(5):
        while stream._content.exception() is None:  # until the break has been noticed
            await asyncio.sleep(0)
    assert await stream.read() == head
    with pytest.raises(ModelError, match="the connection broke"):
        await stream.read()
    stream.close()


async def test_a_reply_without_measure_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.llm.http.MAX_REPLY_BYTES", 5000)
    error = await failure(world, Answer(writes=sse(*[chunk({"content": "x" * 100})] * 50, done=False), end="hang"))
    assert "more than 5000 bytes" in error.message
    monkeypatch.setattr("app.llm.sse.MAX_LINE_BYTES", 2000)
    error = await failure(world, Answer(writes=(b"data: {", *(b"x" * 500,) * 6), end="hang"))
    assert "a line of more than 2000 bytes" in error.message
