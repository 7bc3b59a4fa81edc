"""One turn's calls: parallel or in order, each with exactly one result, whatever a model sends and a tool does."""

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent import artifacts
from app.agent.errors import ToolError
from app.agent.tools import OutputLimit, ToolContext
from app.masking import ValueMasker
from app.tools.function import tool
from tests.agent.probes import PATH, Probe, Stage, echo, raising
from tests.longer import examples
from tests.plan import call, raw_call, task
from tests.world import WAIT_S, World, world


def turn(*calls: dict[str, Any]) -> str:
    """A task that makes these calls in one turn and then answers."""
    return task({"calls": list(calls)}, "done")


async def results(w: World, session_id: str) -> list[dict[str, Any]]:
    """The tool messages of a session in their order in the memory."""
    found = [e["data"] for e in await w.events(session_id, "tool.result")]
    return sorted(found, key=lambda data: data["memory_seq"])


def shown(w: World) -> list[str]:
    """The tool messages that the model saw last."""
    return [m.content for m in w.requests[-1].messages if m.role == "tool"]


@pytest.mark.spec("5.2", "3.5", "12.2")
@pytest.mark.case("B025", "B060")
async def test_safe_calls_run_side_by_side_and_others_are_barriers(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        names = {"a": "hold", "b": "hold", "c": "solo", "d": "hold", "e": "hold"}
        run = await w.run(turn(*(call(name, key=key) for key, name in names.items())))
        await stage.reached("+a", "+b")
        assert set(stage.diary) == {"+a", "+b"}
        stage.open("b")
        await stage.reached("-b")
        stage.open("a", "d", "e")
        await stage.reached("+c")
        assert not {"+d", "+e"} & set(stage.diary)
        stage.open("c")
        await w.finished(run)
        assert stage.diary.index("-c") < min(stage.diary.index("+d"), stage.diary.index("+e"))
        assert shown(w) == [f"result of {key}" for key in "abcde"]
        finished = [e["data"]["content"] for e in await w.events(run.session_id, "tool.result")]
        assert finished[:2] == ["result of b", "result of a"], "progress comes as each finishes"
        rows = [r["content"] for r in await w.rows("messages", run_id=run.id, role="tool")]
        assert sorted(rows) == sorted(finished)
        assert [r["sub"] for r in await results(w, run.session_id)] == [1, 2, 3, 4, 5]


def failing(stage: Stage, *seen: str) -> Probe:
    """A safe tool that fails once the diary has these entries."""

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await stage.reached(*seen)
        raise ToolError("no such place")

    return Probe("failing", body, read_only=True, concurrency_safe=True)


@pytest.mark.spec("5.2")
async def test_a_call_that_fails_ends_those_beside_it_where_the_agent_wants_that(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=(*stage.tools, failing(stage, "+a", "+b"))) as w:
        beside = [call("hold", key="a"), call("failing"), call("hold", key="b")]
        run = await w.run(turn(*beside, call("solo", key="c")), agents=[w.node(abort_siblings=True)])
        stage.open("c")
        await w.finished(run)
        assert [entry for entry in sorted(stage.diary) if entry in ("!a", "!b")] == ["!a", "!b"]
        assert stage.diary.index("!b") < stage.diary.index("+c"), "the next group begins as ever"
        broken = "(cancelled: failing, called beside it, failed)"
        assert shown(w) == [broken, "no such place", broken, "result of c"]
        found = [(r["sub"], r["status"]) for r in await results(w, run.session_id)]
        assert found == [(1, "cancelled"), (2, "error"), (3, "cancelled"), (4, "ok")]


@pytest.mark.spec("5.2")
async def test_a_call_that_fails_leaves_those_beside_it_alone_otherwise(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=(*stage.tools, failing(stage, "+a"))) as w:
        run = await w.run(turn(call("hold", key="a"), call("failing")))
        await w.until(run.session_id, "tool.result")
        stage.open("a")
        await w.finished(run)
        assert shown(w) == ["result of a", "no such place"]


@pytest.mark.spec("3.5")
@pytest.mark.parametrize("where", ["session", "definition"])
async def test_without_parallel_calls_everything_runs_one_by_one(tmp_path: Path, where: str) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        node = w.node(parallel_tool_calls=False) if where == "definition" else w.node()
        more: dict[str, Any] = {"parallel_tool_calls": False} if where == "session" else {}
        stage.open("a", "b", "c")
        run = await w.run(turn(*(call("hold", key=key) for key in "abc")), agents=[node], **more)
        await w.finished(run)
        assert stage.diary == ["+a", "-a", "+b", "-b", "+c", "-c"]
        assert w.requests[0].parallel_tool_calls is False


FAULTS = [
    RuntimeError("secret path /etc/passwd"),
    TimeoutError("mine"),
    asyncio.CancelledError("nobody cancelled"),
    StopAsyncIteration(),
    SystemExit(3),
    ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    RecursionError("deep"),
    MemoryError(),
    ToolError("the model may read this"),
]


@pytest.mark.spec("7.1", "5.2")
@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("alone", [True, False])
async def test_whatever_a_tool_raises_is_the_result_of_that_call_alone(
    tmp_path: Path, error: BaseException, alone: bool
) -> None:
    stage = Stage()
    bad = Probe("bad", raising(error), concurrency_safe=True, read_only=True)
    async with world(tmp_path, tools=(bad, *stage.tools)) as w:
        stage.open("x")
        calls = [call("bad")] if alone else [call("hold", key="x"), call("bad"), call("bad")]
        row = await w.finished(await w.run(turn(*calls)))
        assert (row["status"], row["output"]) == ("completed", "done")
        assert len(shown(w)) == len(calls)
        text = shown(w)[-1]
        assert ("the model may read this" in text) == isinstance(error, ToolError)
        assert "/etc/passwd" not in text
        assert [r["is_error"] for r in await results(w, row["session_id"])] == [False, True, True][-len(calls) :]


@pytest.mark.spec("7.1")
@pytest.mark.case("B069")
async def test_a_tool_that_takes_too_long_is_stopped_and_the_run_goes_on(tmp_path: Path) -> None:
    stopped = asyncio.Event()

    async def slow(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            stopped.set()
        return "never"

    async with world(tmp_path, tools=(Probe("slow", slow, timeout_ms=20),)) as w:
        row = await w.finished(await w.run(turn(call("slow"))))
        assert row["status"] == "completed"
        assert stopped.is_set()
        (result,) = await results(w, row["session_id"])
        assert (result["status"], result["is_error"]) == ("timed_out", True)
        assert "20 ms" in result["content"]


@pytest.mark.spec("4.2", "7.2")
async def test_an_unknown_tool_is_an_error_result_that_lists_those_there_are(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        (tmp_path / "workspace" / "a.txt").write_text("hello")
        row = await w.finished(await w.run(turn(call("fly"), call("read_file", path="a.txt"), call(" \u0000x" * 30))))
        assert row["status"] == "completed"
        first, second, third = await results(w, row["session_id"])
        assert (first["status"], third["status"]) == ("unknown_tool", "unknown_tool")
        assert "Available tools: dispatch_subagent, read_file, glob, grep." in first["content"]
        assert "hello" in second["content"]
        assert await w.events(row["session_id"], "handoff.start") == []


# what the model sends, and what the tool gets (None: it is not run)
SENT: list[tuple[str, Any]] = [
    ('{"path": "a"}', {"path": "a"}),
    (' {"path":"a"} ', {"path": "a"}),
    ('{"path": "a"', None),
    ('{"path": "a",}', None),
    ('{"path": "a"} and more', None),
    ("{'path': 'a'}", None),
    ("", None),
    ("null", None),
    ("[]", None),
    ("42", None),
    ('"x"', None),
    ("true", None),
    ('{"path": 1}', None),
    ('{"path": null}', None),
    ('{"path": "a", "more": 1}', None),
    (json.dumps('{"path": "a"}'), {"path": "a"}),
    (json.dumps(json.dumps('{"path": "a"}')), None),
    ('{"path": "a", "tags": "[\\"x\\"]"}', {"path": "a", "tags": ["x"]}),
    ('{"path": "a", "tags": "x, y"}', None),
    ('{"path": "a", "tags": "[1]"}', None),
    ('{"path": "a", "options": "{\\"k\\": 1}"}', {"path": "a", "options": {"k": 1}}),
    ('{"path": "{\\"a\\": 1}"}', {"path": '{"a": 1}'}),
    ('{"path": "[\\"x\\"]", "tags": "[]"}', {"path": '["x"]', "tags": []}),
    ('{"path": "a", "tags": ' + "[" * 90_000, None),
    ("[" * 90_000, None),
    (json.dumps("[" * 90_000), None),
    (json.dumps('{"path": "a", "options": ' + '{"a":' * 9000 + "1" + "}" * 9001), None),
    ('{"path": "a", "options": ' + '{"a":' * 9000 + "1" + "}" * 9001, None),
    ('{"path": "a", "options": ' + json.dumps("[" * 90_000) + "}", None),
    ('{"path": "\\ud83c"}', None),
    ('{"path": ' + "9" * 6000 + "}", None),
    ('{"path": NaN}', None),
]


@pytest.mark.spec("7.1")
@pytest.mark.case("B038", "B039", "B040", "B041", "B042", "B043", "B044")
async def test_a_tool_is_run_on_valid_arguments_only_and_each_call_gets_its_own_answer(tmp_path: Path) -> None:
    probe = Probe("probe", echo, PATH, read_only=True)
    async with world(tmp_path, tools=(probe,)) as w:
        row = await w.finished(await w.run(turn(*(raw_call("probe", raw) for raw, _ in SENT))))
        assert (row["status"], row["output"]) == ("completed", "done")
        assert probe.arguments == [wanted for _, wanted in SENT if wanted is not None]
        answers = await results(w, row["session_id"])
        for (raw, wanted), answer in zip(SENT, answers, strict=True):
            assert answer["status"] == ("ok" if wanted is not None else "invalid_arguments"), (raw[:80], answer)
            assert len(answer["content"]) < 2000
            assert answer.get("arguments") == (None if wanted is not None else raw), raw[:80]


@given(st.lists(st.one_of(st.text(max_size=30), st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.sampled_from(["path", "tags", "x"]), x, max_size=3),
).map(json.dumps)), min_size=1, max_size=6))  # fmt: skip
@settings(max_examples=examples(25), deadline=None)
@pytest.mark.spec("7.1")
@pytest.mark.case("B038", "B040")
async def test_garbage_never_runs_a_tool_and_never_ends_a_run(
    tmp_path_factory: pytest.TempPathFactory, sent: list[str]
) -> None:
    probe = Probe("probe", echo, PATH, read_only=True, concurrency_safe=True)
    async with world(tmp_path_factory.mktemp("garbage"), tools=(probe,)) as w:
        row = await w.finished(await w.run(turn(*(raw_call("probe", raw) for raw in sent))))
        assert (row["status"], row["output"]) == ("completed", "done")
        assert all(isinstance(got.get("path"), str) for got in probe.arguments)


@pytest.mark.spec("7.5")
async def test_an_output_over_the_limit_is_cut_for_the_model_and_says_how_long_it_was(tmp_path: Path) -> None:
    async def long(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return "h" * 50 + "m" * 1000 + "t" * 50

    limit = OutputLimit(max_chars=200, head_chars=50, tail_chars=50)
    async with world(tmp_path, tools=(Probe("long", long),), output_limit=limit) as w:
        ended = await w.finished(await w.run(turn(call("long"))))
        (result,) = await results(w, ended["session_id"])
        note = f"[… 1000 characters left out of 1100; the whole is artifact {result['artifact_id']} …]"
        assert result["content"].startswith("h" * 50 + "\n\n" + note)
        assert result["content"].endswith("t" * 50)
        assert (result["length"], shown(w)) == (1100, [result["content"]])
        (row,) = await w.rows("artifacts", session_id=ended["session_id"])
        assert (row["id"], row["call_id"], row["run_id"]) == (result["artifact_id"], result["call_id"], ended["id"])
        assert row["content"] == b"h" * 50 + b"m" * 1000 + b"t" * 50
        assert (row["size_bytes"], row["media_type"]) == (1100, "text/plain; charset=utf-8")


@pytest.mark.spec("7.5", "12.6")
async def test_an_artifact_is_whole_masked_bounded_and_offered_only_to_those_who_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def long(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return "é" * 500 + "sk-0123456789" + "é" * 500

    async def nothing(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return ""

    monkeypatch.setattr(artifacts, "MAX_BYTES", 1501)  # in the middle of a character
    limit = OutputLimit(max_chars=200, head_chars=50, tail_chars=50)
    tools = (Probe("long", long), Probe("read_artifact", nothing))
    async with world(tmp_path, tools=tools, output_limit=limit, secrets=["sk-0123456789"]) as w:
        ended = await w.finished(await w.run(turn(call("long"))))
        (result,) = await results(w, ended["session_id"])
        assert "; read_artifact reads it …]" in result["content"]
        (row,) = await w.rows("artifacts", session_id=ended["session_id"])
        text = row["content"].decode()
        assert text.startswith("é" * 500 + "[masked]" + "é")
        assert text.endswith("é\n[cut here: the output was larger than an artifact may be]")
        assert row["size_bytes"] == len(row["content"]) <= 1501
        await w.finished(await w.run(turn(call("read_artifact"))))  # what is short leaves none
        assert len(await w.rows("artifacts")) == 1


@pytest.mark.spec("12.6")
async def test_a_secret_in_an_output_reaches_neither_the_model_nor_the_log(tmp_path: Path) -> None:
    secret = "sk-0123456789"

    async def leak(_arguments: Mapping[str, Any], context: ToolContext) -> str:
        context.progress(f"reading {secret[:6]}")
        context.progress(f"{secret[6:]} …")
        return f"the key is {secret}"

    async with world(tmp_path, tools=(Probe("leak", leak),), secrets=[secret]) as w:
        row = await w.finished(await w.run(turn(call("leak", hint=secret))))
        assert shown(w) == ["the key is [masked]"]
        for event in await w.events(row["session_id"]):
            assert secret not in json.dumps(event)


@pytest.mark.spec("11.6")
@pytest.mark.case("B069", "B153")
async def test_what_a_tool_still_says_after_its_call_has_ended_is_not_shown(tmp_path: Path) -> None:
    kept: list[ToolContext] = []

    async def talk(_arguments: Mapping[str, Any], context: ToolContext) -> str:
        kept.append(context)
        context.progress("in time")
        return "ok"

    async with world(tmp_path, tools=(Probe("talk", talk),)) as w:
        session = await w.session()
        texts = asyncio.create_task(w.until(session, "tool.progress"))
        row = await w.finished(await w.turn(session, turn(call("talk"))))
        assert (await texts)["text"] == "in time"
        kept[0].progress("too late")
        assert w.bus._topics == {}, "a text that no step ends would be kept for ever"
        assert row["status"] == "completed"


@pytest.mark.spec("7.1", "7.8")
async def test_a_function_in_a_thread_shows_what_it_is_at_and_nobody_notices_the_thread(tmp_path: Path) -> None:
    @tool(read_only=True)
    def work(context: ToolContext) -> str:
        """Works in a thread."""
        for at in range(20):
            context.progress(f"{at} ")
        return str(threading.get_ident())

    async with world(tmp_path, tools=(work,)) as w:
        session = await w.session()
        texts = asyncio.create_task(w.until(session, "tool.progress", where=lambda data: "19 " in data["text"]))
        await w.finished(await w.turn(session, turn(call("work"))))
        assert (await texts)["at"] + len("19 ") == sum(len(f"{at} ") for at in range(20))
        assert shown(w) != [str(threading.get_ident())]


@pytest.mark.spec("11.6")
async def test_calls_are_counted_by_tool_in_the_order_of_their_first_use(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        stage.open("a", "b")
        plan = turn(call("solo", key="a"), call("hold", key="b"), call("nothing"), call("solo", key="a"))
        row = await w.finished(await w.run(plan))
        assert [(a["name"], a["calls"]) for a in row["activity"]] == [("solo", 2), ("hold", 1), ("nothing", 1)]


@pytest.mark.spec("6.5")
@pytest.mark.parametrize(("name", "read_only"), [("solo", False), ("hold", True)])
async def test_only_a_tool_with_side_effects_waits_until_its_start_is_stored(
    tmp_path: Path, name: str, read_only: bool
) -> None:
    stored: list[bool] = []
    holder: list[World] = []

    async def look(_arguments: Mapping[str, Any], context: ToolContext) -> str:
        w = holder[0]
        head = w.journal.head(context.session.id) or 0
        stored.append(head == w.journal.recorded(context.session.id))
        return "ok"

    tool = Probe(name, look, read_only=read_only)
    async with world(tmp_path, tools=(tool,)) as w:
        holder.append(w)
        await w.finished(await w.run(turn(call(name))))
    assert stored == [not read_only]


@pytest.mark.spec("12.6")
async def test_a_long_output_full_of_secrets_is_masked_while_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, mask, met = asyncio.get_running_loop(), ValueMasker.text, list[bool]()

    def met_by_the_loop(masker: ValueMasker, text: str) -> str:
        if len(text) > 100_000:
            come = threading.Event()
            loop.call_soon_threadsafe(come.set)
            met.append(come.wait(WAIT_S / 4))
        return mask(masker, text)

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return "the-secret " * 20_000

    monkeypatch.setattr(ValueMasker, "text", met_by_the_loop)
    async with world(tmp_path, tools=(Probe("long", body),), secrets=["the-secret"]) as w:
        run = await w.run(turn(call("long")))
        await w.finished(run)
        assert met == [True]
        assert shown(w)[0].startswith("[masked] [masked]")
        assert "the-secret" not in shown(w)[0]
