"""Tool calls from the pieces in which OpenAI-dialect servers really send them.

Knows no stream and no text. A piece belongs to the call of its index, else of its id, else to the open call.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from app.agent.chat import Delta, DeltaKind, Emit
from app.agent.errors import ModelError
from app.agent.ids import new_id
from app.agent.messages import ToolCall
from app.llm.surrogates import PairJoiner
from app.wire import parse_arguments

_OWN_KEYS = frozenset({"index", "id", "type", "function"})
_OWN_FUNCTION_KEYS = frozenset({"name", "arguments"})
MAX_CALLS = 256  # of one turn; more is a model that runs wild


class _Call:
    """One call under construction."""

    __slots__ = ("arguments", "call_id", "fresh", "function_extra", "id", "joiner", "name", "opaque")

    def __init__(self) -> None:
        self.call_id = new_id("call")
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.fresh: list[str] = []
        self.joiner: PairJoiner | None = None
        self.opaque: dict[str, Any] = {}
        self.function_extra: dict[str, Any] = {}

    def raw(self) -> str:
        return "".join(self.arguments) + "".join(self.fresh)

    def complete(self) -> bool:
        text = self.raw().strip()
        return text.endswith("}") and parse_arguments(text)[0] is not None


class CallPieces:
    """The calls of one turn. `offered` are the names of the tools that the model was shown."""

    __slots__ = ("_by_index", "_calls", "_offered", "_touched")

    def __init__(self, offered: Collection[str] = ()) -> None:
        self._offered = frozenset(offered)
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._touched: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, entry: Any) -> None:
        """Add one entry of a `tool_calls` list, whole or a piece; anything but an object is ignored."""
        if not isinstance(entry, dict):
            return
        function = entry.get("function")
        if not isinstance(function, dict):
            function = {}
        elif len(entry) == 2 and len(function) == 1 and self._continued(entry.get("index"), function.get("arguments")):
            return
        name, given_id = _text(function.get("name")), _text(entry.get("id"))
        arguments = function.get("arguments")
        call = self._call_of(entry.get("index"), given_id, name, arguments not in (None, ""))
        if not call.id:
            call.id = given_id
        if name and name != call.name:
            call.name = self._named(call.name, name)
        if len(entry) > 1 or len(function) > 1:
            _keep_unknown(call, entry, function)
        if arguments is None or arguments == "":
            return
        if not isinstance(arguments, str):  # an object, from servers that parse for us
            arguments = msgspec.json.encode(arguments).decode()
        call.fresh.append(arguments)
        self._touched[call.call_id] = call

    def _continued(self, index: Any, arguments: Any) -> bool:
        """The usual fragment, an index and a piece of text: all but a few of a long stream."""
        call = self._by_index.get(index) if isinstance(index, int) else None
        if call is None or not isinstance(arguments, str):
            return False
        call.fresh.append(arguments)
        self._touched[call.call_id] = call
        return True

    def flush(self, emit: Emit, *, join_pairs: bool = False) -> None:
        """Hand out what came since the last flush, one delta for each call. `join_pairs`: surrogates may be in it."""
        for call in self._touched.values():
            text = "".join(call.fresh)
            call.fresh.clear()
            if join_pairs and call.joiner is None:
                call.joiner = PairJoiner()
            if call.joiner is not None:
                text = call.joiner.feed(text)
            if text:
                call.arguments.append(text)
                emit(Delta(DeltaKind.ARGUMENTS, text, call.call_id))
        self._touched.clear()

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in the order in which they began."""
        return tuple(_built(call) for call in self._calls)

    def _call_of(self, index: Any, given_id: str, name: str, has_arguments: bool) -> _Call:
        if isinstance(index, int):
            call = self._by_index.get(index)
            # Some servers give every whole call the index 0: another id and name after a finished call is a new one.
            if call is None or (given_id and name and call.id not in ("", given_id) and self._ended(call, name, True)):
                return self._opened(index)
            return call
        if given_id:
            for call in reversed(self._calls):
                if call.id == given_id and not (name and self._ended(call, name, has_arguments)):
                    return call
            return self._opened(None) if name or not self._calls else self._calls[-1]
        if not self._calls or (name and self._ended(self._calls[-1], name, has_arguments)):
            return self._opened(None)
        return self._calls[-1]

    def _ended(self, call: _Call, name: str, has_arguments: bool) -> bool:
        """Whether a piece with this name (and arguments) must belong to another call than this one."""
        if call.raw().strip():
            return call.complete() and (has_arguments or call.name != name)
        return call.name != name and {call.name, name} <= self._offered and call.name + name not in self._offered

    def _opened(self, index: int | None) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise ModelError(f"the model asked for more than {MAX_CALLS} tool calls in one turn")
        call = _Call()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _named(self, known: str, piece: str) -> str:
        """The name after one more piece: vendors send it once, in pieces, or whole in every chunk."""
        if not known or piece.startswith(known):
            return piece
        if known + piece in self._offered:
            return known + piece
        if known in self._offered:
            return known
        return piece if piece in self._offered else known + piece


def _built(call: _Call) -> ToolCall:
    if call.joiner is not None:
        call.arguments.append(call.joiner.end())
    raw = call.raw()
    arguments, problem = parse_arguments(raw)
    opaque = dict(call.opaque)
    if call.function_extra:
        opaque["function"] = call.function_extra
    return ToolCall(
        call_id=call.call_id,
        name=call.name,
        raw=raw,
        arguments=arguments,
        provider_call_id=call.id,
        problem=problem,
        opaque=opaque or None,
    )


def _keep_unknown(call: _Call, entry: Mapping[str, Any], function: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        if key not in _OWN_KEYS and value is not None:
            call.opaque[key] = value
    for key, value in function.items():
        if key not in _OWN_FUNCTION_KEYS and value is not None:
            call.function_extra[key] = value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
