"""What a client is shown of rows: one place for each shape. Times leave as RFC 3339, None where nothing is.

Knows neither the store nor HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.messages import NO_USAGE, Usage, UsageInfo
from app.agent.runs import HandoffStatus, Run, RunStatus
from app.sessions.audit import DECIDED
from app.wire import timestamp

Row = Mapping[str, Any]


def moment(value: int | None) -> str | None:
    """µs as RFC 3339."""
    return None if value is None else timestamp(value)


def session_view(row: Row, open_runs: int) -> dict[str, Any]:
    """A session."""
    config = dict(row["config"] or {})
    return {
        "id": row["id"],
        "agent": row["agent"],
        "status": "closed" if row["closed_at"] is not None else ("active" if open_runs else "idle"),
        "title": row["title"] or None,
        "user": row["user"],
        "metadata": row["metadata"] or {},
        **config,
        "created_at": moment(row["created_at"]),
        "updated_at": moment(row["updated_at"]),
        "closed_at": moment(row["closed_at"]),
        "last_event_id": row["next_seq"] - 1,
    }


def created_view(event: Row) -> dict[str, Any]:
    """A session as it was when it was made, from its first event."""
    blank = dict.fromkeys(("agent", "title", "user", "metadata", "config", "created_at", "updated_at", "closed_at"))
    shown = session_view({**blank, **event["data"], "id": event["session_id"], "next_seq": event["id"] + 1}, 0)
    return {**shown, "created_at": event["ts"], "updated_at": event["ts"]}


def started_view(run: Run, after: int) -> dict[str, Any]:
    """A run that was started; its events begin behind the number `after`."""
    return {
        "id": run.id,
        "session_id": run.session_id,
        "memory_id": run.memory_id,
        "run": run.ordinal,
        "turn": run.turn,
        "depth": run.depth,
        "agent": run.agent,
        "status": "queued",
        "events": f"/v1/runs/{run.id}/events",
        "after": after,
    }


def run_view(row: Row) -> dict[str, Any]:
    """A run; the keys after `status` are null until they are known."""
    return {
        "id": row["id"],
        "session_id": row["session_id"],
        "memory_id": row["memory_id"],
        "run": row["ordinal"],
        "turn": row["turn"],
        "depth": row["depth"],
        "path": row["path"],
        "agent": row["agent"],
        "name": row["name"],
        "parent_run_id": row["parent_id"],
        "parent_call_id": row["parent_call_id"],
        "handoff_id": row["handoff_id"],
        "attempt": row["attempt"],
        "status": row["status"],
        "wait_reason": row["wait_reason"],
        "stop_reason": row["stop_reason"],
        "input": row["input"],
        "output": row["output"],
        "error": row["error"],
        "steps": row["steps"],
        "max_steps": row["max_steps"],
        "model": row["model"],
        "tools": row["tools"],
        "forced": row["forced"],
        "partial": row["partial"],
        "usage": row["usage"],
        "usage_total": row["usage_total"],
        "activity": row["activity"],
        "created_at": moment(row["created_at"]),
        "started_at": moment(row["started_at"]),
        "ended_at": moment(row["ended_at"]),
        "duration_ms": row["duration_ms"],
    }


def handoff_view(row: Row, runs: Sequence[Row]) -> dict[str, Any]:
    """A delegation with the result of its last run; what it used is the sum over its attempts and fallback."""
    run = runs[-1] if runs else None
    return {
        "handoff_id": row["id"],
        "session_id": row["session_id"],
        "run_id": run["id"] if run else None,
        "run_ids": row["run_ids"] or [one["id"] for one in runs],
        "agent": row["agent"],
        "name": row["name"],
        "tool": row["tool"],
        "depth": row["depth"],
        "session_mode": row["session_mode"],
        "session_scope": row["session_scope"],
        "status": row["status"],
        "attempts": row["attempts"],
        "output": row["output"],
        "error": row["error"],
        "fallback": row["fallback"],
        "steps": run["steps"] if run else 0,
        "usage": _sum(runs, "usage"),
        "usage_total": _sum(runs, "usage_total"),
        "forced": bool(run["forced"]) if run else False,
        "partial": bool(run["partial"]) if run else False,
        "stop_reason": run["stop_reason"] if run else None,
        "activity": run["activity"] if run else None,
        "started_at": moment(row["started_at"]),
        "ended_at": moment(row["ended_at"]),
        "duration_ms": row["duration_ms"],
    }


def task_view(row: Row, runs: Sequence[Row]) -> dict[str, Any]:
    """A background task; `result` and `error` are null until it has ended. It has when its last run has completed,
    which may be stored a moment before the end of the task itself; the time is that of the run then and later."""
    status, output, ended_at = row["status"], row["output"], row["ended_at"]
    last = runs[-1] if runs else None
    if last is not None and last["status"] == RunStatus.COMPLETED:
        if ended_at is None:
            status, output = HandoffStatus.COMPLETED.value, last["output"]
        if status == HandoffStatus.COMPLETED:
            ended_at = last["ended_at"]
    good = status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK)
    began = [run["started_at"] for run in runs if run["started_at"] is not None]
    return {
        "task_id": row["id"],
        "session_id": row["session_id"],
        "parent_run_id": row["run_id"],
        "agent": row["agent"],
        "name": row["name"],
        "status": status,
        "result": output or "" if good else None,
        "error": None if good else row["error"],
        "run_ids": row["run_ids"] or [run["id"] for run in runs],
        "attempts": row["attempts"] or len(runs),
        "created_at": moment(row["started_at"]),
        "started_at": moment(min(began, default=None)),
        "ended_at": moment(ended_at),
    }


def _sum(runs: Sequence[Row], column: str) -> UsageInfo | None:
    """The usage in that column of all runs; None while none of them has any."""
    known = [Usage.from_dict(run[column]) for run in runs if run[column] is not None]
    return sum(known, NO_USAGE).as_dict() if known else None


def tree_view(session_id: str, runs: Sequence[Row], handoffs: Sequence[Row] = ()) -> dict[str, Any]:
    """All runs of a session as a forest, by ordinal. `usage` and `usage_total` hold tokens and cost, a run's own and
    with everything below it; those of an open run are what is known. `handoffs` stand with the run that made them, so
    that denied ones are seen; direct delegations stand at the top."""
    nodes = {row["id"]: {**run_view(row), "children": [], "handoffs": []} for row in runs}
    top: dict[str, Any] = {"session_id": session_id, "runs": [], "handoffs": []}
    attempts: dict[str, list[str]] = {}
    for row in runs:
        parent = nodes.get(row["parent_id"] or "")
        (parent["children"] if parent is not None else top["runs"]).append(nodes[row["id"]])
        if row["handoff_id"] is not None:
            attempts.setdefault(row["handoff_id"], []).append(row["id"])
    for row in handoffs:
        node = nodes.get(row["run_id"] or "", top)
        node["handoffs"].append(_tree_handoff(row, attempts.get(row["id"], [])))
    return top | {"usage_total": _add_up(runs, nodes).as_dict()}


def _tree_handoff(row: Row, attempts: list[str]) -> dict[str, Any]:
    """A handoff beside the runs that it led to; `attempts` are those that are known before it has ended."""
    names = ("id", "tool", "agent", "name", "status", "attempts", "error", "fallback")
    return {**{name: row[name] for name in names}, "run_ids": row["run_ids"] or attempts}


def _add_up(runs: Sequence[Row], nodes: Mapping[str, dict[str, Any]]) -> Usage:
    """Fill in what every run used with its subtree; returns the sum of all: of those that stand at the top, which may
    have used more than is left of what was below them."""
    totals, everything = inclusive(runs), NO_USAGE
    for row in runs:
        own = Usage.from_dict(row["usage"])
        node = nodes[row["id"]]
        node["usage"] = own.as_dict() if row["usage"] is not None else None
        node["usage_total"] = totals[row["id"]].as_dict()
        if row["parent_id"] not in nodes:
            everything = everything + totals[row["id"]]
    return everything


def inclusive(runs: Sequence[Row]) -> dict[str, Usage]:
    """What each run of a session used with everything below it, from what each used itself: a background task may have
    ended after the run that started it. What a run had used with all below it when it ended holds at least: of a task
    that is kept for longer than the log, what was below it is gone. A child's ordinal is above its parent's, so that no
    depth is too deep."""
    totals: dict[str, Usage] = {}
    below: dict[str, Usage] = {}
    for row in reversed(runs):
        total = Usage.from_dict(row["usage"]) + below.get(row["id"], NO_USAGE)
        if row["usage_total"] is not None:
            total = total.at_least(Usage.from_dict(row["usage_total"]))
        totals[row["id"]] = total
        parent = row["parent_id"] or ""
        below[parent] = below.get(parent, NO_USAGE) + total
    return totals


def with_late_tasks(rows: Sequence[Row], runs: Sequence[Row]) -> list[Row]:
    """These of all `runs` of a session, with what was used by tasks that went on when a run had ended."""
    totals = inclusive(runs)
    return [{**row, "usage_total": totals[row["id"]].as_dict()} if row["open_tasks"] else row for row in rows]


def message_view(row: Row) -> dict[str, Any]:
    """A message of the audit log."""
    return {
        "id": row["id"],
        "seq": row["seq"],
        "session_id": row["session_id"],
        "memory_id": row["memory_id"],
        "memory_seq": row["memory_seq"],
        "run_id": row["run_id"],
        "agent": row["agent"],
        "name": row["name"],
        "is_subagent": row["is_subagent"],
        "depth": row["depth"],
        "turn": row["turn"],
        "step": row["step"],
        "sub": row["sub"],
        "role": row["role"],
        "content": row["content"],
        "reasoning": row["reasoning"],
        "tool_calls": row["tool_calls"],
        "tool_call_id": row["tool_call_id"],
        "tool": row["tool"],
        "is_error": row["is_error"],
        "tokens": row["tokens"],
        "metadata": row["metadata"],
        "ts": moment(row["ts"]),
    }


def approval_view(row: Row) -> dict[str, Any]:
    """A permission request. `arguments` are what was asked about, `edited_arguments` what a person made of them."""
    names = (
        "id", "session_id", "run_id", "agent", "name", "depth", "path", "call_id", "tool", "arguments",
        "edited_arguments", "rule", "scope", "owner", "reason", "suggested_rule", "status", "decision", "decided_by",
        "message",
    )  # fmt: skip
    times = ("requested_at", "expires_at", "decided_at")
    shown = {name: row[name] for name in names} | {"digest": row["arguments_digest"].hex()}
    return shown | {name: moment(row[name]) for name in times}


def decision_view(row: Row) -> dict[str, Any]:
    """A decision of a rule, a person, the clock or a hook, with its provenance."""
    return {name: row[name] for name in DECIDED} | {"ts": moment(row["ts"])}
