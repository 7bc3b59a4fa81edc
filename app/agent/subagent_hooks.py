"""The hooks around a subagent's run: its start, which they may deny or add to, and its end, which they may not accept.

Knows neither how a run is opened nor how it is driven (`runner.py`).
"""

import asyncio
from dataclasses import dataclass, replace

from app.agent import events
from app.agent.clearance import LAST_WORD_S, hook_event
from app.agent.errors import HookDenied
from app.agent.events import Recorder
from app.agent.hooks import Decision, HookCall, HookPoint, HookRegistry
from app.agent.runs import Run

RESULT_HEAD = 200  # characters of the result that a hook and subagent.stop are told (spec 6.1)
SENT_BACK = 3  # times at most (spec 6.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentHooks:
    """What one run of depth 1 or more asks its hooks."""

    recorder: Recorder
    hooks: HookRegistry
    run: Run
    lineage: tuple[str, ...]
    workspace: str

    async def started(self, prompt: str) -> tuple[str, ...]:
        """What is added to the task. Raises `HookDenied` when the subagent must not start."""
        if not self.hooks.has(HookPoint.SUBAGENT_START):
            return ()
        outcome = await self.hooks.fire(replace(self._call(HookPoint.SUBAGENT_START), prompt=prompt), self._record)
        if outcome.block is not None:
            raise HookDenied(f"hook {outcome.blocked_by} does not let this subagent start: {outcome.block}")
        return outcome.context

    async def stopped(self, result: str, steps: int, *, is_error: bool) -> str | None:
        """Why the subagent is to go on working, or None."""
        if not self.hooks.has(HookPoint.SUBAGENT_STOP):
            return None
        call = replace(self._call(HookPoint.SUBAGENT_STOP), result=result[:RESULT_HEAD], steps=steps, is_error=is_error)
        return (await self.hooks.fire(call, self._record)).block

    async def last_word(self, result: str, steps: int) -> None:
        """The end of a run that gave no answer; nobody can send it back. The hooks get a few seconds."""
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await self.stopped(result, steps, is_error=True)
        except TimeoutError:
            pass

    def _call(self, point: HookPoint) -> HookCall:
        return HookCall.of(self.run, point, lineage=self.lineage, workspace=self.workspace)

    def _record(self, decision: Decision) -> None:
        if decision.point is HookPoint.SUBAGENT_STOP and decision.decision == "block":
            decision = replace(decision, decision="send_back")
        self.recorder.record(self.run, events.HOOK_DECISION, hook_event(decision, None, None))
