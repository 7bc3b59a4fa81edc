"""Own tools: what a function's signature says to a model, how it is called, what comes back."""

import asyncio
import contextvars
import datetime
import enum
import functools
import importlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from app.agent.errors import InvalidArguments, ToolError
from app.agent.tools import ToolContext, ToolResult
from app.tools.function import FunctionTool, load_entry_points, load_tool, tool
from app.tools.schema import JsonSchemaChecker, check_schema
from app.tools.threads import DaemonThreads
from tests.tools import own_tools


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 0.0


class Order(BaseModel):
    title: str
    amount: int = 1


class Options(TypedDict, total=False):
    fast: bool


def describe(
    text: str,
    count: int,
    ratio: float,
    flag: bool,
    names: list[str],
    table: dict[str, int],
    mode: Literal["a", "b"],
    colour: Colour,
    point: Point,
    order: Order,
    options: Options,
    schema: Annotated[str, "From the annotation."],
    limited: Annotated[int, Field(ge=1, description="From the field.")],
    context: ToolContext,
    maybe: int | None = None,
    day: datetime.date = datetime.date(2026, 1, 2),
) -> str:
    """Describe a thing.

    It takes everything.

    Args:
        text: What it
            says.
        schema: Not used, since the annotation says more.
        count (int): How many: a number.

    Returns:
        A text.
    """
    values = (text, count, ratio, flag, names, table, mode, colour, point, order, options, schema, limited, maybe, day)
    return f"{values!r} in {context.run.id}"


ARGUMENTS = {
    "text": "t",
    "count": 2,
    "ratio": 1,
    "flag": True,
    "names": ["n"],
    "table": {"k": 1},
    "mode": "a",
    "colour": "red",
    "point": {"x": 1},
    "order": {"title": "o"},
    "options": {"fast": True},
    "schema": "s",
    "limited": 1,
}


async def called(function: Callable[..., Any], context: ToolContext, /, **arguments: Any) -> ToolResult:
    return await FunctionTool.from_function(function, name="own", description="d").call(arguments, context)


@pytest.mark.spec("7.1", "7.8")
def test_the_schema_is_made_of_type_hints_and_docstring() -> None:
    spec = FunctionTool.from_function(describe).spec

    assert spec.name == "describe"
    assert spec.description == "Describe a thing.\n\nIt takes everything."
    assert (spec.read_only, spec.concurrency_safe, spec.timeout_ms) == (False, False, 60_000)
    assert json.loads(json.dumps(spec.parameters)) == {
        "type": "object",
        "additionalProperties": False,
        "required": list(ARGUMENTS),
        "properties": {
            "text": {"type": "string", "description": "What it says."},
            "count": {"type": "integer", "description": "How many: a number."},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
            "table": {"type": "object", "additionalProperties": {"type": "integer"}},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "colour": {"$ref": "#/$defs/Colour"},
            "point": {"$ref": "#/$defs/Point"},
            "order": {"$ref": "#/$defs/Order"},
            "options": {"$ref": "#/$defs/Options"},
            "schema": {"type": "string", "description": "From the annotation."},
            "limited": {"type": "integer", "minimum": 1, "description": "From the field."},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "day": {"type": "string", "format": "date", "default": "2026-01-02"},
        },
        "$defs": {
            "Colour": {"type": "string", "enum": ["red", "blue"]},
            "Point": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 0.0}},
                "required": ["x"],
                "additionalProperties": False,
            },
            "Order": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "amount": {"type": "integer", "default": 1}},
                "required": ["title"],
            },
            "Options": {"type": "object", "properties": {"fast": {"type": "boolean"}}, "additionalProperties": False},
        },
    }
    assert check_schema(spec.parameters) is None
    assert JsonSchemaChecker().check(spec.parameters, ARGUMENTS) is None


@pytest.mark.spec("7.8")
async def test_a_function_gets_its_arguments_as_the_types_that_it_declares(context: ToolContext) -> None:
    result = await FunctionTool.from_function(describe).call(ARGUMENTS, context)

    assert result.content == (
        "('t', 2, 1.0, True, ['n'], {'k': 1}, 'a', <Colour.RED: 'red'>, Point(x=1, y=0.0), "
        "Order(title='o', amount=1), {'fast': True}, 's', 1, None, datetime.date(2026, 1, 2)) in run_1"
    )


@pytest.mark.spec("7.1", "7.8")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": "2"}, "count: Input should be a valid integer"),
        ({"flag": "yes"}, "flag: Input should be a valid boolean"),
        ({"mode": "c"}, "mode: Input should be 'a' or 'b'"),
        ({"colour": "green"}, "colour: Input should be 'red' or 'blue'"),
        ({"point": {}}, "point.x: Field required"),
        ({"limited": 0}, "limited: Input should be greater than or equal to 1"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"context": {}}, "context: Extra inputs are not permitted"),
        ({"text": "\ud800"}, "Invalid JSON"),
    ],
)
async def test_a_function_is_never_called_with_repaired_arguments(
    context: ToolContext, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArguments, match=problem):
        await FunctionTool.from_function(describe).call({**ARGUMENTS, **change}, context)


@pytest.mark.spec("7.8")
async def test_parameters_may_have_any_name_and_defaults_are_the_functions_own(context: ToolContext) -> None:
    missing = object()

    def odd(json: int, copy: str = "c", _hidden: int = 4, self: Any = missing, model_config: int = 5) -> str:
        return f"{json} {copy} {_hidden} {self is missing} {model_config}"

    own = FunctionTool.from_function(odd, description="d")

    assert "default" not in own.spec.parameters["properties"]["self"]
    assert own.spec.parameters["properties"]["copy"] == {"type": "string", "default": "c"}
    assert (await own.call({"json": 1}, context)).content == "1 c 4 True 5"
    assert (await own.call({"json": 1, "_hidden": 2}, context)).content == "1 c 2 True 5"


@pytest.mark.spec("7.8")
async def test_methods_partials_objects_and_wrapped_functions_are_functions_too(context: ToolContext) -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 10

        def add(self, by: int) -> int:
            """Add to the counter."""
            self.total += by
            return self.total

        async def __call__(self, by: int) -> int:
            """Take from the counter."""
            self.total -= by
            return self.total

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @plain
    async def wrapped(by: int) -> int:
        """Give back."""
        return by

    counter = Counter()
    for function, name, expected in (
        (counter.add, "add", "13"),
        (functools.partial(counter.add), "add", "16"),
        (counter, "Counter", "13"),
        (wrapped, "wrapped", "3"),
    ):
        own = FunctionTool.from_function(function)
        assert own.spec.name == name
        assert list(own.spec.parameters["properties"]) == ["by"]
        assert (await own.call({"by": 3}, context)).content == expected


@pytest.mark.spec("7.8")
async def test_sync_functions_run_off_the_event_loop_and_beside_each_other(context: ToolContext) -> None:
    both_here = threading.Barrier(2, timeout=5)
    seen = contextvars.ContextVar("seen", default="nothing")

    def meet() -> str:
        both_here.wait()
        assert threading.current_thread() is not threading.main_thread()
        return seen.get()

    seen.set("the caller's value")
    results = await asyncio.gather(called(meet, context), called(meet, context))

    assert [result.content for result in results] == ["the caller's value"] * 2


@pytest.mark.spec("7.8")
async def test_async_functions_run_on_the_event_loop_and_can_be_cancelled(context: ToolContext) -> None:
    ended: list[str] = []
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    call = asyncio.ensure_future(called(wait, context))
    await asyncio.wait_for(started.wait(), 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert ended == ["cleaned up"]


@pytest.mark.spec("7.8")
async def test_a_sync_function_that_hangs_holds_up_neither_its_caller_nor_others(context: ToolContext) -> None:
    release, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        release.wait(10)

    own = FunctionTool.from_function(hang, description="d", threads=DaemonThreads(1, "hang"))
    call = asyncio.ensure_future(own.call({}, context))
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.05)

    assert (await called(own_tools.add, context, left=1)).content == "2"
    release.set()


@pytest.mark.spec("7.8")
@pytest.mark.case("B185")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("as it is \n", "as it is \n"),
        (None, "(no output)"),
        ({"n": float("nan"), "i": float("-inf"), "f": 1.5}, '{"n": null, "i": null, "f": 1.5}'),
        (Point(x=1), '{"x": 1, "y": 0.0}'),
        (True, "true"),
    ],
)
async def test_what_a_function_returns_becomes_text(context: ToolContext, value: Any, content: str) -> None:
    assert await called(lambda: value, context) == ToolResult(content=content)


@pytest.mark.spec("7.8")
async def test_a_tool_result_is_passed_on_as_it_is(context: ToolContext) -> None:
    result = ToolResult(content="no", is_error=True, status="failed")

    assert await called(lambda: result, context) is result


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.spec("7.8")
@pytest.mark.case("B137")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad value"), "boom failed: ValueError: bad value"),
        (KeyError("k"), "boom failed: KeyError: 'k'"),
        (RuntimeError(), "boom failed: RuntimeError"),
        (RuntimeError("x" * 10_000), "boom failed: RuntimeError: " + "x" * 500),
        (Unspeakable(), "boom failed: Unspeakable: (a Unspeakable without a text)"),
        (SystemExit(3), "boom failed: SystemExit: 3"),
        (StopIteration(1), "boom failed: StopIteration: 1"),
        (TimeoutError("slow"), "boom failed: TimeoutError: slow"),
        (ToolError("the function's own words"), "the function's own words"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_function_raises_becomes_words_for_the_model(
    context: ToolContext, error: BaseException, message: str, is_async: bool
) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    if is_async and isinstance(error, StopIteration):
        message = "boom failed: RuntimeError: coroutine raised StopIteration"  # Python's own doing
    own = FunctionTool.from_function(fail_async if is_async else fail, name="boom", description="d")

    with pytest.raises(ToolError) as problem:
        await asyncio.wait_for(own.call({}, context), 5)

    assert str(problem.value) == message


@pytest.mark.spec("7.8")
async def test_the_traceback_goes_to_the_log_and_not_to_the_model(
    context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("bad value")

    with pytest.raises(ToolError) as problem:
        await called(broken, context)

    assert "Traceback" not in str(problem.value)
    assert "Traceback" in caplog.text
    assert "tool own raised ValueError" in caplog.text


@pytest.mark.spec("7.8")
async def test_the_decorator_makes_a_tool_that_can_still_be_called_as_a_function(context: ToolContext) -> None:
    @tool
    def double(x: int) -> int:
        """Double a number."""
        return 2 * x

    assert double(4) == 8
    assert (await double.call({"x": 5}, context)).content == "10"
    assert own_tools.who.spec.name == "who_am_i"
    assert own_tools.who.spec.read_only
    assert own_tools.who.spec.concurrency_safe
    assert own_tools.who.spec.timeout_ms == 5_000
    assert not FunctionTool.from_function(describe, read_only=True, concurrency_safe=False).spec.concurrency_safe


def without_hint(x) -> None:  # type: ignore[no-untyped-def]
    """Take anything."""


def with_stars(*args: int) -> None:
    """Take many."""


def positional(x: int, /) -> None:
    """Take one."""


def unknown_hint(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Take something that is not there."""


def indescribable(x: threading.Lock) -> None:
    """Take what JSON cannot say."""


def undescribed_callable(x: Callable[[], None]) -> None:
    """Take a function, for which there is no JSON Schema."""


def yielding(x: int) -> Iterator[int]:
    """Yield."""
    yield x


async def yielding_async(x: int) -> AsyncIterator[int]:
    """Yield."""
    yield x


@pytest.mark.spec("7.8")
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (without_hint, "function without_hint, parameter x: it has no type hint"),
        (with_stars, "parameter args: .* name each parameter"),
        (positional, "parameter x: .* positional-only"),
        (unknown_hint, "function unknown_hint: its type hints cannot be resolved: name 'Nowhere'"),
        (indescribable, "function indescribable: a type hint cannot be described"),
        (undescribed_callable, "function undescribed_callable: a type hint has no JSON Schema"),
        (yielding, "generators cannot be tools"),
        (yielding_async, "generators cannot be tools"),
        (own_tools.undocumented, "function undocumented: a model needs a description"),
        (lambda: 1, "function <lambda>: a tool name has 1 to 64 characters"),
    ],
)
def test_a_function_that_cannot_be_a_tool_says_what_must_change(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FunctionTool.from_function(function)


@pytest.mark.spec("7.8")
@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("add", ["add"]),
        ("who", ["who_am_i"]),
        ("Box.tools", ["add", "refuse"]),
        ("everything", ["add", "who_am_i", "refuse", "plus"]),
    ],
)
def test_an_import_path_names_functions_tools_and_lists(attribute: str, names: list[str]) -> None:
    assert [own.spec.name for own in load_tool(f"tests.tools.own_tools:{attribute}")] == names


@pytest.mark.spec("7.8")
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("tests.tools.own_tools", "not an import path; write 'package.module:attribute'"),
        (":add", "not an import path"),
        ("tests.tools.nowhere:add", "cannot be imported: ModuleNotFoundError"),
        ("tests.tools.own_tools:nothing", "cannot be imported: AttributeError"),
        ("tests.tools.own_tools:number", "a int is no tool"),
        ("tests.tools.own_tools:Box", "Box is a class; name an instance or a function"),
        ("tests.tools.own_tools:undocumented", "own_tools:undocumented': function undocumented: a model needs"),
    ],
)
def test_a_wrong_import_path_says_what_is_wrong(path: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load_tool(path)


@pytest.mark.spec("7.8")
def test_installed_packages_offer_tools_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop_tools-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-tools\nVersion: 1.0\n")
    points = package / "entry_points.txt"
    points.write_text("[subagentd.tools]\nshop = shop_tools:lookup\nall = shop_tools:more\n")
    (tmp_path / "shop_tools.py").write_text(
        "def lookup(order: str) -> str:\n    'Find an order.'\n    return order\n"
        "def cancel(order: str) -> str:\n    'Cancel an order.'\n    return order\n"
        "more = [cancel]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        assert [own.spec.name for own in load_entry_points()] == ["cancel", "lookup"]
        points.write_text("[subagentd.tools]\nshop = shop_tools:nothing\n")
        importlib.invalidate_caches()
        with pytest.raises(ValueError, match=r"entry point 'shop' of 'subagentd.tools' \(shop_tools:nothing\)"):
            load_entry_points()
    finally:
        sys.modules.pop("shop_tools", None)
