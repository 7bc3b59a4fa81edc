"""A service with something of everything in it, for requests at random: sessions, runs, handoffs, tasks, questions,
artifacts, agents and keys, and the ids under which they are found.

Knows nothing of what is asked at random.
"""

import re
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.service import agent, script

TENANTS = ("left", "right")
KEPT = 200  # ids of a kind: enough to meet again, few enough to be met
KINDS = {  # by the name of a path parameter: the prefix of ids that belong there
    "session_id": "ses",
    "run_id": "run",
    "handoff_id": "ho",
    "task_id": "ho",
    "permission_id": "apr",
    "artifact_id": "art",
    "key_id": "key",
}
_ID = re.compile(r"\b(ses|run|ho|apr|art|key|mem|msg)_[0-9a-hjkmnp-tv-z]{26}\b")
PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - text: "Three parts."
        calls:
          - {tool: dispatch_subagent, arguments: {agent_type: quick, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: looker, task: "two"}}
          - {tool: execute_task, arguments: {name: quick, description: "a part behind", prompt: "three",
                                             run_in_background: true}}
      - {text: "All: {{ result[0] }}"}
  - when: {system_contains: "You are looker"}
    turns:
      - {calls: [{tool: glob, arguments: {pattern: "*"}}]}
      - {text: "Looked."}
  - when: {system_contains: "You are slow"}
    turns:
      - {text: "abcdefghij", chunks: 10, delay_ms: 60000}
  - when: {system_contains: "You are asker"}
    turns:
      - {calls: [{tool: read_file, arguments: {path: "notes.md"}}]}
      - {text: "Asked."}
  - turns: [{text: "Answer to {{ task }}.", repeat: true}]
"""
AGENTS = [
    agent("boss", mode="primary", tools=["dispatch_subagent", "execute_task"]),
    agent("quick", mode="all", tools=[]),
    agent("looker", mode="all", tools=["glob"]),
    agent("slow", mode="all", tools=[]),
    agent("asker", mode="all", tools=["read_file"]),
]
OWN = {"description": "Mine.", "prompt": "You are mine."}
LEADS = tuple(each["name"] for each in AGENTS)


def environment(folder: Path) -> dict[str, str]:
    """What a server needs so that there is something of everything: the script, outputs that are cut, questions."""
    workspace = folder / "workspace"
    for place in (workspace, *(folder / "workspace.tenants" / name for name in TENANTS)):
        place.mkdir(parents=True)
        for number in range(60):  # a list of them is longer than what a model is shown
            (place / f"a-file-with-a-long-name-{number:03}.txt").touch()
    return {
        **script(folder, PLAY),
        "SUBAGENTD_WORKSPACE": str(workspace),
        "SUBAGENTD_TOOLS__MAX_OUTPUT_CHARS": "1000",
        "SUBAGENTD_TOOLS__OUTPUT_HEAD_CHARS": "500",
        "SUBAGENTD_TOOLS__OUTPUT_TAIL_CHARS": "100",
        "SUBAGENTD_PERMISSIONS__RULES__ASK": '["read_file"]',
        "SUBAGENTD_HTTP__GRACE_S": "0.1",
    }


class Known:
    """The ids of one tenant that answers have shown, the newest of each kind; never that of `own_key`, which all
    requests are made with."""

    def __init__(self, own_key: str = "") -> None:
        self._ids: dict[str, deque[str]] = {}
        self._own_key = own_key

    def learn(self, text: str) -> None:
        """Keep the ids in an answer."""
        for match in _ID.finditer(text):
            kept = self._ids.setdefault(match[1], deque(maxlen=KEPT))
            if match[0] not in kept and match[0] != self._own_key:
                kept.append(match[0])

    def pick(self, rng: Random, parameter: str) -> str | None:
        """An id for a path parameter; None when there is none."""
        kept = self._ids.get(KINDS.get(parameter, ""))
        return rng.choice(kept) if kept else None

    def has(self, text: str) -> bool:
        """Whether one of the ids stands in a text."""
        return any(found[0] in self._ids.get(found[1], ()) for found in _ID.finditer(text))

    def missing(self) -> set[str]:
        """Path parameters that no id is known for."""
        return {name for name, kind in KINDS.items() if not self._ids.get(kind)}


def start(name: str, text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """The body of a start of one of the agents."""
    return {
        "agent": name,
        "agents": AGENTS,
        "surfaces": ["dispatch", "task"],
        "default_subagent": "quick",
        "input": text,
        **fields,
    }


async def seed(http: httpx.AsyncClient, known: Known) -> None:
    """Make something of everything, and learn its ids. Who has no key makes none: from the first one on they are
    needed."""
    keyed = "Authorization" in http.headers
    ended = [await _started(http, name) for name in ("boss", "looker", "quick")]
    open_ = [await _started(http, name) for name in ("slow", "asker")]
    for run in ended:
        known.learn((await http.get(f"/v1/runs/{run['id']}", params={"wait_ms": 30_000})).text)
    await _asked(http, open_[1]["session_id"])
    delegation = {"agent": AGENTS[1], "task": "a part", "background": True}
    asked: list[tuple[str, str, Any]] = [("POST", "/v1/delegations", delegation), ("PUT", "/v1/agents/mine", OWN)]
    asked += [("POST", "/v1/keys", {"name": "another"})] if keyed else []
    asked += [("GET", f"/v1/sessions/{run['session_id']}/tree", None) for run in (*ended, *open_)]
    asked += [("GET", f"/v1/sessions/{run['session_id']}/events", None) for run in (*ended, *open_)]
    asked += [("GET", path, None) for path in ("/v1/tasks", "/v1/permissions", "/v1/keys")]
    for method, path, body in asked:
        answer = await http.request(method, path, json=body, headers={"Accept": "application/json"})
        known.learn(answer.text)
    missing = known.missing() - (set() if keyed else {"key_id"})
    assert not missing, missing


async def _started(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await http.post("/v1/runs", json=start(name))
    assert answer.status_code == 202, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def _asked(http: httpx.AsyncClient, session_id: str) -> None:
    """Wait for the question of a session."""
    for _ in range(30):
        query: dict[str, Any] = {"types": "permission.requested", "wait_ms": 1000}
        answer = await http.get(
            f"/v1/sessions/{session_id}/events", params=query, headers={"Accept": "application/json"}
        )
        if answer.status_code != 200 or answer.json()["items"]:  # somebody else may have deleted it meanwhile
            return
    raise AssertionError("nobody was asked")
