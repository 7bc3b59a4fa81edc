"""One model call of a run: what it shows, what it keeps, what it used.

Knows neither why the call is made nor what follows from the reply.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from app.agent import events
from app.agent.artifacts import JSON, new_artifact
from app.agent.budget import Amount
from app.agent.chat import ChatModel, ChatRequest, Delta, DeltaKind, Emit, Prices, Reply
from app.agent.errors import ModelError
from app.agent.events import EventKind
from app.agent.filters import masked
from app.agent.messages import NO_USAGE, Message, Role, ToolCall, Usage
from app.agent.payloads import ModelRecorded, StepRetried, TextDelta, WithdrawnText
from app.agent.ports import Masker, Recorder
from app.agent.runs import Run
from app.agent.work import Work, keep_partial

FORCED_TEMPERATURE = 0.2  # spec 5.5; also of a summary
SUMMARY_TOKENS = 1024
_FAILED_CALL = Usage(model_calls=1, unpriced_calls=1)  # what it used is not known
_DELTA_KINDS = {
    DeltaKind.TEXT: events.TEXT_DELTA,
    DeltaKind.REASONING: events.REASONING_DELTA,
    DeltaKind.ARGUMENTS: events.ARGUMENTS_DELTA,
}


async def ask(work: Work, request: ChatRequest, *, last: bool = False) -> Reply:
    """One model call with its deltas, tried again while the error may pass (spec 5.8). What was shown of a call that
    breaks off for good is kept as a partial message. `last`: the forced answer. Raises `ModelError`, `BudgetSpent`."""
    tried = 0
    work.shown, work.thought = [], []  # nothing of an earlier step is part of this one
    while True:
        await _secured(work)  # first: nothing is awaited between a look at the gate and the call
        if work.gates.left_ms(work.model.name) > 0:
            work.meter.put_off()  # or whoever has the place meanwhile might wait for what this call has reserved
            request = await _after(work, request, work.gates.passed(work.model.name), last=last)
            continue
        shown = _Shown()
        try:
            return await _once(work, request, shown)
        except ModelError as error:
            tried += 1
            pause_ms = _pause_ms(work, tried, error, last=last)
            if pause_ms is None:
                keep_partial(work, last=last)
                raise
            _withdraw(work, error, tried, pause_ms, shown)
            request = await _after(work, request, asyncio.sleep(pause_ms / 1000), last=last)
        except asyncio.CancelledError:
            keep_partial(work, last=last)
            raise


async def _secured(work: Work) -> None:
    """Wait until it is stored that the call is made which is reserved now; one that is broken off here is not made, and
    keeps nothing reserved."""
    try:
        await work.recorder.secured(work.run.session_id)
    except BaseException:  # whatever it is, a deadline or a cancellation
        work.meter.put_off()
        raise


class _Shown:
    """What one try has sent, by delta type and call."""

    __slots__ = ("texts",)

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str | None], list[str]] = {}

    def add(self, kind: str, call_id: str | None, text: str) -> None:
        """Take in one piece."""
        self.texts.setdefault((kind, call_id), []).append(text)


async def _once(work: Work, request: ChatRequest, shown: _Shown) -> Reply:
    run, recorder, step = work.run, work.recorder, work.steps
    text, thought = work.shown, work.thought = [], []

    def emit(delta: Delta) -> None:
        kind: EventKind[TextDelta] = _DELTA_KINDS[delta.kind]
        if delta.kind is DeltaKind.TEXT:
            text.append(delta.text)
        elif delta.kind is DeltaKind.REASONING:
            thought.append(delta.text)
        shown.add(kind.name, delta.call_id, delta.text)
        recorder.emit(run, kind, step, delta.text, delta.call_id)

    try:
        reply = await work.model.stream(request, emit)
    except BaseException:  # whatever it is: the call was made, and is counted
        estimate = work.meter.after(_FAILED_CALL, request.messages, "".join(text), counted=False)
        work.spend(_estimated(_FAILED_CALL, estimate))
        raise
    _count(work, request, reply)
    return reply


def _pause_ms(work: Work, tried: int, error: ModelError, *, last: bool = False) -> float | None:
    """How long to wait before the next try, None: there is none. Closes the model's gate where the provider asks for
    that."""
    pause_ms = work.patience.pause_ms(tried, error)
    if error.retryable and 0 < (error.retry_after_ms or 0) <= work.patience.max_wait_ms:
        work.gates.close(work.model.name, error.retry_after_ms or 0)
    return pause_ms if pause_ms is not None and work.time_for(pause_ms, last=last) else None


async def _after(work: Work, request: ChatRequest, pause: Awaitable[None], *, last: bool) -> ChatRequest:
    """The request as it may be made after a pause. Raises `BudgetSpent` when others have used what it needs."""
    await _rest(work, pause)
    max_tokens = await work.meter.before(request.messages, request.tools, last=last)
    return replace(request, max_tokens=max_tokens)


async def _rest(work: Work, pause: Awaitable[None]) -> None:
    """Wait, and say so; also when a deadline or a cancellation ends it. Others have the run's places meanwhile. Nothing
    may be reserved then."""
    work.calls.wait(work.run, "retry")
    try:
        if work.places is None:
            await pause
            return
        async with work.places.away():
            await pause
    finally:
        work.calls.resume(work.run, "retry")


def _withdraw(work: Work, error: ModelError, tried: int, pause_ms: float, shown: _Shown) -> None:
    """State that the step is tried again and take back what it has sent; nothing of it enters the memory."""
    withdrawn: list[WithdrawnText] = []
    for (kind, call_id), pieces in shown.texts.items():
        text = work.calls.masked("".join(pieces))
        entry = WithdrawnText(
            of=kind, length=len(text), digest=hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        )
        if call_id is not None:
            entry["call"] = call_id
        withdrawn.append(entry)
    work.shown, work.thought = [], []
    payload = StepRetried(
        attempt=tried,
        code=error.code,
        message=work.calls.masked(error.message),
        delay_ms=int(pause_ms),
        withdrawn=withdrawn,
    )
    work.recorder.record(work.run, events.STEP_RETRIED, payload, step=work.steps)


def _count(work: Work, request: ChatRequest, reply: Reply, *, aside: bool = False) -> None:
    """What a call used goes to the run and to its budget."""
    usage = _priced(reply.usage, work.model.prices)
    said = reply.text + reply.reasoning + "".join(call.raw for call in reply.tool_calls)
    estimate = work.meter.after(usage, request.messages, said, counted=reply.usage is not None, aside=aside)
    work.spend(usage if reply.usage is not None else _estimated(usage, estimate))


def _estimated(usage: Usage, estimate: Amount) -> Usage:
    """A usage with what the budget has counted in place of a provider's word, so that it is counted after a restart
    as well."""
    return replace(usage, estimated_tokens=estimate.tokens, estimated_micros=estimate.cost_micros)


def _priced(usage: Usage | None, prices: Prices | None) -> Usage:
    """The usage of one call, with what it costs where that is known."""
    if usage is None or prices is None:
        return replace(usage or NO_USAGE, model_calls=1, unpriced_calls=1)
    if usage.cost:
        return replace(usage, model_calls=1)  # a provider with prices of its own kind has counted them
    cost = prices.cost(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    return replace(usage, model_calls=1, cost={prices.currency: cost})


async def summarised(work: Work, said: str, wish: str = "", tokens: int = SUMMARY_TOKENS) -> str:
    """A summary of texts by the run's own model, counted as its use and tried again like a step. `wish`: what it is
    told to write, in at most so many tokens. Raises `ModelError`, `BudgetSpent`."""
    message = Message(role=Role.USER, content=f"{said}\n\n{wish or work.texts.summarise}")
    tried = 0
    while True:
        if work.gates.left_ms(work.model.name) > 0:
            await _rest(work, work.gates.passed(work.model.name))
        max_tokens = await work.meter.before((message,), (), bound=tokens)
        request = ChatRequest(messages=(message,), temperature=FORCED_TEMPERATURE, max_tokens=max_tokens)
        await _secured(work)
        try:
            reply = await work.model.stream(request, lambda delta: None)
        except BaseException as error:  # border to models: whatever it is, the call was made, and is counted
            work.spend(_estimated(_FAILED_CALL, work.meter.after(_FAILED_CALL, request.messages, "", counted=False)))
            if not isinstance(error, ModelError):
                raise
            tried += 1
            pause_ms = _pause_ms(work, tried, error)
            if pause_ms is None:
                raise
            await _rest(work, asyncio.sleep(pause_ms / 1000))
            continue
        _count(work, request, reply, aside=True)
        return reply.text


# ── to look into it ─────────────────────────────────────────────────────────────────────────────────────────────────


class RecordedModel:
    """A model whose requests and replies are kept as artifacts, masked, for whoever looks for what went wrong. Kept is
    what the loop asks and gets; what only the provider reads is left out."""

    def __init__(self, model: ChatModel, run: Run, recorder: Recorder, masker: Masker) -> None:
        self.name = model.name
        self.prices = model.prices
        self.context_window = model.context_window
        self._model = model
        self._run = run
        self._recorder = recorder
        self._masker = masker

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """Ask the model, and keep what was said, also of a call that fails."""
        reply: Reply | None = None
        try:
            reply = await self._model.stream(request, emit)
        finally:
            self._keep(request, reply)
        return reply

    def _keep(self, request: ChatRequest, reply: Reply | None) -> None:
        kept = [_request_of(request)] if reply is None else [_request_of(request), _reply_of(reply)]
        texts = (json.dumps(masked(value, self._masker), ensure_ascii=False, default=str) for value in kept)
        written = [new_artifact(self._run, None, text, JSON) for text in texts]
        ids = [artifact_id for artifact_id, _ in written]
        payload = ModelRecorded(model=self.name, request=ids[0], reply=ids[1] if reply is not None else None)
        self._recorder.record(self._run, events.MODEL_RECORDED, payload, also=tuple(row for _, row in written))


def _request_of(request: ChatRequest) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": _plain(tool.parameters)}
        for tool in request.tools
    ]
    asked = {
        "messages": [_said(message) for message in request.messages],
        "tools": tools,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "effort": request.effort,
        "thinking": request.thinking,
    }
    return {key: value for key, value in asked.items() if value is not None}


def _reply_of(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "tool_calls": [_call(call) for call in reply.tool_calls],
        "finish": reply.finish.value,
        "model": reply.model,
        "usage": reply.usage.as_dict() if reply.usage is not None else None,
    }


def _said(message: Message) -> dict[str, Any]:
    fields = {
        "role": message.role.value,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [_call(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
    }
    return {key: value for key, value in fields.items() if value}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"call_id": call.call_id, "name": call.name, "arguments": call.raw}


def _plain(value: Any) -> Any:
    """A value as JSON has it, out of whatever kinds of maps and lists it is made of."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
