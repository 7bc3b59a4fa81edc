"""What hooks are told in tests, and what they decided."""

from typing import Any

from app.agent.hooks import Check, Decision, Hook, HookCall, HookPoint, HookRegistry, Outcome

FIELDS: dict[HookPoint, dict[str, Any]] = {
    HookPoint.SUBAGENT_START: {"prompt": "Look at the diary."},
    HookPoint.PRE_TOOL_USE: {"call_id": "call_1", "tool": "read_file", "arguments": {"path": "diary.txt"}},
    HookPoint.POST_TOOL_USE: {
        "call_id": "call_1",
        "tool": "read_file",
        "arguments": {"path": "diary.txt"},
        "output": "Dear diary",
        "duration_ms": 12,
    },
    HookPoint.SUBAGENT_STOP: {"result": "It is a diary.", "steps": 2},
}


def told(point: HookPoint = HookPoint.PRE_TOOL_USE, **fields: Any) -> HookCall:
    """A call at a point, by a subagent at depth 1."""
    given: dict[str, Any] = {
        "tenant": "default",
        "session_id": "ses_1",
        "run_id": "run_2",
        "agent": "scout",
        "name": "sub_1",
        "depth": 1,
        "path": (1, 2),
        "parent_run_id": "run_1",
        "lineage": ("run_1",),
        "workspace": "/work",
        **FIELDS[point],
        **fields,
    }
    return HookCall(point=point, **given)


async def asked(
    *hooks: Hook, call: HookCall | None = None, check: Check | None = None
) -> tuple[Outcome, list[Decision]]:
    """Ask these hooks as a run does; what came of it, and what its log says."""
    decisions: list[Decision] = []
    outcome = await HookRegistry(hooks).fire(call or told(), decisions.append, check)
    return outcome, decisions
