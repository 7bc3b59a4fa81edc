"""One model call of a run: what it shows, what it keeps, what it used.

Knows neither why the call is made nor what follows from the reply.
"""

import asyncio
from dataclasses import replace

from app.agent import events
from app.agent.budget import Amount
from app.agent.chat import ChatRequest, Delta, DeltaKind, Prices, Reply
from app.agent.errors import ModelError
from app.agent.events import EventKind, TextDelta
from app.agent.messages import NO_USAGE, Message, Role, Usage
from app.agent.work import Work, keep_partial

FORCED_TEMPERATURE = 0.2  # spec 5.5; also of a summary
SUMMARY_TOKENS = 1024
_FAILED_CALL = Usage(model_calls=1, unpriced_calls=1)  # what it used is not known
_DELTA_KINDS = {
    DeltaKind.TEXT: events.TEXT_DELTA,
    DeltaKind.REASONING: events.REASONING_DELTA,
    DeltaKind.ARGUMENTS: events.ARGUMENTS_DELTA,
}


async def ask(work: Work, request: ChatRequest) -> Reply:
    """One model call with its deltas. What was shown of a call that breaks off is kept as a partial message."""
    run, recorder, step = work.run, work.recorder, work.steps
    shown = work.shown = []

    def emit(delta: Delta) -> None:
        kind: EventKind[TextDelta] = _DELTA_KINDS[delta.kind]
        if delta.kind is DeltaKind.TEXT:
            shown.append(delta.text)
        recorder.emit(run, kind, step, delta.text, delta.call_id)

    try:
        reply = await work.model.stream(request, emit)
    except BaseException as error:  # whatever it is: the call was made, and is counted
        estimate = work.meter.after(_FAILED_CALL, request.messages, "".join(shown), counted=False)
        work.spend(_estimated(_FAILED_CALL, estimate))
        if isinstance(error, (asyncio.CancelledError, ModelError)):
            keep_partial(work)
        raise
    _count(work, request, reply)
    return reply


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


async def summarised(work: Work, said: str) -> str:
    """A summary of texts by the run's own model, counted as its use. Raises `ModelError`, `BudgetSpent`."""
    message = Message(role=Role.USER, content=f"{said}\n\n{work.texts.summarise}")
    request = ChatRequest(messages=(message,), temperature=FORCED_TEMPERATURE, max_tokens=SUMMARY_TOKENS)
    await work.meter.before(request.messages, (), bound=SUMMARY_TOKENS)
    try:
        reply = await work.model.stream(request, lambda delta: None)
    except BaseException:
        work.spend(_estimated(_FAILED_CALL, work.meter.after(_FAILED_CALL, request.messages, "", counted=False)))
        raise
    _count(work, request, reply, aside=True)
    return reply.text
