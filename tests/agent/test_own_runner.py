"""An operator's function in place of the loop: what it gets, what becomes of its text, its errors and its time."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import AgentDefinition, SessionMode
from app.agent.errors import ModelError
from app.agent.messages import Role
from app.agent.orders import Delegator, HandoffOrder, HandoffResult
from app.agent.policy import HandoffPolicy, PolicyFields
from app.agent.runs import HandoffStatus, Session
from app.sessions.feed import View
from app.sessions.requests import SessionInput
from tests.agent.own_functions import DIARY, ERRORS, GATES, HERE, SECRET, SEEN, TRIES
from tests.world import WAIT_S, World, frames, world


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for kept in (SEEN, DIARY, GATES, ERRORS, TRIES):
        kept.clear()


# ── the world around them ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[tuple[World, Session]]:
    """A world without any model, and a session in it that is kept open."""
    async with world(folder, secrets=[SECRET], model="scripted:there-is-none") as w:
        lead = {"name": "quiet", "description": "x", "model": "scripted:echo"}
        given = await w.sessions.create(w.tenant, SessionInput(agent="quiet", agents=[lead]))
        session = await w.sessions.known(w.tenant, given["id"])
        async with w.sessions.opened(session):
            yield w, session
        assert w.requests == [], "no model is asked"


async def delegated(
    w: World,
    session: Session,
    function: str,
    task: str = "the task",
    *,
    policy: HandoffPolicy | None = None,
    order: Mapping[str, Any] | None = None,
    **definition: Any,
) -> HandoffResult:
    """A handoff to an agent whose runner is that function of `own_functions`."""
    path = function if ":" in function else f"{HERE}:{function}"
    found = AgentDefinition(name="own", description="An own one.", prompt="You are own.", runner=path, **definition)
    by = Delegator(
        session=session,
        run=None,
        policy=policy or HandoffPolicy(),
        surfaces=(),
        model=None,
        parallel_tool_calls=True,
    )
    given = HandoffOrder(tool="subagent_own", surface="direct", definition=found, task=task, **(order or {}))
    async with asyncio.timeout(WAIT_S):
        w.supervisor.worked(by.session.id)  # as whoever orders it does
        return await w.supervisor.handoffs.delegate(by, given)


@pytest.mark.spec("10.5", "6.6", "12.2")
@pytest.mark.parametrize("function", ["echo", "wrapped", "an_object"])
async def test_its_text_is_the_answer_and_events_and_audit_are_those_of_any_run(tmp_path: Path, function: str) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, function)
        assert (result.status, result.output) == (HandoffStatus.COMPLETED, "done: the task")
        outcome = result.outcome
        assert outcome is not None
        assert (outcome.steps, outcome.usage.model_calls, outcome.forced, outcome.partial) == (1, 0, False, False)
        events = await w.events(session.id)
        assert [event["type"] for event in events][1:] == [
            "handoff.start", "run.queued", "run.started", "subagent.start", "message", "message", "message",
            "subagent.stop", "run.completed", "handoff.end",
        ]  # fmt: skip
        assert events[3]["data"] == {"model": f"runner:{HERE}:{function}", "tools": ["read_file", "glob", "grep"]}
        rows = await w.rows("messages", agent="own")
        assert [(r["turn"], r["step"], r["sub"], r["role"], r["content"]) for r in rows] == [
            (0, 0, 0, "system", "You are own."),
            (0, 0, 1, "user", "the task"),
            (0, 1, 0, "assistant", "done: the task"),
        ]
        assert all(r["is_subagent"] and r["depth"] == 1 for r in rows)


@pytest.mark.spec("10.5")
async def test_it_is_told_where_it_belongs_to_and_what_its_definition_says_beside(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(
            w, session, "echo", metadata={"url": "x"}, order={"name": "Ann", "deadline_ms": 60_000, "context": "more"}
        )
        ((task, context),) = SEEN
        assert task == "the task\n\nContext:\nmore"
        assert (context.session_id, context.tenant, context.run_id) == (session.id, "default", result.run_ids[0])
        assert (context.agent, context.name, context.depth, context.prompt) == ("own", "Ann", 1, "You are own.")
        assert (dict(context.metadata), context.workspace) == ({"url": "x"}, tmp_path / "workspace")
        assert context.history == ()
        left = (context.deadline or 0) - asyncio.get_running_loop().time()
        assert 0 < left <= 60


@pytest.mark.spec("4.9", "10.5")
async def test_with_a_shared_memory_it_sees_what_was_said_before(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        for text in ("one", "two"):
            await delegated(w, session, "echo", text, session_mode=SessionMode.REUSE)
        history = SEEN[1][1].history
        assert [(m.role, m.content) for m in history] == [
            (Role.SYSTEM, "You are own."),
            (Role.USER, "one"),
            (Role.ASSISTANT, "done: one"),
        ]


@pytest.mark.spec("10.5")
async def test_one_that_is_not_async_runs_beside_the_event_loop(tmp_path: Path) -> None:
    GATES["go"] = threading.Event()
    async with desk(tmp_path) as (w, session):
        running = asyncio.create_task(delegated(w, session, "blocking"))
        other = await delegated(w, session, "echo")
        assert other.output == "done: the task", "the loop goes on meanwhile"
        GATES["go"].set()
        assert (await running).output == "after the task"
        assert DIARY == ["thread"]


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Unspeakable(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Unheard(BaseException):
    """None of Python's own."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.spec("5.7", "10.5")
@pytest.mark.parametrize("function", ["cancelling_itself", "cancelling_itself_last"])
async def test_one_that_cancels_itself_has_failed_and_is_not_cancelled(tmp_path: Path, function: str) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, function)
        assert result.status is HandoffStatus.FAILED
        assert result.error is not None
        assert result.error.code == "runner_failed"
        (run,) = await w.rows("runs", session_id=session.id)
        assert run["status"] == "failed"
        assert (await delegated(w, session, "echo")).ok


@pytest.mark.spec("10.5", "12.6")
@pytest.mark.parametrize("function", ["raising", "raising_in_a_thread"])
@pytest.mark.parametrize(
    "error",
    [RuntimeError(f"key {SECRET}"), TimeoutError("late"), SystemExit(3), asyncio.CancelledError(), Unspeakable(),
     StopIteration("x"), KeyError("k"), ValueError("x" * 5_000), KeyboardInterrupt(), GeneratorExit("x"),
     StopAsyncIteration("x"), BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError(SECRET)]), Unheard("x")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_whatever_it_raises_fails_its_run_and_nothing_else(
    tmp_path: Path, function: str, error: BaseException
) -> None:
    ERRORS["error"] = error
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, function)
        assert result.status is HandoffStatus.FAILED
        assert result.error is not None
        assert result.error.code == "runner_failed"
        assert f"runner {HERE}:{function} failed" in result.error.message
        assert SECRET not in result.error.message
        assert len(result.error.message) <= 500
        (run,) = await w.rows("runs", session_id=session.id)
        assert (run["status"], run["error"]["code"]) == ("failed", "runner_failed")
        assert SECRET not in str(await w.events(session.id))
        assert (await delegated(w, session, "echo")).ok


@pytest.mark.spec("4.7", "10.5")
async def test_a_failure_is_tried_again_under_the_policy(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, "second_time_lucky", policy=HandoffPolicy(max_retries=2))
        assert (result.output, result.attempts) == ("now", 2)


@pytest.mark.spec("4.7", "10.5")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("returning", "returned dict, not a text"),
        ("nobody_wrote_this", "has no attribute"),
        ("no.such.module:x", "No module named"),
        ("HERE", "is a str, not a function"),
    ],
)
async def test_what_would_fail_again_is_not_tried_again(tmp_path: Path, function: str, says: str) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, function, policy=HandoffPolicy(max_retries=2))
        assert result.error is not None
        assert (result.status, result.error.code, result.attempts) == (HandoffStatus.FAILED, "runner_failed", 1)
        assert says in result.error.message


@pytest.mark.spec("10.5")
async def test_an_error_of_the_service_s_own_kind_keeps_its_code(tmp_path: Path) -> None:
    ERRORS["error"] = ModelError("no more today", code="quota")
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, "raising", policy=HandoffPolicy(max_retries=2))
        assert result.error is not None
        assert (result.error.code, result.error.message, result.attempts) == ("quota", "no more today", 1)


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.4", "10.5")
@pytest.mark.parametrize("function", ["hanging", "deaf"])
async def test_over_its_time_it_is_cancelled_for_real(tmp_path: Path, function: str) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, function, order={"timeout_ms": 30})
        assert (result.status, result.output) == (HandoffStatus.TIMED_OUT, "")
        assert ("cancelled" in DIARY) == (function == "hanging")
        rows = await w.rows("messages", agent="own")
        assert [r["role"] for r in rows] == ["system", "user"]


@pytest.mark.spec("5.7", "10.5")
async def test_cancelling_its_session_cancels_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        running = asyncio.create_task(delegated(w, session, "hanging"))
        await w.until(session.id, "subagent.start")
        await w.sessions.cancel_session(w.tenant, session.id)
        assert (await running).status is HandoffStatus.CANCELLED
        assert DIARY == ["begun", "cancelled"]


@pytest.mark.spec("4.4", "10.5", "11.6")
async def test_a_thread_is_left_behind_and_what_it_says_later_is_shown_to_nobody(tmp_path: Path) -> None:
    GATES["go"] = threading.Event()
    async with desk(tmp_path) as (w, session):
        view = View(tenant=w.tenant, session_id=session.id)
        async with asyncio.timeout(WAIT_S), contextlib.aclosing(frames(w.feed, view)) as seen:
            result = await delegated(w, session, "blocking", order={"timeout_ms": 30})
            assert result.status is HandoffStatus.TIMED_OUT
            (left,) = [t for t in threading.enumerate() if t.name == f"runner {HERE}:blocking"]
            GATES["go"].set()
            await asyncio.to_thread(left.join, WAIT_S)
            assert (await delegated(w, session, "echo")).ok
            told = []
            async for frame in seen:
                told.append(frame)
                if sum(f["event"] == "handoff.end" for f in told) == 2:
                    break
        assert "nearly" not in str(told)


@pytest.mark.spec("5.6", "5.7", "10.5")
async def test_at_its_deadline_it_ends_partial_and_where_json_is_due_it_fails(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, "hanging", order={"deadline_ms": 30})
        assert result.outcome is not None
        assert (result.status, result.outcome.stop_reason.value, result.outcome.partial) == (
            HandoffStatus.COMPLETED, "deadline", True,
        )  # fmt: skip
        assert result.output == session.texts.no_digest
        schema = {"output_schema": {"type": "array"}, "deadline_ms": 30}
        failed = await delegated(w, session, "hanging", order=schema)
        assert failed.error is not None
        assert (failed.status, failed.error.code) == (HandoffStatus.FAILED, "output_invalid")
        assert DIARY == ["begun", "cancelled"] * 2


@pytest.mark.spec("4.1", "10.5")
async def test_the_policy_governs_it_like_any_other(tmp_path: Path) -> None:
    async with desk(tmp_path) as (w, session):
        denied = await delegated(w, session, "echo", policy=HandoffPolicy().replaced(PolicyFields(max_depth=(0,))))
        assert (denied.status, denied.run_ids) == (HandoffStatus.DENIED, ())
        assert SEEN == []


# ── what it says ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("10.5", "12.6")
async def test_its_progress_is_shown_masked_before_its_text_and_its_end(tmp_path: Path) -> None:
    GATES["go"] = threading.Event()
    async with desk(tmp_path) as (w, session):
        view = View(tenant=w.tenant, session_id=session.id)
        running = asyncio.create_task(delegated(w, session, "talking"))
        await w.until(session.id, "subagent.start")
        shown: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_S), contextlib.aclosing(frames(w.feed, view)) as seen:
            async for frame in seen:
                if frame["event"] == "message":
                    GATES["go"].set()  # the stream is live by now
                shown.append(frame)
                if frame["event"] == "handoff.end":
                    break
        assert (await running).output == "told"
        kinds = [frame["event"] for frame in shown]
        deltas = [frame["data"] for frame in shown if frame["event"] == "text.delta"]
        text = "".join(delta["text"] for delta in deltas)
        assert text.startswith("one two ") and text.endswith(" end")
        assert SECRET not in text
        last_delta = max(at for at, kind in enumerate(kinds) if kind == "text.delta")
        assert "message" in kinds[last_delta:], "all of it stands before the answer"
        assert kinds[-3:] == ["subagent.stop", "run.completed", "handoff.end"]
        assert {delta["step"] for delta in deltas} == {1}


@pytest.mark.spec("12.6", "10.5")
@pytest.mark.parametrize("text", [f"the key is {SECRET}", "a lone \ud800 surrogate", "nul \x00", "", "   "])
async def test_any_text_is_stored_clean_and_masked(tmp_path: Path, text: str) -> None:
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, "saying", text)
        assert result.status is HandoffStatus.COMPLETED
        rows = await w.rows("messages", agent="own")
        assert [r["role"] for r in rows] == ["system", "user", "assistant"]
        assert SECRET not in str(rows)
        assert "\ud800" not in str(rows)


@pytest.mark.spec("5.6", "10.5")
@pytest.mark.parametrize(
    ("text", "status", "output"),
    [
        ('{"n": 1}', "completed", '{"n": 1}'),
        ('```json\n{"n": 1}\n```', "completed", '{"n": 1}'),
        ('{"n": "x"}', "failed", "output_invalid"),
        ("no JSON", "failed", "output_invalid"),
    ],
)
async def test_its_text_must_satisfy_an_output_schema(tmp_path: Path, text: str, status: str, output: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with desk(tmp_path) as (w, session):
        result = await delegated(w, session, "saying", text, output_schema=schema)
        assert result.status.value == status
        if status == "completed":
            assert result.output == output
        else:
            assert result.error is not None
            assert result.error.code == output
        (_, user, *_) = await w.rows("messages", agent="own")
        assert user["content"] == text, "a function reads no instructions"
