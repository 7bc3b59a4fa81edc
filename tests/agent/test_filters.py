"""Input filters: what a task loses or gains before a subagent gets it, in which order, what a bad filter leads to."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.definition import AgentDefinition
from app.agent.filters import CONTEXT_CHARS, CUT_NOTE, InputFilters, cut_context, inject
from app.agent.orders import Delegator, HandoffOrder, HandoffResult
from app.agent.policy import FilterRef, HandoffInput, HandoffPolicy, OnProblem, Reaction
from app.agent.runs import HandoffStatus
from app.masking import ValueMasker
from app.tools.function import load_object
from tests.agent.handoff_events import told
from tests.agent.own_filters import SECRET
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, world

GIVEN = HandoffInput(tool="dispatch_subagent", agent="node", session_id="ses_1", task="the task", context="the context")


def own(name: str) -> FilterRef:
    """A filter of an operator."""
    return FilterRef(name=f"tests.agent.own_filters:{name}")


async def applied(given: HandoffInput, *refs: FilterRef, limit_s: float = WAIT_S) -> HandoffInput:
    """What these filters make of an input."""
    return await InputFilters(ValueMasker([SECRET]), load_object, limit_s).apply(refs, given)


# ── what each does ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 37)
async def test_secrets_are_masked_wherever_they_stand() -> None:
    fields = {"a": f"x {SECRET}", "b": [{"c": SECRET}, 3, None], "n": 1.5}
    given = HandoffInput(
        tool="t",
        agent="a",
        session_id="s",
        task=f"use {SECRET}",
        context=SECRET,
        fields=fields,
        inherited=f"> {SECRET}",
    )
    masked = await applied(given, FilterRef(name="mask_secrets"))
    assert (masked.task, masked.context, masked.inherited) == ("use [masked]", "[masked]", "> [masked]")
    assert masked.fields == {"a": "x [masked]", "b": [{"c": "[masked]"}, 3, None], "n": 1.5}
    assert SECRET in given.task, "the input itself is not changed"


@given(st.text(max_size=60), st.integers(1, 50))
@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 37)
def test_a_context_is_cut_to_its_head_and_says_so_and_cutting_again_changes_nothing(context: str, most: int) -> None:
    cut = cut_context(replace(GIVEN, context=context), most)
    if len(context) <= most:
        assert cut.context == context
    else:
        assert cut.context == context[:most] + CUT_NOTE
    assert cut.task == GIVEN.task
    assert cut_context(cut, most) == cut


@pytest.mark.spec("4.2")
async def test_without_a_number_a_long_context_is_cut_to_the_default() -> None:
    cut = await applied(replace(GIVEN, context="x" * 20_000), FilterRef(name="cut_context"))
    assert cut.context == "x" * CONTEXT_CHARS + CUT_NOTE


@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 37)
def test_fields_are_put_into_the_arguments_of_an_agent_that_has_some_else_into_the_context() -> None:
    added = {"region": "EU", "level": 2}
    assert inject(GIVEN, added).context == "the context\n\nregion: EU\nlevel: 2"
    assert inject(replace(GIVEN, context=""), added).context == "region: EU\nlevel: 2"
    with_fields = inject(replace(GIVEN, task="", fields={"a": 1, "region": "US"}), added)
    assert with_fields.fields == {"a": 1, "region": "EU", "level": 2}
    assert with_fields.context == GIVEN.context


@pytest.mark.spec("4.2")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["shout"], "THE TASK"),
        (["whisper"], "the task"),
        (["shout", "whisper"], "the task"),
        (["whisper", "shout"], "THE TASK"),
        (["tagged", "shout"], "THE TASK FOR NODE BY DISPATCH_SUBAGENT IN SES_"),
        (["shout", "tagged"], "THE TASK for node by dispatch_subagent in ses_"),
        (["nothing"], "the task"),
        (["shout", "nothing", "nothing_later"], "THE TASK"),
        ([], "the task"),
    ],
)
async def test_filters_of_an_operator_follow_each_other_in_order_and_one_that_returns_nothing_changes_nothing(
    names: Sequence[str], expected: str
) -> None:
    assert (await applied(GIVEN, *(own(name) for name in names))).task == expected


@pytest.mark.spec("4.2")
async def test_a_filter_cannot_send_the_task_to_another_agent_tool_or_session() -> None:
    found = await applied(GIVEN, own("diverting"))
    assert found == replace(GIVEN, task="diverted")


@pytest.mark.spec("4.2")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_input", "returned str, not the input or None"),
        ("no_text", "task is int, not a text"),
        ("no_context", "context is NoneType, not a text"),
        ("no_map", "fields is list, not a map or None"),
        ("missing", "cannot be imported"),
    ],
)
async def test_what_a_filter_may_not_return_is_refused_with_its_name(name: str, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says) as refused:
        await applied(GIVEN, own("shout"), own(name))
    assert name in str(refused.value)


@pytest.mark.spec("4.2", "5.8")
async def test_filters_that_do_not_come_to_an_end_are_given_up() -> None:
    with pytest.raises(TimeoutError):
        await applied(GIVEN, own("stuck"), limit_s=0.01)


# ── in a handoff ────────────────────────────────────────────────────────────────────────────────────────────────


async def delegated(w: World, policy: HandoffPolicy, *, said: str = "out", **order: Any) -> tuple[HandoffResult, str]:
    """A handoff under a policy that no client could set (import paths come from operators); the session's id."""
    session = await w.sessions.known(w.tenant, await w.session())
    by = Delegator(
        session=session, run=None, policy=policy, surfaces=(), model=None, parallel_tool_calls=True,
        find=lambda name: AgentDefinition(name=name, description="d", prompt=f"You are {name}.", tools=()),
    )  # fmt: skip
    definition = AgentDefinition(name="node", description="d", prompt="You are node.", tools=())
    given = HandoffOrder(tool="delegate", surface="dispatch", definition=definition, task=said, **order)
    async with w.sessions.opened(session), asyncio.timeout(WAIT_S):
        w.supervisor.worked(session.id)  # as whoever orders it does
        return await w.supervisor.handoffs.delegate(by, given), session.id


@pytest.mark.spec("4.2", "12.6")
@pytest.mark.seed("000", 37)
async def test_a_masked_and_cut_input_is_all_that_the_child_and_its_model_get(tmp_path: Path) -> None:
    async with world(tmp_path, secrets=[SECRET]) as w:
        policy = {"input_filter": ["mask_secrets", {"cut_context": 12}, {"inject": {"region": "EU"}}]}
        made = call("subagent_node", task=f"use {SECRET}", context="a context with a long end")
        await w.finished(await w.run(task({"calls": [made]}, "end"), surfaces=["per_agent"], policy=policy))
        child = next(request for request in w.requests if request.messages[1].content.startswith("use "))
        assert child.messages[1].content == f"use [masked]\n\nContext:\na context wi{CUT_NOTE}\n\nregion: EU"


@pytest.mark.spec("2.5", "4.2", "12.6")
async def test_what_a_child_inherits_of_the_conversation_goes_through_the_filters_as_well(tmp_path: Path) -> None:
    async with world(tmp_path, secrets=[SECRET]) as w:
        agents = [w.node(), w.node("heir", inherit_context="last:9")]
        plan = task({"text": f"the key is {SECRET}", "calls": [ask("look", agent="heir")]}, "end")
        policy = {"input_filter": ["mask_secrets"]}
        await w.finished(await w.run(plan, agents=agents, policy=policy))
        heir = next(request for request in w.requests if request.messages[0].content == "You are heir.")
        assert "the key is [masked]" in heir.messages[1].content


@pytest.mark.spec("2.5", "4.2")
@pytest.mark.case("B210")
async def test_what_is_inherited_never_holds_half_of_a_call_or_of_its_result(tmp_path: Path) -> None:
    async with world(tmp_path) as w:  # which puts every request before the strict check of histories
        for wanted in ("last:1", "last:2", "last:3", "last:50"):
            agents = [w.node(), w.node("heir", inherit_context=wanted)]
            turns = [{"text": f"step {n}", "calls": [call("glob", pattern=f"*{n}")]} for n in range(3)]
            open_call = {"text": "both", "calls": [call("glob", pattern="*"), ask("look", agent="heir")]}
            row = await w.finished(await w.run(task(*turns, open_call, "end"), agents=agents))
            assert row["output"] == "end"
            heir = [r for r in w.requests if r.messages[0].content == "You are heir."][-1]
            assert [m.role.value for m in heir.messages] == ["system", "user"]
            text = heir.messages[1].content
            assert text.startswith("look\n\n")
            count = int(wanted.removeprefix("last:"))
            assert text.count("assistant: ") == min(count, 4)
            assert "No files" not in text
            assert "glob" not in text or count > 4, "only the quoted task of the caller names it"


@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 38)
async def test_own_filters_change_what_the_child_gets_and_nothing_that_the_event_says_was_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        policy = HandoffPolicy(input_filters=(own("nothing"), own("shout"), own("diverting"), own("nothing_later")))
        result, session = await delegated(w, policy, context="why")
        assert (result.status, result.output) == (HandoffStatus.COMPLETED, "echo: diverted\n\nContext:\nwhy")
        (start,) = await w.events(session, "handoff.start")
        assert start["data"]["input"] == "out\n\nContext:\nwhy"
        (run,) = await w.rows("runs", session_id=session)
        assert (run["agent"], run["session_id"]) == ("node", session)


@pytest.mark.spec("4.2", "4.6", "4.7")
@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("raising", "input_filter_failed", "LookupError"),
        ("raising_later", "input_filter_failed", "LookupError"),
        ("hasty", "input_filter_failed", "TimeoutError"),
        ("leaving", "input_filter_failed", "SystemExit"),
        ("torn_down", "input_filter_failed", "CancelledError"),
        ("no_input", "input_filter_failed", "TypeError"),
        ("no_text", "input_filter_failed", "TypeError"),
        ("no_json", "input_filter_failed", "TypeError"),
        ("missing", "input_filter_failed", "ValueError"),
        ("refusing", "tool_error", "tasks about customers stay here"),
    ],
)
@pytest.mark.parametrize("answer", [None, "instead"])
async def test_a_filter_that_fails_is_an_error_with_no_attempt_and_under_on_error(
    tmp_path: Path, name: str, code: str, says: str, answer: str | None
) -> None:
    async with world(tmp_path) as w:
        on_error = None if answer is None else OnProblem(reaction=Reaction.ANSWER, target=answer)
        policy = HandoffPolicy(max_retries=3, on_error=on_error, input_filters=(own("shout"), own(name)))
        result, session = await delegated(w, policy)
        (end,) = await w.events(session, "handoff.end")
        status = "failed" if answer is None else "fallback"
        assert (end["data"]["status"], end["data"]["attempts"], end["data"]["run_ids"]) == (status, 0, [])
        assert end["data"]["output"] == (answer or "")
        assert end["data"]["error"]["code"] == code
        assert says in end["data"]["error"]["message"]
        assert SECRET not in json.dumps(end)
        assert await w.rows("runs", session_id=session) == []
        assert result.attempts == 0


@pytest.mark.spec("4.1", "4.2")
async def test_where_a_filter_fails_no_other_agent_or_model_gets_the_input_unfiltered(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for reaction, target in ((Reaction.AGENT, "helper"), (Reaction.MODEL, "scripted:echo")):
            on_error = OnProblem(reaction=reaction, target=target)
            policy = HandoffPolicy(on_error=on_error, input_filters=(own("raising"),))
            result, session = await delegated(w, policy)
            assert (result.status, result.fallback) == (HandoffStatus.FAILED, None)
            assert result.error is not None
            assert f"the fallback {reaction.value} {target!r} was not tried" in result.error.message
            assert await w.rows("runs", session_id=session) == []
        assert w.requests == []


@pytest.mark.spec("4.1", "4.2")
async def test_the_agent_that_stands_in_is_the_one_that_filters_are_told_of(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        denial = OnProblem(reaction=Reaction.AGENT, target="helper")
        policy = HandoffPolicy(denied_tools=("delegate(node)",), on_denied=denial, input_filters=(own("tagged"),))
        result, _ = await delegated(w, policy)
        assert result.status is HandoffStatus.FALLBACK
        assert result.output == "echo: out for helper by delegate in ses_"


@pytest.mark.spec("4.3")
@pytest.mark.seed("000", 33)
async def test_a_policy_that_is_off_has_no_filter(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        result, _ = await delegated(w, HandoffPolicy(enabled=False, input_filters=(own("raising"),)))
        assert result.output == "echo: out"


@pytest.mark.spec("4.2", "4.10")
async def test_filters_of_a_parent_come_before_those_of_a_child_also_for_what_the_child_delegates(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        middle = w.node("middle", handoff={"input_filter": [{"inject": {"level": "child"}}]})
        inner = task({"calls": [call("subagent_node", task="deep")]}, "inner")
        run = await w.run(
            task({"calls": [call("subagent_middle", task=inner)]}, "end"), agents=[w.node(), middle],
            surfaces=["per_agent"], policy={"max_depth": 3, "input_filter": [{"cut_context": 5}]},
        )  # fmt: skip
        assert (await w.finished(run))["output"] == "end"
        (deep,) = [m["content"] for m in await w.rows("messages", role="user", depth=2)]
        assert deep == "deep\n\nContext:\nlevel: child", "added behind the cut"
        assert [r["is_error"] for r in await told(w, run.session_id)] == [False]
