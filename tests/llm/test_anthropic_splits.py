"""How a stream of Anthropic's events was cut into reads, or what line ends it had, never changes what it means."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.chat import Delta, DeltaKind, Reply
from app.agent.messages import Usage
from app.llm.anthropic_assembly import MessageAssembler
from app.llm.sse import EventPayloads
from tests.longer import examples
from tests.stubs.anthropic_stub import (
    PING,
    STOP,
    closed,
    delta,
    ending,
    events,
    opened,
    redacted,
    sse,
    start,
    thinking,
    tool,
    words,
)

pytestmark = pytest.mark.spec("13.2")


def written(payload: Mapping[str, Any]) -> bytes:
    """An event whose JSON is spread over lines."""
    lines = json.dumps(payload, indent=1, ensure_ascii=False).encode().split(b"\n")
    return b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


RECORDED = b"".join(
    (
        *sse(start(cache_read_input_tokens=7), PING, *events(thinking("plän 🍸", "sig+/="))[2:6]),
        b": keep-alive\r\n\r\n",
        *sse(delta(0, "signature_delta", signature=""), closed(0), opened(1, redacted("EvAB+/==")), closed(1)),
        *sse(opened(2, words(""))),
        written(delta(2, "text_delta", text="Ans")),
        *sse(PING),
        written(delta(2, "text_delta", text="wer \u2028 中文")),
        rb'data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":" \ud83c"}}' + b"\n\n",
        rb'data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"\udf78."}}' + b"\n\n",
        *sse(closed(2), opened(3, {**tool("glob", id="toolu_a"), "input": {}})),
        *sse(delta(3, "input_json_delta", partial_json='{"pat'), PING),
        *sse(delta(3, "input_json_delta", partial_json='tern": "ä"}'), closed(3)),
        *sse(opened(4, {**tool("read_file", id="toolu_b"), "input": {}}), closed(4)),
        *sse(ending("tool_use", output_tokens=20), STOP),
    )
)


def read(pieces: list[bytes]) -> tuple[Reply, list[Delta]]:
    """The reply and deltas of these reads, with ids that can be compared."""
    payloads, deltas = EventPayloads(), list[Delta]()
    assembler = MessageAssembler(provider="p", offered=["glob", "read_file"])
    for piece in pieces:
        assembler.feed(payloads.feed(piece))
        assembler.flush(deltas.append)
    assembler.feed(payloads.end())
    reply = assembler.end(deltas.append)
    names = {call.call_id: f"call_{at}" for at, call in enumerate(reply.tool_calls)}
    calls = tuple(replace(call, call_id=names[call.call_id]) for call in reply.tool_calls)
    for said in deltas:
        said.call_id = names.get(said.call_id or "")
    return replace(reply, tool_calls=calls), deltas


WHOLE, _ = read([RECORDED])


def joined(deltas: list[Delta], kind: DeltaKind, call_id: str | None = None) -> str:
    return "".join(piece.text for piece in deltas if piece.kind is kind and piece.call_id == call_id)


def test_the_recorded_stream_means_what_it_should() -> None:
    assert (WHOLE.text, WHOLE.reasoning) == ("Answer \u2028 中文 🍸.", "plän 🍸")
    assert [(call.name, call.arguments) for call in WHOLE.tool_calls] == [("glob", {"pattern": "ä"}), ("read_file", {})]
    assert WHOLE.usage == Usage(input_tokens=27, output_tokens=20, cached_tokens=7)
    assert WHOLE.opaque is not None
    assert WHOLE.opaque["blocks"] == [thinking("plän 🍸", "sig+/="), redacted("EvAB+/==")]


def test_a_split_at_every_single_byte_gives_the_same_reply() -> None:
    assert read([RECORDED[at : at + 1] for at in range(len(RECORDED))])[0] == WHOLE


def test_a_split_at_any_one_byte_gives_the_same_reply() -> None:
    assert all(read([RECORDED[:at], RECORDED[at:]])[0] == WHOLE for at in range(len(RECORDED)))


@given(st.lists(st.integers(0, len(RECORDED)), max_size=40), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_any_split_into_reads_gives_the_same_reply(cuts: list[int], carriage_returns: bool) -> None:
    body = RECORDED.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") if carriage_returns else RECORDED
    edges = sorted({0, *cuts, len(body)})
    reply, deltas = read([body[begin:end] for begin, end in pairwise(edges)])
    assert reply == WHOLE
    assert joined(deltas, DeltaKind.TEXT) == WHOLE.text
    assert joined(deltas, DeltaKind.REASONING) == WHOLE.reasoning
    for call in WHOLE.tool_calls:
        assert joined(deltas, DeltaKind.ARGUMENTS, call.call_id) == call.raw
