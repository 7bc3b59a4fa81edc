"""The loop: ask, call tools, ask again; and one forced answer at a limit. The same at every depth.

Knows neither how a run is opened and closed (`runner.py`) nor any concrete tool or model.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.agent import events, faults
from app.agent.answers import digest, json_answer
from app.agent.asking import FORCED_TEMPERATURE, ask, summarised
from app.agent.chat import TOOL_CHOICES, ChatRequest, Finish, Reply
from app.agent.compaction import CONTEXT_OVERFLOW
from app.agent.errors import BudgetSpent, HandoffStop, InvalidOutput, ModelError
from app.agent.governed import AnswerForced
from app.agent.messages import NO_USAGE, Message, Role
from app.agent.payloads import StepCompleted, StepStarted
from app.agent.runs import Progress, StopReason
from app.agent.texts import filled
from app.agent.transcript import acceptable
from app.agent.turns import Turn
from app.agent.work import Answer, Work, completed, keep_reply

log = logging.getLogger(__name__)


async def react(work: Work) -> Answer:
    """Drive a run to its answer. Raises `ModelError`, `HandoffStop`, `InvalidOutput`, `BudgetSpent` (a run that kept
    no answer back), or the run's cancellation."""
    limit = asyncio.timeout_at(work.control.soft_at)
    forced = work.progress.forced if work.progress is not None else None
    reason = StopReason.MAX_STEPS if forced is None else StopReason(forced)
    try:
        async with limit:
            work.control.watch(limit)
            await asyncio.sleep(0)  # a deadline that is over is over before the model is asked
            if work.progress is not None:
                answer = await _taken_up(work, work.progress)
                if answer is not None:
                    return answer
            # a tool may have swallowed its cancellation
            while forced is None and work.steps < work.max_steps and not limit.expired():
                if work.calls.spent is not None:
                    reason = StopReason.BUDGET
                    break
                if work.calls.duplicates.exhausted:
                    reason = StopReason.DUPLICATES
                    break
                answer = await _step(work)
                if answer is not None:
                    return answer
    except TimeoutError:
        if not limit.expired():
            raise
    except BudgetSpent:
        if not work.meter.root:
            _collect(work)
            raise
        reason = StopReason.BUDGET
    finally:
        work.control.watch(None)
    reason = work.control.soft_reason if limit.expired() else reason
    if not await _back_at_work(work):
        return _without_asking(work, reason)
    return await _forced(work, reason)


async def _taken_up(work: Work, progress: Progress) -> Answer | None:
    """Go on where another process stopped: the calls that have no result, or what remains of an answer."""
    work.progress = None
    if progress.stop is not None:
        raise HandoffStop(progress.stop.message, code=progress.stop.code, result="")
    answer, finish, called = None, Finish.TOOL_CALLS, 0
    if progress.answer is not None:
        finish = Finish.STOP
        text = _accepted(work, _said(work, progress.answer))
        reason = StopReason.ANSWER if progress.forced is None else StopReason(progress.forced)
        answer = None if text is None else Answer(text=text, stop_reason=reason, forced=progress.forced is not None)
        if progress.forced is None and answer is not None and _is_addressed(work):
            answer = None
    elif work.cut and not progress.complete:
        finish = Finish.LENGTH
        work.add(Role.USER, work.texts.reply_cut)
    elif progress.turn is not None:
        called = await _called(work, progress, *progress.turn)
    if not progress.complete:
        usage = progress.step_usage.as_dict()
        payload = StepCompleted(finish=finish.value, tool_calls=called, usage=usage, duration_ms=0)
        work.recorder.record(work.run, events.STEP_COMPLETED, payload, step=progress.steps)
    return answer


async def _called(work: Work, progress: Progress, step: int, seq: int) -> int:
    """Carry out the calls of the reply with this number that have no result; how many it has in all."""
    messages = work.memory.messages
    reply = next((message for message in messages if message.seq == seq), None)
    if reply is None:
        return 0
    ids = {call.call_id for call in reply.tool_calls}
    results = {m.tool_call_id: m for m in messages if m.tool_call_id in ids}
    messages[:] = [message for message in messages if message.tool_call_id not in ids]
    turn = replace(_turn(work, step, seq), left=progress.calls)
    await work.calls.execute(turn, reply.tool_calls, messages, results)
    return len(reply.tool_calls)


def _without_asking(work: Work, reason: StopReason) -> Answer:
    """The end of a run that has no time left to ask its model: what was collected. Raises `InvalidOutput` where that
    cannot be an answer."""
    _collect(work)
    if work.output_schema is not None:
        raise InvalidOutput("there was no time left for an answer that satisfies the output schema")
    return Answer(text=work.text, stop_reason=reason)


async def _back_at_work(work: Work) -> bool:
    """Take up the place again that was given away while the run waited; whether there was one in time."""
    limit = asyncio.timeout_at(work.control.hard_at)
    try:
        async with limit:
            if work.places is not None:
                await work.places.take()
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    finally:
        work.calls.resume(work.run)
    return True


def _collect(work: Work) -> None:
    """What a run that gets no answer any more leaves behind."""
    work.text = digest(work.memory.messages[work.first :], work.texts)


async def _step(work: Work) -> Answer | None:
    """One model call and the tool calls that it asked for; the answer when there are none."""
    work.control.check()
    work.resting = True
    try:
        await work.recorder.room(work.run.session_id, taken_up=work.run.attempt > 1)
    finally:
        work.resting = False
    work.hear()
    work.step_usage = NO_USAGE
    await _shortened(work)  # a summary is paid for by the step
    request = _request(work)
    max_tokens = await work.meter.before(request.messages, request.tools)
    if max_tokens != request.max_tokens:
        request = replace(request, max_tokens=max_tokens)
    work.steps += 1
    step, loop = work.steps, asyncio.get_running_loop()
    began = loop.time()
    work.recorder.record(work.run, events.STEP_STARTED, StepStarted(model=work.model.name), step=step)
    reply = await _reply(work, request)
    seq = keep_reply(work, reply)
    answer = None
    if reply.tool_calls:
        turn = _turn(work, step, seq)
        await work.calls.execute(turn, reply.tool_calls, work.memory.messages)
        faults.hit("after_tools")
    elif reply.finish is Finish.LENGTH and not work.cut:
        work.add(Role.USER, work.texts.reply_cut)
    elif reply.malformed_call and not work.nudged:
        work.nudged = True
        work.add(Role.USER, work.texts.malformed_call)
    else:
        _refused(work, reply)
        text = _accepted(work, _text_of(work, reply))
        answer = None if text is None else Answer(text=text, stop_reason=_why_it_ends(work, reply))
        if answer is not None and _is_addressed(work):
            answer = None  # somebody has said something to it meanwhile
    work.cut = reply.finish is Finish.LENGTH
    completed(work, reply, step, began)
    return answer


async def _shortened(work: Work, *, overflow: bool = False, last: bool = False) -> bool:
    """Whether the context was made shorter, where that is due (spec 5.4)."""
    assert work.task is not None  # a run begins with it

    async def summary(said: str, tokens: int) -> str:
        try:
            return await summarised(work, said, work.texts.compact, tokens)
        except (ModelError, BudgetSpent) as error:
            log.warning("run %s: its context could not be summed up: %s", work.run.id, error.message)
            return ""

    done = await work.context.shortened(
        work.memory.messages, work.memory.shortened, work.task, summary, overflow=overflow, last=last
    )
    if done is not None:
        work.shorten(done)
    return done is not None


async def _reply(work: Work, request: ChatRequest, *, last: bool = False) -> Reply:
    """The reply to a request; one that the provider finds too long is made once more, with a shorter context."""
    try:
        reply = await ask(work, request, last=last)
    except ModelError as error:
        shown = "".join((*work.shown, *work.thought)).strip()  # which is kept as this step's partial reply
        if error.code != CONTEXT_OVERFLOW or shown or not await _shortened(work, overflow=True, last=last):
            raise
        messages = acceptable(work.memory.messages)
        max_tokens = await work.meter.before(messages, request.tools, last=last)
        request = replace(request, messages=messages, max_tokens=max_tokens)
        reply = await ask(work, request, last=last)
    if not last:  # which declares no tools, so that it has another size
        work.context.learn(request.messages, reply.usage)
    return reply


def _text_of(work: Work, reply: Reply) -> str:
    return _said(work, reply.text)


def _said(work: Work, text: str) -> str:
    return text if text.strip() else digest(work.memory.messages[work.first :], work.texts)


def _is_addressed(work: Work) -> bool:
    """Whether the run is to read something before it ends, and has a step left for that."""
    return work.notices is not None and work.steps < work.max_steps and work.notices.is_addressed(work.run)


def _refused(work: Work, reply: Reply) -> None:
    """Raises `ModelError` for a reply that was broken off before it said anything: no answer is to be made of that."""
    if reply.text.strip() or reply.finish not in (Finish.LENGTH, Finish.FILTERED):
        return
    if reply.finish is Finish.LENGTH:
        said = "the reply was cut by its length limit twice before it said anything; raise max_tokens"
        raise ModelError(f"{work.model.name}: {said}", code="reply_cut")
    raise ModelError(f"{work.model.name}: the provider withheld the reply (content filter)", code="reply_filtered")


def _why_it_ends(work: Work, reply: Reply) -> StopReason:
    """What was broken off is no ordinary answer, nor is a call written as text, once more after the model was told;
    JSON that was asked for is."""
    if reply.finish in (Finish.LENGTH, Finish.FILTERED):
        return StopReason(reply.finish.value)
    if reply.malformed_call and work.output_schema is None:
        return StopReason.MALFORMED_CALL
    return StopReason.ANSWER


def _accepted(work: Work, text: str) -> str | None:
    """The final answer; with an output schema its JSON. One that does not satisfy it goes back to the model once
    (spec 5.6): then None. Raises `InvalidOutput` after that."""
    if work.output_schema is None:
        return text
    answer, problem = json_answer(text, work.output_schema, work.checker)
    if problem is None:
        return answer
    if work.sent_back:
        raise InvalidOutput(f"the final answer does not satisfy the output schema: {problem}")
    work.sent_back = True
    work.add(Role.USER, filled(work.texts.output_invalid, problem=problem))
    return None


def _turn(work: Work, step: int, seq: int) -> Turn:
    return Turn(
        session=work.session,
        run=work.run,
        step=step,
        memory_seq=seq,
        registry=work.registry,
        offered=[spec.name for spec in work.offered],
        parallel=work.parallel,
        workspace=work.workspace,
        deadline=lambda: work.control.hard_at,
        check=work.control.check,
        budget=work.budget,
        places=work.places,
        clearance=work.clearance,
        abort_siblings=bool(work.definition.abort_siblings),
        grace_s=work.control.grace_s,
        acknowledge=_acknowledge(work),
    )


def _acknowledge(work: Work) -> Callable[[str], list[str]] | None:
    notices = work.notices
    return None if notices is None else lambda task_id: notices.acknowledge(work.run, task_id)


def _request(work: Work) -> ChatRequest:
    definition = work.definition
    choice = definition.tool_choice if work.steps == 0 and work.offered else None
    if choice is not None and choice not in TOOL_CHOICES and choice not in {spec.name for spec in work.offered}:
        choice = None  # a tool that is hidden here, at the depth limit say, cannot be asked for
    return ChatRequest(
        messages=acceptable(work.memory.messages),
        tools=work.offered,
        tool_choice=choice,
        parallel_tool_calls=None if work.parallel else False,
        temperature=definition.temperature,
        max_tokens=definition.max_tokens,
        effort=work.effort,
        thinking=work.thinking,
    )


async def _forced(work: Work, reason: StopReason) -> Answer:
    """One more step without tools (spec 5.5); a digest of what was collected when that gives no text either.

    Without room for it in the budget, a root that could keep nothing back ends in the digest; raises `BudgetSpent` for
    the others.
    """
    forced = False
    while True:
        work.control.check()
        work.hear()
        await _shortened(work, last=True)
        limit = asyncio.timeout_at(work.control.hard_at)
        try:
            async with limit:
                max_tokens = await work.meter.before(_asked_to_end(work), (), last=True)
                await asyncio.sleep(0)  # see `react`
        except TimeoutError:
            if not limit.expired():
                raise
            return _without_asking(work, reason)
        except BudgetSpent:
            _collect(work)
            if not work.meter.root or work.output_schema is not None:
                raise
            return Answer(text=work.text, stop_reason=StopReason.BUDGET, forced=forced)
        forced = True
        text = await _last_step(work, reason, max_tokens)
        answer = _accepted(work, text)
        if answer is not None:
            return Answer(text=answer, stop_reason=reason, forced=True)


def _asked_to_end(work: Work) -> tuple[Message, ...]:
    return (*acceptable(work.memory.messages), Message(role=Role.USER, content=work.texts.forced_answer))


async def _last_step(work: Work, reason: StopReason, max_tokens: int | None) -> str:
    work.steps += 1
    work.step_usage = NO_USAGE
    step, began = work.steps, asyncio.get_running_loop().time()
    if not work.forcing:
        work.recorder.record(work.run, events.ANSWER_FORCED, AnswerForced(reason=reason.value), step=step)
    started = StepStarted(model=work.model.name, forced=True)
    work.recorder.record(work.run, events.STEP_STARTED, started, step=step)
    if not (work.forcing and work.memory.messages[-1].content == work.texts.forced_answer):
        work.add(Role.USER, work.texts.forced_answer)
    work.forcing = False
    own = work.definition.temperature
    request = ChatRequest(
        messages=acceptable(work.memory.messages),
        temperature=FORCED_TEMPERATURE if own is None else min(own, FORCED_TEMPERATURE),
        max_tokens=max_tokens,
        effort=work.effort,
        thinking=work.thinking,
    )
    limit = asyncio.timeout_at(work.control.hard_at)
    try:
        async with limit:
            reply = await _reply(work, request, last=True)
    except TimeoutError:
        if not limit.expired():
            raise
        return _cut_short(work)
    except BudgetSpent:  # there is no room for another try of it
        if not work.meter.root:
            _collect(work)
            raise
        return _cut_short(work)
    text = _text_of(work, reply)
    if reply.tool_calls or text != reply.text:  # calls are dropped: nobody would answer them
        reply = Reply(text=text, reasoning=reply.reasoning, usage=reply.usage, finish=reply.finish, model=reply.model)
    keep_reply(work, reply)
    completed(work, reply, step, began)
    return text


def _cut_short(work: Work) -> str:
    """The forced answer when time or budget is over: what was said of it, which is in the memory, or a digest."""
    text = "".join(work.shown)
    if text.strip():
        return text
    _collect(work)
    keep_reply(work, Reply(text=work.text, reasoning="".join(work.thought)))
    return work.text
