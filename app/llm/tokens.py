"""How many tokens a model makes of a text: by its vocabulary where there is one, else by an estimate; both are set
right by what the model itself reports.

Knows no request and no window. The vocabularies are those of the package splintr-rs, which needs no network; without
it everything is estimated.
"""

import asyncio
import functools
import importlib
import logging
import re
from collections.abc import Callable, Iterator

from app.agent.tokens import likely_tokens

log = logging.getLogger(__name__)

PIECE_CHARS = 64_000  # counted at once, so that no text makes the tokeniser hold more than this
RATIO_BOUNDS = (0.5, 3.0)  # a report beyond them is one of something else than the request
NEWEST_SHARE = 0.5  # of the ratio: after five reports less than 4 % of an old one is left
LEAST_COUNTED = 64  # tokens: of a shorter request most is what the endpoint adds

# Models by the beginning of their name, after the owner; the first that fits. Only what is known to share the
# vocabulary: a wrong one is worse than an estimate.
_VOCABULARIES = tuple(
    (re.compile(pattern), vocabulary)
    for pattern, vocabulary in (
        (r"gpt-oss", "gpt-oss"),
        (r"(chatgpt-4o|gpt-4o|gpt-4\.1|gpt-4\.5|gpt-5|o[134](?![\w.]))", "o200k_base"),
        (r"(gpt-4(?![\w.])|gpt-3\.5|gpt-35)", "cl100k_base"),
        (r"deepseek-r1-distill-llama", "llama3"),
        (r"deepseek-r1-(distill-qwen|0528-qwen3)", "qwen3"),
        (r"deepseek-(chat|reasoner|v3|r1)", "deepseek_v3"),
        (r"(meta-)?llama-?v?3", "llama3"),
        (r"((meta-)?llama-?v?2|tinyllama|vicuna)(?!\d)", "llama2"),
        (r"code-?llama", "codellama"),
        (r"(qwen-?(2\.5|2|3)(?!\.?\d)|qwq)", "qwen3"),
        (r"glm-?4", "glm4"),
        (r"kimi-?k[23]", "kimi"),
        (r"gemma-?3", "gemma3"),
        (r"gemma-?2", "gemma2"),
        (r"phi-?4(?!-mini)(?!-multi)", "phi4"),
        (r"olmo-?2", "olmo2"),
        (r"((open-)?mistral-nemo|pixtral)", "mistral_v3"),
        (r"(mistral-7b(-instruct)?-v0\.3|(open-)?mixtral-8x22b|codestral-22b)", "mistral_v2"),
        (r"(mistral-7b(-instruct)?-v0\.[12]|(open-)?mixtral-8x7b)", "mistral_v1"),
    )
)


def vocabulary(model: str) -> str | None:
    """The name of the vocabulary of a model, as its endpoint names the model; None: there is none here."""
    name = model.lower().rpartition("/")[2].removeprefix("ft:")
    return next((vocabulary for pattern, vocabulary in _VOCABULARIES if pattern.match(name)), None)


@functools.cache
def _tokeniser(name: str) -> Callable[[str], list[int]] | None:
    """Splits a text, special tokens in it as the plain text that they are; None: it cannot be had."""
    try:
        splintr = importlib.import_module("splintr")
        encode: Callable[[str], list[int]] = splintr.Tokenizer.from_pretrained(name).encode_ordinary
    except ImportError:
        return None
    except Exception:  # border to a native library: without it there are estimates
        log.exception("the vocabulary %s cannot be loaded; tokens are estimated", name)
        return None
    return encode


class ModelCounter:
    """Counts for one model (`TokenCounter`). `vocabulary`: its name in splintr; None: there is none."""

    __slots__ = ("_ratio", "_vocabulary")

    def __init__(self, vocabulary: str | None) -> None:
        self._vocabulary = vocabulary
        self._ratio = 1.0

    @property
    def exact(self) -> bool:
        """Whether it counts by the model's own vocabulary."""
        return self._vocabulary is not None and _tokeniser(self._vocabulary) is not None

    @property
    def ratio(self) -> float:
        """See `TokenCounter`; 1 until something was learned."""
        return self._ratio

    def count(self, text: str) -> int:
        """Tokens of a text; never raises."""
        encode = _tokeniser(self._vocabulary) if self._vocabulary is not None else None
        if encode is None:
            return likely_tokens(text)
        try:
            return sum(len(encode(piece)) for piece in _pieces(text.encode("utf-8", "replace").decode()))
        except BaseException as error:  # border to a native library: what panics in it is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError):
                raise
            log.warning("a text of %d characters could not be counted: %r", len(text), error)
            return likely_tokens(text)

    def learn(self, counted: int, used: int) -> None:
        """Move the ratio towards that of this request; reports that cannot be true are not believed."""
        if counted < LEAST_COUNTED or used <= 0:
            return
        low, high = RATIO_BOUNDS
        seen = min(max(used / counted, low), high)
        self._ratio += NEWEST_SHARE * (seen - self._ratio)


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that begin with a space or a new line, where a tokeniser would cut it anyway."""
    at = 0
    while len(text) - at > PIECE_CHARS:
        end = at + PIECE_CHARS
        border = max(text.rfind("\n", at + PIECE_CHARS // 2, end), text.rfind(" ", at + PIECE_CHARS // 2, end))
        end = border if border > at else end
        yield text[at:end]
        at = end
    yield text[at:]
