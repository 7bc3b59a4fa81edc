"""Tool calls as JSON envelopes: what a model is told, what it may say, and what its text becomes."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.chat import ChatRequest, Delta, DeltaKind, Finish, Reply
from app.agent.messages import Message
from app.agent.tools import ToolSpec
from app.llm.envelope import render
from app.llm.envelope_reader import EnvelopeReader
from app.llm.profile import Profile
from tests.llm.asking import GLOB, READ, TASK, World, ask, assistant, result, spec, user
from tests.stubs.openai_stub import chunk, history_problem, stream, text

pytestmark = pytest.mark.spec("13.3")

DISPATCH = spec(
    "dispatch_subagent",
    "agent_type",
    "task",
    delegation=True,
    agent_type={"type": "string", "enum": ["finder", "reader"]},
)


def profile(**fields: Any) -> Profile:
    defaults = {"name": "p", "provider": "local", "model": "m", "tool_mode": "json_envelope"}
    return Profile(**{**defaults, **fields})


def schema(tools: tuple[ToolSpec, ...], choice: str | None = None, parallel: bool | None = None, **fields: Any) -> Any:
    request = ChatRequest(messages=TASK, tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
    return render(request, profile(**fields))[1]


def allowed(rules: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(rules).is_valid(value)


def a_call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


ANSWER = {"answer": "done"}


@pytest.mark.parametrize(
    ("choice", "answer", "read", "glob"),
    [
        (None, True, True, True),
        ("auto", True, True, True),
        ("none", True, False, False),
        ("required", False, True, True),
        ("glob", False, False, True),
    ],
)
def test_the_tool_choice_narrows_what_a_turn_may_say(choice: str | None, answer: bool, read: bool, glob: bool) -> None:
    rules = schema((READ, GLOB), choice)
    assert allowed(rules, ANSWER) == answer
    assert allowed(rules, a_call("read_file", path="a")) == read
    assert allowed(rules, a_call("glob", pattern="*")) == glob


def test_without_tools_only_an_answer_may_be_said() -> None:
    assert allowed(schema(()), ANSWER)
    assert not allowed(schema(()), a_call("glob", pattern="*"))


def test_arguments_are_held_to_the_tools_own_schema_and_to_bounds() -> None:
    rules = schema((READ,), envelope_string_chars=5)
    assert allowed(rules, a_call("read_file", path="12345"))
    for bad in ({"path": "123456"}, {"path": 1}, {}, {"path": "a", "other": 1}):
        assert not allowed(rules, a_call("read_file", **bad))
    assert not allowed(rules, {"answer": "123456"})


def test_several_calls_are_allowed_only_where_profile_and_request_allow_them() -> None:
    two = {"calls": [a_call("glob", pattern="a"), a_call("read_file", path="b")]}
    assert allowed(schema((READ, GLOB), envelope_calls=2), two)
    assert not allowed(schema((READ, GLOB), envelope_calls=2), {"calls": [*two["calls"], two["calls"][0]]})
    assert not allowed(schema((READ, GLOB), envelope_calls=2), {"calls": []})
    assert not allowed(schema((READ, GLOB), envelope_calls=2, parallel=False), two)
    assert not allowed(schema((READ, GLOB)), two)


def test_a_forced_delegation_goes_once_to_each_agent() -> None:
    rules = schema((DISPATCH, READ), "dispatch_subagent", envelope_calls=2)
    finder, reader = (a_call("dispatch_subagent", agent_type=name, task="t") for name in ("finder", "reader"))
    assert allowed(rules, {"calls": [finder, reader]})
    for bad in ([finder], [finder, finder], [finder, reader, reader], []):
        assert not allowed(rules, {"calls": bad})


def test_a_forced_delegation_with_more_agents_than_calls_may_choose_among_them() -> None:
    three = spec("d", "agent", delegation=True, agent={"enum": ["a", "b", "c"]})
    rules = schema((three,), "d", envelope_calls=2)
    assert allowed(rules, {"calls": [a_call("d", agent="c"), a_call("d", agent="a")]})
    assert not allowed(rules, {"calls": [a_call("d", agent="c")]})


def test_a_forced_tool_without_alternatives_is_called_once() -> None:
    assert allowed(schema((READ,), "read_file", envelope_calls=2), a_call("read_file", path="a"))


def test_brief_prompts_leave_out_what_is_not_required() -> None:
    tool = spec("grep", "pattern", path={"type": "string", "description": "where to look"})
    assert not allowed(schema((tool,), envelope_brief=True), a_call("grep", pattern="a", path="b"))
    assert allowed(schema((tool,)), a_call("grep", pattern="a", path="b"))
    messages, _ = render(ChatRequest(messages=TASK, tools=(tool,)), profile(envelope_brief=True))
    assert "- grep(pattern): Does grep." in messages[0]["content"]
    assert "where to look" not in messages[0]["content"]


def calls_of(*wanted: dict[str, Any]) -> Message:
    """An assistant turn as an earlier envelope left it."""
    reader = EnvelopeReader(lambda _: None)
    reader.take(Delta(DeltaKind.TEXT, json.dumps({"calls": list(wanted)})))
    return assistant("", *reader.reply(Reply(text="")).tool_calls)


def test_a_history_is_told_in_plain_texts_that_take_turns() -> None:
    one, two = (
        calls_of(a_call("glob", pattern="*")),
        calls_of(a_call("glob", pattern="a"), a_call("read_file", path="b")),
    )
    history = (
        *TASK,
        one,
        result(one.tool_calls[0], "x.py"),
        two,
        result(two.tool_calls[0], ""),
        result(two.tool_calls[1], "no such file", is_error=True),
        user("Answer now."),
        assistant("It is b."),
        user("Thanks."),
    )
    messages, _ = render(ChatRequest(messages=history, tools=(READ, GLOB)), profile(envelope_calls=2))
    assert [message["role"] for message in messages] == ["system", *("user", "assistant") * 3, "user"]
    assert messages[0]["content"].startswith("You are a helper.\n\n")
    assert json.loads(messages[2]["content"]) == a_call("glob", pattern="*")
    assert messages[3]["content"] == "Result of glob:\nx.py"
    assert json.loads(messages[4]["content"]) == {"calls": [a_call("glob", pattern="a"), a_call("read_file", path="b")]}
    assert messages[5]["content"] == (
        "Result of glob:\n(no output)\n\nError of read_file:\nno such file\n\nAnswer now."
    )
    assert json.loads(messages[6]["content"]) == {"answer": "It is b."}
    assert history_problem(messages) is None


def test_a_brief_history_cuts_results_and_says_so() -> None:
    one = calls_of(a_call("glob", pattern="*"))
    history = (*TASK, one, result(one.tool_calls[0], "x" * 5000))
    messages, _ = render(ChatRequest(messages=history, tools=(GLOB,)), profile(envelope_brief=True))
    assert "(cut: 4400 characters more)" in messages[-1]["content"]
    assert len(messages[-1]["content"]) < 800


def test_a_very_small_model_may_go_on_after_one_call_and_only_answer_after_several() -> None:
    one = calls_of(a_call("glob", pattern="*"))
    two = calls_of(a_call("glob", pattern="a"), a_call("read_file", path="b"))
    again = {"calls": [a_call("glob", pattern="b")]}
    for brief, turn, goes_on in ((True, one, True), (True, two, False), (False, two, True)):
        history = (*TASK, turn, *(result(call, "x.py") for call in turn.tool_calls))
        request = ChatRequest(messages=history, tools=(READ, GLOB))
        messages, rules = render(request, profile(envelope_calls=2, envelope_brief=brief))
        assert allowed(rules, ANSWER)
        assert allowed(rules, again) == goes_on
        assert "- glob" in messages[0]["content"]  # an equal beginning of the prompt is not read again
        later = ChatRequest(messages=(*history, assistant("Done."), user("More.")), tools=(READ, GLOB))
        assert allowed(render(later, profile(envelope_calls=2, envelope_brief=brief))[1], again)


async def said(world: World, content: str, size: int = 3, finish: str = "stop") -> tuple[Reply, list[Delta]]:
    """What becomes of a turn whose content is this text."""
    chunks = [chunk({"content": content[at : at + size]}) for at in range(0, len(content), size)]
    world.stub.script(stream(*chunks, chunk({}, finish)))
    asked = await ask(world.model(tool_mode="json_envelope", think_tags="off"), tools=(READ, GLOB))
    return asked.reply, asked.deltas


async def test_the_request_carries_the_schema_and_no_native_tools(world: World) -> None:
    world.stub.script(text('{"answer": "ok"}'))
    await ask(world.model(tool_mode="json_envelope"), tools=(READ,), max_tokens=50)
    body = world.stub.requests[0].body
    assert body["response_format"]["json_schema"]["schema"] == schema((READ,))
    assert body["max_tokens"] == 50
    assert not {"tools", "tool_choice"} & set(body)


async def test_an_answer_is_shown_while_it_comes(world: World) -> None:
    reply, deltas = await said(world, '{"answer": "It is \\"42\\" \\u00e4\\ud83c\\udf78\\n."}')
    assert (reply.text, reply.tool_calls, reply.finish) == ('It is "42" ä🍸\n.', (), Finish.STOP)
    assert "".join(delta.text for delta in deltas) == reply.text
    assert len(deltas) > 3


async def test_a_call_becomes_a_tool_call(world: World) -> None:
    reply, deltas = await said(world, '{"tool": "glob", "arguments": {"pattern": "*"}}')
    (call,) = reply.tool_calls
    assert (call.name, call.arguments, reply.text, reply.finish) == ("glob", {"pattern": "*"}, "", Finish.TOOL_CALLS)
    assert [(delta.kind, delta.call_id, json.loads(delta.text)) for delta in deltas] == [
        (DeltaKind.ARGUMENTS, call.call_id, {"pattern": "*"})
    ]


async def test_several_calls_in_one_envelope_are_several_tool_calls(world: World) -> None:
    content = json.dumps({"calls": [a_call("glob", pattern="a"), a_call("read_file", path="b")]})
    reply, _ = await said(world, f"```json\n{content}\n```")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("glob", {"pattern": "a"}),
        ("read_file", {"path": "b"}),
    ]
    assert len({call.call_id for call in reply.tool_calls}) == 2


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ('{"answer": "It is', "It is"),
        ('{"answer": "a\\', "a"),
        ('{"tool": "glob", "arguments": {"pattern": "*"}}', ""),
    ],
)
async def test_an_envelope_cut_by_length_runs_nothing(world: World, content: str, shown: str) -> None:
    reply, _ = await said(world, content, finish="length")
    assert (reply.text, reply.tool_calls, reply.finish) == (shown, (), Finish.LENGTH)


@pytest.mark.parametrize(
    ("content", "shown", "malformed"),
    [
        ("Just words.", "Just words.", False),
        ("", "", False),
        ('{"city": "Paris"}', '{"city": "Paris"}', False),
        ('{"tool": 5}', '{"tool": 5}', True),
        ('{"tool": "glob", "arguments": {"pattern": ', '{"tool": "glob", "arguments": {"pattern": ', True),
        ('{"answer": "half', "half", True),
        ('{"answer": "line\nbreak"}', "line\nbreak", False),
    ],
)
@pytest.mark.case("B013")
async def test_what_is_no_envelope_is_an_answer_and_marked_when_it_went_wrong(
    world: World, content: str, shown: str, malformed: bool
) -> None:
    reply, deltas = await said(world, content)
    assert (reply.text, reply.tool_calls, reply.malformed_call) == (shown, (), malformed)
    assert "".join(delta.text for delta in deltas) == shown


async def test_arguments_that_are_no_object_are_a_problem_of_that_call(world: World) -> None:
    reply, _ = await said(world, '{"tool": "glob", "arguments": [1]}')
    assert reply.tool_calls[0].arguments is None and "a list" in (reply.tool_calls[0].problem or "")


@given(st.text(), st.integers(1, 5), st.booleans())
def test_any_answer_comes_out_equal_however_it_was_cut(answer: str, size: int, ascii_only: bool) -> None:
    content = json.dumps({"answer": answer}, ensure_ascii=ascii_only)
    deltas: list[Delta] = []
    reader = EnvelopeReader(deltas.append)
    for at in range(0, len(content), size):
        reader.take(Delta(DeltaKind.TEXT, content[at : at + size]))
    reply = reader.reply(Reply(text=content, finish=Finish.STOP))
    assert reply.text == answer
    assert "".join(delta.text for delta in deltas) == answer
