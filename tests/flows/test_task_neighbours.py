"""What a background task must not do to others: hold the service up, or let a stranger decide for it."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from app.client import ServiceError
from tests.commands import key_for
from tests.flows.paused import calling, let_go, played, question, worker
from tests.flows.test_tenants import ROOT_KEY
from tests.service import ROOT, WAIT_S, serving

TOOL = """
import time
from pathlib import Path

from app.tools.function import tool

@tool(read_only=True)
def linger(path: str) -> str:
    \"\"\"Block this thread until a file is there.\"\"\"
    until = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "there it is"
"""


@pytest.mark.spec("9.2", "14.17")
@pytest.mark.case("B190")
async def test_a_tool_that_blocks_its_thread_in_a_task_holds_nobody_else_up(tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text(TOOL)
    env = {**played(tmp_path), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    env |= {"SUBAGENTD_TOOLS__FUNCTIONS": '["own_tools:linger"]', "SUBAGENTD_STREAM__HEARTBEAT_S": "0.05"}
    gate = tmp_path / "gate"
    async with serving(tmp_path, env=env) as service, service.client() as client:
        call = calling({"tool": "linger", "arguments": {"path": str(gate)}})
        order = {"agent": worker(tools=["linger"]), "task": call, "background": True}
        slow = await client.request("POST", "/v1/delegations", order)
        path = f"/v1/tasks/{slow['task_id']}"
        beats = 0
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"/v1/delegations/{slow['task_id']}/events"):
                if frame.type == "tool.start":
                    break
            for number in range(20):
                quick = {"agent": worker(), "task": f"{number}"}
                assert (await client.request("POST", "/v1/delegations", quick))["output"] == f"{number}"
                assert await client.request("GET", "/healthz") == {"status": "ok"}
            headers = {"Accept": "text/event-stream"}
            url = f"{service.url}/v1/delegations/{slow['task_id']}/events"
            async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as watching:
                async for line in watching.content:
                    beats += line.startswith(b":")
                    if beats == 3:
                        break
        assert (await client.request("GET", path))["status"] == "running"
        gate.touch()
        assert (await client.request("GET", f"{path}/output"))["result"] == "there it is"


@pytest.mark.spec("8.2", "17.1")
@pytest.mark.case("B189")
async def test_nobody_of_another_tenant_decides_what_a_task_asks(tmp_path: Path) -> None:
    env = {**played(tmp_path), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service:
        everything = ("run", "read", "approve", "admin")
        mine, theirs = (
            await key_for(service, "a", *everything),
            await key_for(service, "b", *everything),
        )
        async with service.client(mine) as client, service.client(theirs) as stranger:
            order = {"agent": worker(), "task": "wait", "background": True}
            task = await client.request("POST", "/v1/delegations", order)
            asked = (await question(client, task["session_id"]))["data"]["approval_id"]
            for decision in ("allow_once", "deny"):
                with pytest.raises(ServiceError) as refused:
                    await stranger.request("POST", f"/v1/permissions/{asked}", {"decision": decision})
                assert refused.value.status == 404
            assert (await client.request("GET", f"/v1/permissions/{asked}"))["status"] == "pending"
            await let_go(client, task["session_id"])
            assert (await client.request("GET", f"/v1/tasks/{task['task_id']}/output"))["result"] == "wait"
