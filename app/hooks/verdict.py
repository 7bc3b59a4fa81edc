"""The JSON between the service and its hooks: field names of Claude Code's hooks, and ours beside them.

Reads answers strictly: a hook that cannot be understood has no verdict, rather than a guessed one.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.hooks import MAX_BLOCK_CHARS, PROCEED, HookCall, HookFailure, HookPoint, Verdict
from app.wire import decode, encode

NO_REASON = "blocked without a reason"
ASKS = "ask"
NO_QUESTION = "it gave no reason"
_DECISIONS = {"block": True, "deny": True, "approve": False, "allow": False}


# ── to a hook ───────────────────────────────────────────────────────────────────────────────────────────────────


def payload_of(call: HookCall) -> bytes:
    """What a webhook or a command is told, as JSON. Fields that the point does not have are absent."""
    fields: dict[str, Any] = {
        "hook_event_name": call.point.value,
        "session_id": call.session_id,
        "parent_session_id": call.session_id if call.parent_run_id else None,  # a tree works in one session
        "tenant": call.tenant,
        "cwd": call.workspace,
        "run_id": call.run_id,
        "parent_run_id": call.parent_run_id,
        "handoff_id": call.handoff_id,
        "agent": call.agent,
        "name": call.name,
        "agent_id": call.run_id,
        "agent_type": call.agent,
        "depth": call.depth,
        "path": call.path,
        "lineage": call.lineage,
        **_POINT_FIELDS[call.point](call),
    }
    return encode({key: value for key, value in fields.items() if value is not None})


def _of_call(call: HookCall) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "tool_use_id": call.call_id,
        "tool_name": call.tool,
        "tool_input": dict(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments,
    }


def _of_result(call: HookCall) -> dict[str, Any]:
    told = {"tool_response": call.output or "", "is_error": call.is_error, "duration_ms": call.duration_ms}
    return {**_of_call(call), **told}


def _of_start(call: HookCall) -> dict[str, Any]:
    return {"prompt": call.prompt, "call_id": call.call_id}


def _of_stop(call: HookCall) -> dict[str, Any]:
    return {
        "result": call.result,
        "last_assistant_message": call.result,
        "steps": call.steps,
        "is_error": call.is_error,
        "duration_ms": call.duration_ms,
        "call_id": call.call_id,
        "stop_hook_active": call.stop_hook_active,
    }


_POINT_FIELDS = {
    HookPoint.SUBAGENT_START: _of_start,
    HookPoint.PRE_TOOL_USE: _of_call,
    HookPoint.POST_TOOL_USE: _of_result,
    HookPoint.SUBAGENT_STOP: _of_stop,
}


# ── from a hook ─────────────────────────────────────────────────────────────────────────────────────────────────


def verdict_of(answer: bytes) -> Verdict:
    """The verdict in an answer; an empty one lets things go on. Raises `HookFailure`."""
    if not answer.strip():
        return PROCEED
    try:
        value = decode(answer)
    except (ValueError, RecursionError) as error:
        raise HookFailure(f"its answer is not JSON: {error}") from None
    return read_verdict(value)


def read_verdict(value: Any) -> Verdict:
    """The verdict in a JSON value. Unknown keys are ignored, known ones with a wrong value are a `HookFailure`."""
    if not isinstance(value, Mapping):
        raise HookFailure(f"its answer must be a JSON object, not {_kind(value)}")
    specific = _typed(value, "hookSpecificOutput", Mapping) or {}
    return Verdict(
        block=_block(value, specific),
        ask=_ask(value, specific),
        arguments=_first(_typed(value, "mutate_input", Mapping), _typed(specific, "updatedInput", Mapping)),
        output=_first(_typed(value, "mutate_output", str), _typed(specific, "updatedToolOutput", str)),
        context=_first(_typed(value, "context", str), _typed(specific, "additionalContext", str)),
    )


def _block(value: Mapping[str, Any], specific: Mapping[str, Any]) -> str | None:
    """Why not, if it says so in one of four ways. All are read, so that a wrong one beside another is noticed."""
    reason, own = _typed(value, "reason", str), _typed(value, "block", str | bool)
    ways = (
        (own is not None and own is not False, own if isinstance(own, str) else reason),
        (_says_no(value, "decision"), reason),
        (_says_no(specific, "permissionDecision"), _typed(specific, "permissionDecisionReason", str) or reason),
        (_typed(value, "continue", bool) is False, _typed(value, "stopReason", str) or reason),
    )
    reasons = [(text or "").strip() for blocks, text in ways if blocks]
    return next(filter(None, reasons), NO_REASON)[:MAX_BLOCK_CHARS] if reasons else None


def _ask(value: Mapping[str, Any], specific: Mapping[str, Any]) -> str | None:
    """Why a person is to be asked."""
    if specific.get("permissionDecision") != ASKS:
        return None
    said = _typed(specific, "permissionDecisionReason", str) or _typed(value, "reason", str) or ""
    return (said.strip() or NO_QUESTION)[:MAX_BLOCK_CHARS]


def _says_no(value: Mapping[str, Any], key: str) -> bool:
    word = _typed(value, key, str)
    if word == ASKS and key == "permissionDecision":
        return False
    if word is not None and word not in _DECISIONS:
        raise HookFailure(f"{key} is {word[:40]!r}, which is none of {', '.join(_DECISIONS)}")
    return word is not None and _DECISIONS[word]


def _typed(value: Mapping[str, Any], key: str, kind: Any) -> Any:
    found = value.get(key)
    if found is not None and not isinstance(found, kind):
        raise HookFailure(f"{key} has a wrong type: {_kind(found)}")
    return found


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null" if value is None else f"a {type(value).__name__}")
