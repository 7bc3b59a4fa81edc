"""The hooks around a subagent's run: its start, which they may deny or add to, and its end, which they may not accept.

Who has seen the start is told of the end, once, whatever comes between. Knows neither how a run is opened nor how it is
driven (`runner.py`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from app.agent import events
from app.agent.clearance import hook_event, spoken
from app.agent.decisions import HookOutcome
from app.agent.errors import HookDenied
from app.agent.hooks import Decision, HookCall, HookPoint, HookRegistry, Outcome, Round
from app.agent.interruption import OutOfTime
from app.agent.ports import Recorder
from app.agent.runs import Run

RESULT_HEAD = 200  # characters of the result that a hook and subagent.stop are told (spec 6.1)
SENT_BACK = 3  # times at most (spec 6.4)


@dataclass(slots=True, kw_only=True)
class SubagentHooks:
    """What one run of depth 1 or more asks its hooks. `last_word_s` is around what is told of an end that nobody asked
    for, and gives the seconds for it; `until` is the run's deadline, at which a hook has not answered."""

    recorder: Recorder
    hooks: HookRegistry
    run: Run
    lineage: tuple[str, ...]
    workspace: str
    last_word_s: Callable[[], AbstractContextManager[float]]
    until: Callable[[], float | None]
    _began: float = field(default=0.0, init=False)
    _sent_back: bool = field(default=False, init=False)
    _wait: frozenset[str] = field(default=frozenset(), init=False)  # for the end: they have seen the start
    _asking: asyncio.Task[Outcome] | None = field(default=None, init=False)  # whether an answer is accepted
    _closed: bool = field(default=False, init=False)

    async def started(self, prompt: str) -> tuple[str, ...]:
        """What is added to the task. Raises `HookDenied` when the subagent must not start; who denies that waits for no
        end."""
        self._began = asyncio.get_running_loop().time()
        if not self.hooks.has(HookPoint.SUBAGENT_START):
            return ()
        going = Round()
        try:
            call = replace(self._call(HookPoint.SUBAGENT_START), prompt=prompt)
            outcome = await self.hooks.fire(call, self._record(), going=going, until=self.until())
        finally:
            self._wait = self.hooks.names(HookPoint.SUBAGENT_STOP).intersection(going.asked)
        if outcome.block is not None:
            self._wait -= {outcome.blocked_by}
            raise HookDenied(f"hook {outcome.blocked_by} does not let this subagent start: {outcome.block}")
        return outcome.context

    def begun(self, sent_back: int = 0) -> None:
        """The subagent has started: every hook of its end is to be told of that. `sent_back`: so often it was, by an
        earlier process."""
        self._began = self._began or asyncio.get_running_loop().time()
        self._sent_back = sent_back > 0
        self._wait = self.hooks.names(HookPoint.SUBAGENT_STOP)

    def goes_on(self) -> None:
        """It works on after all: every hook is asked about its next answer."""
        self._wait = self.hooks.names(HookPoint.SUBAGENT_STOP)

    @property
    def due(self) -> bool:
        """Whether anybody waits to be told of the end, or is just being told."""
        return bool(self._wait) or (self._asking is not None and not self._asking.done())

    async def stopped(self, result: str, steps: int, *, final: bool) -> str | None:
        """Why the subagent is to go on working, or None; `final`: it cannot. When this is cancelled, whoever is being
        asked may finish until `last_word` ends."""
        if not self._wait:
            return None
        going = Round(to_the_last=final)
        call = self._ended(result, steps, is_error=False)
        record = self._record("block" if final else "send_back")
        asking = self.hooks.fire(call, record, going=going, until=self.until())
        self._asking = asyncio.create_task(asking, name=f"stop hooks of {self.run.id}")
        try:
            block = (await asyncio.shield(self._asking)).block
        except BaseException:  # whatever it is: the run ends, and `last_word` tells those who have heard nothing yet
            going.over = True
            self._wait -= frozenset(going.asked)
            raise
        if block is not None and not final:
            self._sent_back = True
            return block
        self._wait = frozenset()
        return None

    async def last_word(self, result: str, steps: int) -> None:
        """The end of a run that gave no answer; nobody can send it back. The hooks get a few seconds."""
        others = self.hooks.names(HookPoint.SUBAGENT_STOP) - self._wait
        self._wait = frozenset()
        call = self._ended(result, steps, is_error=True)
        telling = self._told(self.hooks.tell(call, self._record("block"), besides=others))
        try:
            with self.last_word_s() as seconds:
                await spoken(telling, seconds)
        except OutOfTime:
            pass
        finally:
            self._closed = True  # nothing follows the end of the run in its log

    async def _told(self, telling: Coroutine[Any, Any, None]) -> None:
        """Until everybody has heard, those who were being asked when the run was cancelled among them."""
        pending = [] if self._asking is None or self._asking.done() else [self._asking]
        await asyncio.gather(telling, *pending, return_exceptions=True)

    def _ended(self, result: str, steps: int, *, is_error: bool) -> HookCall:
        call = self._call(HookPoint.SUBAGENT_STOP)
        return replace(
            call,
            result=result[:RESULT_HEAD],
            steps=steps,
            is_error=is_error,
            duration_ms=int((asyncio.get_running_loop().time() - self._began) * 1000),
            stop_hook_active=self._sent_back,
        )

    def _call(self, point: HookPoint) -> HookCall:
        return HookCall.of(self.run, point, lineage=self.lineage, workspace=self.workspace)

    def _record(self, block: HookOutcome = "block") -> Callable[[Decision], None]:
        """How decisions are recorded; `block`: what a block comes to."""

        def record(decision: Decision) -> None:
            if self._closed:
                return
            if decision.decision == "block":
                decision = replace(decision, decision=block)
            self.recorder.record(self.run, events.HOOK_DECISION, hook_event(decision, None, None))

        return record
