"""The rows of permission requests and of decisions about calls, from the events that state them.

Knows neither batches nor SQL. Payloads come without their None values.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.approvals import digest_of
from app.agent.events import Event

Row = dict[str, Any]

MAX_NAME = 256  # characters of a tool name that a model made up; PostgreSQL indexes no text over 2,700 bytes

PENDING = "pending"
_STATUS = {
    "allow_once": "allowed",
    "allow_session": "allowed",
    "released": "allowed",
    "deny": "denied",
    "expired": "expired",
    "cancelled": "cancelled",
}
_PROVENANCE = (
    "call_id",
    "tool",
    "decision",
    "kind",
    "rule",
    "scope",
    "owner",
    "hook",
    "reason",
    "digest",
    "approval_id",
)


def requested(event: Event, payload: Mapping[str, Any]) -> Row:
    """A request that waits for its answer."""
    run = event.run
    if run is None:
        raise ValueError(f"event {event.seq} of type {event.type} names no run")
    row: Row = dict.fromkeys(("decision", "decided_by", "message", "decided_at", "edited_arguments"))
    row |= {"tenant_id": event.tenant, "id": payload["approval_id"], "session_id": event.session_id}
    row |= {"run_id": run.id, "epoch": run.epoch, "agent": run.agent, "name": run.name}
    row |= {"depth": run.depth, "path": list(run.path)}
    row |= {name: payload[name] for name in ("call_id", "arguments", "expires_at")}
    row |= {name: payload.get(name) for name in ("rule", "scope", "owner", "reason", "suggested_rule")}
    row |= {"tool": payload["tool"][:MAX_NAME], "arguments_digest": bytes.fromhex(payload["digest"])}
    return row | {"status": PENDING, "requested_at": event.ts}


def settled(event: Event, payload: Mapping[str, Any]) -> Row:
    """How a request was settled."""
    return {
        "status": _STATUS[payload["decision"]],
        "decision": payload["decision"],
        "decided_by": payload.get("by"),
        "message": payload.get("reason"),
        "edited_arguments": payload.get("arguments"),
        "decided_at": event.ts,
    }


def decided(event: Event, payload: Mapping[str, Any]) -> Row:
    """A decision about a call, or about a subagent by a hook."""
    run = event.run
    row: Row = {name: payload.get(name) for name in _PROVENANCE}
    row |= {"tenant_id": event.tenant, "session_id": event.session_id, "seq": event.seq, "type": event.type}
    row |= {"run_id": run.id if run is not None else None, "agent": run.agent if run is not None else None}
    row |= {"name": run.name if run is not None else None, "depth": run.depth if run is not None else 0}
    row |= {"step": event.step or 0, "decided_by": payload.get("by"), "ts": event.ts}
    row["edited_digest"] = _edited(event, payload)
    if row["tool"] is not None:
        row["tool"] = row["tool"][:MAX_NAME]
    return row | ({"kind": "hook"} if row["hook"] is not None else {})


def _edited(event: Event, payload: Mapping[str, Any]) -> str | None:
    """The digest of the arguments that a person has put in place of those asked about. Events of before 0013 have no
    digest but the arguments, masked as they are stored; migration 0013 has made the same of them."""
    if event.type != "permission.resolved" or payload.get("arguments") is None:
        return None
    return payload.get("edited_digest") or digest_of(payload["tool"], payload["arguments"])
