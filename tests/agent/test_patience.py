"""Retries inside a step: what is tried again and what is not, what is taken back, and one gate for each model."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.compaction import Compaction
from app.agent.errors import ModelError
from app.agent.patience import ModelGates, Patience
from app.agent.texts import DEFAULT
from app.llm.profile import Profile
from app.sessions.feed import View
from tests.agent.probes import Stage
from tests.agent.purse import waiting
from tests.plan import ask, call, task
from tests.stubs.openai_stub import Answer, OpenAIStub, Write, call_chunk, calls, chunk, refusal, sse, stream, text
from tests.world import WAIT_S, World, frames, world

QUICK = Patience(retries=3, backoff_ms=1, max_backoff_ms=2)
NEVER = Patience(backoff_ms=600_000, max_backoff_ms=600_000)  # a pause that no test waits for
HOUR_MS = 3_600_000
BUSY = {"code": "model_overloaded", "message": "too many people", "retryable": True}
LOOK = {"text": "I look.", "calls": [call("glob", pattern="*")]}
HALF = sse(chunk({"role": "assistant", "content": ""}), chunk({"content": "Here is the pl"}), done=False)
HALF_A_CALL = sse(call_chunk(id="call_0", name="glob", arguments='{"patt'), done=False)


async def retried(w: World, session_id: str) -> list[dict[str, Any]]:
    """What was said of every try that failed."""
    return [event["data"] for event in await w.events(session_id, "step.retried")]


async def replies(w: World, session_id: str) -> list[tuple[str, bool]]:
    """What the history holds of the model: each text, and whether it is only a part."""
    found = [e["data"] for e in await w.events(session_id, "message") if e["data"]["role"] == "assistant"]
    return [(data["content"], data.get("partial", False)) for data in found]


# ── how long, and how often ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.8")
@given(
    tried=st.integers(1, 200),
    backoff_ms=st.integers(0, 1000),
    max_backoff_ms=st.integers(0, 5000),
    asked_ms=st.none() | st.integers(0, 20_000),
)
def test_a_pause_doubles_up_to_its_bound_and_is_never_shorter_than_the_provider_asks_for(
    tried: int, backoff_ms: int, max_backoff_ms: int, asked_ms: int | None
) -> None:
    patience = Patience(retries=100, backoff_ms=backoff_ms, max_backoff_ms=max_backoff_ms, max_wait_ms=10_000)
    pause = patience.pause_ms(tried, ModelError("busy", retryable=True, retry_after_ms=asked_ms))
    if tried > 100 or (asked_ms or 0) > 10_000:
        assert pause is None
        return
    full = min(max_backoff_ms, backoff_ms * 2 ** (tried - 1))
    assert pause is not None
    assert max(full / 2, asked_ms or 0) <= pause <= max(full, asked_ms or 0)


@pytest.mark.spec("5.8")
def test_an_error_that_cannot_pass_is_not_tried_again() -> None:
    assert Patience().pause_ms(1, ModelError("no such model", retryable=False)) is None


@pytest.mark.spec("5.8")
async def test_a_gate_opens_for_everybody_at_the_later_of_two_moments_and_other_models_have_their_own() -> None:
    gates = ModelGates()
    gates.close("a", 30)
    gates.close("a", 1)
    assert 1 < gates.left_ms("a") <= 30
    assert gates.left_ms("b") == 0
    waits = [await waiting(gates.passed("a")) for _ in range(3)]
    gates.close("a", 60)
    async with asyncio.timeout(WAIT_S):
        await gates.passed("b")
        assert not any(wait.done() for wait in waits)
        await asyncio.gather(*waits)
    assert gates.left_ms("a") == 0


# ── what is tried again ─────────────────────────────────────────────────────────────────────────────────────────────

PASSING = {
    "refused for now": (refusal(503, {"message": "overloaded"}), "model_overloaded"),
    "rate limit": (refusal(429, {"message": "slow down"}), "model_rate_limited"),
    "closed in the middle of a text": (Answer(writes=HALF, end="close"), None),
    "reset in the middle of a text": (Answer(writes=HALF, end="reset"), None),
    "ends without a sign of it": (Answer(writes=HALF), "model_incomplete"),
    "closed in the middle of a call": (Answer(writes=HALF_A_CALL, end="close"), None),
    "an error in the stream": (stream({"error": {"message": "no room", "code": 429}}), None),
    "an error after some text": (stream(*HALF, {"error": {"message": "no room", "code": 429}}), None),
    "an error as a text": (stream({"error": "no room"}), None),
    "never a byte": (Answer(end="hang"), "model_timeout"),
    "a role and then nothing": (Answer(writes=HALF[:1], end="hang"), "model_timeout"),
    "some text and then nothing": (Answer(writes=HALF, end="hang"), "model_timeout"),
}


@pytest.mark.spec("5.8", "13.2", "5.1")
@pytest.mark.case("B015", "B017", "B019", "B020", "B072")
@pytest.mark.parametrize("name", PASSING)
async def test_an_error_that_passes_costs_a_second_try_and_leaves_one_whole_answer(tmp_path: Path, name: str) -> None:
    answer, code = PASSING[name]
    async with OpenAIStub() as stub:
        profile = Profile(
            name="stub", provider="openai", model="m", base_url=stub.base_url, api_key="key-of-it", idle_s=0.5
        )
        async with world(tmp_path, profiles={"stub": profile}, model="stub", patience=QUICK) as w:
            stub.script(answer, text("Here is the plan."))
            row = await w.finished(await w.run("go"))
            assert (row["status"], row["output"], row["steps"]) == ("completed", "Here is the plan.", 1), row
            assert await replies(w, row["session_id"]) == [("Here is the plan.", False)]
            (told,) = await retried(w, row["session_id"])
            assert told["attempt"] == 1
            assert code in (None, told["code"])
            assert [r.messages for r in stub.requests] == [stub.requests[0].messages] * 2
            assert row["usage"]["model_calls"] == 2
            assert await w.rows("tool_calls") == []
            started = await w.events(row["session_id"], "step.started", "step.completed")
            assert [event["type"] for event in started] == ["step.started", "step.completed"]


@pytest.mark.spec("5.8", "13.2")
@pytest.mark.case("B016")
@pytest.mark.parametrize(
    "answer",
    [
        Answer(writes=sse(chunk({"content": "Here "}), chunk({"content": "it is."}, "stop"))),
        text("Here it is."),
        Answer(writes=sse(chunk({"content": "Here it is."}), chunk({}, "stop"), done=False), framed=False, end="close"),
    ],
    ids=["reason inside the last text", "usage after the reason", "no mark at the end"],
)
async def test_a_stream_with_a_reason_for_its_end_is_whole_and_asked_for_once(tmp_path: Path, answer: Answer) -> None:
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url, patience=QUICK) as w:
        stub.script(answer)
        row = await w.finished(await w.run("go"))
        assert (row["status"], row["output"], len(stub.requests)) == ("completed", "Here it is.", 1)
        assert await retried(w, row["session_id"]) == []


@pytest.mark.spec("5.8")
async def test_what_cannot_be_retried_ends_the_run_at_once_with_the_providers_message(tmp_path: Path) -> None:
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url, patience=QUICK) as w:
        stub.script(refusal(400, {"message": "this model has no tools"}))
        row = await w.finished(await w.run("go"))
        assert (row["status"], len(stub.requests)) == ("failed", 1)
        assert "this model has no tools" in row["error"]["message"]
        assert await retried(w, row["session_id"]) == []


@pytest.mark.spec("5.8")
@pytest.mark.case("B015", "B067", "B073")
async def test_after_the_last_try_the_run_fails_with_the_providers_message_and_keeps_the_last_part(
    tmp_path: Path,
) -> None:
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url, patience=QUICK) as w:
        for said in ("one", "two", "three", "four"):
            stub.script(stream(chunk({"content": said}), {"error": {"message": f"{said} is too much", "code": 503}}))
        row = await w.finished(await w.run("go"))
        assert (row["status"], row["output"], row["usage"]["model_calls"]) == ("failed", "four", 4)
        assert "four is too much" in row["error"]["message"]
        assert await replies(w, row["session_id"]) == [("four", True)]
        told = await retried(w, row["session_id"])
        assert [(data["attempt"], data["message"].split(" is")[0].split()[-1]) for data in told] == [
            (1, "one"), (2, "two"), (3, "three"),
        ]  # fmt: skip


@pytest.mark.spec("5.8", "4.7")
@pytest.mark.case("B017", "B073")
async def test_a_child_whose_model_never_takes_a_request_ends_and_its_parent_is_told_why(tmp_path: Path) -> None:
    async with world(tmp_path, patience=Patience(retries=2, backoff_ms=1, max_backoff_ms=2)) as w:
        row = await w.finished(await w.run(task({"calls": [ask(task({"error": BUSY}))]}, "The parent goes on.")))
        assert (row["status"], row["output"]) == ("completed", "The parent goes on.")
        (child,) = await w.rows("runs", depth=1)
        assert (child["status"], child["error"]["message"]) == ("failed", "too many people")
        tries = await w.events(row["session_id"], "step.retried")
        assert [(event["run_id"], event["data"]["attempt"]) for event in tries] == [(child["id"], 1), (child["id"], 2)]
        (result,) = await w.events(row["session_id"], "tool.result")
        assert result["data"]["is_error"] is True
        assert "too many people" in result["data"]["content"]


@pytest.mark.spec("5.8", "5.5")
async def test_a_forced_answer_is_tried_again_too(tmp_path: Path) -> None:
    async with world(tmp_path, patience=QUICK) as w:
        plan = task(LOOK, final={"error": BUSY, "times": 2, "text": "What there is."})
        row = await w.finished(await w.run(plan, limits={"max_steps": 1}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "max_steps", "What there is.")
        assert (row["forced"], row["steps"], row["usage"]["model_calls"]) == (True, 2, 4)
        tries = await w.events(row["session_id"], "step.retried")
        assert [(event["step"], event["data"]["attempt"]) for event in tries] == [(2, 1), (2, 2)]
        assert [len(r.tools) > 0 for r in w.requests] == [True, False, False, False]
        assert len(await w.events(row["session_id"], "answer.forced")) == 1


# ── what is taken back ──────────────────────────────────────────────────────────────────────────────────────────────


async def watched(w: World, session_id: str) -> list[dict[str, Any]]:
    """Every frame of a session up to the end of its turn."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_S):
        async for frame in frames(w.feed, View(tenant=w.tenant, session_id=session_id)):
            found.append(frame)
            if frame["event"] in ("run.completed", "run.failed"):
                break
    return found


def shown_before(seen: Sequence[dict[str, Any]], at: int) -> dict[tuple[str, str | None], str]:
    """What deltas have said since the try began that ends at frame `at`, by type and call; their offsets must fit."""
    texts: dict[tuple[str, str | None], str] = {}
    for frame in seen[:at]:
        if frame["event"] == "step.retried":
            texts = {}
        elif frame["event"].endswith(".delta"):
            key = (frame["event"], frame["data"].get("call"))
            assert frame["data"]["at"] == len(texts.get(key, ""))
            texts[key] = texts.get(key, "") + frame["data"]["text"]
    return texts


@pytest.mark.spec("5.8", "11.6", "11.1")
@pytest.mark.case("B019")
async def test_a_step_that_is_tried_again_takes_back_what_it_has_shown_with_lengths_and_digests(tmp_path: Path) -> None:
    secret = "sk-very-secret-value-0123456789"
    broken = sse(
        chunk({"reasoning_content": "Well … "}),
        chunk({"content": f"Größe 🙂 {secret[:20]}"}),
        chunk({"content": f"{secret[20:]} and sk-very"}),  # what may become a secret is held back until it cannot
        call_chunk(0, id="call_0", name="glob", arguments='{"pattern": '),
        call_chunk(1, id="call_1", name="grep", arguments='{"pat'),
        done=False,
    )
    async with (
        OpenAIStub() as stub,
        world(tmp_path, base_url=stub.base_url, patience=QUICK, secrets=[secret]) as w,
    ):
        stub.script(Answer(writes=broken, end="reset"), text("Größe: drei."))
        session = await w.session()
        seen = asyncio.create_task(watched(w, session))
        row = await w.finished(await w.turn(session, "go"))
        found = await seen
        (at,) = [at for at, frame in enumerate(found) if frame["event"] == "step.retried"]
        withdrawn = {(each["of"], each.get("call")): each for each in found[at]["data"]["data"]["withdrawn"]}
        before = shown_before(found, at)
        assert before[("text.delta", None)] == "Größe 🙂 [masked] and sk-very"
        assert sorted(kind for kind, _ in before) == [
            "reasoning.delta", "text.delta", "tool.arguments.delta", "tool.arguments.delta",
        ]  # fmt: skip
        assert {key: (each["length"], each["digest"]) for key, each in withdrawn.items()} == {
            key: (len(said), hashlib.sha256(said.encode()).hexdigest()) for key, said in before.items()
        }
        assert shown_before(found, len(found)) == {("text.delta", None): "Größe: drei."}
        assert (row["output"], await w.rows("tool_calls")) == ("Größe: drei.", [])
        assert secret not in str(found)


@pytest.mark.spec("5.8", "11.6", "11.1")
@pytest.mark.case("B019", "B020")
async def test_who_joins_during_the_second_try_is_shown_nothing_of_the_first(tmp_path: Path) -> None:
    gate = asyncio.Event()
    second: list[Write] = [*sse(chunk({"content": "Then "}), done=False), gate]
    second += sse(chunk({"content": "it is said."}), chunk({}, "stop"))
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url, patience=QUICK) as w:
        stub.script(Answer(writes=HALF, end="reset"), Answer(writes=tuple(second)))
        session = await w.session()
        is_second = asyncio.create_task(w.until(session, "text.delta", where=lambda data: data["text"] == "Then "))
        run = await w.turn(session, "go")
        await is_second
        late = asyncio.create_task(watched(w, session))
        view = View(tenant=w.tenant, session_id=session)
        async with asyncio.timeout(WAIT_S):
            async for frame in frames(w.feed, view):
                if frame["event"] == "text.snapshot":
                    break
        gate.set()
        await w.finished(run)
        texts = [f for f in await late if f["event"] in ("text.snapshot", "text.delta")]
        assert [(f["event"], f["data"]["text"]) for f in texts][-1] == ("text.delta", "it is said.")
        assert "".join(f["data"]["text"] for f in texts) == "Then it is said."
        assert (frame["data"]["of"], frame["data"]["text"], frame["data"]["at"]) == ("text.delta", "Then ", 5)
        assert [f["event"] for f in await late].count("step.started") == 1


# ── limits of it ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.8", "4.8")
async def test_each_try_is_taken_out_of_the_budget_and_without_room_for_one_the_answer_is_forced(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, patience=Patience(retries=50, backoff_ms=1, max_backoff_ms=2)) as w:
        run = await w.run(task({"error": BUSY}, final="So far."), budget={"model_calls": 4})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "So far."), row
        assert (len(w.requests), row["usage"]["model_calls"]) == (4, 4)
        assert len(await retried(w, run.session_id)) == 3


@pytest.mark.spec("5.8", "4.8", "5.5")
async def test_a_forced_answer_without_budget_for_another_try_ends_in_what_was_collected(tmp_path: Path) -> None:
    async with world(tmp_path, patience=QUICK) as w:
        (tmp_path / "workspace" / "found.txt").write_text("x")
        run = await w.run(task(LOOK, final={"error": BUSY}), budget={"model_calls": 2})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], len(w.requests)) == ("completed", "budget", 2), row
        assert "found.txt" in row["output"]


@pytest.mark.spec("5.8", "5.7")
async def test_there_is_no_second_try_that_would_begin_after_the_soft_deadline(tmp_path: Path) -> None:
    async with world(tmp_path, patience=NEVER) as w:
        row = await w.finished(
            await w.run(task({"error": BUSY, "text": "Half"}), limits={"deadline_ms": HOUR_MS // 60})
        )
        assert (row["status"], row["error"]["message"], len(w.requests)) == ("failed", "too many people", 1)
        assert await retried(w, row["session_id"]) == []
        assert await replies(w, row["session_id"]) == [("Half", True)]


@pytest.mark.spec("5.8")
async def test_a_provider_that_wants_too_long_a_pause_is_not_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path, patience=Patience(backoff_ms=1, max_backoff_ms=2, max_wait_ms=20)) as w:
        row = await w.finished(await w.run(task({"error": {**BUSY, "retry_after_ms": 21}})))
        assert (row["status"], row["error"]["message"], len(w.requests)) == ("failed", "too many people", 1)
        later = await w.finished(await w.run(task({"error": {**BUSY, "retry_after_ms": 20}, "times": 1, "text": "ok"})))
        assert (later["status"], later["output"]) == ("completed", "ok")


@pytest.mark.spec("5.8")
async def test_one_wish_to_wait_closes_the_gate_for_all_runs_of_that_model_and_for_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, patience=Patience(backoff_ms=1, max_wait_ms=HOUR_MS)) as w:
        session = await w.session()
        asked = await w.turn(session, task({"error": {**BUSY, "retry_after_ms": HOUR_MS}}))
        await w.until(session, "step.retried")
        others = [await w.run("hello") for _ in range(3)]
        for other in others:
            await w.until(other.session_id, "run.waiting", where=lambda event: event["data"]["reason"] == "retry")
        assert len(w.requests) == 1
        free = await w.finished(await w.run("hello", agents=[w.node(model="scripted:echo")]))
        assert (free["status"], len(w.requests)) == ("completed", 1)
        for run in (asked, *others):
            assert (await w.row(run))["status"] == "waiting"
            await w.sessions.cancel(w.tenant, run.id)
            assert (await w.finished(run))["status"] == "cancelled"
        assert len(w.requests) == 1


@pytest.mark.spec("5.8")
async def test_a_gate_that_closes_while_it_is_stored_that_a_call_is_made_keeps_that_call_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = ModelGates()
    async with world(tmp_path, gates=gates) as w:
        secured, times = w.journal.secured, []

        async def late(session_id: str) -> None:
            await secured(session_id)
            times.append(session_id)
            if len(times) == 1:
                gates.close("scripted:plan", 20)

        monkeypatch.setattr(w.journal, "secured", late)
        row = await w.finished(await w.run("hello"))
        waits = await w.events(row["session_id"], "run.waiting")
        assert [event["data"]["reason"] for event in waits] == ["retry"]
        assert (row["status"], len(w.requests)) == ("completed", 1)


@pytest.mark.spec("5.8")
async def test_everybody_goes_on_when_the_gate_opens(tmp_path: Path) -> None:
    async with world(tmp_path, patience=Patience(backoff_ms=1, max_backoff_ms=2)) as w:
        flaky = {"error": {**BUSY, "retry_after_ms": 50}, "times": 1, "text": "at last"}
        row = await w.finished(await w.run(task({"calls": [ask(task(flaky)), ask(task("x")), ask(task("y"))]}, "end")))
        assert (row["status"], row["output"]) == ("completed", "end")
        assert [child["status"] for child in await w.rows("runs", depth=1)] == ["completed"] * 3
        waits = await w.events(row["session_id"], "run.waiting", "run.resumed")
        kinds = [event["type"] for event in waits if event["data"]["reason"] == "retry"]
        assert kinds.count("run.waiting") == kinds.count("run.resumed") > 0


@pytest.mark.spec("5.8", "5.7")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_run_that_ends_during_a_pause_keeps_nothing_of_the_try_before_it(tmp_path: Path, how: str) -> None:
    async with world(tmp_path, patience=NEVER) as w:
        session = await w.session()
        limits = {"timeout_ms": 300} if how == "timeout" else {}
        run = await w.turn(session, task({"error": BUSY, "text": "Half of it"}), **limits)
        await w.until(session, "step.retried")
        assert (await w.row(run))["status"] in ("waiting", "timed_out")
        if how == "cancel":
            await w.sessions.cancel(w.tenant, run.id)
        row = await w.finished(run)
        assert (row["status"], row["output"]) == ("cancelled" if how == "cancel" else "timed_out", "")
        assert (await replies(w, session), len(w.requests)) == ([], 1)
        after = await w.finished(await w.turn(session, "and now?"))
        assert after["status"] == "completed"
        assert "Half" not in str([message.content for message in w.requests[-1].messages if message.role != "user"])


@pytest.mark.spec("5.8", "5.5", "5.7")
async def test_a_gate_that_opens_after_the_deadline_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    async with world(tmp_path, patience=Patience(backoff_ms=1, max_wait_ms=HOUR_MS)) as w:
        session = await w.session()
        first = await w.turn(session, task({"error": {**BUSY, "retry_after_ms": HOUR_MS}}))
        await w.until(session, "step.retried")
        row = await w.finished(await w.run("hello", limits={"deadline_ms": 200}))
        assert (row["status"], row["stop_reason"], len(w.requests)) == ("completed", "deadline", 1)
        waits = await w.events(row["session_id"], "run.waiting", "run.resumed")
        assert [(e["type"], e["data"]["reason"]) for e in waits] == [
            ("run.waiting", "retry"), ("run.resumed", "retry"),
        ] * 2, "before the deadline, and for the forced answer"  # fmt: skip
        await w.sessions.cancel(w.tenant, first.id)
        waits = await w.events(session, "run.waiting", "run.resumed")
        assert [e["type"] for e in waits] == ["run.waiting", "run.resumed"], "a cancellation ends the wait as well"


@pytest.mark.spec("5.8", "5.1")
async def test_each_step_has_tries_of_its_own(tmp_path: Path) -> None:
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url, patience=QUICK) as w:
        bad = refusal(503, {"message": "overloaded"})
        stub.script(bad, bad, bad, calls(("glob", '{"pattern": "*"}')), bad, bad, bad, text("done"))
        row = await w.finished(await w.run("go"))
        assert (row["status"], row["output"], row["steps"], len(stub.requests)) == ("completed", "done", 2, 8)
        tries = await w.events(row["session_id"], "step.retried")
        assert [(event["step"], event["data"]["attempt"]) for event in tries] == [
            (step, attempt) for step in (1, 2) for attempt in (1, 2, 3)
        ]
        assert [call["status"] for call in await w.rows("tool_calls")] == ["ok"]


@pytest.mark.spec("5.5", "5.8")
@pytest.mark.parametrize("limit", ["deadline", "steps"])
async def test_a_forced_answer_is_tried_again_whatever_forced_it(tmp_path: Path, limit: str) -> None:
    stage = Stage()
    final = {"error": BUSY, "times": 1, "text": "forced at last"}
    async with world(tmp_path, tools=stage.tools, patience=QUICK) as w:
        first = LOOK if limit == "steps" else {"calls": [call("hold", key="never")]}
        limits = {"max_steps": 1} if limit == "steps" else {"deadline_ms": 2000}
        row = await w.finished(await w.run(task(first, "no", final=final), limits=limits))
        assert (row["status"], row["forced"], row["output"]) == ("completed", True, "forced at last")


@pytest.mark.spec("5.5", "5.8")
async def test_a_forced_answer_that_never_came_is_a_digest_and_no_text_of_an_earlier_step(tmp_path: Path) -> None:
    gates, stage = ModelGates(), Stage()
    async with world(tmp_path, tools=stage.tools, gates=gates) as w:
        turn = {"text": "Let me look that up first.", "calls": [call("glob", pattern="*"), call("hold", key="never")]}
        run = await w.run(task(turn, "no"), limits={"deadline_ms": 1000})
        await stage.reached("+never")
        gates.close("scripted:plan", HOUR_MS)
        row = await w.finished(run)
        assert (row["stop_reason"], row["forced"]) == ("deadline", True)
        assert row["output"].startswith(DEFAULT.digest)
        assert (await replies(w, run.session_id))[-1] == (row["output"], False)


@pytest.mark.spec("5.4", "5.8")
async def test_a_summary_waits_at_the_gate_of_its_model_and_is_tried_again(tmp_path: Path) -> None:
    slow = {**BUSY, "code": "model_rate_limited", "status": 429, "retry_after_ms": 50}
    reads = (f"{{tool: read_file, arguments: {{path: a.txt, limit: {at}}}}}" for at in range(10, 19))
    turns = ", ".join(f"{{calls: [{read}]}}" for read in reads)
    play = f"""
agents:
  - when: {{task_contains: "{DEFAULT.compact[:30]}"}}
    turns: [{{error: {json.dumps(slow)}, times: 1, text: "all in short"}}]
  - turns: [{turns}, {{text: end}}]
"""
    compaction = Compaction(window=2500, output_tokens=100)
    async with world(tmp_path, script=play, patience=QUICK, compaction=compaction) as w:
        (tmp_path / "workspace" / "a.txt").write_text(("a line of words " * 10 + "\n") * 90)
        run = await w.run("go")
        row = await w.finished(run)
        assert row["status"] == "completed"
        kinds = [e["data"]["method"] for e in await w.events(run.session_id, "compaction")]
        assert kinds[:1] == ["summary"], kinds
        waits = [e["data"]["reason"] for e in await w.events(run.session_id, "run.waiting")]
        assert waits[:1] == ["retry"]
