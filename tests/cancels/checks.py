"""What must hold after a cancel, read from what clients can see: events, routes, and what hooks wrote down.

Beyond `tests.strict.log_problems`, which knows what a log may say at all.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.client import Client, Received
from tests.strict import FINAL, log_problems

Event = Mapping[str, Any]


def open_things(frames: Iterable[Received], under: str | None = None) -> Counter[str]:
    """What was under way in the open runs at or below the run `under` (None: of the session), as far as these frames
    tell."""
    runs: dict[str, _Seen] = {}
    handoffs: dict[str, str] = {}
    for frame in frames:
        data = frame.data
        if frame.type == "handoff.start" and "run_id" in data:
            handoffs[data["data"]["handoff_id"]] = data["run_id"]
        elif frame.type == "handoff.end":
            handoffs.pop(data["data"]["handoff_id"], None)
        if "run_id" not in data:
            _delta(runs, frame)
        elif frame.type == "run.queued":
            runs[data["run_id"]] = _Seen(data)
        elif frame.type in FINAL:
            runs.pop(data["run_id"], None)
        elif data["run_id"] in runs:
            runs[data["run_id"]].see(frame.type, data["data"])
    top = next((run.path for run in runs.values() if run.id == under), None) if under else []
    wanted = [run for run in runs.values() if top is not None and run.path[: len(top)] == top]
    found = Counter(thing for run in wanted for thing in run.things())
    busy = {run.handoff for run in runs.values()}
    inside = {run.id for run in wanted}
    found["between attempts"] += sum(by in inside and ho not in busy for ho, by in handoffs.items())
    return +found


def _delta(runs: Mapping[str, "_Seen"], frame: Received) -> None:
    for run in runs.values():
        if run.ordinal == frame.data.get("run"):
            run.streamed = run.streamed or frame.type == "text.delta"


class _Seen:
    """One open run, as far as its events tell."""

    def __init__(self, queued: Event) -> None:
        self.id: str = queued["run_id"]
        self.ordinal: int = queued["run"]
        self.path: list[int] = queued["path"]
        self.handoff: str | None = queued["data"].get("handoff_id")
        self.subagent = queued["depth"] > 0
        self.begun = self.opened = self.asking = self.streamed = self.resting = self.said = False
        self.calls: dict[str, str] = {}

    def see(self, kind: str, data: Event) -> None:
        """One event of it."""
        self.begun = self.begun or kind == "run.started"
        self.opened = self.opened or kind == "subagent.start"
        if kind == "step.started":
            self.asking, self.streamed = True, False
        elif kind == "message" and data["role"] == "assistant":
            self.asking, self.said = False, not data.get("tool_calls")
        elif kind in ("run.waiting", "run.resumed") and data["reason"] == "retry":
            self.resting = kind == "run.waiting"
        elif kind == "tool.call":
            self.calls[data["call_id"]] = f"hook before {data['tool']}"
        elif kind == "permission.requested":
            self.calls[data["call_id"]] = "question"
        elif kind == "tool.start":
            self.calls[data["call_id"]] = f"tool {data['tool']}"
        elif kind == "tool.result":
            self.calls.pop(data["call_id"], None)

    def things(self) -> list[str]:
        """What it has open; delegations are left to the runs that carry them out."""
        if not self.begun:
            return ["waiting run"]
        if self.subagent and not self.opened:
            return ["hook at the start"]
        if self.resting:
            return ["retry"]
        if self.asking:
            return ["stream half way" if self.streamed else "model"]
        if self.said:
            return ["hook at the stop"]
        return [thing for thing in self.calls.values() if not thing.endswith(_DELEGATIONS)]


_DELEGATIONS = ("dispatch_subagent", "execute_task", "subagent", "subagent_node", "subagent_pool", "subagent_tired")


# ── after a cancel ──────────────────────────────────────────────────────────────────────────────────────────────────


def ended_problems(events: Sequence[Event], cancelled: Iterable[str]) -> list[str]:
    """What is wrong with the runs that a cancel says it has ended, and with those below them."""
    paths = {e["run_id"]: e["path"] for e in events if e["type"] == "run.queued"}
    ends = {e["run_id"]: e for e in events if e["type"] in FINAL}
    tops = [paths[run] for run in cancelled]
    below = [run for run, path in paths.items() if any(path[: len(top)] == top for top in tops)]
    found = [f"{run} is open after its cancel was answered" for run in below if run not in ends]
    for run in cancelled:
        kind = ends[run]["type"] if run in ends else "run.cancelled"
        if kind != "run.cancelled":  # its answer may have been on the way; anything else would be a lie
            found.append(f"the cancel says that it ended {run}, the log says {kind}")
    return found


async def shown_problems(
    client: Client, session: str, events: Sequence[Event], frames: Sequence[Received]
) -> list[str]:
    """Whether routes, stream, log and audit tell the same, and nothing waits for anybody."""
    found = log_problems(events)
    told = {e["run_id"]: e["type"].removeprefix("run.") for e in events if e["type"] in FINAL}
    tree = await client.request("GET", f"/v1/sessions/{session}/tree")
    shown = dict(_statuses(tree["runs"]))
    if shown != told:
        found.append(f"the tree shows {shown}, the log says {told}")
    for run, status in told.items():
        row = await client.request("GET", f"/v1/runs/{run}")
        if row["status"] != status or row["ended_at"] is None:
            found.append(f"the route shows {run} as {row['status']}, the log as {status}")
    durable = [frame.data["id"] for frame in frames if frame.id is not None]
    if durable != [e["id"] for e in events][: len(durable)]:
        found.append(f"the stream showed {durable}, the log has {len(events)}")
    if (await client.page("/v1/permissions", session_id=session, status="pending"))["items"]:
        found.append("a question is still open")
    return [*found, *await _audited(client, session, events), *_settled_questions(events)]


def _statuses(nodes: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    for node in nodes:
        yield node["id"], node["status"]
        yield from _statuses(node["children"])


async def _audited(client: Client, session: str, events: Sequence[Event]) -> list[str]:
    """The audit has each message that the log has, and no other."""
    said = {e["data"]["message_id"]: e["data"]["content"] for e in events if e["type"] in ("message", "tool.result")}
    rows: dict[str, str] = {}
    cursor = None
    while True:
        page = await client.page("/v1/audit", session_id=session, limit=500, cursor=cursor)
        rows |= {row["id"]: row["content"] for row in page["items"]}
        cursor = page["next"]
        if cursor is None:
            break
    return [] if rows == said else [f"the audit has {len(rows)} messages, the log {len(said)}"]


def _settled_questions(events: Sequence[Event]) -> list[str]:
    asked = [e["data"]["approval_id"] for e in events if e["type"] == "permission.requested"]
    settled = [e["data"]["approval_id"] for e in events if e["type"] == "permission.resolved"]
    counted = Counter(one for one in settled if one is not None)
    return [f"question {one} was settled {counted[one]} times" for one in asked if counted[one] != 1]


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Diary:
    """What the hooks of a server were told, by what it was about."""

    def __init__(self, path: Path) -> None:
        self.told: Counter[tuple[str, str]] = Counter()
        for line in path.read_text().splitlines() if path.exists() else ():
            point, run, call, _ = json.loads(line)
            self.told[point, call if point.endswith("ToolUse") else run] += 1

    def problems(self, events: Sequence[Event]) -> list[str]:
        """Of one session: a start without a stop, a call without its hooks, or one twice."""
        found: list[str] = []
        due: dict[str, set[str]] = {point: set() for point in ("OnSubagentStart", "OnSubagentStop", "PostToolUse")}
        kinds = {"subagent.start": "OnSubagentStart", "subagent.stop": "OnSubagentStop"}
        started = set()
        for event in events:
            if event["type"] in kinds:
                due[kinds[event["type"]]].add(event["run_id"])
            elif event["type"] == "tool.start":
                due["PostToolUse"].add(event["data"]["call_id"])
            elif event["type"] == "run.queued":
                started.add(event["run_id"])
        for point, ids in due.items():
            found += [f"{point} of {one} was told {n} times" for one in ids if (n := self.told[point, one]) != 1]
        alone = [r for r in started if self.told["OnSubagentStart", r] != self.told["OnSubagentStop", r]]
        return found + [f"hooks were told of the start of {r}, but not of its end" for r in alone]
