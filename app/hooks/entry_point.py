"""Python callables as hooks: named by an import path or by an entry point, kept off the event loop unless async.

They get a `HookCall` and return a `Verdict`, None, or a mapping as a webhook would answer it.
"""

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from app.agent.hooks import HookCall, HookFailure, Verdict
from app.hooks.verdict import read_verdict

GROUP = "subagentd.hooks"
MAX_THREADS = 32  # of one hook: a function that never returns keeps its thread
Function = Callable[[HookCall], Any]


def load_function(path: str) -> Function:
    """What stands at `package.module:name`, or the entry point of that name. Raises ValueError that says why not."""
    try:
        found = _imported(path) if ":" in path else _entry_point(path)
    except ValueError:
        raise
    except Exception as error:  # border: importing runs an operator's code
        raise ValueError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(found, type) or not callable(found):
        what = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ValueError(f"{path!r} is {what}; name a function, or an object that can be called")
    if any(test(_code(found)) for test in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise ValueError(f"{path!r} is a generator; a hook returns its verdict")
    function: Function = found
    return function


def _imported(path: str) -> Any:
    module_name, _, attribute = path.strip().partition(":")
    if not module_name or not attribute:
        raise ValueError(f"{path!r} is no import path; write 'package.module:name'")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _entry_point(name: str) -> Any:
    known = {point.name: point for point in entry_points(group=GROUP)}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise ValueError(
            f"there is no entry point {name!r} in the group {GROUP} (installed: {listed}); install its package, or "
            "write an import path 'package.module:name'"
        )
    return known[name].load()


def _code(function: Function) -> Any:
    return function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004


def asynchronous(function: Function) -> Callable[[HookCall], Any]:
    """The function as an async one that returns a Verdict or None: in a thread of its own if it is not async."""
    called = function if inspect.iscoroutinefunction(_code(function)) else _OffLoop(function)

    async def ask(call: HookCall) -> Verdict | None:
        found = await called(call)
        if inspect.isawaitable(found):  # a sync wrapper around an async function
            found = await found
        return read_verdict(found) if isinstance(found, Mapping) else found

    return ask


class _OffLoop:
    """A sync function in daemon threads: one that never returns costs its thread, but does not keep the process
    from ending, as a thread of the loop's own pool would."""

    def __init__(self, function: Function, limit: int = MAX_THREADS) -> None:
        self._function = function
        self._free = asyncio.Semaphore(limit)

    async def __call__(self, call: HookCall) -> Any:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(self._function, call)
            except Exception as raised:  # noqa: BLE001  border of a thread: it goes to the one who waits
                error = HookFailure(_told(raised)) if isinstance(raised, StopIteration) else raised
            except BaseException as raised:  # noqa: BLE001  one that would end the loop: exit, interrupt, cancellation
                error = HookFailure(_told(raised))
            try:
                loop.call_soon_threadsafe(self._answered, answer, value, error)
            except RuntimeError:
                pass  # the loop has ended, nobody waits

        try:
            threading.Thread(target=work, name="hook", daemon=True).start()
        except BaseException:  # border to threads: without one there is nobody who gives the place back
            self._free.release()
            raise
        return await answer

    def _answered(self, answer: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
        self._free.release()
        if answer.done():  # given up
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
