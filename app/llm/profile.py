"""What is configured about one model: where it answers, what it understands, what it costs, how long to wait for it.

Knows no settings file; whoever reads one builds these.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.agent.chat import Prices

PROVIDERS = ("openai", "anthropic", "local", "scripted")
TOOL_MODES = ("native", "json_envelope")
THINK_TAGS = ("auto", "off")
MAX_TOKENS_KEYS = ("max_tokens", "max_completion_tokens")
THINKING_STYLES = ("none", "enable_thinking", "chat_template_kwargs", "thinking_type", "reasoning_effort", "adaptive")
ANTHROPIC_STYLES = ("none", "thinking_type", "adaptive")
PRICES = ("input_price", "cached_price", "cache_write_price", "output_price")
_CURRENCY = re.compile(r"[A-Z]{3}")  # amounts of "usd" would never meet a limit in "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model under a name. Limits in seconds: `connect_s` to open a connection, `idle_s` without any content (also
    before the first), `total_s` for the whole reply. Prices in micro-units of `currency` (as in ISO 4217) per million
    tokens: input and output, or none; `cached_price` None: cached tokens cost what others do. `cache_write_price`: of
    tokens that a cache takes in, where the endpoint counts them (`anthropic`); None: a quarter more than others, which
    is what it asks for the shortest time.

    `base_url`: empty for `anthropic`: that of the service's settings, with their key unless there is an own one.
    `max_tokens`, `temperature`: used when a request sets none. `send_temperature` False: the endpoint refuses one.
    `thinking_style`: how this endpoint is told to reason or not: a field `enable_thinking`, the same inside of
    `chat_template_kwargs`, `thinking: {type: …}`, or `reasoning_effort: none`; `none`: it is not told. For `anthropic`:
    `thinking_type` with a budget of tokens, `adaptive` without one; `none`: what the name of the model calls for.
    `cache`: ask the endpoint to keep the beginning of requests (Anthropic's `cache_control`); None: Anthropic's own is.
    `reasoning_key`: the message field under which this endpoint wants its reasoning back; empty: never sent.
    `tools_for_history`: the endpoint refuses tool messages in a request that offers no tools, so the tools of the
    history are declared with `tool_choice: none` (spec 5.5).
    `tool_mode` `json_envelope`: tool calls are JSON texts enforced by a response schema (`envelope.py`), at most
    `envelope_calls` in one turn, strings bounded to `envelope_string_chars`; `envelope_brief` is for a very small
    model: it shortens prompts, results and parameters (required ones only), and after a turn of several calls only an
    answer may come.
    Raises ValueError naming the field.
    """

    name: str
    provider: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    context_window: int | None = None
    tool_mode: str = "native"
    max_tokens: int | None = None
    max_tokens_key: str = "max_tokens"
    temperature: float | None = None
    send_temperature: bool = True
    include_usage: bool = True
    think_tags: str = "auto"
    thinking_style: str = "none"
    reasoning_key: str = ""
    tools_for_history: bool = False
    cache: bool | None = None
    envelope_calls: int = 1
    envelope_string_chars: int = 4000
    envelope_brief: bool = False
    connect_s: float = 10.0
    idle_s: float = 120.0
    total_s: float = 900.0
    input_price: int | None = None
    cached_price: int | None = None
    cache_write_price: int | None = None
    output_price: int | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        self._one_of("provider", self.provider, PROVIDERS)
        self._one_of("tool_mode", self.tool_mode, TOOL_MODES)
        self._one_of("think_tags", self.think_tags, THINK_TAGS)
        self._one_of("max_tokens_key", self.max_tokens_key, MAX_TOKENS_KEYS)
        self._one_of("thinking_style", self.thinking_style, THINKING_STYLES)
        if not self.model:
            raise ValueError(f"model profile {self.name!r}: model is empty; name the model as its endpoint calls it")
        if self.provider == "anthropic":
            self._one_of("tool_mode", self.tool_mode, ("native",))
            self._one_of("thinking_style", self.thinking_style, ANTHROPIC_STYLES)
        needs_url = self.provider == "openai" or (self.provider == "anthropic" and self.base_url)
        if needs_url and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"model profile {self.name!r}: base_url {self.base_url!r} is no http or https URL")
        for key in ("connect_s", "idle_s", "total_s", "envelope_calls", "envelope_string_chars"):
            if not getattr(self, key) > 0:
                raise ValueError(f"model profile {self.name!r}: {key} must be above 0, not {getattr(self, key)!r}")
        self._check_prices()

    @property
    def prices(self) -> Prices | None:
        """What the model costs; None: not known. A local one costs nothing unless it was given prices."""
        if self.input_price is not None and self.output_price is not None:
            return Prices(
                input=self.input_price, output=self.output_price, cached=self.cached_price, currency=self.currency
            )
        return Prices(input=0, output=0, currency=self.currency) if self.provider == "local" else None

    def cost(self, fresh: int, written: int, read: int, output: int) -> dict[str, int]:
        """Micro-units by currency, rounded up, of input tokens that no cache had, those that one took in and those that
        came from one, and of output tokens; empty where the model has no prices."""
        prices = self.prices
        if prices is None:
            return {}
        cached = prices.input if prices.cached is None else prices.cached
        rest = fresh * prices.input + read * cached + output * prices.output
        quarters = 5 * prices.input if self.cache_write_price is None else 4 * self.cache_write_price
        return {prices.currency: -(-(4 * rest + written * quarters) // 4_000_000)}

    def _check_prices(self) -> None:
        given = {key: value for key in PRICES if (value := getattr(self, key)) is not None}
        for key, value in given.items():
            if value < 0:
                raise ValueError(f"model profile {self.name!r}: {key} must be 0 or above, not {value!r}")
        missing = [key for key in ("input_price", "output_price") if key not in given]
        if given and missing:
            raise ValueError(
                f"model profile {self.name!r}: {', '.join(given)} without {' and '.join(missing)}: what a call costs "
                "would not be known; set input_price and output_price, or no price"
            )
        if not _CURRENCY.fullmatch(self.currency):
            raise ValueError(
                f"model profile {self.name!r}: currency {self.currency!r} is no code of three capital letters; "
                "use one like USD, EUR or CNY"
            )

    def _one_of(self, key: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            raise ValueError(f"model profile {self.name!r}: unknown {key} {value!r}; use one of {', '.join(known)}")
