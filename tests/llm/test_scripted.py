"""The scripted model: same history, same answer; and every key of a script does what its description says."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.chat import ChatModel, DeltaKind, Finish
from app.agent.errors import IncompleteReply, InvalidRequest, ModelError
from app.agent.messages import Message
from app.agent.tools import ToolSpec
from app.llm.catalog import Models
from app.llm.chat_wire import wire_messages
from app.llm.script_format import read_script
from app.llm.scripted import ScriptedChat
from app.llm.templating import Results, TemplateError, evaluate, fill
from tests.llm.asking import GLOB, READ, TASK, Asked, ask, assistant, result, spec, system, user
from tests.stubs.openai_stub import history_problem

pytestmark = pytest.mark.spec("13.1")


def scripted(*agents: dict[str, Any], **top: Any) -> ScriptedChat:
    return ScriptedChat("scripted:test", read_script({"agents": list(agents), **top}, "test"))


def turns(*turns: dict[str, Any], **entry: Any) -> ScriptedChat:
    return scripted({"turns": list(turns), **entry})


async def play(
    model: ChatModel, task: tuple[Message, ...], tools: tuple[ToolSpec, ...], outputs: dict[str, str]
) -> tuple[list[Asked], tuple[Message, ...]]:
    """Run a loop over the model: every call gets the output named after its tool."""
    history, asked = task, list[Asked]()
    while not asked or asked[-1].reply.tool_calls:
        assert len(asked) < 10
        asked.append(await ask(model, history, tools))
        reply = asked[-1].reply
        history = (*history, assistant(reply.text, *reply.tool_calls))
        history = (*history, *(result(call, outputs[call.name]) for call in reply.tool_calls))
    return asked, history


async def test_turns_are_played_in_order_and_filled_from_task_and_results() -> None:
    model = turns(
        {
            "text": "I will look.",
            "calls": [{"tool": "read_file", "arguments": {"path": "{{ words(task)[1] }}", "n": 2}}],
        },
        {"text": "It says {{ lines(result['read_file'])[1] }} ({{ len(lines(result[0])) }} lines)."},
    )
    asked, _ = await play(model, (system("s"), user("Read notes.txt now")), (READ,), {"read_file": "one\ntwo\nthree"})
    assert asked[0].reply.tool_calls[0].arguments == {"path": "notes.txt", "n": 2}
    assert asked[0].reply.finish is Finish.TOOL_CALLS
    assert asked[1].reply.text == "It says two (3 lines)."


async def test_the_same_request_gives_the_same_reply() -> None:
    model = turns({"text": "a {{ task }}", "chunks": 3, "reasoning": "r"})
    first, second = await ask(model), await ask(model)
    assert first.reply == second.reply
    assert first.deltas == second.deltas


async def test_a_new_task_starts_the_turns_again_but_a_note_in_between_does_not() -> None:
    model = turns({"calls": [{"tool": "glob"}]}, {"text": "second"}, {"text": "third"})
    first = (await ask(model, TASK, (GLOB,))).reply.tool_calls[0]
    working = (*TASK, assistant("", first), result(first, "x"), user("a notice"))
    assert (await ask(model, working, (GLOB,))).reply.text == "second"
    assert (await ask(model, (*working, assistant("second"), user("next")), (GLOB,))).reply.tool_calls


async def test_entries_are_chosen_by_system_prompt_task_and_tools() -> None:
    model = scripted(
        {"when": {"system_contains": "lead", "task_contains": ["a", "b"]}, "turns": [{"text": "lead"}]},
        {"when": {"tools_include": ["glob", "read_file"]}, "turns": [{"text": "both"}]},
        {"turns": [{"text": "other"}]},
    )
    assert (await ask(model, (system("you lead"), user("a b")))).reply.text == "lead"
    assert (await ask(model, (system("you lead"), user("a")))).reply.text == "other"
    assert (await ask(model, TASK, (READ, GLOB))).reply.text == "both"
    assert (await ask(model, TASK, (READ,))).reply.text == "other"


async def test_text_comes_in_the_chunks_that_were_asked_for() -> None:
    counted = await ask(turns({"text": "abcdef", "chunks": 3}))
    assert [delta.text for delta in counted.deltas] == ["ab", "cd", "ef"]
    listed = await ask(turns({"chunks": ["<{{ task }}>", "!"]}))
    assert [delta.text for delta in listed.deltas] == ["<Do it.>", "!"]
    assert listed.reply.text == "<Do it.>!"
    default = await ask(scripted({"turns": [{"text": "abcd"}]}, defaults={"chunks": 2, "delay_ms": 1}))
    assert len(default.deltas) == 2


async def test_reasoning_and_arguments_are_streamed_too() -> None:
    asked = await ask(turns({"reasoning": "hm", "calls": [{"tool": "glob", "arguments": {"pattern": "*"}}]}))
    (call,) = asked.reply.tool_calls
    assert (asked.said(DeltaKind.REASONING), asked.reply.reasoning) == ("hm", "hm")
    assert asked.said(DeltaKind.ARGUMENTS, call.call_id) == call.raw


async def test_usage_is_as_stated_or_counted_or_absent() -> None:
    stated = (await ask(turns({"text": "x", "usage": {"input_tokens": 7, "output_tokens": 3}}))).reply.usage
    assert stated is not None and (stated.input_tokens, stated.output_tokens) == (7, 3)
    counted = (await ask(turns({"text": "x" * 40}))).reply.usage
    assert counted is not None and (counted.input_tokens, counted.output_tokens) == (6, 11)
    assert (await ask(turns({"text": "x", "usage": None}))).reply.usage is None


@pytest.mark.spec("5.8")
async def test_an_error_is_raised_as_it_is_described() -> None:
    error = {"code": "model_rate_limited", "message": "slow", "retryable": True, "status": 429, "retry_after_ms": 50}
    with pytest.raises(ModelError, match="slow") as caught:
        await ask(turns({"error": error}))
    assert (caught.value.code, caught.value.retryable) == ("model_rate_limited", True)
    assert (caught.value.status, caught.value.retry_after_ms) == (429, 50)


@pytest.mark.spec("5.8")
async def test_a_turn_can_break_off_after_its_text_a_number_of_times() -> None:
    model = turns({"text": "half", "cut": True, "times": 2})
    for _ in range(2):
        with pytest.raises(IncompleteReply) as caught:
            await ask(model)
        assert caught.value.retryable
    assert (await ask(model)).reply.text == "half"
    with pytest.raises(IncompleteReply):
        await ask(model, (system("s"), user("another task")))


async def test_a_turn_cut_by_length_runs_nothing() -> None:
    reply = (await ask(turns({"text": "t", "calls": [{"tool": "glob"}], "finish": "length"}))).reply
    assert (reply.finish, reply.tool_calls) == (Finish.LENGTH, ())


@pytest.mark.case("B038")
async def test_arguments_given_as_a_text_are_sent_as_they_are() -> None:
    (call,) = (await ask(turns({"calls": [{"tool": "glob", "arguments": '{"a', "id": "x"}]}))).reply.tool_calls
    assert (call.raw, call.arguments, call.provider_call_id) == ('{"a', None, "x")
    assert call.problem


async def test_a_script_without_a_turn_left_says_so() -> None:
    history = (*TASK, assistant("one"))
    with pytest.raises(ModelError, match="turn 2 is asked for") as caught:
        await ask(turns({"text": "one"}), history)
    assert (caught.value.code, caught.value.retryable) == ("script_exhausted", False)
    assert (await ask(turns({"text": "one", "repeat": True}), history)).reply.text == "one"
    with pytest.raises(ModelError, match="no entry of the script applies") as caught:
        await ask(turns({"text": "one"}, when={"task_contains": "nothing"}))
    assert caught.value.code == "script_exhausted"


@pytest.mark.spec("5.5")
async def test_a_forced_answer_is_the_final_turn_or_the_next_without_calls() -> None:
    call: dict[str, Any] = {"calls": [{"tool": "glob"}], "repeat": True}
    first = (await ask(turns(call), TASK, (GLOB,))).reply.tool_calls[0]
    forced = (*TASK, assistant("", first), result(first, "x.py"), user("Answer now."))
    assert (await ask(turns(call, final={"text": "Found {{ results }}"}), forced)).reply.text == "Found x.py"
    three = turns(call, {"calls": [{"tool": "glob"}]}, {"text": "end"})
    assert (await ask(three, forced)).reply.text == "end"
    assert (await ask(three, forced, (GLOB,), tool_choice="none")).reply.text == "end"


async def test_an_expression_that_points_nowhere_names_itself() -> None:
    with pytest.raises(ModelError, match=r"\{\{ result\[3\] \}\}: nothing there") as caught:
        await ask(turns({"text": "{{ result[3] }}"}))
    assert caught.value.code == "script_error"


NAMES = {
    "task": "Read a b",
    "result": Results([("glob", "x\ny\nz"), ("read_file", '{"a": {"b": [1, 2, 3]}}'), ("glob", "second")]),
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("task", "Read a b"),
        ("result[0]", "x\ny\nz"),
        ("result[-1]", "second"),
        ("result['glob']", "second"),
        ('result["read_file"]', '{"a": {"b": [1, 2, 3]}}'),
        ("lines(result[0])[1]", "y"),
        ("lines(result[0])[0:2]", ["x", "y"]),
        ("lines(result[0])[1:]", ["y", "z"]),
        ("lines(result[0])[:-1]", ["x", "y"]),
        ("json(result[1]).a.b[2]", 3),
        ("json(result['read_file'])['a'].b", [1, 2, 3]),
        ("len(lines(result[0]))", 3),
        ("task[0:4]", "Read"),
        ("trim(' x ')", "x"),
        ("words(task)[len(words(task)[1])]", "a"),
        ("42", 42),
    ],
)
def test_expressions_reach_into_task_and_results(expression: str, value: object) -> None:
    assert evaluate(expression, NAMES) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "nothing", "task.x", "result[9]", "result['none']", "json(task)", "lines(task", "task]", "task task",
        "__import__('os')", "task.__class__", "open('x')", "task[", "len(5)", "a + b", "'open", "(" * 50, "len(" * 50,
    ],
)  # fmt: skip
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(TemplateError):
        evaluate(expression, NAMES)


@given(st.text(max_size=60))
def test_no_expression_does_anything_but_give_a_value_or_be_refused(expression: str) -> None:
    try:
        evaluate(expression, NAMES)
    except TemplateError as error:
        assert expression in str(error)


def test_a_lone_expression_keeps_its_type_and_others_become_text() -> None:
    filled = fill({"n": "{{ len(task) }}", "t": "n={{ len(task) }}", "all": ["{{ lines(result[0]) }}"], "x": 5}, NAMES)
    assert filled == {"n": 8, "t": "n=8", "all": [["x", "y", "z"]], "x": 5}
    assert fill("{{ result }}", NAMES) == list(NAMES["result"])
    assert fill("{{ lines(result[0]) }}!", NAMES) == "x\ny\nz!"


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("[]", "script bad.yaml: an object is needed here"),
        ("agents: []", "agents is empty"),
        ("agents: [{turns: [{txt: a}]}]", r"agents\[0\]: turns\[0\]: unknown key 'txt'; known: calls, chunks"),
        ("agents: [{turns: [{calls: [{name: a}]}]}]", r"calls\[0\]: unknown key 'name'"),
        ("agents: [{turns: [{calls: [{tool: a, arguments: 5}]}]}]", "arguments must be an object"),
        ("agents: [{turns: [{text: 5}]}]", "text must be a text, not 5"),
        ("agents: [{turns: [{text: a, chunks: 0}]}]", "chunks must be a number above 0"),
        ("agents: [{turns: [{text: a, delay_ms: -1}]}]", "delay_ms must be a whole number"),
        ("agents: [{turns: [{text: a, finish: bored}]}]", "unknown finish 'bored'; known: stop"),
        ("agents: [{turns: [{error: {reason: a}}]}]", "error: unknown key 'reason'"),
        ("agents: [{when: {agent: a}}]", "when: unknown key 'agent'"),
        ("agents: [{when: {tools_include: {}}}]", "a list is needed here"),
        ("agents: {", "no valid YAML"),
    ],
)
async def test_a_mistake_in_a_script_names_its_place(tmp_path: Path, script: str, place: str) -> None:
    (tmp_path / "bad.yaml").write_text(script)
    with pytest.raises(InvalidRequest, match=place) as caught:
        Models(scripts_dir=tmp_path).resolve("scripted:bad.yaml")
    assert caught.value.code == "invalid_script"


async def test_a_python_script_decides_by_itself(tmp_path: Path) -> None:
    (tmp_path / "clever.py").write_text(
        textwrap.dedent(
            """
            def reply(request):
                if len(request.messages) > 2:
                    raise ValueError("too long")
                return {"text": f"{len(request.tools)} tools"}
            """
        )
    )
    model = Models(scripts_dir=tmp_path).resolve("scripted:clever")
    assert (await ask(model, TASK, (READ, GLOB))).reply.text == "2 tools"
    with pytest.raises(ModelError, match="ValueError: too long"):
        await ask(model, (*TASK, user("more")))


@pytest.mark.parametrize(
    ("source", "problem"), [("x = 1", "no function reply"), ("1/0", "ZeroDivisionError"), ("def", "SyntaxError")]
)
async def test_a_python_script_that_cannot_be_used_says_why(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(InvalidRequest, match=problem):
        Models(scripts_dir=tmp_path).resolve("scripted:bad.py")


@pytest.mark.parametrize(
    "name", ["../secret.yaml", "link.yaml", "sub/../../secret.yaml", "{outside}", "missing", "notes.txt", "a\0b"]
)
async def test_scripts_outside_their_directory_do_not_exist(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "scripts"
    inside.mkdir()
    (tmp_path / "secret.yaml").write_text("agents: [{turns: [{text: secret}]}]")
    (inside / "notes.txt").write_text("agents: [{turns: [{text: secret}]}]")
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    models = Models(scripts_dir=inside)
    with pytest.raises(InvalidRequest, match="unknown script") as caught:
        models.resolve(f"scripted:{name.format(outside=tmp_path / 'secret.yaml')}")
    assert caught.value.code == "unknown_model"
    assert not [entry for entry in models.listing() if "link" in entry["name"]]


async def test_a_script_is_found_by_name_by_file_and_by_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "own.yaml"
    path.write_text("agents: [{turns: [{text: own}]}]")
    models = Models(scripts_dir=tmp_path)
    for name in ("sub/own", "sub/own.yaml", str(path)):
        assert (await ask(models.resolve(f"scripted:{name}"))).reply.text == "own"


async def test_echo_answers_with_the_task() -> None:
    assert (
        await ask(Models().resolve("scripted:echo"), (system("s"), user("Hello {{ task }}")))
    ).reply.text == "Hello {{ task }}"


DISPATCH = spec("dispatch_subagent", "agent_type", "task", delegation=True)


async def test_arguments_that_json_cannot_carry_are_cleaned_and_no_fault_of_the_run() -> None:
    model = turns({"calls": [{"tool": "read_file", "arguments": {"path": "a\ud800"}}]})
    assert (await ask(model, TASK, (READ,))).reply.tool_calls[0].arguments == {"path": "a\N{REPLACEMENT CHARACTER}"}


async def test_the_demo_delegates_twice_in_one_turn_and_answers_from_what_the_tools_gave() -> None:
    surface, key = DISPATCH, "task"
    model = Models().resolve("scripted:demo")
    outputs = {"glob": "README.md\nnotes/a.md", "read_file": "# Demo\nsecond line"}
    first = (await ask(model, TASK, (surface,))).reply
    assert len(first.tool_calls) == 2
    reports = []
    for call in first.tool_calls:
        assert call.arguments is not None
        asked, history = await play(model, (system("helper"), user(call.arguments[key])), (READ, GLOB), outputs)
        assert len(asked) == 2
        reports.append(history[-1].content)
    assert "notes/a.md" in reports[0] and "# Demo" in reports[1]
    history = (*TASK, assistant(first.text, *first.tool_calls))
    history = (*history, *(result(call, text) for call, text in zip(first.tool_calls, reports, strict=True)))
    last = (await ask(model, history, (surface,))).reply
    assert reports[0] in last.text and reports[1] in last.text and not last.tool_calls


async def test_scripted_turns_make_a_history_that_providers_accept() -> None:
    model = Models().resolve("scripted:demo")
    task = (system("helper"), user("Find the text files of the workspace"))
    _, history = await play(model, task, (READ, GLOB), {"glob": ""})
    wire = wire_messages(history, provider="p")
    assert history_problem(wire) is None
    assert json.loads(wire[2]["tool_calls"][0]["function"]["arguments"]) == {"pattern": "**/*.md"}
