"""Questions to persons: each is settled exactly once, binds one call, and holds up nothing else."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import Answer, AnswerKind, Approvals, digest_of
from app.agent.errors import Conflict, InvalidRequest, NotFound
from app.agent.permissions import Decision, DecisionKind, PermissionRule, Verdict
from app.agent.tools import ToolContext
from tests.agent.desk import PARENT, SESSION, WAIT_S, Notes
from tests.agent.guarded import commands, give, questions, results, ruled, settlements
from tests.agent.probes import Probe
from tests.plan import ask, call, task
from tests.world import world

ASK_ALL = ruled(ask=["Bash"])
RULE = PermissionRule(effect=Verdict.ALLOW, tool="run_command", pattern="make", text="Bash(make)")
ASKED = Decision(verdict=Verdict.ASK, kind=DecisionKind.RULE, reason="a rule asks", suggested_rule=RULE)
SECRET = "sk-very-secret-value-0123456789"
GO = Answer(kind=AnswerKind.ALLOW_ONCE)


def run_command(*lines: str) -> str:
    """A task that makes these calls in one turn and then answers."""
    return task({"calls": [call("run_command", command=line) for line in lines]}, "done")


def asking(approvals: Approvals, decision: Decision = ASKED, problem: str | None = None) -> "asyncio.Task[Answer]":
    """A call that waits for its answer."""
    question = approvals.ask(
        SESSION, PARENT, 1, "call_1", "run_command", {"command": "make"}, decision, lambda: decision, lambda _: problem
    )
    return asyncio.create_task(question)


async def opened(approvals: Approvals) -> str:
    """The id of the one open question."""
    async with asyncio.timeout(WAIT_S):
        while not approvals.pending("default"):
            await asyncio.sleep(0.001)
    return approvals.pending("default")[0].id


@pytest.mark.spec("8.2", "8.3")
@pytest.mark.case("B022", "B121")
async def test_of_two_calls_of_a_turn_one_is_denied_and_the_other_runs_once_and_both_have_a_result(
    tmp_path: Path,
) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ASK_ALL) as w:
        run = await w.run(run_command("rm a", "ls"))
        first, second = await questions(w, run.session_id, 2)
        assert (first["arguments"], second["arguments"]) == ({"command": "rm a"}, {"command": "ls"})
        await give(w, second["approval_id"])
        await give(w, first["approval_id"], AnswerKind.DENY, message="Leave a alone.")
        assert (await w.finished(run))["status"] == "completed"
        assert await results(w, run.session_id) == [
            ("denied", "A person denied this call. Leave a alone."),
            ("ok", "ran ls"),
        ]
        assert tool.arguments == [{"command": "ls"}]


@pytest.mark.spec("8.2", "8.3")
async def test_without_an_answer_in_time_a_question_expires_which_is_no_denial(tmp_path: Path) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ruled(ask=["Bash"], expires_s=0.05)) as w:
        run = await w.run(run_command("ls"))
        await w.finished(run)
        ((status, text),) = await results(w, run.session_id)
        assert (status, tool.arguments) == ("expired", [])
        assert "nobody answered" in text
        ((approval, how),) = (await settlements(w, run.session_id)).items()
        assert how == "expired"
        shown = await w.inbox.get("default", approval)
        assert (shown["status"], shown["decided_by"]) == ("expired", None)
        with pytest.raises(Conflict, match="expired"):
            await give(w, approval)


@pytest.mark.spec("5.7", "8.2")
@pytest.mark.case("B070")
async def test_cancelling_withdraws_the_question_and_a_late_answer_is_told_so(tmp_path: Path) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ASK_ALL) as w:
        run = await w.run(task({"calls": [ask(run_command("ls"))]}, "end"))
        (question,) = await questions(w, run.session_id, 1)
        assert len((await w.sessions.cancel("default", run.id))["cancelled"]) == 2
        with pytest.raises(Conflict, match="cancelled") as late:
            await give(w, question["approval_id"])
        assert late.value.code == "not_pending"
        assert await settlements(w, run.session_id) == {question["approval_id"]: "cancelled"}
        assert tool.arguments == []
        assert w.asking.approvals.pending("default") == []


@pytest.mark.spec("8.2", "6.5")
async def test_a_call_runs_with_the_arguments_that_a_person_made_of_it(tmp_path: Path) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ruled(ask=["Bash"], deny=["Bash(rm *)"])) as w:
        run = await w.run(run_command("make all", "make install"))
        first, second = await questions(w, run.session_id, 2)
        with pytest.raises(InvalidRequest, match="command"):
            await give(w, first["approval_id"], arguments={"comand": "make"})
        await give(w, first["approval_id"], arguments={"command": "make test"})
        await give(w, second["approval_id"], arguments={"command": "rm -rf x"})
        await w.finished(run)
        ran, refused = await results(w, run.session_id)
        assert ran == ("ok", "ran make test")
        assert refused[0] == "denied"
        assert "arguments that a person gave" in refused[1]
        assert tool.arguments == [{"command": "make test"}]
        shown = await w.inbox.get("default", first["approval_id"])
        assert (shown["arguments"], shown["edited_arguments"]) == ({"command": "make all"}, {"command": "make test"})
        rows = {row["approval_id"]: row for row in await w.rows("decisions") if row["approval_id"] is not None}
        for question, command in ((first, "make test"), (second, "rm -rf x")):
            row = rows[question["approval_id"]]
            assert row["digest"] == question["digest"], "what was asked"
            assert row["edited_digest"] == digest_of("run_command", {"command": command}), "what was allowed"


@pytest.mark.spec("8.3", "12.6")
async def test_the_digest_of_edited_arguments_is_that_of_what_runs_and_not_of_what_is_masked(tmp_path: Path) -> None:
    async with world(tmp_path, tools=[commands()], secrets=[SECRET], permissions=ASK_ALL) as w:
        run = await w.run(run_command("make", "ls"))
        first, second = await questions(w, run.session_id, 2)
        edited = {"command": f"make {SECRET}"}
        await give(w, first["approval_id"], arguments=edited)
        await give(w, second["approval_id"])
        await w.finished(run)
        asked, plain = await w.events(run.session_id, "permission.resolved")
        assert SECRET not in str(asked["data"])
        assert asked["data"]["edited_digest"] == digest_of("run_command", edited)
        assert "edited_digest" not in plain["data"]
        rows = {row["approval_id"]: row["edited_digest"] for row in await w.rows("decisions")}
        assert rows == {
            first["approval_id"]: digest_of("run_command", edited),
            second["approval_id"]: None,
        }


@pytest.mark.spec("8.2")
@pytest.mark.case("B122")
async def test_allow_for_the_session_releases_equal_questions_and_no_others(tmp_path: Path) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ASK_ALL) as w:
        run = await w.run(run_command("make", "ls", "make"))
        one, other, equal = await questions(w, run.session_id, 3)
        assert one["suggested_rule"] == "Bash(make)"
        await give(w, one["approval_id"], AnswerKind.ALLOW_SESSION)
        how = await settlements(w, run.session_id)
        assert how == {one["approval_id"]: "allow_session", equal["approval_id"]: "released"}
        for event in await w.events(run.session_id, "permission.resolved"):
            assert (event["data"]["rule"], event["data"]["scope"]) == ("Bash(make)", "session"), "by which rule"
        assert [open_.id for open_ in w.asking.approvals.pending("default")] == [other["approval_id"]]
        await give(w, other["approval_id"], AnswerKind.DENY)
        await w.finished(run)
        again = await w.turn(run.session_id, run_command("make"))
        await w.finished(again)
        decided = [e["data"] for e in await w.events(run.session_id, "permission.resolved")][-1]
        assert (decided["kind"], decided["decision"], decided["rule"]) == ("answer", "allow", "Bash(make)")


@pytest.mark.spec("8.3")
async def test_an_answer_binds_one_call_so_that_the_same_call_is_asked_again(tmp_path: Path) -> None:
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=ASK_ALL) as w:
        twice = {"calls": [call("run_command", command="ls")]}
        run = await w.run(task(twice, twice, "done"))
        (first,) = await questions(w, run.session_id, 1)
        await give(w, first["approval_id"])
        second = (await questions(w, run.session_id, 2))[1]
        assert first["digest"] == second["digest"] == digest_of("run_command", {"command": "ls"})
        assert first["call_id"] != second["call_id"]
        with pytest.raises(Conflict, match="allowed by key_1"):
            await give(w, first["approval_id"], AnswerKind.DENY)
        await give(w, second["approval_id"], AnswerKind.DENY)
        await w.finished(run)
        assert tool.arguments == [{"command": "ls"}]


@pytest.mark.spec("8.2")
async def test_other_work_goes_on_while_one_child_waits(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        seen.set()
        return "seen"

    look = Probe("look", body, read_only=True, concurrency_safe=True)
    async with world(tmp_path, tools=[commands(), look], permissions=ASK_ALL) as w:
        other = task({"calls": [call("look")]}, "looked")
        run = await w.run(task({"calls": [ask(run_command("ls")), ask(other)]}, "end"))
        (question,) = await questions(w, run.session_id, 1)
        async with asyncio.timeout(WAIT_S):
            await seen.wait()
        await w.until(run.session_id, "run.completed")
        waiting = [row for row in await w.rows("runs", session_id=run.session_id) if row["status"] == "waiting"]
        assert sorted((row["depth"], row["wait_reason"]) for row in waiting) == [(0, "child"), (1, "approval")]
        await give(w, question["approval_id"])
        assert (await w.finished(run))["output"] == "end"


@pytest.mark.spec("8.2")
async def test_without_a_rule_to_give_there_is_no_allow_for_the_session() -> None:
    approvals = Approvals(Notes())
    asked = asking(approvals, Decision(verdict=Verdict.ASK, kind=DecisionKind.RULE, reason="two parts ask"))
    approval = await opened(approvals)
    with pytest.raises(Conflict, match="allow_once or deny"):
        approvals.answer("default", approval, Answer(kind=AnswerKind.ALLOW_SESSION))
    approvals.answer("default", approval, GO)
    assert (await asked).allows


@pytest.mark.spec("8.2", "17.1")
async def test_a_question_of_another_tenant_is_not_there() -> None:
    approvals = Approvals(Notes())
    asked = asking(approvals)
    approval = await opened(approvals)
    assert (approvals.find("other", approval), approvals.pending("other")) == (None, [])
    with pytest.raises(NotFound):
        approvals.answer("other", approval, GO)
    approvals.answer("default", approval, GO)
    assert await asked == GO


@pytest.mark.spec("8.2")
async def test_an_answer_in_the_moment_of_the_expiry_holds_as_it_was_recorded() -> None:
    notes = Notes()
    approvals = Approvals(notes, expires_ms=20)
    asked = asking(approvals)
    approval = await opened(approvals)
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.05
    while loop.time() < until:  # the loop is busy, so that the time is over before anybody looks
        pass
    approvals.answer("default", approval, GO)
    assert (await asked).allows
    assert [payload["decision"] for name, payload in notes.payloads if name == "permission.resolved"] == ["allow_once"]


@pytest.mark.spec("8.3")
def test_the_digest_is_that_of_the_meaning_and_not_of_the_spelling() -> None:
    one = digest_of("read_file", {"path": "a", "limit": 1})
    assert one == digest_of("read_file", {"limit": 1, "path": "a"})
    assert (
        len({one, digest_of("read_file", {"path": "b", "limit": 1}), digest_of("glob", {"path": "a", "limit": 1})}) == 3
    )
