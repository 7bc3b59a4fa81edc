"""The only door to a model: what it is asked, what it yields while it answers, and what came of it.

Knows no provider and no HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from app.agent.messages import Message, ToolCall, Usage
from app.agent.tools import ToolSpec


class DeltaKind(StrEnum):
    """What a piece of a streamed reply belongs to."""

    TEXT = "text"
    REASONING = "reasoning"
    ARGUMENTS = "arguments"


@dataclass(slots=True)
class Delta:
    """A piece of a reply that is under way; `call_id` (ours) is set for arguments. Adapters join what came in one
    read, so one delta may hold many chunks."""

    kind: DeltaKind
    text: str
    call_id: str | None = None


class Finish(StrEnum):
    """Why a model stopped, in our own words; what was received decides whether tools run, not this."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    FILTERED = "filtered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete turn of a model. `usage` None: the server sent none. `opaque` goes back to `provider` unchanged.

    `malformed_call`: the text holds what looks like a tool call that the model wrote as text; nothing of it is run.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    usage: Usage | None = None
    finish: Finish = Finish.UNKNOWN
    model: str = ""
    provider: str = ""
    opaque: Mapping[str, Any] | None = None
    malformed_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One model call. `messages` is a snapshot that `transcript` has proven acceptable; `tools` () means none.

    `tool_choice`: `auto`, `none`, `required` or the name of a tool; None: not sent. `max_tokens` bounds the reply.
    `thinking`: switch the model's own reasoning on or off, where its endpoint can; None: not said.
    """

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    effort: str | None = None
    thinking: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a model costs: micro-units of `currency` per million tokens. `cached` None: as `input`."""

    input: int
    output: int
    cached: int | None = None
    currency: str = "USD"

    def cost(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        """Micro-units for that many tokens, rounded up, so that a limit on money is never passed by rounding."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, input_tokens - cached_tokens)
        return -(-(fresh * self.input + cached_tokens * cached + output_tokens * self.output) // 1_000_000)


TOOL_CHOICES = ("auto", "none", "required")  # of `ChatRequest.tool_choice`, besides the names of tools

Emit = Callable[[Delta], None]


class ChatModel(Protocol):
    """One model behind one endpoint."""

    @property
    def name(self) -> str:
        """`provider:model` or the name of the profile."""

    @property
    def prices(self) -> Prices | None:
        """What it costs; None: not known."""

    @property
    def context_window(self) -> int | None:
        """How many tokens a request and its reply may have together; None: not known."""

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """Ask, hand each piece to `emit` as it comes, and return the complete reply.

        Raises `ModelError` (`IncompleteReply` when the stream ended without a positive end signal). Cancelling it
        closes the connection.
        """


class TokenCounter(Protocol):
    """Counts the tokens of texts. It never raises: what cannot be counted is estimated."""

    def count(self, text: str) -> int:
        """Tokens of a text, special tokens in it counted as the plain text that they are."""

    @property
    def exact(self) -> bool:
        """Whether the vocabulary is the model's own."""

    @property
    def ratio(self) -> float:
        """What the model reports for its requests, in relation to what was counted for them."""

    def learn(self, counted: int, used: int) -> None:
        """A request for which `counted` tokens were counted was reported to have `used` ones."""


class ModelCatalog(Protocol):
    """Which models there are."""

    def resolve(self, name: str | None) -> ChatModel:
        """The model of that name (`provider:model`, or a profile), None: the default one.

        Raises `InvalidRequest` with code `no_model` or `unknown_model` that says how to configure one.
        """

    def counter(self, name: str) -> TokenCounter:
        """Counts for the model of that name, the same counter each time; for an unknown name one that estimates."""

    def listing(self) -> Sequence[Mapping[str, Any]]:
        """What can be named, for people."""
