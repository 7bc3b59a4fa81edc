"""Odd streams, met by a lead, by a child and by a grandchild: each is the turn that was meant."""

from typing import Any

import pytest

from tests.flows.after_faults import holds
from tests.flows.depths import Case, Depths, Met
from tests.stubs import anthropic_stub as messages
from tests.stubs.openai_stub import Answer, Request, call_chunk, calls, chunk, stream, text, usage_chunk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("13.2")]

STOP, CALLED = chunk({}, "stop"), chunk({}, "tool_calls")
DONE = text("Done.")
READ = ("read_file", {"path": "a.txt"})
GLOB = ("glob", {"pattern": "*.py"})
ALPHA, PY = ("ok", "alpha"), ("ok", "c.py")
HALF = [chunk({"content": piece}) for piece in ("Half ", "a ", "sent")]
WRITTEN = '<tool_call>{"name": "read_file", "arguments": {"path": "a.txt"}}</tool_call>'


def piecewise(names: list[str], pieces: list[str], **call: Any) -> Answer:
    """A turn with one call; each chunk has a piece of its name and one of its arguments."""
    chunks = [
        call_chunk(0, id="call_1", type="function", name=name, arguments=piece, **call)
        for name, piece in zip(names, pieces, strict=True)
    ]
    return stream(chunk({"role": "assistant", "content": None}), *chunks, CALLED)


def calls_sent(request: Request) -> list[tuple[str, str, str]]:
    """The calls in a history of the OpenAI dialect: id, name, and the id that the result has."""
    answered = [m["tool_call_id"] for m in request.messages if m["role"] == "tool"]
    asked = [call for m in request.messages for call in m.get("tool_calls") or ()]
    return [(call["id"], call["function"]["name"], to) for call, to in zip(asked, answered, strict=True)]


def one_call_1(met: Met) -> None:
    assert calls_sent(met.requests[1]) == [("call_1", "read_file", "call_1")]


def one_a1(met: Met) -> None:
    assert calls_sent(met.requests[1]) == [("a1", "glob", "a1")]


def counted_once(met: Met) -> None:
    usage = met.run["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["cached_tokens"]) == (7, 3, 4)


def two_replies(met: Met) -> None:
    assert [(row["content"], len(row["tool_calls"] or ())) for row in met.replies] == [("", 1), ("Done.", 0)]


def reasoned(met: Met) -> None:
    (row,) = met.replies
    assert (row["content"], row["reasoning"]) == ("42", "secret plan")
    assert "secret" not in met.told


def not_reasoned(met: Met) -> None:
    assert [row["reasoning"] or "" for row in met.replies] == [""]


def half_is_kept(met: Met) -> None:
    assert met.said() == [("Half a sent", True)]


def quoted_as_it_is(met: Met) -> None:
    not_reasoned(met)
    assert met.run["output"] == QUOTED


def told_to_call_properly(met: Met) -> None:
    assert met.said()[0] == (WRITTEN, False)
    assert met.requests[1].messages[-1]["role"] == "user"
    assert "tool" in met.requests[1].messages[-1]["content"]


def marked(met: Met) -> None:
    assert (met.run["stop_reason"], met.run["partial"]) == ("malformed_call", True)
    assert met.depth == 0 or "malformed_call" in met.told


FILTERED = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
USAGE = usage_chunk(7, 3, prompt_tokens_details={"cached_tokens": 4})
THINKING = [chunk({"content": piece}) for piece in ("<th", "ink>secret plan</thi", "nk>42")]
QUOTED = "Write\n```\n</think> and <think>x</think>\n```\nand `</think>`."
OVERLOADED = messages.stream(
    messages.start(),
    messages.opened(0, messages.words("")),
    messages.delta(0, "text_delta", text="Half a sent"),
    messages.error_event("overloaded_error", "Overloaded"),
)
SHAPES = {
    "B002 name in every chunk": Case(
        answers=(piecewise(["read_file"] * 5, ['{"', "path", '":', '"a.', 'txt"}']), DONE), ran=[READ], results=[ALPHA]
    ),
    "B003 name in pieces": Case(
        answers=(piecewise(["read_", "file"], ["", '{"path": "a.txt"}']), DONE), ran=[READ], results=[ALPHA]
    ),
    "B003 name resent whole": Case(
        answers=(piecewise(["read_file"] * 2, ["", '{"path": "a.txt"}']), DONE), ran=[READ], results=[ALPHA]
    ),
    "B004 id and type in every chunk": Case(
        answers=(piecewise(["read_file", "", "", ""], ["", '{"path"', ':"a.txt"', "}"]), DONE),
        ran=[READ],
        results=[ALPHA],
        check=one_call_1,
    ),
    "B005 fresh ids on fragments": Case(
        answers=(
            stream(
                call_chunk(0, id="a1", name="glob", arguments=""),
                *(call_chunk(0, id=f"a{at}", name="", arguments=c) for at, c in enumerate('{"pattern": "*.py"}', 2)),
                CALLED,
            ),
            DONE,
        ),
        ran=[GLOB],
        results=[PY],
        check=one_a1,
    ),
    "B006 two entries in one chunk": Case(
        answers=(
            stream(
                chunk(
                    {
                        "tool_calls": [
                            {"index": 0, "id": "c1", "function": {"name": "glob", "arguments": '{"pat'}},
                            {"index": 0, "function": {"arguments": 'tern":'}},
                        ]
                    }
                ),
                call_chunk(0, arguments='"*.py"}'),
                CALLED,
            ),
            DONE,
        ),
        ran=[GLOB],
        results=[PY],
    ),
    "B007 no choices": Case(
        answers=(stream(FILTERED, chunk({"content": "Do"}), chunk({"content": "ne."}), STOP, USAGE),),
        check=counted_once,
    ),
    "B007 usage null before": Case(
        answers=(
            stream(*(chunk({"content": p}, usage=None) for p in ("Do", "ne.")), chunk({}, "stop", usage=None), USAGE),
        ),
        check=counted_once,
    ),
    "B007 usage in every chunk": Case(
        answers=(
            stream(
                *(chunk({"content": p}, usage={"prompt_tokens": 7, "completion_tokens": 1}) for p in ("Do", "ne.")),
                STOP,
                USAGE,
            ),
        ),
        check=counted_once,
    ),
    "B008 no delta": Case(
        answers=(stream(chunk({"content": "Done."}), {"choices": [{"index": 0, "finish_reason": None}]}, STOP),)
    ),
    "B010 calls promised": Case(answers=(stream(chunk({"content": "All good"}), CALLED),), told="All good"),
    "B011 empty text before a call": Case(
        answers=(
            stream(chunk({"content": ""}), call_chunk(0, id="c", name="glob", arguments='{"pattern": "*.py"}'), CALLED),
            DONE,
        ),
        ran=[GLOB],
        results=[PY],
        check=two_replies,
    ),
    "B012 tags in pieces": Case(answers=(stream(*THINKING, STOP),), told="42", check=reasoned),
    "B012 only the closing tag": Case(
        answers=(stream(chunk({"content": "secret plan</th"}), chunk({"content": "ink>42"}), STOP),),
        told="42",
        moved=True,
        check=reasoned,
    ),
    "B012 never closed": Case(
        answers=(stream(chunk({"content": "<think>It is Done."}), STOP),), moved=True, check=not_reasoned
    ),
    "B012 quoted": Case(answers=(stream(chunk({"content": QUOTED}), STOP),), told="Write", check=quoted_as_it_is),
    "B013 call as text": Case(
        answers=(text(WRITTEN), calls(("read_file", '{"path": "a.txt"}')), DONE),
        ran=[READ],
        results=[ALPHA],
        check=told_to_call_properly,
    ),
    "B013 call as text twice": Case(answers=(text(WRITTEN), text(WRITTEN)), told="tool_call", check=marked),
    "B014 event named error": Case(
        answers=(stream(*HALF, b'event: error\ndata: {"message": "Overloaded"}\n\n'), DONE), retried=1
    ),
    "B014 event named error for good": Case(
        answers=(stream(*HALF, b'event: error\ndata: {"message": "Overloaded"}\n\n'),) * 2,
        status="failed",
        told="Overloaded",
        retried=1,
        check=half_is_kept,
    ),
    "B014 error event": Case(
        model="anthropic",
        answers=(OVERLOADED, messages.message(messages.words("Done."))),
        retried=1,
    ),
    "B014 error event for good": Case(
        model="anthropic",
        answers=(OVERLOADED, OVERLOADED),
        status="failed",
        told="Overloaded",
        retried=1,
        check=half_is_kept,
    ),
}


@pytest.mark.case("B002", "B003", "B004", "B005", "B006", "B007", "B008", "B010", "B011", "B012", "B013", "B014")
@pytest.mark.parametrize("name", SHAPES)
async def test_an_odd_stream_is_the_turn_that_was_meant_at_every_depth(faulty_models: Depths, name: str) -> None:
    for met in await faulty_models.met(SHAPES[name], name):
        holds(met)
