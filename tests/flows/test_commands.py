"""`run_command` over HTTP: output as it comes, its end, rules about it, and a server that runs none."""

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.boxes.box import Level
from app.client import Client, ServiceError
from tests.boxes.outside import a_nap, need, open_folder, own, running
from tests.processes import until
from tests.service import WAIT_S, Service, agent, events_of, finished, script, serving

WORKER = agent("worker", mode="all", tools=["run_command"])


def play(*commands: str, **arguments: Any) -> str:
    calls = [{"tool": "run_command", "arguments": {"command": command, **arguments}} for command in commands]
    return json.dumps({"agents": [{"turns": [*({"calls": [call]} for call in calls), {"text": "Done."}]}]})


@contextlib.asynccontextmanager
async def commanding(text: str, **env: str) -> AsyncIterator[Service]:
    """A service whose agents may run commands, in a workspace that they can write."""
    need(Level.FULL)
    with open_folder() as folder:
        (folder / "workspace").mkdir()
        own(folder / "workspace")
        given = {**script(folder, text), "SUBAGENTD_TOOLS__RUN_COMMAND": "true", **env}
        async with serving(folder, env=given) as service:
            yield service


async def started(client: Client, **fields: Any) -> dict[str, Any]:
    body = {"agent": "worker", "agents": [WORKER], "input": "Go.", **fields}
    run: dict[str, Any] = await client.request("POST", "/v1/runs", body)
    return run


async def results(client: Client, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of its calls in order."""
    events = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
    return [event["data"] for event in events if event["type"] == "tool.result"]


def readiness(service: Service) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{service.url}/readyz", timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.spec("7.3", "7.1")
async def test_output_is_shown_as_it_comes_and_the_model_gets_all_of_it() -> None:
    command = "echo one; echo two >&2; until test -e go; do sleep 0.02; done; echo three; exit 3"
    async with commanding(play(command)) as service, service.client() as client:
        run = await started(client)
        shown = ""
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"/v1/sessions/{run['session_id']}/events"):
                if frame.type == "tool.progress":
                    shown += str(frame.data["text"])
                    if shown == "one\ntwo\n":  # while the command is still waiting
                        (service.workspace / "go").touch()
                if frame.type == "tool.result":
                    break
        assert shown == "one\ntwo\nthree\n"
        (result,) = await results(client, run)
        assert result["content"] == "one\ntwo\nthree\n[exit code 3]"
        assert result["is_error"] is False
        status, ready = await asyncio.to_thread(readiness, service)
        assert (status, ready["sandbox"]) == (200, {"level": "full", "missing": {}})


@pytest.mark.spec("7.3", "7.4", "5.7")
@pytest.mark.case("B074", "B062")
async def test_a_cancelled_run_leaves_no_process_of_its_command() -> None:
    nap = a_nap()
    command = f"setsid /bin/sleep {nap} & (setsid sh -c '/bin/sleep {nap} & /bin/sleep {nap}' &); /bin/sleep {nap}"
    async with commanding(play(command)) as service, service.client() as client:
        run = await started(client)
        await until(lambda: len(running(nap)) >= 4)
        await client.request("POST", f"/v1/runs/{run['id']}/cancel")
        assert (await finished(client, run["id"]))["status"] == "cancelled"
        await until(lambda: not running(nap))
        (result,) = await results(client, run)
        assert result["status"] == "cancelled"


@pytest.mark.spec("7.3")
@pytest.mark.case("B074", "B075")
async def test_what_a_command_leaves_in_the_background_holds_up_nothing() -> None:
    nap = a_nap()
    commands = (
        f"(/bin/sleep {nap} &) ; echo started",
        f"setsid /bin/sleep {nap} & echo started",
        "yes | head -c 5000000000 >&2 & wait",
        "echo next",
    )
    async with commanding(play(*commands, timeout_ms=2000)) as service, service.client() as client:
        run = await started(client)
        assert (await finished(client, run["id"]))["output"] == "Done."
        first, second, flood, last = await results(client, run)
        assert [first["content"], second["content"], last["content"]] == ["started", "started", "next"]
        assert (flood["status"], flood["is_error"]) == ("timed_out", True)
        assert flood["content"].startswith("y\ny\n")
        assert running(nap) == []


@pytest.mark.spec("8.4", "8.1", "8.2", "7.3")
@pytest.mark.case("B107")
async def test_rules_judge_the_very_command_that_would_run() -> None:
    rules = {
        "SUBAGENTD_PERMISSIONS__RULES__ALLOW": '["Bash(echo *)"]',
        "SUBAGENTD_PERMISSIONS__RULES__ASK": '["Bash(rm *)"]',
        "SUBAGENTD_PERMISSIONS__DEFAULT": "deny",
    }
    text = play("echo allowed", "echo one && rm kept.txt", "touch other.txt")
    async with commanding(text, **rules) as service, service.client() as client:
        (service.workspace / "kept.txt").touch()
        run = await started(client)
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"/v1/sessions/{run['session_id']}/events"):
                if frame.type == "permission.requested":
                    path = f"/v1/permissions/{frame.data['data']['approval_id']}"
                    assert (await client.request("GET", path))["arguments"]["command"] == "echo one && rm kept.txt"
                    await client.request("POST", path, {"decision": "deny"})
                    break
        await finished(client, run["id"])
        allowed, asked, denied = await results(client, run)
        assert allowed["content"] == "allowed"
        assert [asked["status"], denied["status"]] == ["denied", "denied"]
        assert [path.name for path in service.workspace.iterdir()] == ["kept.txt"]


@pytest.mark.spec("7.3")
async def test_below_the_demanded_level_commands_are_refused_and_the_server_is_not_ready() -> None:
    with open_folder() as empty:
        async with commanding(play("touch made"), PATH=str(empty)) as service, service.client() as client:
            run = await started(client)
            await finished(client, run["id"])
            (result,) = await results(client, run)
            assert result["is_error"] is True
            assert "demands a sandbox of level full and has landlock" in result["content"]
            assert list(service.workspace.iterdir()) == []
            status, ready = await asyncio.to_thread(readiness, service)
            assert (status, ready["ready"], ready["sandbox"]["level"]) == (503, False, "landlock")
            assert "bwrap" in ready["sandbox"]["missing"]["full"]
            assert "demands a sandbox" in ready["checks"]["commands"]
            assert "demands a sandbox" in service.log


@pytest.mark.spec("7.3")
async def test_commands_are_off_unless_they_are_switched_on(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, play("ls"))) as service, service.client() as client:
        with pytest.raises(ServiceError) as refused:
            await started(client)
        assert (refused.value.status, refused.value.problem["code"]) == (422, "unsupported")
        assert "switched off on this server" in str(refused.value.problem)
        status, ready = await asyncio.to_thread(readiness, service)
        assert (status, "sandbox" in ready, "commands" in ready["checks"]) == (200, False, False)
