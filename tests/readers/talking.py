"""A service whose agents talk, for measurements of streams: a lead with two subagents side by side, texts in many
pieces, and steps that break off once and are made again. Also what a process has in use, by /proc."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.client import Client
from app.tools.function import tool
from tests.service import ROOT, agent, finished, script

PLAY = """
defaults: {chunks: 20, delay_ms: DELAY}
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - text: "I ask two others about {{ task }}."
        calls:
          - {tool: dispatch_subagent, arguments: {agent_type: teller, task: "left of {{ task }}"}}
          - {tool: dispatch_subagent, arguments: {agent_type: teller, task: "right of {{ task }}"}}
      - {text: "Together, 合起来: {{ result[0] }} / {{ result[1] }}"}
  - when: {system_contains: "You are teller"}
    turns:
      - text: "This is cut off, {{ task }}, and said again."
        cut: true
        times: 1
        calls: [{tool: lookup, arguments: {query: "{{ task }}"}}]
      - {text: "Told: {{ result[0] }} 🎈 and all that belongs to {{ task }}."}
  - when: {system_contains: "You are counter"}
    turns:
      - {text: "", chunks: 1, calls: [{tool: tasks_alive, arguments: {}}]}
      - {text: "{{ result[0] }}", chunks: 1, delay_ms: 0}
"""
AGENTS = [
    agent("lead", mode="primary", tools=["dispatch_subagent"]),
    agent("teller", tools=["lookup"]),
    agent("counter", mode="all", tools=["tasks_alive"]),
]


@tool(read_only=True)
async def lookup(query: str) -> str:
    """Look something up."""
    return f"looked up: {query}"


@tool(read_only=True)
async def tasks_alive() -> str:
    """How many tasks the event loop of the service has."""
    return str(len(asyncio.all_tasks()))


def talking(folder: Path, *, delay_ms: int) -> dict[str, str]:
    """The environment of such a service; `delay_ms`: between two pieces of a text."""
    tools = ["tests.readers.talking:lookup", "tests.readers.talking:tasks_alive"]
    return {
        **script(folder, PLAY.replace("DELAY", str(delay_ms))),
        "PYTHONPATH": str(ROOT),
        "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps(tools),
        "SUBAGENTD_LOOP__BACKOFF_MS": "20",
    }


def order(subject: str) -> dict[str, Any]:
    """The body that starts a run about something; two runs about the same share what breaks off once."""
    return {"agent": "lead", "agents": AGENTS, "surfaces": ["dispatch"], "input": subject}


async def tasks_of(client: Client) -> int:
    """How many tasks the service has while one run counts them."""
    started = await client.request("POST", "/v1/runs", {"agent": "counter", "agents": AGENTS, "input": "Count."})
    return int((await finished(client, started["id"]))["output"])


@dataclass(frozen=True, slots=True)
class InUse:
    """What a process has: memory in bytes, open files, threads."""

    rss: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "InUse":
        """Now."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls(
            rss=int(fields["VmRSS"].split()[0]) * 1024,
            files=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields["Threads"]),
        )
