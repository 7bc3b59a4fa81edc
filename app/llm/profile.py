"""What is configured about one model: where it answers, what it understands, how long to wait for it.

Knows no settings file; whoever reads one builds these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PROVIDERS = ("openai", "local", "scripted")
TOOL_MODES = ("native", "json_envelope")
THINK_TAGS = ("auto", "off")
MAX_TOKENS_KEYS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model under a name. Limits in seconds: `connect_s` to open a connection, `idle_s` without any content (also
    before the first), `total_s` for the whole reply. Prices in micro-units of `currency` per million tokens.

    `max_tokens`, `temperature`: used when a request sets none. `send_temperature` False: the endpoint refuses one.
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
    reasoning_key: str = ""
    tools_for_history: bool = False
    envelope_calls: int = 1
    envelope_string_chars: int = 4000
    envelope_brief: bool = False
    connect_s: float = 10.0
    idle_s: float = 120.0
    total_s: float = 900.0
    input_price: int | None = None
    cached_price: int | None = None
    output_price: int | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        self._one_of("provider", self.provider, PROVIDERS)
        self._one_of("tool_mode", self.tool_mode, TOOL_MODES)
        self._one_of("think_tags", self.think_tags, THINK_TAGS)
        self._one_of("max_tokens_key", self.max_tokens_key, MAX_TOKENS_KEYS)
        if not self.model:
            raise ValueError(f"model profile {self.name!r}: model is empty; name the model as its endpoint calls it")
        if self.provider == "openai" and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"model profile {self.name!r}: base_url {self.base_url!r} is no http or https URL")
        for key in ("connect_s", "idle_s", "total_s", "envelope_calls", "envelope_string_chars"):
            if not getattr(self, key) > 0:
                raise ValueError(f"model profile {self.name!r}: {key} must be above 0, not {getattr(self, key)!r}")

    def _one_of(self, key: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            raise ValueError(f"model profile {self.name!r}: unknown {key} {value!r}; use one of {', '.join(known)}")
