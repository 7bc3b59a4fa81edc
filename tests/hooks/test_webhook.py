"""Webhooks that answer, and those that are dead, slow, lie or talk nonsense: `on_failure` decides, the log says why."""

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.agent.hooks import Decision, HookPoint, OnFailure, Outcome
from app.hooks.webhook import WebhookHook
from app.masking import ValueMasker
from app.net.outgoing import Outgoing
from tests.hooks.calls import asked, told
from tests.net.loopback import Loopback, http, loopback, says, unused_port

KEY = b"k" * 32
SECRET = base64.b64encode(KEY).decode()


def webhook(url: str, host: str, **fields: Any) -> WebhookHook:
    given = {"name": "guard", "points": frozenset(HookPoint), "outgoing": Outgoing([host], max_answer_bytes=10_000)}
    return WebhookHook(url=url, key=KEY, **{**given, **fields})


@asynccontextmanager
async def guarded(answer: bytes, *, hang: bool = False, **fields: Any) -> AsyncIterator[tuple[WebhookHook, Loopback]]:
    async with loopback(answer, hang=hang) as server:
        yield webhook(server.url, server.host, **fields), server


@pytest.mark.spec("6.3")
async def test_a_webhook_is_asked_once_with_a_body_that_its_signature_proves() -> None:
    async with guarded(says({})) as (hook, server):
        outcome, decisions = await asked(hook)
    assert (outcome.block, decisions) == (None, [])
    (request,) = server.requests
    assert request.json["tool_name"] == "read_file"
    message_id, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    signed = b"%b.%b.%b" % (message_id.encode(), at.encode(), request.body)
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert message_id.startswith("msg_")
    assert abs(int(at) - time.time()) < 300  # what receivers tolerate


@pytest.mark.spec("6.3")
async def test_every_call_is_a_message_of_its_own() -> None:
    async with guarded(says({})) as (hook, server):
        await asked(hook)
        await asked(hook)
    assert len({request.headers["webhook-id"] for request in server.requests}) == 2


@pytest.mark.spec("6.2", "6.3")
@pytest.mark.seed("004", 165)
async def test_what_a_webhook_says_is_done() -> None:
    async with guarded(says({"decision": "block", "reason": "not this file"})) as (hook, _):
        outcome, decisions = await asked(hook)
    assert (outcome.block, outcome.blocked_by) == ("not this file", "guard")
    assert [(one.kind, one.decision) for one in decisions] == [("webhook", "block")]
    async with guarded(says({"hookSpecificOutput": {"updatedInput": {"path": "b"}}})) as (hook, _):
        outcome, _decisions = await asked(hook)
    assert outcome.call.arguments == {"path": "b"}
    async with guarded(says({"mutate_output": "nothing"})) as (hook, _):
        outcome, _decisions = await asked(hook, call=told(HookPoint.POST_TOOL_USE))
    assert outcome.call.output == "nothing"


@pytest.mark.spec("6.3", "12.6")
async def test_a_webhook_is_told_no_secret_and_cannot_put_the_mask_into_a_call() -> None:
    secret, mask = "known-secret-71", ValueMasker(["known-secret-71"]).json
    call = told(arguments={"path": f"of-{secret}"})
    async with guarded(says({}), mask=mask) as (hook, server):
        outcome, _ = await asked(hook, call=call)
    (request,) = server.requests
    assert request.json["tool_input"] == {"path": "of-[masked]"}
    assert outcome.call.arguments == {"path": f"of-{secret}"}  # the call itself is what it was
    async with guarded(says({"mutate_input": {"path": "of-[masked]"}}), mask=mask) as (hook, _):
        outcome, decisions = await asked(hook, call=call)
    assert outcome.blocked_by == "guard"
    assert "a secret masked" in str(decisions[0])
    async with guarded(says({"mutate_input": {"path": "other"}}), mask=mask) as (hook, _):
        outcome, _ = await asked(hook, call=call)
    assert outcome.call.arguments == {"path": "other"}


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    "answer", [http(status="204 No Content", kind=""), http(kind=""), http(b"{}", kind="application/vnd.own+json")]
)
async def test_a_webhook_that_has_nothing_to_say_lets_things_go_on(answer: bytes) -> None:
    async with guarded(answer) as (hook, _):
        outcome, decisions = await asked(hook)
    assert (outcome.block, decisions) == (None, [])


WRONG = {
    "lies with an error": (http(b'{"decision": "approve"}', status="500 Oops"), "answered with status 500"),
    "lies with a redirect": (http(status="302 Found", Location="/elsewhere"), "redirects with status 302"),
    "lies with a type": (http(b'{"block": 7}'), "block has a wrong type: a number"),
    "lies with a word": (http(b'{"decision": "perhaps"}'), "decision is 'perhaps'"),
    "lies with a list": (http(b"[]"), "must be a JSON object, not a list"),
    "lies with a page": (http(b"<html>Welcome</html>", kind="text/html"), "text/html, not application/json"),
    "lies with no type": (http(b"{}", kind=""), "not application/json"),
    "answers nonsense": (http(b"\x00\x01{"), "not JSON"),
    "answers without end": (http(b" " * 10_001), "more than 10000 bytes"),
    "breaks off": (http(b'{"decision": "approve"}')[:-4], "the connection broke"),
    "says nothing at all": (b"", "the connection broke"),
    "is no web server": (b"220 mail\r\n", "not HTTP"),
}


def check(outcome: Outcome, decisions: list[Decision], effect: OnFailure, reason: str, logged: str) -> None:
    (failed,) = decisions
    assert (failed.hook, failed.kind, failed.decision, failed.effect) == ("guard", "webhook", "failed", effect.value)
    assert reason in (failed.reason or "")
    if effect is OnFailure.BLOCK:
        assert outcome.blocked_by == "guard"
        assert reason in (outcome.block or "")
    else:
        assert outcome.block is None
        assert outcome.call.arguments == {"path": "diary.txt"}
    assert reason in logged
    for secret in (SECRET, "url-secret-1234", KEY.decode()):
        assert secret not in f"{logged} {outcome} {decisions}"


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("effect", list(OnFailure))
@pytest.mark.parametrize("what", WRONG)
async def test_a_webhook_that_lies_or_talks_nonsense_counts_as_on_failure_says(
    what: str, effect: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    answer, reason = WRONG[what]
    with caplog.at_level(logging.DEBUG):
        async with guarded(answer, on_failure=effect) as (hook, server):
            outcome, decisions = await asked(hook)
    check(outcome, decisions, effect, reason, caplog.text)
    assert [request.path for request in server.requests] == ["/hook?token=url-secret-1234"]


@pytest.mark.spec("6.3")
@pytest.mark.case("B102")
@pytest.mark.parametrize("effect", list(OnFailure))
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"])
async def test_a_webhook_that_is_slow_counts_as_on_failure_says(
    answer: bytes, effect: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with guarded(answer, hang=True, on_failure=effect, timeout_s=0.2) as (hook, server):
            outcome, decisions = await asked(hook)
            await server.left.wait()
    check(outcome, decisions, effect, "within 0.2 s", caplog.text)


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("effect", list(OnFailure))
async def test_a_webhook_that_is_dead_counts_as_on_failure_says(
    effect: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    host = f"127.0.0.1:{unused_port()}"
    with caplog.at_level(logging.DEBUG):
        hook = webhook(f"http://{host}/hook?token=url-secret-1234", host, on_failure=effect)
        outcome, decisions = await asked(hook)
    check(outcome, decisions, effect, "cannot connect", caplog.text)


@pytest.mark.spec("6.3")
async def test_a_host_that_is_not_allowed_is_not_asked() -> None:
    async with loopback(says({})) as server:
        outcome, _ = await asked(webhook(server.url, "hooks.example.org"))
    assert "settings allow" in (outcome.block or "")
    assert server.requests == []


@pytest.mark.spec("6.3")
def test_a_webhook_shows_neither_its_key_nor_its_url() -> None:
    shown = repr(webhook("http://h/?token=url-secret-1234", "h"))
    assert "guard" in shown
    assert KEY.decode() not in shown
    assert "url-secret-1234" not in shown
