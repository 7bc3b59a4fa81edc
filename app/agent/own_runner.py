"""An operator's function in place of the loop: policy, events and audit stay (spec 10.5).

Knows neither where the function comes from nor what it does.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.agent import events
from app.agent.answers import json_answer
from app.agent.chat import ChatRequest, Emit, Prices, Reply
from app.agent.errors import InvalidOutput, ModelError, SubagentdError
from app.agent.filters import Find
from app.agent.interruption import Interruption, bounded
from app.agent.messages import Message
from app.agent.runs import StopReason
from app.agent.work import Answer, Work, keep_reply

FREE = Prices(input=0, output=0)
ERROR_CHARS = 500  # of what a function raises


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """What an own runner gets beside its task. `metadata` are the further keys of its definition; `history` what the
    memory held before (of a `reuse_session` agent); `deadline` is on the clock of the event loop; `progress` shows a
    piece of text to whoever watches."""

    session_id: str
    tenant: str
    run_id: str
    agent: str
    name: str | None
    depth: int
    prompt: str
    metadata: Mapping[str, Any]
    workspace: Path
    history: tuple[Message, ...]
    deadline: float | None
    progress: Callable[[str], None]


class OwnRunnerModel:
    """Stands where a run names its model (`ChatModel`): it costs nothing and answers nothing."""

    prices: Prices | None = FREE
    context_window: int | None = None

    def __init__(self, path: str) -> None:
        self.name = f"runner:{path}"

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """There is no model behind it."""
        raise ModelError(f"{self.name} is a function, not a model", code="no_model")


class _Progress:
    """Shows text of a run while it is driven, also from a thread of its own; what is left behind talks to nobody."""

    __slots__ = ("_home", "_loop", "_work", "over")

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self.over = False

    def __call__(self, text: str) -> None:
        if threading.get_ident() == self._home:
            self._show(text)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended meanwhile
            self._loop.call_soon_threadsafe(self._show, text)

    def _show(self, text: str) -> None:
        if not self.over:
            self._work.recorder.emit(self._work.run, events.TEXT_DELTA, self._work.steps, text)


async def drive(work: Work, find: Find, task: str) -> Answer:
    """Call the function that the definition names and take its text as the answer; one that is not async runs in a
    thread, which a cancellation leaves behind. Raises `ModelError` with code `runner_failed` for what it raises,
    `InvalidOutput`, or the run's cancellation."""
    path = work.definition.runner
    assert path is not None
    work.steps = 1
    progress = _Progress(work)
    limit = asyncio.timeout_at(work.control.hard_at)
    try:
        function = _found(find, path)
        async with limit:
            text = await _called(path, function, task, _context(work, progress))
    except TimeoutError:
        return _out_of_time(work, path)
    finally:
        progress.over = True
    work.control.check()  # it may have swallowed its cancellation
    if not isinstance(text, str):
        raise ModelError(f"runner {path} returned {type(text).__name__}, not a text", code="runner_failed")
    keep_reply(work, Reply(text=text))
    if work.output_schema is not None:
        text, problem = json_answer(text, work.output_schema, work.checker)
        if problem is not None:
            raise InvalidOutput(f"the text of runner {path} does not satisfy the output schema: {problem}")
    return Answer(text=text, stop_reason=StopReason.ANSWER)


def _out_of_time(work: Work, path: str) -> Answer:
    if work.output_schema is not None:
        raise InvalidOutput(f"runner {path} gave no answer before its deadline")
    work.text = work.texts.no_digest
    keep_reply(work, Reply(text=work.text))
    return Answer(text=work.text, stop_reason=work.control.soft_reason)


def _found(find: Find, path: str) -> Callable[..., Any]:
    """What stands at the path; the next attempt would find the same, so a fault here is not tried again."""
    try:
        function = find(path)
    except ValueError as error:  # says what is wrong with the path
        raise ModelError(f"runner {error}"[:ERROR_CHARS], code="runner_failed") from error
    if not callable(function):
        raise ModelError(f"runner {path} is a {type(function).__name__}, not a function", code="runner_failed")
    return function


async def _called(path: str, function: Callable[..., Any], task: str, context: RunnerContext) -> Any:
    """What the function returns. Everything that it raises by itself is turned into `ModelError`, so that a
    TimeoutError from here is that of the deadline."""

    def call() -> Any:
        # in the thread, if there is one: a future cannot carry StopIteration, SystemExit would end the loop, and a
        # CancelledError from there is nobody's cancellation
        try:
            return function(task, context)
        except SubagentdError:
            raise
        except BaseException as error:  # border: an operator's code
            raise _failed(path, error) from error

    found = call() if _is_async(function) else await _in_thread(call, path)
    if not inspect.isawaitable(found):
        return found
    # in a task of its own: what cancels itself in there must not have cancelled the run
    try:
        return await bounded(_contained(path, found), Interruption(), name=f"runner {path}")
    except asyncio.CancelledError as error:
        own = asyncio.current_task()
        if own is None or own.cancelling():
            raise
        raise _failed(path, error) from error  # nobody cancelled this: something inside was


async def _contained(path: str, found: Awaitable[Any]) -> Any:
    """What comes of an awaitable; nothing that it raises goes past the task that runs this, as SystemExit would."""
    own = asyncio.current_task()
    try:
        return await found
    except (SubagentdError, asyncio.CancelledError):
        raise
    except BaseException as error:  # border: an operator's code
        if isinstance(error, GeneratorExit) and _task() is not own:
            raise  # this coroutine is thrown away, with a loop that has ended
        raise _failed(path, error) from error


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _in_thread(call: Callable[[], Any], path: str) -> Any:
    """Run a call in a daemon of its own: one that never returns keeps neither the loop nor the process."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # whoever stops waiting leaves it to end by itself
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  border of a thread: it is raised where it is waited for
            future.set_exception(error)

    threading.Thread(target=work, name=f"runner {path}", daemon=True).start()
    return await asyncio.wrap_future(future)


def _failed(path: str, error: BaseException) -> ModelError:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  border: an operator's code
        text = ""
    said = f"runner {path} failed: {type(error).__name__}" + (f": {text}" if text else "")
    return ModelError(said[:ERROR_CHARS], code="runner_failed", retryable=True)


def _context(work: Work, progress: Callable[[str], None]) -> RunnerContext:
    run = work.run
    return RunnerContext(
        session_id=run.session_id,
        tenant=run.tenant,
        run_id=run.id,
        agent=run.agent,
        name=run.name,
        depth=run.depth,
        prompt=work.definition.prompt,
        metadata=work.definition.metadata,
        workspace=work.workspace,
        history=tuple(work.memory.messages[: work.first]),
        deadline=work.control.hard_at,
        progress=progress,
    )
