"""Streams that break off, fall silent or end in an error, met by a lead, by a child and by a grandchild: half an answer
is never taken for a whole one, and a whole one is asked for once."""

import pytest

from tests.flows.after_faults import holds
from tests.flows.depths import Case, Depths, Met
from tests.stubs import anthropic_stub as messages
from tests.stubs.openai_stub import Answer, call_chunk, chunk, sse, stream, text, usage_chunk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("5.8", "13.2")]

STOP = chunk({}, "stop")
DONE = text("Done.")
HALF = [chunk({"content": piece}) for piece in ("Half ", "a ", "sent")]
HALF_CALL = [call_chunk(0, id="c", name="write_note", arguments='{"content": "wri')]
WHOLE_CALL = [call_chunk(0, id="c", name="write_note", arguments='{"content": "written"}')]
HALF_SAID = "Half a sent"
QUOTA = {"error": {"message": "quota exceeded", "code": 429}}
BEGUN = (
    messages.start(),
    messages.opened(0, messages.words("")),
    messages.delta(0, "text_delta", text=HALF_SAID),
)
BEGUN_CALL = (
    messages.start(),
    messages.opened(0, {**messages.tool("write_note"), "input": {}}),
    messages.delta(0, "input_json_delta", partial_json='{"content": "written"}'),
    messages.closed(0),
)
SAID_DONE = messages.message(messages.words("Done."))


def one_message(met: Met) -> None:
    assert met.said() == [("Done.", False)]
    assert met.notes == ()
    steps = met.own("step.started", "step.completed")
    assert len(steps) == 2, "the step began once and ended once"
    (retried,) = met.own("step.retried")
    assert [request.messages for request in met.requests] == [met.requests[0].messages] * 2
    assert retried["attempt"] == 1


def timed_out(met: Met) -> None:
    one_message(met)
    (retried,) = met.own("step.retried")
    assert (retried["code"], retried["withdrawn"]) == ("model_timeout", [])


def half_is_kept(met: Met) -> None:
    assert met.said() == [(HALF_SAID, True)], "and it is marked as a part"
    assert met.run["stop_reason"] == "error"
    assert HALF_SAID in str(met.again[0].messages), "the next turn knows what was said"


def thought_is_kept(met: Met) -> None:
    assert [(row["content"], row["reasoning"]) for row in met.replies] == [("", "Let me see.")]
    assert met.said() == [("", True)]
    assert "Let me see." not in str(met.again[0].messages), "no provider takes a message without a text"


def nothing_ran(met: Met) -> None:
    assert met.said() == []
    assert met.notes == ()


def asked_once(met: Met) -> None:
    assert met.said() == [("All done", False)]


def broken(*payloads: object, end: str = "close", **answer: object) -> Answer:
    """A stream that stops after these chunks, without any sign of an end."""
    return Answer(writes=sse(*payloads, done=False), end=end, **answer)  # type: ignore[arg-type]


def twice(answer: Answer, good: Answer = DONE) -> Case:
    """The first try breaks, the second one works."""
    dialect = "openai" if good is DONE else "anthropic"
    tools = ("write_note",)
    return Case(model=dialect, tools=tools, answers=(answer, good), retried=1, check=one_message)


def for_good(answer: Answer, told: str, *, kept: bool, dialect: str = "openai") -> Case:
    """Every try breaks in the same way."""
    check = half_is_kept if kept else nothing_ran
    tools = ("write_note",)
    return Case(model=dialect, tools=tools, answers=(answer,) * 2, status="failed", told=told, retried=1, check=check)


def whole(answer: Answer) -> Case:
    """It is complete, however it ends."""
    return Case(answers=(answer,), told="All done", check=asked_once)


ENDED = "ended without"
ENDS = {
    "B015 close": twice(broken(*HALF, framed=False)),
    "B015 close inside the body": twice(broken(*HALF)),
    "B015 reset": twice(broken(*HALF, end="reset")),
    "B015 proper end of the body": twice(broken(*HALF, end="complete")),
    "B015 in the arguments of a call": twice(broken(*HALF_CALL, framed=False)),
    "B015 after a whole call": twice(broken(*WHOLE_CALL, framed=False)),
    "B015 in the other dialect": twice(messages.stream(*BEGUN, end="close", framed=False), SAID_DONE),
    "B015 after a whole call of the other": twice(messages.stream(*BEGUN_CALL, end="close", framed=False), SAID_DONE),
    "B015 for good": for_good(broken(*HALF, framed=False), ENDED, kept=True),
    "B015 for good in a call": for_good(broken(*HALF_CALL, framed=False), ENDED, kept=False),
    "B015 for good in the other dialect": for_good(
        messages.stream(*BEGUN, end="close", framed=False), "ended", kept=True, dialect="anthropic"
    ),
    "B015 for good after some reasoning": Case(
        answers=(broken(chunk({"reasoning_content": "Let me see."}), framed=False),) * 2,
        status="failed",
        told=ENDED,
        retried=1,
        check=thought_is_kept,
    ),
    "B016 reason in the last text": whole(stream(chunk({"content": "All "}), chunk({"content": "done"}, "stop"))),
    "B016 usage after the reason": whole(stream(chunk({"content": "All done"}), STOP, usage_chunk(3, 2))),
    "B016 no mark": whole(
        Answer(writes=sse(chunk({"content": "All done"}, "stop"), done=False), end="close", framed=False)
    ),
    "B017 nothing but an error": twice(stream(QUOTA)),
    "B017 error as a text": twice(stream({"error": "quota exceeded"})),
    "B017 error after some text": twice(stream(*HALF, QUOTA)),
    "B017 error for good": for_good(stream(QUOTA), "quota exceeded", kept=False),
    "B017 error as a text for good": for_good(stream({"error": "quota exceeded"}), "quota exceeded", kept=False),
    "B017 error after some text for good": for_good(stream(*HALF, QUOTA), "quota exceeded", kept=True),
    "B019 text and then a reset": Case(
        answers=(broken(chunk({"content": "Here is the pl"}), end="reset"), DONE), retried=1, check=one_message
    ),
    "B020 a role and then nothing": Case(
        model="impatient",
        answers=(broken(chunk({"role": "assistant", "content": ""}), end="hang"), DONE),
        retried=1,
        check=timed_out,
    ),
}


@pytest.mark.case("B015", "B016", "B017", "B019", "B020")
@pytest.mark.parametrize("name", ENDS)
async def test_half_an_answer_is_no_answer_and_a_whole_one_is_asked_for_once_at_every_depth(
    faulty_models: Depths, name: str
) -> None:
    for met in await faulty_models.met(ENDS[name], name):
        holds(met)
