"""Files, artifacts and notes over HTTP: written by agents, read by their children, kept over a crash, erased."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from tests.service import WAIT_S, agent, events_of, finished, script, serving

SECRET = "sk-canary-0123456789abcdef"
SMALL = {
    "SUBAGENTD_TOOLS__MAX_OUTPUT_CHARS": "1000",
    "SUBAGENTD_TOOLS__OUTPUT_HEAD_CHARS": "100",
    "SUBAGENTD_TOOLS__OUTPUT_TAIL_CHARS": "100",
}


def plays(*parts: dict[str, Any]) -> str:
    return json.dumps({"agents": list(parts)})


def part(name: str, *turns: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"system_contains": f"You are {name}"}, "turns": list(turns)}


def calls(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"tool": tool, "arguments": arguments}]}


async def started(client: Client, name: str, *agents: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"agent": name, "agents": list(agents), "input": "Go.", **fields}
    run: dict[str, Any] = await client.request("POST", "/v1/runs", body)
    return run


async def results(client: Client, session_id: str) -> list[dict[str, Any]]:
    found = await events_of(client, f"/v1/sessions/{session_id}/events")
    return [event["data"] for event in found if event["type"] == "tool.result"]


@pytest.mark.spec("7.5", "14.13", "12.6")
@pytest.mark.seed("004", 144)
@pytest.mark.case("B142")
async def test_the_whole_of_a_cut_output_is_read_by_the_agent_and_over_rest_masked(tmp_path: Path) -> None:
    # behind the head stand "[… N characters left out of N; the whole is artifact <id>; …", the id is the 13th word
    reader = part(
        "reader",
        calls("read_file", path="big.txt"),
        calls("read_artifact", id="{{ words(result[0])[12][0:30] }}", offset=2900),
        {"text": "{{ result[1] }}"},
    )
    env = {**script(tmp_path, plays(reader)), **SMALL, "DEMO_API_KEY": SECRET}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        text = "\n".join(f"{n:05}" + "x" * 94 for n in range(29)) + f"\n{SECRET} end"
        (service.workspace / "big.txt").write_text(text)
        whole = text.replace(SECRET, "[masked]")
        run = await started(client, "reader", agent("reader", mode="all", tools=["read_file", "read_artifact"]))
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"/v1/sessions/{run['session_id']}/events"):
                if frame.type == "tool.result":
                    break
        result = frame.data["data"]
        artifact = result["artifact_id"]
        assert f"the whole is artifact {artifact}; read_artifact reads it" in result["content"]
        async with aiohttp.ClientSession() as http, http.get(f"{service.url}/v1/artifacts/{artifact}") as answer:
            assert (answer.status, await answer.text()) == (200, whole)
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["content-disposition"] == f'attachment; filename="{artifact}.txt"'
            assert answer.headers["x-content-type-options"] == "nosniff"
        ended = await finished(client, run["id"])
        assert ended["output"] == f"[characters 2900-{len(whole)} of {len(whole)}]\n{whole[2900:]}"
        assert SECRET not in service.database.read_bytes().decode("latin-1")
        await client.request("DELETE", f"/v1/sessions/{run['session_id']}")
        for unknown in (artifact, "art_" + "0" * 26, "..%2f..%2fetc", "%00", "x" * 3000):
            with pytest.raises(ServiceError) as gone:
                await client.request("GET", f"/v1/artifacts/{unknown}")
            assert gone.value.status == 404
    assert SECRET not in service.log


@pytest.mark.spec("7.3", "12.7")
async def test_notes_are_shared_by_a_tree_in_order_and_survive_a_crash(tmp_path: Path) -> None:
    lead = part(
        "lead-one",
        calls("note", text=f"The key is {SECRET}.", title="found"),
        calls("execute_task", name="helper", description="Look", prompt="Look."),
        calls("note"),
        {"text": "{{ result[2] }}"},
    )
    helper = part("helper", calls("note", title="found"), calls("note", text="Done."), {"text": "{{ result[0] }}"})
    env = {**script(tmp_path, plays(lead, helper)), "DEMO_API_KEY": SECRET}
    noted = "[1] found (by lead-one)\nThe key is [masked]."
    async with serving(tmp_path, env=env, check_log=False) as service, service.client() as client:
        own = agent("lead-one", mode="primary", tools=["note", "Agent"]), agent("helper", tools=["note"])
        run = await started(client, "lead-one", *own)
        first = await finished(client, run["id"])
        assert (first["status"], first["output"]) == ("completed", f"{noted}\n\n[2] note (by helper)\nDone.")
        assert any(noted in result["content"] for result in await results(client, run["session_id"]))
        await service.kill()
        await service.start()
        async with service.client() as again:
            turn = await again.request("POST", f"/v1/sessions/{run['session_id']}/runs", {"input": "Go on."})
            second = await finished(again, turn["id"])
            assert second["output"].startswith(f"{noted}\n\n[2] note (by helper)\nDone.\n\n[3] found")
            other = await started(again, "helper", agent("helper", mode="all", tools=["note"]))
            assert (await finished(again, other["id"]))[
                "output"
            ] == "There is no note titled 'found'; there are 0 notes."
        assert SECRET not in service.database.read_bytes().decode("latin-1")


@pytest.mark.spec("7.3", "7.6", "8.4")
@pytest.mark.seed("004", 144, 180)
async def test_a_file_is_written_read_and_edited_by_a_tree_under_its_rules(tmp_path: Path) -> None:
    writer = part(
        "writer",
        calls("write_file", file_path="out/a.txt", content="one\ntwo\n"),
        calls("write_file", file_path="private/a.txt", content="no"),
        calls("execute_task", name="helper", description="Edit", prompt="Edit."),
        calls("edit_file", path="out/a.txt", old_string="two", new_string="zwei"),
        {"text": "Done."},
    )
    helper = part(
        "helper", calls("edit_file", file_path="out/a.txt", old_str="one", new_str="eins"), {"text": "Edited."}
    )
    async with serving(tmp_path, env=script(tmp_path, plays(writer, helper))) as service, service.client() as client:
        tools = ["write_file", "edit_file", "Agent"]
        rules = {"deny": ["Write(private/**)"]}
        own = agent("writer", mode="primary", tools=tools, permissions=rules), agent("helper", tools=["edit_file"])
        run = await started(client, "writer", *own)
        await finished(client, run["id"])
        found = await results(client, run["session_id"])
        assert [result["status"] for result in found] == ["ok", "denied", "ok", "ok", "error"], found
        assert "line 1 differs:\n-one\n+eins" in found[4]["content"]
        assert (service.workspace / "out/a.txt").read_text() == "eins\ntwo\n"
        assert not (service.workspace / "private").exists()
        called = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
        paths = [event["data"]["arguments"].get("path") for event in called if event["type"] == "tool.call"]
        assert paths == ["out/a.txt", "private/a.txt", None, "out/a.txt", "out/a.txt"]


@pytest.mark.spec("7.6", "12.7")
async def test_after_a_restart_an_edit_asks_for_a_reading_first(tmp_path: Path) -> None:
    editor = part(
        "editor",
        calls("read_file", path="a.txt"),
        {"text": "Read."},
    )
    late: dict[str, Any] = {"when": {"system_contains": "You are editor", "task_contains": "Edit"}}
    late["turns"] = [calls("edit_file", path="a.txt", old_string="a", new_string="b"), {"text": "{{ result[0] }}"}]
    env = script(tmp_path, plays(late, editor))
    async with serving(tmp_path, env=env) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("a")
        run = await started(client, "editor", agent("editor", mode="all", tools=["read_file", "edit_file"]))
        await finished(client, run["id"])
    async with serving(tmp_path, env=env) as service, service.client() as client:
        turn = await client.request("POST", f"/v1/sessions/{run['session_id']}/runs", {"input": "Edit."})
        said = (await finished(client, turn["id"]))["output"]
        assert said == "'a.txt' exists and was not read in this session: read it with read_file, then call edit_file"
        assert (service.workspace / "a.txt").read_text() == "a"
