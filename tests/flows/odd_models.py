"""A service whose models are strict loopback servers of both dialects, with tools that a model can call wrongly.

Knows neither cases nor depths.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from app.client import Client
from tests.service import ROOT, WAIT_S, Service, serving
from tests.stubs.anthropic_stub import AnthropicStub, request_problem
from tests.stubs.openai_stub import Answer, OpenAIStub, history_problem

PROFILES = """
[models.profiles.callers]
provider = "openai"
model = "calm"
base_url = "{openai}"
[models.profiles.openai]
provider = "openai"
model = "odd"
base_url = "{openai}"
[models.profiles.impatient]
provider = "openai"
model = "odd"
base_url = "{openai}"
idle_s = 1.5
[models.profiles.small-openai]
provider = "openai"
model = "odd"
base_url = "{openai}"
context_window = 2000
[models.profiles.anthropic]
provider = "anthropic"
model = "odd"
base_url = "{anthropic}"
[models.profiles.small-anthropic]
provider = "anthropic"
model = "odd"
base_url = "{anthropic}"
context_window = 2000
"""
TOOLS = '''
from typing import Any

from app.agent.tools import ToolContext
from app.tools.function import tool


def noted(context: ToolContext, text: str) -> None:
    with open(context.workspace / f"{context.run.session_id}.txt", "a") as file:
        file.write(text + "\\n")


@tool
def write_note(content: str, context: ToolContext) -> str:
    """Writes down a text."""
    noted(context, content)
    return f"wrote {content}"


@tool(read_only=True, concurrency_safe=True)
def list_skills() -> str:
    """Takes nothing."""
    return "skills: none"


@tool(read_only=True)
def pick(items: list[dict[str, int]]) -> str:
    """Takes a list."""
    return f"picked {items!r}"


@tool
def run_command(command: str, context: ToolContext) -> str:
    """Has no output."""
    noted(context, command)
    return ""
'''
FUNCTIONS = ("write_note", "list_skills", "pick", "run_command")
SETTINGS = {
    "SUBAGENTD_LOOP__RETRIES": "1",
    "SUBAGENTD_LOOP__BACKOFF_MS": "1",
    "SUBAGENTD_STORE__SYNCHRONOUS": "NORMAL",
    "SUBAGENTD_PERMISSIONS__RULES__ASK": '["Bash(make *)"]',
    "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps([f"odd_tools:{name}" for name in FUNCTIONS]),
}
FILES = {
    "a.txt": "alpha\n",
    "b.txt": "beta\n",
    "c.py": "gamma = 1\n",
    "long.txt": "a line of some sixty characters, as they are in many files\n" * 80,
}


class StrictOpenAI(OpenAIStub):
    """Knows when no answer is being sent any more."""

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__(strict=strict)
        self.quiet = _set()
        self._playing = 0

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._playing += 1
        self.quiet.clear()
        try:
            return await super()._play(answer, reader, writer)
        finally:
            self._playing -= 1
            if not self._playing:
                self.quiet.set()


class StrictAnthropic(AnthropicStub, StrictOpenAI):
    """The same in the other dialect."""


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(frozen=True, kw_only=True)
class Odd:
    """The service, its client and the model servers."""

    service: Service
    client: Client
    openai: StrictOpenAI
    anthropic: StrictAnthropic

    def refused(self) -> list[str]:
        """What a strict provider finds wrong with any request so far."""
        found = [history_problem(request.messages) for request in self.openai.requests]
        found += [request_problem(request.body, self.anthropic.issued) for request in self.anthropic.requests]
        return [problem for problem in found if problem is not None]

    async def quiet(self) -> None:
        """Wait until no answer is being sent any more: every connection is free or closed."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(self.openai.quiet.wait(), self.anthropic.quiet.wait())


@contextlib.asynccontextmanager
async def odd_service(folder: Path) -> AsyncIterator[Odd]:
    """Such a service; the model of whoever delegates is named `callers`."""
    async with StrictOpenAI() as openai, StrictAnthropic() as anthropic:
        urls = {"openai": openai.base_url, "anthropic": anthropic.base_url}
        (folder / "subagentd.toml").write_text(PROFILES.format(**urls))
        (folder / "odd_tools.py").write_text(TOOLS)
        env = {**SETTINGS, "SUBAGENTD_MODEL": "callers", "PYTHONPATH": f"{ROOT}:{folder}"}
        async with serving(folder, env=env) as service, service.client() as client:
            for name, content in FILES.items():
                (service.workspace / name).write_text(content)
            yield Odd(service=service, client=client, openai=openai, anthropic=anthropic)
