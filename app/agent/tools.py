"""Something that an agent can do: its description, its call, and the whitelist that holds it.

Knows no concrete tool.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from app.agent.errors import InvalidArguments
from app.agent.messages import ToolCall
from app.agent.runs import Run, Session

DEFAULT_TIMEOUT_MS = 60_000
GROUPED = "mcp__"  # tools of servers, which whitelists may name all at once
PREVIEW = 200  # characters of wrong arguments that are shown back to the model


class Interrupt(StrEnum):
    """What a cancelled run does with a tool that is running (spec 7.4)."""

    CANCEL = "cancel"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model and the loop must know of a tool. `parameters` is the JSON Schema of its arguments (an object).
    `built_in`: comes with the service, so that it may be granted where a definition names no tools.

    `read_only`: no effect, may be repeated. `concurrency_safe`: may run beside others. `timeout_ms` 0: no limit.
    `raw_arguments`: the call gets the argument text unparsed and unvalidated (delegation tools of spec 3.1).
    `delegation`: starts agents. `poller`: is asked again and again on purpose, so that equal calls are no circle while
    their results differ (spec 5.3). `open_world`: reaches outside the service's own machine, so that it is never
    granted where a definition names no tools. `ask`: why a person is asked before each call that no rule speaks of.
    `accepts`: the schema that calls are validated against where it is wider than what the model is shown. `aliases`:
    other names of arguments, as models know them from other services; everybody behind the schema sees only ours.
    `waits`: mostly waits for other runs. `private`: only for definitions that bring its server along, and for whoever
    takes over their tools. `error_prefix` begins every error result; `cancelled_text` is the result of a
    call that was cancelled, where that is not said as for every tool.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = False
    concurrency_safe: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    interrupt: Interrupt = Interrupt.CANCEL
    raw_arguments: bool = False
    delegation: bool = False
    built_in: bool = False
    accepts: Mapping[str, Any] | None = None
    aliases: Mapping[str, str] | None = None
    poller: bool = False
    waits: bool = False
    open_world: bool = False
    private: bool = False
    ask: str = ""
    error_prefix: str = ""
    cancelled_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave. `status` is that of the `tool.result` event; errors are data, not exceptions. `fetched`: the
    background task whose end it tells."""

    content: str
    is_error: bool = False
    status: str = "ok"
    fetched: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Where a call happens. It offers no way to start agents: delegation tools get theirs by construction.

    `workspace` is the directory that file tools are confined to. `deadline` is on the clock of the event loop, None
    for none. `progress` shows a piece of text to whoever watches. `primary` carries the same call to the ordinary tool
    that a delegation tool of this name hides, if there is one (spec 3.7). `stands_in` asks rules and persons about an
    agent, and the name of its tool, that is to stand in for another one; it raises `CallDenied`.

    `conceals` says of a path in the workspace, resolved, whether a search must leave it out. `refuses` says why what
    was opened may not be read, by the place that it really has, None where that cannot be told: what was judged before
    may have become a link. Without them everything may be seen. For a command `conceals` says what it may not read and
    `protects` what it may not change.
    """

    session: Session
    run: Run
    step: int
    call_id: str
    workspace: Path
    deadline: float | None
    progress: Callable[[str], None]
    primary: Callable[[], Awaitable[ToolResult]] | None = None
    stands_in: Callable[[str, str], Awaitable[None]] | None = None
    conceals: Callable[[str], bool] | None = None
    refuses: Callable[[str | None], str | None] | None = None
    protects: Callable[[str], bool] | None = None

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None when there is none."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


class Tool(Protocol):
    """One tool. `call` may raise `ToolError` with a text for the model; anything else is a fault of the tool."""

    @property
    def spec(self) -> ToolSpec:
        """Its description; the same object on every access."""

    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """Run it. `arguments` is the validated object, or the raw text when the spec says `raw_arguments`."""


class SchemaChecker(Protocol):
    """Validates values against JSON Schema."""

    def check(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """None when the value is valid, otherwise what is wrong and where, in words for a model."""


def validated(spec: ToolSpec, call: ToolCall, checker: SchemaChecker) -> Any:
    """What a tool is called with: the object that satisfies its schema, or the raw text where it wants that.

    Raises `InvalidArguments` that says what is wrong; nothing is guessed or repaired.
    """
    if spec.raw_arguments:
        return call.raw
    schema = spec.accepts or spec.parameters
    arguments = call.arguments if call.arguments is not None else _encoded_twice(call.raw)
    if arguments is None:
        raise InvalidArguments(
            f"The arguments of {call.name} were not run: {call.problem or 'they are no JSON object'}. "
            f"You sent: {call.raw[:PREVIEW]!r}. Send one JSON object for this schema: {_brief(spec.parameters)}"
        )
    if spec.aliases:
        arguments = _renamed(spec.aliases, arguments)
    problem = checker.check(schema, arguments)
    if problem is None:
        return arguments
    unwrapped = _unwrapped(schema, arguments)
    if unwrapped is not None and checker.check(schema, unwrapped) is None:
        return unwrapped
    raise InvalidArguments(f"Invalid arguments for {call.name}: {problem}")


def _renamed(aliases: Mapping[str, str], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments under our names. What is there twice keeps its other name, so that the schema refuses it."""
    renamed = {name: value for name, value in arguments.items() if name not in aliases}
    for name, value in arguments.items():
        if name in aliases:
            renamed[name if aliases[name] in renamed else aliases[name]] = value
    return renamed


def _brief(schema: Any) -> str:
    """Property names with their types: enough to repair a call."""
    required = set(schema.get("required", ()))
    parts = [
        f"{name}{'' if name in required else '?'}: {prop.get('type', 'any') if isinstance(prop, dict) else 'any'}"
        for name, prop in schema.get("properties", {}).items()
    ]
    return "{" + ", ".join(parts) + "}"


def _unwrapped(schema: Any, arguments: Any) -> Any:
    """Arguments with values that were JSON-encoded twice decoded once, where the schema wants an object or array.

    None when nothing of that kind is there. Strings that the schema wants as strings are never touched.
    """
    changed = {}
    for name, value in arguments.items():
        wanted = schema.get("properties", {}).get(name, {}).get("type")
        if isinstance(value, str) and wanted in ("array", "object"):
            changed[name] = _decoded(value)
    return {**arguments, **changed} if changed else None


def _encoded_twice(raw: str) -> Any:
    """The object inside arguments that are a JSON string holding an object; None for anything else."""
    text = _decoded(raw)
    inner = _decoded(text) if isinstance(text, str) else None
    return inner if isinstance(inner, dict) else None


def _decoded(text: str) -> Any:
    """The value of a JSON text; None when it is none."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """How much of an output a model sees (spec 7.5), in characters."""

    max_chars: int = 16_000
    head_chars: int = 12_000
    tail_chars: int = 3_000

    def cut(self, text: str, where: str = "") -> tuple[str, int | None]:
        """The text, or its head and tail with a note, and then the full length. `where` says how to get at the
        whole."""
        if len(text) <= self.max_chars:
            return text, None
        left_out = len(text) - self.head_chars - self.tail_chars
        note = f"\n\n[… {left_out} characters left out of {len(text)}{where} …]\n\n"
        return text[: self.head_chars] + note + text[len(text) - self.tail_chars :], len(text)


class ToolRegistry(Mapping[str, Tool]):
    """An immutable whitelist of tools by name; the order is that in which a model sees them.

    `primaries` are ordinary tools that a delegation tool of the same name hides (spec 3.7): the model never sees
    them, a fallback may call them. `absent`: what is said of a tool that the whitelist names and that is not here.
    """

    __slots__ = ("_specs", "_tools", "absent", "primaries")

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        primaries: Mapping[str, Tool] | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self.primaries: Mapping[str, Tool] = primaries or {}
        self.absent: Mapping[str, str] = absent or {}
        self._tools = {tool.spec.name: tool for tool in tools}
        self._specs = tuple(tool.spec for tool in self._tools.values())

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs in order; the same tuple on every access, so that encoders may cache by identity."""
        return self._specs

    def select(self, names: Iterable[str]) -> "ToolRegistry":
        """The tools of these names that exist here, in the order of the names."""
        return ToolRegistry(self._tools[name] for name in dict.fromkeys(names) if name in self._tools)

    def expand(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names, each group replaced by the tools in it: `mcp__server` and `mcp__server__*` are all tools whose
        names begin with `mcp__server__`, `mcp__*` those of all servers."""
        found: dict[str, None] = {}
        for name in names:
            if name in self._tools or not name.startswith(GROUPED):
                found[name] = None
                continue
            prefix = name[:-1] if name.endswith("*") else f"{name}__"
            found.update(dict.fromkeys([each for each in self._tools if each.startswith(prefix)] or [name]))
        return tuple(found)

    async def ready(self, names: Iterable[str]) -> None:
        """Wait, for a bounded time, until tools of these names that are on their way are here."""

    def without(self, names: Iterable[str]) -> "ToolRegistry":
        """All but these."""
        gone = set(names)
        return ToolRegistry((tool for name, tool in self._tools.items() if name not in gone), absent=self.absent)

    def why_absent(self, name: str) -> str:
        """What is known of a tool that is not here; empty for nothing."""
        given = (why for group, why in self.absent.items() if name == group or name.startswith(f"{_stem(group)}__"))
        return next(given, "")


class ToolShelf(ToolRegistry):
    """All ordinary tools of the service. Those of servers come and go while it runs; a run works with a selection,
    which does not change any more.

    `put` lays the tools of one source on the shelf in place of what it had there. A source that is still on its way is
    announced by `expect`, with the prefix of its tools' names, how to wait for it and how it is.
    """

    __slots__ = ("_coming", "_sources", "_told")

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._sources: dict[str, tuple[Tool, ...]] = {}
        self._coming: dict[str, Callable[[], Awaitable[None]]] = {}
        self._told: dict[str, Callable[[], str]] = {}
        super().__init__(tools)
        self._sources[""] = tuple(self._tools.values())

    def put(self, source: str, tools: Iterable[Tool]) -> None:
        """The tools of `source` from now on; none: it has none. Of two of one name the one of the earlier source
        stays."""
        self._sources[source] = tuple(tools)
        found: dict[str, Tool] = {}
        for tool in (tool for given in self._sources.values() for tool in given):
            found.setdefault(tool.spec.name, tool)
        self._tools = found
        self._specs = tuple(tool.spec for tool in found.values())

    def expect(
        self, prefix: str, arrival: Callable[[], Awaitable[None]], state: Callable[[], str] | None = None
    ) -> None:
        """Tools whose names begin with `prefix` may still come. `arrival` returns when they are there or will not be,
        after a bounded time; it raises nothing. `state` says how their source is."""
        self._coming[prefix] = arrival
        if state is not None:
            self._told[prefix] = state

    def forget(self, prefix: str) -> None:
        """Nothing comes any more."""
        self._coming.pop(prefix, None)
        self._told.pop(prefix, None)

    def select(self, names: Iterable[str]) -> ToolRegistry:
        """The tools of these names, with what is said of those that a source should have and has not."""
        found = super().select(names := tuple(names))
        missing = [name for name in names if name not in found and name.startswith(GROUPED)]
        absent = {
            name: f"{name} ({state()})"
            for name in missing
            for prefix, state in self._told.items()
            if name.startswith(prefix) or _stem(name) + "__" == prefix
        }
        return ToolRegistry(found.values(), absent=absent) if absent else found

    async def ready(self, names: Iterable[str]) -> None:
        """Wait for those sources that these names need."""
        wanted = tuple(names)
        coming = [
            arrival
            for prefix, arrival in self._coming.items()
            if any(name.startswith(prefix) or prefix.startswith(_stem(name) + "__") for name in wanted)
        ]
        if coming:
            await asyncio.gather(*(arrival() for arrival in coming))


def _stem(name: str) -> str:
    return name.removesuffix("__*").removesuffix("*").rstrip("_")


def default_tools(registry: ToolRegistry) -> tuple[str, ...]:
    """What an agent has that names no tools and has no parent run: the read-only built-in ones that stay here (spec
    7.2)."""
    return tuple(spec.name for spec in registry.specs if spec.read_only and spec.built_in and not spec.open_world)
