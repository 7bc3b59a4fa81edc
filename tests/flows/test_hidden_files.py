"""Files that may not be read, and commands that come across them: in the best box such files are hidden, so that a
search runs and leaves them out; in a lesser one a person is asked."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.boxes.box import Level
from tests.boxes.outside import need, open_folder, own
from tests.flows.levels import Case, Levels
from tests.flows.levels_model import DEPTHS, StrictStub, call, turns
from tests.service import serving
from tests.stubs.openai_stub import calls, text

SECRET = "canary-5e7d21"
TOLD = "canary-beside"
RULES = {"deny": ["Read(.env)", "Read(./vault/**)", "Read(./deep/down/keys/**)"], "ask": ["Read(./drafts/**)"]}
SEARCHES = (
    f"grep -r canary . ; grep -r {TOLD} .",
    "cp -r . $TMPDIR/copy; grep -r canary $TMPDIR/copy",
    "tar c . | tr -d '\\0'",
    "cat $(ls -A)",
    "cat .e*; cat beside.txt",
    'F=.en; cat beside.txt "${F}v"',
    "python3 -c \"print(open('beside.txt').read())\nprint(open('.env').read())\"",
    "find . -type f -exec cat {} +",
    "cat other.txt beside.txt; ls -d do* | sed 's,$,/key,' | xargs cat",
)


def fill(workspace: Path) -> None:
    """Denied files beside others, one of them with a second name, and links to them."""
    names = (".env", "sub/.env", "vault/key", "deep/down/keys/key", "drafts/plan")
    for name in names:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{SECRET}\n")
    (workspace / "beside.txt").write_text(f"{TOLD}\n")
    (workspace / "other.txt").hardlink_to(workspace / ".env")
    (workspace / "door").symlink_to("vault")
    for path in (workspace, *workspace.rglob("*")):
        if not path.is_symlink():
            own(path)


@contextlib.asynccontextmanager
async def commanding(**settings: str) -> AsyncIterator[Levels]:
    """A service whose agents run real commands, in a workspace that holds what they may not read."""
    with open_folder() as folder:
        (folder / "workspace").mkdir()
        fill(folder / "workspace")
        async with StrictStub() as stub:
            env = {
                "OPENAI_BASE_URL": stub.base_url,
                "OPENAI_API_KEY": "test",
                "SUBAGENTD_MODEL": "openai:test",
                "SUBAGENTD_TOOLS__RUN_COMMAND": "true",
                **settings,
            }
            async with serving(folder, env=env) as service, service.client() as client:
                made = Levels(service, client, stub)
                made.before = made.children()
                yield made


async def running(world: Levels, depth: int, *commands: str, **rules: Any) -> Case:
    play = turns(calls(*(call("run_command", command=command) for command in commands)), text("Done."))
    return await world.begin(depth, play, worker={"tools": ["run_command"]}, permissions=rules or RULES)


def stored(folder: Path) -> bytes:
    """All that is in the files of the database."""
    return b"".join(path.read_bytes() for path in folder.glob("*.db*"))


@pytest.mark.spec("8.4", "7.3")
@pytest.mark.case("B112")
async def test_commands_search_everything_and_find_nothing_of_what_may_not_be_read() -> None:
    need(Level.FULL)
    async with commanding() as world:
        for depth in DEPTHS:
            case = await running(world, depth, *SEARCHES)
            await case.settled()
            results = await case.results()
            assert [status for status, _ in results] == ["ok"] * len(SEARCHES), results
            assert all(TOLD in content for _, content in results), results
            assert "hidden from commands, since it may not be read: '.env'" in results[0][1]
            assert await case.events("permission.requested") == []
            assert SECRET not in str(await case.events())
            assert SECRET not in str(world.stub.requests)
        assert SECRET.encode() not in stored(world.service.folder)
        assert TOLD.encode() in stored(world.service.folder)


@pytest.mark.spec("8.4", "8.3")
@pytest.mark.case("B112")
async def test_what_a_command_names_is_still_denied_and_asked_for_and_an_answer_shows_it() -> None:
    need(Level.FULL)
    async with commanding() as world:
        for depth in DEPTHS:
            case = await running(world, depth, "cat .env", "cat drafts/plan; cat .e*", "cat drafts/*")
            (first,) = await case.questions(1)
            assert first["arguments"] == {"command": "cat drafts/plan; cat .e*"}
            await case.answer(first["approval_id"], "allow_once")
            second = (await case.questions(2))[1]
            await case.answer(second["approval_id"], "deny")
            await case.settled()
            denied, allowed, refused = await case.results()
            assert (denied[0], refused[0]) == ("denied", "denied")
            assert allowed[0] == "ok"
            assert allowed[1].startswith(f"{SECRET}\n")
            assert allowed[1].count(SECRET) == 1, "what is denied stays hidden whatever a person allows"
            assert "cat: .env: Permission denied" in allowed[1]


@pytest.mark.spec("8.4", "7.3")
@pytest.mark.case("B112")
async def test_no_command_moves_what_is_denied_to_where_the_next_one_may_read_it() -> None:
    need(Level.FULL)
    program = """
import os
for what, *names in ((os.rename, "deep", "d"), (os.rename, "deep/down", "deep/d"), (os.rename, ".env", "x"),
                     (os.rename, "vault", "z"), (os.rename, "sub", "s"), (os.link, ".env", "y"), (os.unlink, ".env")):
    try:
        print(what(*names))
    except OSError as error:
        print(error.strerror)
"""
    async with commanding() as world:
        for depth in DEPTHS:
            (world.service.workspace / "move.py").write_text(program)
            case = await running(world, depth, "python3 move.py", "grep -r canary .")
            await case.settled()
            moved, searched = await case.results()
            busy, across = "Device or resource busy", "Invalid cross-device link"
            # what is called .env is denied wherever it lies, so that the directory around it may be moved
            sub = "None" if depth == 0 else "No such file or directory"
            assert moved[1].splitlines() == [busy, busy, busy, busy, sub, across, busy]
            assert TOLD in searched[1]
            assert SECRET not in str(await case.events())
        assert (world.service.workspace / "deep/down/keys/key").read_text() == f"{SECRET}\n"


@pytest.mark.spec("8.4", "7.3")
@pytest.mark.case("B112")
async def test_where_nothing_can_be_hidden_a_person_is_asked() -> None:
    need(Level.LANDLOCK)
    with open_folder() as empty:
        settings = {"PATH": str(empty), "SUBAGENTD_TOOLS__SANDBOX": "landlock"}
        async with commanding(**settings) as world:
            for depth in DEPTHS:
                case = await running(world, depth, "grep -r canary .")
                (question,) = await case.questions(1)
                await case.answer(question["approval_id"], "deny")
                await case.settled()
                assert [status for status, _ in await case.results()] == ["denied"]


@pytest.mark.spec("8.5", "8.4")
@pytest.mark.case("B112")
@pytest.mark.parametrize(("level", "verdict"), [(Level.FULL, "allow"), (Level.LANDLOCK, "ask")])
async def test_an_explanation_knows_what_the_box_hides(level: Level, verdict: str) -> None:
    need(level)
    with open_folder() as empty:
        lesser = {"PATH": str(empty), "SUBAGENTD_TOOLS__SANDBOX": "landlock"} if level is Level.LANDLOCK else {}
        rules = {"SUBAGENTD_PERMISSIONS__RULES__DENY": '["Read(.env)"]'}
        async with commanding(**lesser, **rules) as world:
            lead = await world.client.request("GET", "/v1/permissions", explain="Bash(grep -r x .)")
            named = await world.client.request("GET", "/v1/permissions", explain="Bash(cat .env)")
        assert (lead["verdict"], named["verdict"]) == (verdict, "deny")


@pytest.mark.spec("8.4", "7.3")
@pytest.mark.case("B113")
async def test_what_may_not_be_written_cannot_be_changed_by_what_a_program_does_inside() -> None:
    need(Level.FULL)
    program = "open('vault/key', 'w').write('changed'); print('written')"
    async with commanding() as world:
        for depth in DEPTHS:
            (world.service.workspace / "change.py").write_text(program)
            case = await running(world, depth, "python3 change.py", "cat vault/key", deny=["Write(./vault/**)"])
            await case.settled()
            changed, read = await case.results()
            assert "Read-only file system" in changed[1]
            assert read == ("ok", SECRET)
