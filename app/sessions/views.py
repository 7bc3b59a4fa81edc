"""What a client is shown of rows: one place for each shape. Times leave as RFC 3339, None where nothing is.

Knows neither the store nor HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.messages import NO_USAGE, Usage
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


def handoff_view(row: Row, run: Row | None) -> dict[str, Any]:
    """A delegation with the result of its last run."""
    return {
        "handoff_id": row["id"],
        "session_id": row["session_id"],
        "run_id": run["id"] if run else None,
        "run_ids": row["run_ids"] or ([run["id"]] if run else []),
        "agent": row["agent"],
        "name": row["name"],
        "tool": row["tool"],
        "depth": row["depth"],
        "session_mode": row["session_mode"],
        "status": row["status"],
        "attempts": row["attempts"],
        "output": row["output"],
        "error": row["error"],
        "steps": run["steps"] if run else 0,
        "usage": run["usage"] if run else None,
        "usage_total": run["usage_total"] if run else None,
        "forced": bool(run["forced"]) if run else False,
        "partial": bool(run["partial"]) if run else False,
        "stop_reason": run["stop_reason"] if run else None,
        "activity": run["activity"] if run else None,
        "started_at": moment(row["started_at"]),
        "ended_at": moment(row["ended_at"]),
        "duration_ms": row["duration_ms"],
    }


def tree_view(session_id: str, rows: Sequence[Row]) -> dict[str, Any]:
    """All runs of a session as a forest; `usage_total` of an open run is the sum of what is known below it."""
    nodes: dict[str, dict[str, Any]] = {}
    roots: list[dict[str, Any]] = []
    for row in rows:
        node = {**run_view(row), "children": []}
        nodes[row["id"]] = node
        parent = nodes.get(row["parent_id"] or "")
        (parent["children"] if parent is not None else roots).append(node)
    total = NO_USAGE
    for root in roots:
        total = total + _inclusive(root)
    return {"session_id": session_id, "runs": roots, "usage_total": total.as_dict()}


def _inclusive(node: dict[str, Any]) -> Usage:
    total = Usage.from_dict(node["usage"])
    for child in node["children"]:
        total = total + _inclusive(child)
    node["usage_total"] = total.as_dict()
    return total


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
