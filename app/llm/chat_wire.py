"""The kernel's neutral history and tools in the form of the OpenAI dialect; the only place that builds it.

Knows no connection. The history comes proven (`transcript`); what is added here is what this dialect's servers refuse.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.agent.chat import TOOL_CHOICES, ChatRequest
from app.agent.errors import ModelError
from app.agent.messages import Message, Role, ToolCall
from app.agent.tools import ToolSpec
from app.llm.surrogates import scrubbed

EMPTY_OUTPUT = "(no output)"
EMPTY_MESSAGE = "(empty message)"
MAX_WIRE_ID = 40  # OpenAI refuses longer ids of calls
MAX_STAND_IN_CHARS = 2000
_OUTSIDE_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_CACHED_TOOL_SETS = 128


def wire_ids(messages: Sequence[Message], provider: str) -> dict[str, str]:
    """Our call id → the id that the request uses for the call and its result.

    That is the provider's own id where it has one and the id is not yet used in this request, else ours. The first
    call keeps a repeated id, so that the beginning of a growing history never changes.
    """
    ids: dict[str, str] = {}
    used = {call.call_id for message in messages for call in message.tool_calls}
    for message in messages:
        own = message.provider in ("", provider)  # ids of one provider mean nothing to another
        for call in message.tool_calls:
            theirs = call.provider_call_id
            if own and theirs and theirs not in used and len(theirs) <= MAX_WIRE_ID:
                used.add(theirs)
                ids[call.call_id] = theirs
            else:
                ids[call.call_id] = call.call_id
    return ids


def wire_messages(messages: Sequence[Message], *, provider: str, reasoning_key: str = "") -> list[dict[str, Any]]:
    """The `messages` of a request: system first, no empty texts, each result under the id of its call."""
    ids = wire_ids(messages, provider)
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            _add_system(wire, message)
        elif message.role is Role.USER:
            wire.append({"role": "user", "content": message.content if message.content.strip() else EMPTY_MESSAGE})
        elif message.role is Role.TOOL:
            call_id = message.tool_call_id or ""
            content = message.content if message.content.strip() else EMPTY_OUTPUT
            wire.append({"role": "tool", "tool_call_id": ids.get(call_id, call_id), "content": content})
        elif message.tool_calls or message.content.strip():
            wire.append(_assistant(message, ids, message.provider == provider, reasoning_key))
    return wire


def _add_system(wire: list[dict[str, Any]], message: Message) -> None:
    """Several templates refuse a system message that is not the first: later ones speak as the user."""
    if not message.content.strip():
        return
    if not wire:
        wire.append({"role": "system", "content": message.content})
    elif len(wire) == 1 and wire[0]["role"] == "system":
        wire[0]["content"] += "\n\n" + message.content
    else:
        wire.append({"role": "user", "content": message.content})


def _assistant(message: Message, ids: Mapping[str, str], own: bool, reasoning_key: str) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": message.content if message.content.strip() else None}
    if own and message.opaque:
        wire.update(message.opaque)
    if own and reasoning_key and message.reasoning:
        wire[reasoning_key] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [_call(call, ids[call.call_id], own) for call in message.tool_calls]
    return wire


def _call(call: ToolCall, wire_id: str, own: bool) -> dict[str, Any]:
    opaque = dict(call.opaque) if own and call.opaque else {}
    extra = opaque.pop("function", None)
    function = {
        **(extra if isinstance(extra, Mapping) else {}),
        "name": _wire_name(call),
        "arguments": wire_arguments(call),
    }
    return {**opaque, "id": wire_id, "type": "function", "function": function}


def _wire_name(call: ToolCall) -> str:
    """The name as it was, or what is left of one that no tool can have and that the endpoint would refuse."""
    return _OUTSIDE_NAME.sub("_", call.name)[:64] or "unnamed"


def wire_arguments(call: ToolCall) -> str:
    """The arguments as valid JSON of an object: as they came, `{}` for none, an escaped stand-in for broken ones."""
    if call.arguments is None:
        return msgspec.json.encode({"invalid_json": scrubbed(call.raw[:MAX_STAND_IN_CHARS])}).decode()
    raw = call.raw.strip()
    if raw.startswith("{"):
        return call.raw
    return msgspec.json.encode(call.arguments, enc_hook=plain).decode()


def history_tools(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Declarations of the tools that a history used, for endpoints that refuse tool messages without tools."""
    names = dict.fromkeys(_wire_name(call) for message in messages for call in message.tool_calls)
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


class ToolSets:
    """Encoded tool declarations. A tuple of specs is encoded once, found again by its identity."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[tuple[ToolSpec, ...], msgspec.Raw]] = OrderedDict()

    def encoded(self, specs: tuple[ToolSpec, ...]) -> msgspec.Raw:
        """The JSON of `tools`. The tuple is kept, so that its identity cannot come to mean another one."""
        entry = self._known.get(id(specs))
        if entry is None:
            functions = [
                {"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in specs
            ]
            entry = specs, msgspec.Raw(encode([{"type": "function", "function": item} for item in functions]))
            self._known[id(specs)] = entry
            if len(self._known) > _CACHED_TOOL_SETS:
                self._known.popitem(last=False)
        return entry[1]


def encode(value: Any) -> bytes:
    """JSON of a request; halves of characters in it are replaced."""
    try:
        return msgspec.json.encode(value, enc_hook=plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_scrub(value), enc_hook=plain)


def plain(value: Any) -> Any:
    """Mappings and sequences of other types as those that JSON knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, Mapping):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrub(item) for item in value]
    return value


def check_choice(request: ChatRequest) -> None:
    """Raises `ModelError` for a tool choice that is none of those offered, which every provider would refuse."""
    choice, offered = request.tool_choice, [spec.name for spec in request.tools]
    if choice is not None and choice not in TOOL_CHOICES and choice not in offered:
        raise ModelError(
            f"tool_choice names {choice!r}, but the tools offered are: {', '.join(offered) or 'none'}; "
            "name one of them, or auto, none, required",
            code="unknown_tool_choice",
        )
