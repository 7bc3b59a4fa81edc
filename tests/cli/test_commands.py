"""The command, started as a user starts it: what it prints, and its exit codes (0 done, 1 failed, 2 usage, 3 gone)."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from app import __version__
from app.cli.tree import TreeView
from app.client import Received
from tests.commands import run, run_cold
from tests.service import script, serving

PLAY = """
agents:
  - when: {system_contains: "You lead"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: reader, task: "Read a.txt"}}]}
      - {text: "The reader says: {{ result[0] }}"}
  - when: {system_contains: "You read"}
    turns:
      - {calls: [{tool: read_file, arguments: {path: a.txt}}]}
      - {text: "it says {{ lines(result[0])[0] }}"}
  - when: {system_contains: "You break"}
    turns: [{error: {code: nope, message: "no such luck"}}]
"""
AGENTS = {
    "head": "---\nname: head\ndescription: Leads.\nmode: primary\n"
    "surfaces: dispatch\ntools: Agent(reader)\n---\nYou lead.\n",
    "reader": "---\nname: reader\ndescription: Reads.\ntools: Read\n---\nYou read.\n",
    "broken": "---\nname: broken\ndescription: Breaks.\nmode: all\ntools: []\n---\nYou break.\n",
}


def agents(folder: Path) -> Path:
    """A directory of agent files."""
    place = folder / "agents"
    place.mkdir()
    for name, text in AGENTS.items():
        (place / f"{name}.md").write_text(text)
    return place


@pytest.mark.spec("16.2", "16.6")
async def test_run_shows_the_tree_ends_with_the_answer_and_says_by_its_code_how_it_went(tmp_path: Path) -> None:
    place = agents(tmp_path)
    async with serving(tmp_path, "--agents", str(place), env=script(tmp_path, PLAY)) as service:
        (service.workspace / "a.txt").write_text("hello\n")
        shown = await run_cold("run", "head", "Look.", "--url", service.url, folder=tmp_path)
        assert shown.code == 0, shown.err
        assert "The reader says: it says hello" in shown.out
        assert "[sub]" in shown.out
        assert "completed" in shown.out
        machine = await run("run", "head", "Look.", "--url", service.url, "--json", folder=tmp_path)
        assert machine.code == 0
        assert machine.lines[-1]["output"] == "The reader says: it says hello"
        assert [line["type"] for line in machine.lines[:-1]][-1] == "run.completed"
        failed = await run("run", "broken", "Look.", "--url", service.url, folder=tmp_path)
        assert failed.code == 1
        assert "no such luck" in failed.err
        unknown = await run("run", "nobody", "Look.", "--url", service.url, folder=tmp_path)
        assert unknown.code == 2
        assert "nobody" in unknown.err
    gone = await run("run", "head", "Look.", "--url", service.url, folder=tmp_path)
    assert gone.code == 3
    assert "subagentd serve" in gone.err


@pytest.mark.spec("16.3", "16.6", "10.3")
async def test_agents_are_listed_and_checked_with_file_line_and_reason(tmp_path: Path) -> None:
    place = agents(tmp_path)
    good = await run_cold("agents", "check", str(place), folder=tmp_path)
    assert good.code == 0, good.out
    listed = await run("agents", "list", str(place), "--json", folder=tmp_path)
    assert {"head", "reader", "scout"} <= {row["name"] for row in listed.lines[0]}
    (place / "bad.md").write_text("---\nname: bad\n---\nNo description.\n")
    bad = await run("agents", "check", str(place), folder=tmp_path)
    assert bad.code == 1
    assert "bad.md:" in bad.out
    assert "description" in bad.out
    reported = await run("agents", "check", str(place), "--json", folder=tmp_path)
    assert any(row["path"].endswith("bad.md") and row["severity"] == "error" for row in reported.lines[0])


@pytest.mark.spec("16.3", "16.6", "17.2")
async def test_keys_are_made_shown_once_listed_and_revoked(tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "keys.db"))
    upgraded = await run_cold("db", "upgrade", *db, "--json", folder=tmp_path)
    assert upgraded.lines == [{"upgraded": True}]
    made = await run(
        "keys", "create", "--tenant", "acme", "--scopes", "run,read", "--expires", "30d", *db, "--json", folder=tmp_path
    )
    assert made.code == 0, made.err
    (key,) = made.lines
    assert key["tenant"] == "acme"
    assert key["expires_at"]
    listed = await run("keys", "list", *db, "--json", folder=tmp_path)
    assert [row["id"] for row in listed.lines[0]] == [key["id"]]
    assert key["key"] not in listed.out
    assert (await run("keys", "revoke", key["id"], *db, folder=tmp_path)).code == 0
    again = await run("keys", "list", *db, "--json", folder=tmp_path)
    assert again.lines[0][0]["revoked_at"]
    assert (await run("keys", "revoke", "key_nothing", *db, folder=tmp_path)).code == 1
    wrong = await run("keys", "create", "--scopes", "everything", *db, folder=tmp_path)
    assert wrong.code == 2
    assert "everything" in wrong.err
    for when in ("2101-01-01T00:00:00", "21010101T000000Z", "5 days", "2001-01-01T00:00:00Z"):
        wrong = await run("keys", "create", "--expires", when, *db, folder=tmp_path)
        assert (wrong.code, when in wrong.err) == (2, True), when
    assert len((await run("keys", "list", *db, "--json", folder=tmp_path)).lines[0]) == 1
    assert key["key"].encode() not in (tmp_path / "keys.db").read_bytes()


@pytest.mark.spec("16.1", "16.6")
async def test_wrong_usage_ends_with_2_and_help_and_version_with_0(tmp_path: Path) -> None:
    assert (await run_cold("--version", folder=tmp_path)).out.strip().endswith(__version__)
    assert (await run_cold("serve", "--help", folder=tmp_path)).code == 0
    for arguments in (("nonsense",), ("serve", "--port", "99999"), ("run", "only-an-agent"), ("keys", "create", "--x")):
        ended = await run(*arguments, folder=tmp_path)
        assert ended.code == 2, arguments
        assert ended.err


@pytest.mark.spec("11.7")
def test_the_tree_labels_subagents_from_depth_and_name() -> None:
    view = TreeView()
    envelope = {"ts": "", "session_id": "s", "v": 1}
    for number, (run_number, depth, path, name) in enumerate([(1, 0, [1], None), (2, 1, [1, 2], "Finder")], start=1):
        event = {**envelope, "id": number, "type": "run.queued", "run": run_number, "run_id": f"r{run_number}"}
        event |= {"depth": depth, "path": path, "agent": "lead" if depth == 0 else "finder", "data": {}}
        if name:
            event["name"] = name
        view.feed(Received(number, "run.queued", event))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view)
    lead, finder = (line for line in console.export_text().splitlines() if line.strip())
    assert "[子代理]" not in lead
    assert "[子代理]" in finder
    assert "finder" in finder
    assert "Finder" in finder
