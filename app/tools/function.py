"""Own tools as Python functions (spec 7.8): the schema comes from type hints and docstring, the result becomes text.

    @tool(read_only=True)
    def lookup(order_id: str, context: ToolContext) -> dict[str, str]:
        '''Find an order by its id.

        Args:
            order_id: The id as printed on the invoice.
        '''

Knows nothing of where tools are configured, except how an import path or an entry point is read.
"""

import contextvars
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast, overload

from app.agent.definition import MAX_TOOL_NAME
from app.agent.errors import ToolError
from app.agent.tools import DEFAULT_TIMEOUT_MS, Interrupt, Tool, ToolContext, ToolResult, ToolSpec
from app.tools.docstrings import documentation_of
from app.tools.results import as_text, safe_str
from app.tools.signature import Signature, annotated_part, name_of, signature_of
from app.tools.threads import DaemonThreads, in_thread

ENTRY_POINT_GROUP = "subagentd.tools"
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_TOOL_NAME}}}")
_MAX_ERROR_CHARS = 500
# Shared by all own tools. A function that never returns keeps its thread; that many must hang before others wait.
_THREADS = DaemonThreads(32, "own-tool")

logger = logging.getLogger(__name__)


class FunctionTool:
    """A Python function as a tool; calling the object calls the function itself, as in a test of it."""

    def __init__(
        self, function: Callable[..., Any], spec: ToolSpec, signature: Signature, threads: Executor = _THREADS
    ) -> None:
        self.function = function
        self.spec = spec
        self._signature = signature
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(annotated_part(function))

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        concurrency_safe: bool | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        interrupt: Interrupt | str = Interrupt.CANCEL,
        threads: Executor = _THREADS,
    ) -> "FunctionTool":
        """Describe a function as a tool.

        `name` None: the function's; `description` None: its docstring up to the first section; `concurrency_safe`
        None: as `read_only`; `interrupt` `block`: a cancelled run lets the function finish, for a bounded time. A sync
        function runs in one of `threads` (a cancelled call is left there to end, but loses the processes that it
        started), an async one on the event loop. A parameter annotated `ToolContext` receives the context of the call.
        Raises ValueError that names the function and what must change.
        """
        called = _usable_name(name or name_of(function))
        text = _usable_description(called, function, description)
        signature = signature_of(function)
        spec = ToolSpec(
            name=called,
            description=text,
            parameters=signature.schema,
            read_only=read_only,
            concurrency_safe=read_only if concurrency_safe is None else concurrency_safe,
            timeout_ms=timeout_ms,
            interrupt=Interrupt(interrupt),
        )
        return cls(function, spec, signature, threads)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it is."""
        return self.function(*args, **kwargs)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the function with these arguments.

        A `ToolResult` is passed on, anything else becomes its text (`results.as_text`). Raises `InvalidArguments`,
        and `ToolError` for whatever the function raised, without its traceback, which goes to the log.
        """
        values = self._signature.read(arguments)
        if self._signature.context is not None:
            values[self._signature.context] = context
        if self._is_async:
            result = await self._awaited(self.function(**values))
        else:
            run = partial(contextvars.copy_context().run, self._called, values)
            result = await in_thread(self._threads, run)
            if inspect.isawaitable(result):  # a sync wrapper around an async function
                result = await self._awaited(result)
        return result if isinstance(result, ToolResult) else ToolResult(content=as_text(result))

    async def _awaited(self, result: Any) -> Any:
        try:
            return await result
        except ToolError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  border: an operator's code
            raise self._failure(error) from None

    def _called(self, values: Mapping[str, Any]) -> Any:
        # Errors are turned here, in the thread: a future cannot carry StopIteration, and SystemExit would end the loop.
        try:
            return self.function(**values)
        except ToolError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  border: an operator's code
            raise self._failure(error) from None

    def _failure(self, error: BaseException) -> ToolError:
        logger.warning("tool %s raised %s", self.spec.name, type(error).__name__, exc_info=error)
        text = safe_str(error)[:_MAX_ERROR_CHARS]
        return ToolError(f"{self.spec.name} failed: {type(error).__name__}" + (f": {text}" if text else ""))


def _usable_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    raise ValueError(
        f"function {name}: a tool name has 1 to {MAX_TOOL_NAME} characters of a-z, A-Z, 0-9, _ and -; set name"
    )


def _usable_description(name: str, function: Callable[..., Any], description: str | None) -> str:
    part = annotated_part(function)
    if inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part):
        raise ValueError(f"function {name}: generators cannot be tools; return a list instead")
    text = description or documentation_of(part).summary
    if not text:
        raise ValueError(f"function {name}: a model needs a description; write a docstring or set description")
    return text


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    concurrency_safe: bool | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    interrupt: Interrupt | str = Interrupt.CANCEL,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(read_only=True, …)` with the options of `from_function`."""
    if function is not None:
        return FunctionTool.from_function(function)
    return partial(FunctionTool.from_function, **options)


def load_object(path: str) -> Any:
    """What stands at an import path `package.module:attribute`. Raises ValueError that says what is wrong with it."""
    module_name, colon, attribute = path.strip().partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"{path!r}: not an import path; write 'package.module:attribute'")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # border: importing runs an operator's code
        raise ValueError(f"{path!r}: cannot be imported: {type(error).__name__}: {safe_str(error)}") from error
    return found


def load_tool(path: str) -> tuple[Tool, ...]:
    """The tools at an import path `package.module:attribute`: a function, a tool, or a list of these.

    Raises ValueError that says what is wrong with the path or with what it names.
    """
    try:
        found = load_object(path)
    except ValueError as error:
        raise ValueError(f"tool {error}") from error
    return _tools_of(found, f"tool {path!r}")


def load_entry_points(group: str = ENTRY_POINT_GROUP) -> tuple[Tool, ...]:
    """The tools that installed packages offer under an entry point group, in the order of the names.

    Raises ValueError that names the entry point that is wrong.
    """
    tools: list[Tool] = []
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        where = f"entry point {point.name!r} of {group!r} ({point.value})"
        try:
            found = point.load()
        except Exception as error:  # border: importing runs an operator's code
            raise ValueError(f"{where}: cannot be imported: {type(error).__name__}: {safe_str(error)}") from error
        tools.extend(_tools_of(found, where))
    return tuple(tools)


def _tools_of(found: Any, where: str) -> tuple[Tool, ...]:
    if isinstance(found, list | tuple):
        return tuple(one for item in cast(Iterable[Any], found) for one in _tools_of(item, where))
    if isinstance(found, type):
        raise ValueError(f"{where}: {found.__name__} is a class; name an instance or a function")
    if isinstance(getattr(found, "spec", None), ToolSpec) and callable(getattr(found, "call", None)):
        return (cast(Tool, found),)
    if not callable(found):
        raise ValueError(f"{where}: a {type(found).__name__} is no tool; name a function, a tool or a list of these")
    try:
        return (FunctionTool.from_function(found),)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
