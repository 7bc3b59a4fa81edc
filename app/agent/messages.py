"""What was said: messages, tool calls and token usage in a form that belongs to no provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NotRequired, TypedDict


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class UsageInfo(TypedDict):
    """The wire form of `Usage`: tokens; cached and reasoning tokens are parts of the totals. `cost` is money in
    millionths by currency, for the calls whose model has prices; `unpriced_calls` counts the others. `estimated_tokens`
    and `estimated_micros`: what a budget has counted for calls of which the provider did not say what they used."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    model_calls: int
    unpriced_calls: int
    cost: dict[str, int]
    estimated_tokens: NotRequired[int]
    estimated_micros: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and money of one or several model calls. Cached and reasoning tokens are parts of the totals, not
    additions. `cost`: micro-units by currency."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0
    unpriced_calls: int = 0
    cost: Mapping[str, int] = field(default_factory=dict)
    estimated_tokens: int = 0
    estimated_micros: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            model_calls=self.model_calls + other.model_calls,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
            cost=_together(self.cost, other.cost),
            estimated_tokens=self.estimated_tokens + other.estimated_tokens,
            estimated_micros=self.estimated_micros + other.estimated_micros,
        )

    def at_least(self, other: "Usage") -> "Usage":
        """The greater of the two, number by number."""
        numbers = {name: max(getattr(self, name), getattr(other, name)) for name in _NUMBERS}
        cost = {each: max(self.cost.get(each, 0), other.cost.get(each, 0)) for each in (*self.cost, *other.cost)}
        return Usage(**numbers, cost=cost)

    def as_dict(self) -> UsageInfo:
        """The wire form."""
        wire = UsageInfo(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
            model_calls=self.model_calls,
            unpriced_calls=self.unpriced_calls,
            cost=dict(self.cost),
        )
        if self.estimated_tokens or self.estimated_micros:
            wire["estimated_tokens"] = self.estimated_tokens
            wire["estimated_micros"] = self.estimated_micros
        return wire

    @classmethod
    def from_dict(cls, value: Mapping[str, Any] | None) -> "Usage":
        """Read `as_dict` back; unknown keys are ignored."""
        known = {k: v for k, v in (value or {}).items() if k in cls.__slots__}
        return cls(**known)


def _together(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    if not other:
        return one
    if not one:
        return other
    return {currency: one.get(currency, 0) + other.get(currency, 0) for currency in (*one, *other)}


NO_USAGE = Usage()
_NUMBERS = tuple(each.name for each in fields(Usage) if each.name != "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that a model asked for.

    `call_id` is ours and unique; `provider_call_id` is what the model sent and may be empty or repeated.
    `arguments` is None when `raw` is not a JSON object; `problem` then says why. `opaque` holds the fields of the
    call that only its provider understands; they go back to the same provider unchanged.
    """

    call_id: str
    name: str
    raw: str
    arguments: Mapping[str, Any] | None
    provider_call_id: str = ""
    problem: str | None = None
    opaque: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a memory.

    A tool message answers the call `tool_call_id` (our id). `opaque` belongs to `provider` alone and is sent back
    byte for byte or not at all. `partial` marks a text that was cut (cancelled, broken stream). `seq` is its number in
    the memory, None for what stands only in the working context.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    partial: bool = False
    provider: str = ""
    opaque: Mapping[str, Any] | None = field(default=None)
    seq: int | None = field(default=None, compare=False)
