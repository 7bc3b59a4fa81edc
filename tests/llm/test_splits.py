"""How a stream was cut into reads, or what line ends it had, never changes what it means."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.chat import Delta, DeltaKind, Reply
from app.llm.assembly import ReplyAssembler
from app.llm.sse import EventPayloads
from tests.longer import examples
from tests.stubs.openai_stub import call_chunk, chunk, sse, usage_chunk

RECORDED = b"".join(
    (
        *sse(chunk({"role": "assistant", "content": ""}), done=False),
        b": keep-alive\r\n\r\n",
        *sse(chunk({"content": "<think>"}), chunk({"content": "plän 🍸 <"}), chunk({"content": "/thi"}), done=False),
        *sse(chunk({"content": "nk>\n\nAns"}), chunk({"content": "wer \u2028 中文"}), done=False),
        rb'data: {"choices":[{"index":0,"delta":{"content":" \ud83c"}}]}' + b"\n\n",
        rb'data: {"choices":[{"index":0,"delta":{"content":"\udf78 "}}]}' + b"\n\n",
        *(b"data: " + line + b"\n" for line in json.dumps(chunk({"content": "."}), indent=1).encode().split(b"\n")),
        b"\n",
        *sse(call_chunk(0, id="c1", name="glob", arguments='{"pat'), done=False),
        *sse(call_chunk(1, id="c2", name="read_file", arguments='{"path": "ä"}'), done=False),
        *sse(call_chunk(0, id="c1", name="glob", arguments='tern": "*"}'), chunk({}, "tool_calls"), done=False),
        *sse(usage_chunk(10, 20)),
    )
)


def read(pieces: list[bytes]) -> tuple[Reply, list[Delta]]:
    """The reply and deltas of these reads, with ids that can be compared."""
    events, deltas = EventPayloads(), list[Delta]()
    assembler = ReplyAssembler(provider="p", offered=["glob", "read_file"])
    for piece in pieces:
        assembler.feed(events.feed(piece))
        assembler.flush(deltas.append)
    assembler.feed(events.end())
    reply = assembler.end(deltas.append)
    names = {call.call_id: f"call_{at}" for at, call in enumerate(reply.tool_calls)}
    calls = tuple(replace(call, call_id=names[call.call_id]) for call in reply.tool_calls)
    for delta in deltas:
        delta.call_id = names.get(delta.call_id or "")
    return replace(reply, tool_calls=calls), deltas


WHOLE, _ = read([RECORDED])


def joined(deltas: list[Delta], kind: DeltaKind, call_id: str | None = None) -> str:
    return "".join(delta.text for delta in deltas if delta.kind is kind and delta.call_id == call_id)


def test_the_recorded_stream_means_what_it_should() -> None:
    assert (WHOLE.text, WHOLE.reasoning) == ("Answer \u2028 中文 🍸 .", "plän 🍸 ")
    assert [(call.name, call.arguments) for call in WHOLE.tool_calls] == [
        ("glob", {"pattern": "*"}),
        ("read_file", {"path": "ä"}),
    ]
    assert WHOLE.usage is not None and WHOLE.usage.output_tokens == 20


@pytest.mark.spec("13.2")
@given(st.lists(st.integers(0, len(RECORDED)), max_size=40), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_any_split_into_reads_gives_the_same_reply(cuts: list[int], carriage_returns: bool) -> None:
    body = RECORDED.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") if carriage_returns else RECORDED
    edges = sorted({0, *cuts, len(body)})
    reply, deltas = read([body[start:end] for start, end in pairwise(edges)])
    assert reply == WHOLE
    assert joined(deltas, DeltaKind.TEXT) == WHOLE.text
    assert joined(deltas, DeltaKind.REASONING) == WHOLE.reasoning
    for call in WHOLE.tool_calls:
        assert joined(deltas, DeltaKind.ARGUMENTS, call.call_id) == call.raw


def test_a_split_at_every_single_byte_gives_the_same_reply() -> None:
    assert read([RECORDED[at : at + 1] for at in range(len(RECORDED))])[0] == WHOLE


@given(st.binary(max_size=300))
def test_no_bytes_make_the_line_reader_fail(data: bytes) -> None:
    events = EventPayloads()
    payloads = [*events.feed(data), *events.end()]
    assert all(payloads)
