"""Publicly reported faults of questions to persons and of rules on commands, each at the depths 0, 1 and 2.

Commands are those of an operator's own `run_command`: what is tried is the judgement, nothing is carried out.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.client import ServiceError
from tests.flows.levels import Case, Levels, levels
from tests.flows.levels_model import DEPTHS, call, every_result, turns
from tests.service import WAIT_S
from tests.stubs.openai_stub import calls, text

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("depth", DEPTHS)]
EXPIRES_S = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    async with levels(tmp_path_factory.mktemp("asks")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    """A service whose questions expire soon."""
    folder = tmp_path_factory.mktemp("impatient")
    async with levels(folder, {"SUBAGENTD_PERMISSIONS__EXPIRES_S": str(EXPIRES_S)}) as made:
        yield made


async def running(world: Levels, depth: int, commands: list[str], **rules: list[str]) -> Case:
    """Begin a case that calls `run_command` with each of these in one turn, under rules of its session."""
    play = turns(calls(*(call("run_command", command=line) for line in commands)), text("Done."))
    return await world.begin(depth, play, worker={"tools": ["run_command"]}, permissions=rules)


async def judged(world: Levels, depth: int, commands: list[str], **rules: list[str]) -> dict[str, str]:
    """What became of each command: `ok`, `denied`, or `asked`; whatever is asked a person denies."""
    case = await running(world, depth, commands, **rules)

    async def refuse() -> None:
        refused: set[str] = set()
        while True:
            page = await world.client.page("/v1/permissions", session_id=case.root["session_id"], status="pending")
            for item in page["items"]:
                if item["id"] not in refused:
                    refused.add(item["id"])
                    await case.answer(item["id"], "deny")

    refusing = asyncio.create_task(refuse())
    try:
        run = await case.settled()
    finally:
        refusing.cancel()
    assert run["output"] == "Done."
    events = [e["data"] for e in await case.events("tool.call", "tool.result", "permission.requested")]
    line = {e["call_id"]: e["arguments"]["command"] for e in events if "arguments" in e and "approval_id" not in e}
    asked = {e["call_id"] for e in events if "approval_id" in e}
    found = {line[e["call_id"]]: e["status"] for e in events if "status" in e}
    found |= {line[one]: "asked" for one in asked}
    assert sorted(world.ran(case)) == sorted(command for command in commands if found[command] == "ok")
    return found


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.2", "8.3", "14.11")
@pytest.mark.case("B118", "B119", "B121")
async def test_a_question_is_seen_on_the_roots_stream_and_its_call_runs_once_with_what_was_approved(
    world: Levels, depth: int
) -> None:
    case = await running(world, depth, ["make all"], ask=["Bash(make *)"])
    (question,) = await case.questions(1)
    assert (question["depth"], len(question["path"])) == (depth, depth + 1)
    waiting = (await world.client.page("/v1/permissions", session_id=case.root["session_id"]))["items"]
    assert [(one["id"], one["depth"], one["agent"]) for one in waiting] == [(question["approval_id"], depth, "worker")]
    assert world.ran(case) == []
    await case.answer(question["approval_id"], "allow_once", arguments={"command": "make some"})
    await case.settled()
    assert world.ran(case) == ["make some"]
    assert await case.results() == [("ok", "ran make some")]
    assert len(await case.events("permission.requested")) == len(await case.events("permission.resolved")) == 1
    with pytest.raises(ServiceError) as late:
        await case.answer(question["approval_id"], "deny")
    assert late.value.status == 409
    page = await world.client.page("/v1/audit", session_id=case.root["session_id"], decision="any")
    (decided,) = [one for one in page["items"] if one["kind"] == "person"]
    assert (decided["decision"], decided["depth"]) == ("allow_once", depth)


@pytest.mark.spec("8.2", "8.3")
@pytest.mark.case("B118", "B119")
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "nobody there"])
async def test_a_question_that_nobody_answers_ends_as_not_allowed(impatient: Levels, depth: int, watched: bool) -> None:
    play = turns(calls(call("run_command", command="make all"), call("put", path="a")), text("Not made."))
    tools = {"tools": ["run_command", "put"]}
    case = await impatient.begin(depth, play, worker=tools, permissions={"ask": ["Bash(make *)"]}, watched=watched)
    run = await case.settled()
    assert run["output"] == "Not made."
    assert impatient.ran(case) == []
    (made, put) = await case.results()
    assert put == ("ok", "ok")
    assert (made[0], "nobody answered" in made[1]) == ("expired", True)
    assert "nobody answered" in every_result(case.asked()[1])[0]
    (resolved,) = await case.events("permission.resolved")
    assert resolved["data"]["decision"] == "expired"
    (item,) = (await impatient.client.page("/v1/permissions", session_id=case.root["session_id"]))["items"]
    assert (item["status"], item["depth"], item["path"]) == ("expired", depth, run["path"])


@pytest.mark.spec("8.2")
@pytest.mark.case("B122")
async def test_always_releases_the_equal_questions_that_wait_and_no_others(world: Levels, depth: int) -> None:
    urls = [f"https://{host}/{n}" for n, host in enumerate(["one.test", "one.test", "one.test", "two.test"])]
    play = turns(calls(*(call("web_fetch", url=url) for url in urls)), text("Fetched."))
    case = await world.begin(depth, play, worker={"tools": ["web_fetch"]}, permissions={"ask": ["WebFetch"]})
    questions = await case.questions(4)
    by_url = {question["arguments"]["url"]: question["approval_id"] for question in questions}
    await case.answer(by_url[urls[0]], "allow_session")
    await case.seen("permission.resolved", 3)
    page = await world.client.page("/v1/permissions", session_id=case.root["session_id"], status="pending")
    assert [item["id"] for item in page["items"]] == [by_url[urls[3]]]
    await case.answer(by_url[urls[3]], "deny")
    await case.settled()
    assert sorted(world.ran(case)) == urls[:3]
    resolved = {e["data"]["approval_id"]: e["data"]["decision"] for e in await case.events("permission.resolved")}
    assert [resolved[by_url[url]] for url in urls] == ["allow_session", "released", "released", "deny"]


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.1", "8.4")
@pytest.mark.case("B107")
async def test_an_allowed_first_command_carries_no_forbidden_second_one(world: Levels, depth: int) -> None:
    joined = ["&&", ";", "||", "|", "\n", "&"]
    commands = [f"git status {by} rm -rf x" for by in joined] + ["git status || sh", "git status && make", "git log"]
    found = await judged(world, depth, commands, allow=["Bash(git *)"], deny=["Bash(rm *)"])
    assert [found[command] for command in commands] == ["denied"] * 6 + ["asked", "asked", "ok"]


@pytest.mark.spec("8.4")
@pytest.mark.case("B108")
async def test_no_wrapper_dodges_a_denial(world: Levels, depth: int) -> None:
    wrapped = ["env A=1 rm x", "nohup rm x", "timeout 5 rm x", 'bash -c "rm x"', "command rm x", "\\rm x"]
    wrapped += ["$(echo rm) x", "echo x | xargs rm", "/bin/rm x", "echo 'rm x' | sh", "eval rm x"]
    found = await judged(world, depth, [*wrapped, "ls rm"], deny=["Bash(rm *)"])
    assert {command: found[command] for command in wrapped if found[command] == "ok"} == {}
    assert found["ls rm"] == "ok"


@pytest.mark.spec("8.4")
@pytest.mark.case("B108")
async def test_a_search_that_deletes_is_not_what_an_allowed_search_is(world: Levels, depth: int) -> None:
    commands = ["find . -delete", "find . -exec rm {} ;", "find . -name x"]
    found = await judged(world, depth, commands, allow=["Bash(find . -name *)"], deny=["Bash(rm *)"])
    assert [found[command] in ("asked", "denied") for command in commands] == [True, True, False]


@pytest.mark.spec("8.4")
@pytest.mark.case("B109")
async def test_a_substitution_inside_an_allowed_command_is_not_allowed_with_it(world: Levels, depth: int) -> None:
    commands = ["ls $(touch pwned)", "ls `touch pwned`", "ls <(touch pwned)", "ls 'x", "ls <<E\n$(touch pwned)\nE"]
    found = await judged(world, depth, commands, allow=["Bash(ls *)"])
    assert {command: found[command] for command in commands if found[command] == "ok"} == {}


@pytest.mark.spec("8.4")
@pytest.mark.case("B110")
async def test_what_a_command_writes_is_judged_as_writing(world: Levels, depth: int) -> None:
    writing = ["echo x > f", "echo x >> f", "echo x >| f", "echo x &> f", "echo x >& f", "cat a | tee f"]
    writing += ["dd if=a of=f", "sed -i s/a/b/ f"]
    allowed = [f"Bash({name} *)" for name in ("echo", "cat", "tee", "dd", "sed")]
    found = await judged(world, depth, [*writing, "echo x", "cat a"], allow=allowed, deny=["Edit(./f)"])
    assert {command: found[command] for command in writing if found[command] != "denied"} == {}
    assert (found["echo x"], found["cat a"]) == ("ok", "ok")


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
async def test_harmless_commands_are_not_refused(world: Levels, depth: int) -> None:
    harmless = ["git log 2>&1", 'grep "a > b" f', "git status && git diff", "ls *.txt", "ls -la | grep x", "git log"]
    found = await judged(world, depth, harmless, allow=["Bash(git *)", "Bash(ls *)", "Bash(grep *)"])
    assert set(found.values()) == {"ok"}


@pytest.mark.spec("8.4")
@pytest.mark.case("B112")
async def test_a_denied_file_is_left_out_of_a_search_and_stops_none(world: Levels, depth: int) -> None:
    place = world.service.workspace / f"tree{depth}"
    place.mkdir()
    (place / "app.py").write_text("x = 1\n")
    (place / ".env").write_text("x = secret\n")
    searches = calls(call("grep", pattern="x", path=place.name), call("glob", pattern=f"{place.name}/**/*"))
    play = turns(searches, calls(call("read_file", path=f"{place.name}/.env")), text("Searched."))
    tools = {"tools": ["grep", "glob", "read_file"]}
    case = await world.begin(depth, play, worker=tools, permissions={"deny": ["Read(.env)"]})
    await case.settled()
    grep, glob, read = await case.results()
    assert (grep, glob) == (("ok", f"{place.name}/app.py:1:x = 1"), ("ok", f"{place.name}/app.py"))
    assert read[0] == "denied"
    assert "secret" not in b"".join(request.raw for request in case.asked()).decode()
    assert await case.events("permission.requested") == []


@pytest.mark.spec("8.1", "8.4")
@pytest.mark.case("B113")
async def test_reading_only_holds_for_the_file_tools_and_for_commands_alike(world: Levels, depth: int) -> None:
    file = f"only{depth}.txt"
    wanted: list[Any] = [call("write_file", path=file), call("edit_file", path=file)]
    wanted += [call("run_command", command=line) for line in (f"echo x > {file}", f"touch a && cp a {file}")]
    play = turns(calls(*wanted, call("run_command", command="cat a")), text("Read."))
    tools = {"tools": ["write_file", "edit_file", "run_command"], "permissions": {"deny": ["Edit(./**)"]}}
    case = await world.begin(depth, play, worker=tools)
    async with asyncio.timeout(WAIT_S):
        await case.settled()
    assert [status for status, _ in await case.results()] == ["denied"] * 4 + ["ok"]
    assert not (world.service.workspace / file).exists()
    assert world.ran(case) == ["cat a"]
