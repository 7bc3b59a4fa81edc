"""The only place that turns events into session, memory, run, handoff, message, tool-call, approval and decision rows.

Gathers the rows of one batch and merges them: a run that starts and ends within a batch is one insert. Knows no SQL;
`statements.py` carries the rows into the database. Payloads come without their None values (`wire.encode_payload`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from app.agent.events import FINAL_TYPES, Event
from app.agent.messages import Role
from app.agent.runs import FINAL_STATUSES, HandoffStatus, Run, RunStatus
from app.store import approval_rows
from app.store.approval_rows import MAX_NAME

Row = dict[str, Any]
Key = tuple[str, str]  # tenant, id

PENDING, DELIVERED, ACKNOWLEDGED = "pending", "delivered", "acknowledged"  # states of a notice
_FINAL = frozenset(str(status) for status in FINAL_STATUSES)


class Projection:
    """The rows that one batch of events leads to.

    `sessions`, `runs`, `handoffs`, `calls`, `messages`, `approvals`, `notices` and `decisions` are new rows; `memories`
    are inserted or moved on; `results` are calls that are inserted or completed. What ends in `_changes` are columns of
    rows that an earlier batch stored. `erased`: sessions whose rows up to that event number are removed.
    """

    __slots__ = (
        "approval_changes", "approvals", "call_changes", "calls", "decisions", "erased", "handoff_changes", "handoffs",
        "memories", "memory_changes", "messages", "notice_changes", "notices", "results", "run_changes", "runs",
        "session_changes", "sessions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sessions: dict[Key, Row] = {}
        self.session_changes: dict[Key, Row] = {}
        self.memories: dict[Key, Row] = {}
        self.memory_changes: dict[Key, Row] = {}
        self.runs: dict[Key, Row] = {}
        self.run_changes: dict[Key, Row] = {}
        self.handoffs: dict[Key, Row] = {}
        self.handoff_changes: dict[Key, Row] = {}
        self.messages: list[Row] = []
        self.calls: dict[Key, Row] = {}
        self.call_changes: dict[Key, Row] = {}
        self.results: dict[Key, Row] = {}
        self.approvals: dict[Key, Row] = {}
        self.approval_changes: dict[Key, Row] = {}
        self.decisions: list[Row] = []
        self.notices: dict[Key, Row] = {}
        self.notice_changes: dict[Key, Row] = {}
        self.erased: dict[Key, int] = {}

    def add(self, event: Event) -> None:
        """Take one event in; types that lead to no row are passed over. Raises when a payload lacks a field."""
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event, event.payload)

    def change_session(self, tenant: str, session_id: str, values: Mapping[str, Any]) -> None:
        """Set columns of a session, new or old."""
        key = (tenant, session_id)
        row = self.sessions.get(key)
        if row is None:
            row = self.session_changes.setdefault(key, {})
        row.update(values)

    def change_run(self, tenant: str, run_id: str, values: Mapping[str, Any]) -> None:
        """Set columns of a run, unless it is final: nothing follows a final state."""
        key = (tenant, run_id)
        row = self.runs.get(key)
        if row is None:
            row = self.run_changes.setdefault(key, {})
        if row.get("status") not in _FINAL:
            row.update(values)

    def touch_memory(self, event: Event, memory_id: str, agent: str | None, *, turn: int = 0, seq: int = 1) -> None:
        """Make sure that a memory exists and that its counters are at least these."""
        key = (event.tenant, memory_id)
        row = self.memories.get(key)
        if row is None:
            self.memories[key] = {
                "tenant_id": event.tenant,
                "id": memory_id,
                "session_id": event.session_id,
                "agent": agent,
                "name": event.run.name if event.run is not None else None,
                "next_turn": turn,
                "next_seq": seq,
                "summary": None,
                "summary_from": None,
                "shortened": None,
                "created_at": event.ts,
            }
            return
        row["next_turn"] = max(row["next_turn"], turn)
        row["next_seq"] = max(row["next_seq"], seq)


# ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────


def blank_session(event: Event) -> Row:
    """The row of a session of which nothing is known but its first event; the head is filled in by the writer."""
    row: Row = dict.fromkeys(
        ("memory_id", "agent", "title", "user", "closed_at", "closed_seq", "erased_at", "idle_seq", "busy_seq"),
        None,
    )
    row |= {"tenant_id": event.tenant, "id": event.session_id, "metadata": {}, "config": {}}
    row |= {"created_at": event.ts, "updated_at": event.ts}
    return row


def _session_created(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    row = blank_session(event)
    for name in ("memory_id", "agent", "title", "user", "metadata", "config"):
        if name in payload:
            row[name] = payload[name]
    rows.sessions[(event.tenant, event.session_id)] = row
    rows.touch_memory(event, payload["memory_id"], payload.get("agent"))


def _session_updated(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    changed = {name: payload[name] for name in ("title", "metadata") if name in payload}
    rows.change_session(event.tenant, event.session_id, {**changed, "updated_at": event.ts})


def _session_idle(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    rows.change_session(event.tenant, event.session_id, {"idle_seq": event.seq, "busy_seq": None})


def _busy(rows: Projection, event: Event) -> None:
    """Something was begun, and the session is not at rest before it says so or is closed."""
    rows.change_session(event.tenant, event.session_id, {"busy_seq": event.seq})


def _session_closed(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    closed: Row = {"closed_at": event.ts, "closed_seq": event.seq, "updated_at": event.ts, "busy_seq": None}
    if erases(event):
        closed |= {"erased_at": event.ts, "title": None, "user": None, "metadata": {}, "config": {}}
        rows.erased[(event.tenant, event.session_id)] = event.seq
    rows.change_session(event.tenant, event.session_id, closed)


def erases(event: Event) -> bool:
    """Whether everything of the event's session before it is removed."""
    return event.type == "session.closed" and event.payload["reason"] == "deleted"


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_of(event: Event) -> Run:
    if event.run is None:
        raise ValueError(f"event {event.seq} of type {event.type} names no run")
    return event.run


_IDENTITY = (
    "id", "memory_id", "handoff_id", "parent_id", "parent_call_id", "agent", "name", "turn", "ordinal", "depth", "path",
    "attempt", "epoch",
)  # fmt: skip
_ASKED = ("model", "max_steps", "deadline_ms", "timeout_ms")
_OUTCOME = (
    "stop_reason", "output", "steps", "usage", "usage_total", "forced", "partial", "error", "activity", "open_tasks",
    "duration_ms",
)  # fmt: skip
_NO_OUTCOME: Row = {**dict.fromkeys(_OUTCOME), "forced": False, "partial": False}
_NOT_YET: Row = dict.fromkeys(("wait_reason", "tools", "terminal_seq", "started_at", "ended_at"))


def _run_queued(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    _busy(rows, event)
    run = _run_of(event)
    row: Row = {name: getattr(run, name) for name in _IDENTITY}
    row |= {name: payload.get(name) for name in _ASKED}
    row |= _NO_OUTCOME | _NOT_YET
    row |= {"tenant_id": event.tenant, "session_id": event.session_id, "status": RunStatus.QUEUED.value}
    row |= {"input": payload["input"], "first_seq": event.seq, "created_at": event.ts}
    rows.runs[(event.tenant, run.id)] = row
    rows.touch_memory(event, run.memory_id, run.agent, turn=run.turn + 1)


def _taken_up(run: Run) -> Row:
    running = RunStatus.RUNNING.value
    return {"status": running, "wait_reason": None, "attempt": run.attempt, "epoch": run.epoch}


def _run_started(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    run = _run_of(event)
    values = _taken_up(run) | {"model": payload["model"], "tools": payload.get("tools")}
    if run.attempt == 1:  # a run that is taken up again keeps its first start
        values["started_at"] = event.ts
    rows.change_run(event.tenant, run.id, values)


def _run_waiting(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    values = {"status": RunStatus.WAITING.value, "wait_reason": payload["reason"]}
    rows.change_run(event.tenant, _run_of(event).id, values)


def _run_resumed(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    run = _run_of(event)
    rows.change_run(event.tenant, run.id, _taken_up(run))


def _run_ended(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    values = _NO_OUTCOME | {name: payload[name] for name in _OUTCOME if name in payload}
    values |= {"status": payload["status"], "wait_reason": None, "terminal_seq": event.seq, "ended_at": event.ts}
    rows.change_run(event.tenant, _run_of(event).id, values)


# ── messages and tool calls ─────────────────────────────────────────────────────────────────────────────────────


def _some(payload: Mapping[str, Any], *names: str) -> Row | None:
    """These fields as far as they are there and say something; None for none."""
    found = {name: payload[name] for name in names if payload.get(name)}
    return found or None


def _message_row(event: Event, payload: Mapping[str, Any]) -> Row:
    run = event.run
    return {
        "tenant_id": event.tenant,
        "id": payload["message_id"],
        "session_id": event.session_id,
        "seq": event.seq,
        "memory_id": payload["memory_id"],
        "memory_seq": payload["memory_seq"],
        "run_id": run.id if run is not None else None,
        "agent": run.agent if run is not None else None,
        "name": run.name if run is not None else None,
        "is_subagent": run is not None and run.depth > 0,
        "depth": run.depth if run is not None else 0,
        "turn": payload["turn"],
        "step": event.step or 0,
        "sub": payload["sub"],
        "content": payload["content"],
        "ts": event.ts,
    }


def _message(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    calls = payload.get("tool_calls") or None
    row = _message_row(event, payload)
    row["role"] = payload["role"]
    row["reasoning"] = payload.get("reasoning")
    row["tool_calls"] = calls
    row["tool_call_id"] = None
    row["tool"] = None
    row["is_error"] = False
    row["tokens"] = payload.get("tokens")
    row["metadata"] = _some(payload, "provider", "opaque", "partial")
    rows.messages.append(row)
    # A reply with n calls reserves the n numbers after its own for their results. The turn again: the row that
    # `run.queued` made may have gone with the session that it belonged to.
    after = payload["memory_seq"] + 1 + (len(calls) if calls else 0)
    rows.touch_memory(event, payload["memory_id"], row["agent"], turn=payload["turn"] + 1, seq=after)
    _told(rows, event, payload.get("notices") or (), DELIVERED)


def _compaction(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    """How the memory is gone on with; of an earlier time nothing is left but the event."""
    rows.memory_changes[(event.tenant, _run_of(event).memory_id)] = {
        "summary": payload.get("summary"),
        "summary_from": payload["kept_from"],
        "shortened": _some(payload, "task", "untold", "cuts", "note"),
    }


_NEW_CALL: Row = {
    "arguments": "", "status": "pending", "read_only": None, "is_error": False, "message_id": None, "result_seq": None,
    "delegation": None, "started_at": None, "ended_at": None, "duration_ms": None,
}  # fmt: skip


def _call_row(event: Event, payload: Mapping[str, Any]) -> Row:
    run = event.run
    return {
        **_NEW_CALL,
        "tenant_id": event.tenant,
        "id": payload["call_id"],
        "session_id": event.session_id,
        "seq": event.seq,
        "run_id": run.id if run is not None else None,
        "agent": run.agent if run is not None else None,
        "depth": run.depth if run is not None else 0,
        "step": event.step or 0,
        "sub": payload["sub"],
        "tool": payload["tool"][:MAX_NAME],
        "provider_call_id": payload.get("provider_call_id"),
        "ts": event.ts,
    }


def _tool_call(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    row = _call_row(event, payload)
    arguments = payload.get("arguments", "")
    row["arguments"] = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    rows.calls[(event.tenant, row["id"])] = row


def _tool_start(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    key = (event.tenant, payload["call_id"])
    row = rows.calls.get(key)
    if row is None:
        row = rows.call_changes.setdefault(key, {})
    row |= {"status": "running", "read_only": payload["read_only"], "started_at": event.ts}
    row["delegation"] = payload.get("delegation", False)


def _tool_result(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    message = _message_row(event, payload)
    message |= {"role": Role.TOOL.value, "reasoning": None, "tool_calls": None, "tokens": None}
    message |= {"tool_call_id": payload["call_id"], "tool": payload["tool"][:MAX_NAME], "is_error": payload["is_error"]}
    message["metadata"] = _some(payload, "provider_call_id", "status", "length", "artifact_id")
    rows.messages.append(message)
    after = payload["memory_seq"] + 1
    rows.touch_memory(event, payload["memory_id"], message["agent"], turn=payload["turn"] + 1, seq=after)

    # An unknown tool has a result and no `tool.call`, so a result must be able to make the row.
    key = (event.tenant, payload["call_id"])
    row = rows.calls.get(key)
    if row is None:
        row = rows.results[key] = _call_row(event, payload) | rows.call_changes.pop(key, {})
    row |= {"status": payload["status"], "is_error": payload["is_error"], "message_id": payload["message_id"]}
    row |= {"result_seq": event.seq, "ended_at": event.ts, "duration_ms": payload["duration_ms"]}
    _told(rows, event, payload.get("acknowledges") or (), ACKNOWLEDGED)


# ── handoffs ────────────────────────────────────────────────────────────────────────────────────────────────────


def _handoff_start(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    _busy(rows, event)
    row: Row = dict.fromkeys(("output", "error", "fallback", "run_ids", "end_seq", "ended_at", "duration_ms"))
    row |= {"tenant_id": event.tenant, "id": payload["handoff_id"], "session_id": event.session_id}
    row |= {name: payload[name] for name in ("tool", "surface", "name", "depth", "session_mode", "background", "input")}
    row |= {name: payload.get(name) for name in ("call_id", "purpose", "session_scope")}
    row["agent"] = payload["subagent"]
    row |= {"run_id": event.run.id if event.run is not None else None, "status": HandoffStatus.RUNNING.value}
    row |= {"attempts": 0, "start_seq": event.seq, "started_at": event.ts}
    rows.handoffs[(event.tenant, row["id"])] = row


def _handoff_end(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    names = ("status", "attempts", "duration_ms", "output", "error", "fallback", "run_ids")
    values: Row = {name: payload.get(name) for name in names}
    values |= {"end_seq": event.seq, "ended_at": event.ts}
    key = (event.tenant, payload["handoff_id"])
    row = rows.handoffs.get(key)
    if row is None:
        rows.handoff_changes.setdefault(key, values)
    elif row["end_seq"] is None:
        row.update(values)


# ── notices ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _notice(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    row: Row = {"tenant_id": event.tenant, "id": payload["notice_id"], "session_id": event.session_id}
    row |= {"memory_id": payload["memory_id"], "run_id": payload["for_run"], "handoff_id": payload.get("handoff_id")}
    row |= {"status": PENDING, "content": payload["content"], "created_at": event.ts, "delivered_at": None}
    rows.notices[(event.tenant, row["id"])] = row


def _told(rows: Projection, event: Event, notices: Sequence[str], status: str) -> None:
    """Some notices need not be told any more."""
    for notice_id in notices:
        key = (event.tenant, notice_id)
        row = rows.notices.get(key)
        if row is None:
            row = rows.notice_changes.setdefault(key, {})
        row |= {"status": status, "delivered_at": event.ts}


# ── questions and decisions ─────────────────────────────────────────────────────────────────────────────────────


def _permission_requested(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    rows.approvals[(event.tenant, payload["approval_id"])] = approval_rows.requested(event, payload)


def _permission_resolved(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    rows.decisions.append(approval_rows.decided(event, payload))
    if "approval_id" in payload:
        key = (event.tenant, payload["approval_id"])
        row = rows.approvals.get(key)
        if row is None:
            row = rows.approval_changes.setdefault(key, {})
        row |= approval_rows.settled(event, payload)


def _hook_decision(rows: Projection, event: Event, payload: Mapping[str, Any]) -> None:
    rows.decisions.append(approval_rows.decided(event, payload))


_HANDLERS: Mapping[str, Callable[[Projection, Event, Mapping[str, Any]], None]] = {
    "session.created": _session_created,
    "session.updated": _session_updated,
    "session.idle": _session_idle,
    "session.closed": _session_closed,
    "run.queued": _run_queued,
    "run.started": _run_started,
    "run.waiting": _run_waiting,
    "run.resumed": _run_resumed,
    **dict.fromkeys(FINAL_TYPES, _run_ended),
    "message": _message,
    "compaction": _compaction,
    "tool.call": _tool_call,
    "tool.start": _tool_start,
    "tool.result": _tool_result,
    "handoff.start": _handoff_start,
    "handoff.end": _handoff_end,
    "permission.requested": _permission_requested,
    "permission.resolved": _permission_resolved,
    "hook.decision": _hook_decision,
    "notice": _notice,
}
