"""One server process for each test module, and the whole service in this process for what a client cannot do."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.main import create_app
from app.settings import load
from app.wiring import Wired, build
from tests.service import Service, agent, script, serving

PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - text: "Two parts."
        calls:
          - {tool: dispatch_subagent, arguments: {agent_type: quick, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: looker, task: "two"}}
      - {text: "Both: {{ result[0] }} {{ result[1] }}"}
  - when: {system_contains: "You are looker"}
    turns:
      - {calls: [{tool: glob, arguments: {pattern: "*"}}]}
      - {text: "Looked."}
  - when: {system_contains: "You are slow"}
    turns:
      - {text: "abcdefghij", chunks: 10, delay_ms: 60000}
  - when: {system_contains: "You are steady"}
    turns:
      - {text: "0123456789", chunks: 10, delay_ms: 100}
  - when: {system_contains: "You are asker"}
    turns:
      - {calls: [{tool: read_file, arguments: {path: "notes.md"}}]}
      - {text: "Asked."}
  - turns: [{text: "Answer to {{ task }}.", repeat: true}]
"""
AGENTS = [
    agent("boss", mode="primary", tools=["dispatch_subagent"]),
    agent("quick", mode="all", tools=[]),
    agent("looker", tools=["glob"]),
    agent("slow", mode="all", tools=[]),
    agent("steady", mode="all", tools=[]),
    agent("asker", mode="all", tools=["read_file"]),
]


def body(name: str, text: str = "Hi", **fields: object) -> dict[str, object]:
    """The body of `POST /v1/runs` for one of the agents of the script."""
    return {"agent": name, "agents": AGENTS, "input": text, **fields}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A server without keys, with the script above, whose streams ping soon; who reads a file is asked about it."""
    folder = tmp_path_factory.mktemp("service")
    env = {
        **script(folder, PLAY),
        "SUBAGENTD_STREAM__HEARTBEAT_S": "0.2",
        "SUBAGENTD_HTTP__GRACE_S": "0.1",
        "SUBAGENTD_PERMISSIONS__RULES__ASK": '["read_file"]',
    }
    async with serving(folder, env=env) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that server."""
    async with httpx.AsyncClient(base_url=service.url, timeout=20) as client:
        yield client


class InProcess:
    """The application of the real service in this process."""

    def __init__(self, app: FastAPI, wired: Wired) -> None:
        self.app = app
        self.wired = wired
        self.services = wired.services

    def client(self, **headers: str) -> httpx.AsyncClient:
        """A client without a network; errors of the application do not reach the test."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers)


@contextlib.asynccontextmanager
async def in_process(folder: Path, **groups: object) -> AsyncIterator[InProcess]:
    """The real service with these settings."""
    settings = load(store={"url": str(folder / "x.db")}, models={"default": "scripted:echo"}, **groups)
    wired = await build(settings)
    try:
        yield InProcess(create_app(wired.services, settings), wired)
    finally:
        await wired.drain(0)
        await wired.close()
