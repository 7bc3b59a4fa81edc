"""A service whose model is a strict loopback server, and a parent named `boss` in it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from app.client import Client
from tests.service import Service, agent, finished, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text

Decide = Callable[[Request], Answer]


class World:
    """The service, its client and the model server."""

    def __init__(self, service: Service, client: Client, stub: OpenAIStub) -> None:
        self.service = service
        self.client = client
        self.stub = stub

    async def run(self, decide: Decide, agents: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """One run of `boss`, to its end."""
        self.stub.requests.clear()
        self.stub.decide(decide)
        body = {"agent": "boss", "agents": agents, "input": "Go.", **fields}
        started = await self.client.request("POST", "/v1/runs", body)
        return await finished(self.client, started["id"])

    def of(self, prompt: str) -> list[Request]:
        """The requests of the agent with this prompt."""
        return [request for request in self.stub.requests if request.messages[0]["content"] == prompt]

    def shown(self) -> dict[str, dict[str, Any]]:
        """The tools that the parent's model was shown, by name."""
        tools = self.of("You are boss.")[0].body.get("tools", [])
        return {tool["function"]["name"]: tool["function"] for tool in tools}

    def told(self) -> list[str]:
        """The tool results that the parent's model was sent."""
        return [m["content"] for m in self.of("You are boss.")[-1].messages if m["role"] == "tool"]


@contextlib.asynccontextmanager
async def surface_world(folder: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with OpenAIStub() as stub:
        env = {
            "OPENAI_BASE_URL": stub.base_url,
            "OPENAI_API_KEY": "test",
            "SUBAGENTD_MODEL": "openai:test",
            "SUBAGENTD_LOOP__RETRIES": "0",  # attempts of a handoff are counted, not tries of a step
        }
        async with serving(folder, env=env) as service, service.client() as client:
            yield World(service, client, stub)


def boss(**fields: Any) -> dict[str, Any]:
    """The parent."""
    return agent("boss", mode="primary", **{"tools": ["Agent"], **fields})


def once(*wanted: tuple[str, str], child: str = "Child text.") -> Decide:
    """The parent makes these calls in one turn, then says what it was told; children answer at once."""

    def decide(request: Request) -> Answer:
        if request.messages[0]["content"] != "You are boss.":
            return text(child)
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        return text("told: " + " | ".join(results)) if results else calls(*wanted)

    return decide


def refused(message: str) -> Answer:
    """What a provider answers to a request that it will never take."""
    body = f'{{"error": {{"message": "{message}"}}}}'.encode()
    return Answer(status=400, writes=(body,), content_type="application/json")
