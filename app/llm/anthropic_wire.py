"""The kernel's neutral history and tools in the form of Anthropic's Messages; the only place that builds it.

Knows no connection. The history comes proven (`transcript`); what is added here is what this dialect's servers refuse.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from app.agent.chat import ChatRequest
from app.agent.errors import ModelError
from app.agent.messages import Message, Role, ToolCall
from app.llm.chat_wire import EMPTY_MESSAGE, EMPTY_OUTPUT, plain, wire_arguments, wire_ids
from app.llm.profile import Profile
from app.llm.surrogates import scrubbed

DEFAULT_MAX_TOKENS = 8192  # a request without a bound is refused; every model of this dialect can answer that long
LEAST_BUDGET = 1024  # a smaller budget of reasoning is refused
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 20_000, "max": 20_000}
_EFFORTS = {"minimal": "low"}  # words of other providers
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_CACHED_TURNS = 2  # with tools and system text that makes four marks; a fifth one is refused
_EPHEMERAL = {"type": "ephemeral"}
_VERSION = re.compile(r"claude-[a-z]+-(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_ADAPTIVE_SINCE = (4, 6)
_OWN_TEMPERATURE_SINCE = (4, 7)

Block = dict[str, Any]


def request_body(request: ChatRequest, profile: Profile, *, cache: bool) -> dict[str, Any]:
    """The JSON of a request. `cache`: mark what later requests will begin with. Raises `ModelError` for a tool choice
    that is not offered."""
    system, messages = wire_messages(request.messages, profile.name)
    body: dict[str, Any] = {"model": profile.model, "stream": True, "messages": messages}
    if system:
        body["system"] = system
    if tools := _tools(request, messages):
        body["tools"] = tools
        if choice := _tool_choice(request):
            body["tool_choice"] = choice
    body.update(_reasoning(request, profile, _may_think(body, profile)))
    temperature = request.temperature if request.temperature is not None else profile.temperature
    if temperature is not None and _takes_temperature(body, profile):
        body["temperature"] = min(temperature, 1.0)  # the scale of this dialect ends there
    if cache:
        _mark_prefix(body)
    return body


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────


def wire_messages(messages: Sequence[Message], provider: str) -> tuple[list[Block], list[dict[str, Any]]]:
    """`system` and `messages`: roles take turns, results stand first in the message after their calls, and nothing is
    empty. A system text that is not at the beginning speaks as the user."""
    ids = wire_ids(messages, provider)
    system: list[Block] = []
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role is Role.TOOL:
            _add(wire, "user", [_result(message, ids)])
        elif message.role is Role.ASSISTANT:
            follows = bool(wire) and wire[-1]["role"] == "assistant"
            if blocks := _assistant(message, ids, provider, follows=follows):
                _add(wire, "assistant", blocks)
        elif message.content.strip():
            text = {"type": "text", "text": message.content}
            if message.role is Role.SYSTEM and not wire:
                system.append(text)
            else:
                _add(wire, "user", [text])
        elif message.role is Role.USER:
            _add(wire, "user", [{"type": "text", "text": EMPTY_MESSAGE}])
    if not wire:
        _add(wire, "user", [{"type": "text", "text": EMPTY_MESSAGE}])
    return system, wire


def _add(wire: list[dict[str, Any]], role: str, blocks: list[Block]) -> None:
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] += blocks
        return
    if not wire and role != "user":  # the user has to begin
        wire.append({"role": "user", "content": [{"type": "text", "text": EMPTY_MESSAGE}]})
    wire.append({"role": role, "content": blocks})


def _result(message: Message, ids: Mapping[str, str]) -> Block:
    call_id = message.tool_call_id or ""
    content = message.content if message.content.strip() else EMPTY_OUTPUT
    block = {"type": "tool_result", "tool_use_id": ids.get(call_id, call_id), "content": content}
    return {**block, "is_error": True} if message.is_error else block


def _assistant(message: Message, ids: Mapping[str, str], provider: str, *, follows: bool) -> list[Block]:
    """Text and signed blocks in their order, then the calls, after which nothing else is accepted. A turn that follows
    another one is joined to it, and signed blocks in the middle of a turn would be refused."""
    own = message.provider == provider
    if not message.tool_calls and not message.content.strip():
        return []
    blocks: list[Block] = []
    said = 0
    for at, block in unsealed(message) if own and not follows else ():
        _add_text(blocks, message.content[said:at])
        blocks.append(block)
        said = at
    _add_text(blocks, message.content[said:])
    return blocks + [_call(call, ids[call.call_id], own) for call in message.tool_calls]


def _add_text(blocks: list[Block], text: str) -> None:
    if text.strip():
        blocks.append({"type": "text", "text": text})


def _call(call: ToolCall, wire_id: str, own: bool) -> Block:
    """A call as it came: the text of its arguments goes back unread, so that the request's beginning never changes."""
    opaque = call.opaque if own and call.opaque else {}
    arguments = msgspec.Raw(scrubbed(wire_arguments(call)).encode())
    return {**opaque, "type": "tool_use", "id": wire_id, "name": call.name, "input": arguments}


# ── signed blocks ───────────────────────────────────────────────────────────────────────────────────────────────


def sealed(blocks: Sequence[tuple[int, Block]], text: str, calls: int) -> Mapping[str, Any] | None:
    """The opaque part of a turn: its signed blocks, each with the number of characters of text before it."""
    if not blocks:
        return None
    opaque = {
        "blocks": [block for _, block in blocks],
        "at": [at for at, _ in blocks],
        "text": len(text),
        "calls": calls,
    }
    return {**opaque, "digest": _digest(opaque)}


def unsealed(message: Message) -> list[tuple[int, Block]]:
    """The signed blocks of a turn, unchanged; none when anything was changed since: masked, cut or taken out."""
    opaque = message.opaque
    if not opaque or opaque.get("digest") != _digest(opaque):
        return []
    if opaque["text"] != len(message.content) or opaque["calls"] != len(message.tool_calls):
        return []
    return list(zip(opaque["at"], opaque["blocks"], strict=True))


def _digest(opaque: Mapping[str, Any]) -> str:
    parts = [opaque.get(key) for key in ("blocks", "at", "text", "calls")]
    # Sorted, since a store may give the keys of an object back in another order.
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted", enc_hook=plain)).hexdigest()[:32]


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _tools(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The tools that are offered, else those that the history used: a history of calls is refused without them."""
    if request.tools:
        return [
            {
                "name": spec.name,
                "description": spec.description,
                "input_schema": {"type": "object", **spec.parameters},
            }
            for spec in request.tools
        ]
    used = (block["name"] for message in messages for block in message["content"] if block["type"] == "tool_use")
    return [{"name": name, "input_schema": {"type": "object"}} for name in dict.fromkeys(used)]


def _tool_choice(request: ChatRequest) -> dict[str, Any]:
    wanted = request.tool_choice
    if not request.tools:
        return {"type": "none"}
    offered = [spec.name for spec in request.tools]
    if wanted in _CHOICES:
        choice: dict[str, Any] = {"type": _CHOICES[wanted]}
    elif wanted in offered:
        choice = {"type": "tool", "name": wanted}
    elif wanted is not None:
        raise ModelError(
            f"tool_choice names {wanted!r}, but the tools offered are: {', '.join(offered)}; "
            "name one of them, or auto, none, required",
            code="unknown_tool_choice",
        )
    else:
        choice = {}
    if request.parallel_tool_calls is False and choice.get("type") != "none":
        return {"type": "auto", **choice, "disable_parallel_tool_use": True}
    return choice


# ── reasoning ───────────────────────────────────────────────────────────────────────────────────────────────────


def thinking_style(profile: Profile) -> str:
    """`adaptive`, or `thinking_type` for a budget of tokens. Where the profile says neither, the name of the model
    decides: since version 4.6 the model measures its reasoning itself, and later ones refuse a budget."""
    if profile.thinking_style != "none":
        return profile.thinking_style
    return "adaptive" if _version(profile.model) >= _ADAPTIVE_SINCE else "thinking_type"


def _may_think(body: Mapping[str, Any], profile: Profile) -> bool:
    """Whether a request that switches reasoning on would be accepted: not with a tool that must be called, and, with
    a budget, not in the middle of a turn of tool calls that began without reasoning."""
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        return False
    if thinking_style(profile) == "adaptive":
        return True
    messages = body["messages"]
    if messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in ("thinking", "redacted_thinking")


def _reasoning(request: ChatRequest, profile: Profile, may_think: bool) -> dict[str, Any]:
    """`max_tokens`, and how much to think. Reasoning counts as output: it comes out of a bound that somebody set, and
    on top of our own."""
    given = request.max_tokens if request.max_tokens is not None else profile.max_tokens
    wanted = _budget(request.effort)
    adaptive = thinking_style(profile) == "adaptive"
    fields: dict[str, Any] = {"max_tokens": given or DEFAULT_MAX_TOKENS}
    if adaptive and request.effort and not request.effort.isdigit():
        fields["output_config"] = {"effort": _EFFORTS.get(request.effort, request.effort)}
    if request.thinking is False and profile.thinking_style == "thinking_type":
        fields["thinking"] = {"type": "disabled"}  # said only where the profile asks: some models refuse the word
    if not request.thinking or not may_think:
        return fields
    budget = wanted if given is None else min(wanted, given * 3 // 4)
    if given is None:
        fields["max_tokens"] += budget
    if adaptive:
        fields["thinking"] = {"type": "adaptive"}
    elif budget >= LEAST_BUDGET:
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return fields


def _budget(effort: str | None) -> int:
    """Tokens of reasoning: a number is taken at its word."""
    if effort and effort.isdigit():
        return min(max(int(effort), LEAST_BUDGET), BUDGETS["max"])
    return BUDGETS.get(effort or "medium", BUDGETS["medium"])


def _takes_temperature(body: Mapping[str, Any], profile: Profile) -> bool:
    thinks = body.get("thinking", {}).get("type") in ("enabled", "adaptive")
    return profile.send_temperature and not thinks and _version(profile.model) < _OWN_TEMPERATURE_SINCE


def _version(model: str) -> tuple[int, int]:
    """That of a name like `claude-opus-4-7`; (0, 0) for all others, the names of the third generation among them."""
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


# ── cache ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _mark_prefix(body: Mapping[str, Any]) -> None:
    """Ask the provider to keep tools, system text, and the history up to each of the last turns of the user: the next
    request finds the older of them."""
    users = (message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    for blocks in (body.get("tools"), body.get("system"), *islice(users, _CACHED_TURNS)):
        if blocks:
            blocks[-1]["cache_control"] = _EPHEMERAL
