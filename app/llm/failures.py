"""What a provider says when it refuses: its error objects and statuses as `ModelError`, bounded and without secrets.

Knows no connection; decides nowhere but here whether trying again may help.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from app.agent.errors import ModelError

MAX_MESSAGE_CHARS = 500
MAX_WAIT_MS = 365 * 24 * 3_600_000  # of a provider's wish; nobody waits for so long
MIN_SECRET_CHARS = 6  # shorter values ("none", "x") would blank out ordinary words

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
_FINAL_5XX = frozenset({501, 505})  # "not implemented" stays so
_CONTEXT_WORDS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT_PHRASES = ("maximum context length", "prompt is too long", "exceed context limit")
_CODES = (
    ("model_context_overflow", _CONTEXT_WORDS),
    ("model_quota", frozenset({"insufficient_quota", "billing_error"})),
    ("model_auth", frozenset({"invalid_api_key", "authentication_error", "permission_error"})),
    ("model_rate_limited", frozenset({"rate_limit_error", "rate_limit_exceeded", "tokens", "requests"})),
    ("model_overloaded", frozenset({"overloaded_error", "overloaded", "service_unavailable"})),
)
_STATUS_CODES = {401: "model_auth", 403: "model_auth", 404: "model_not_found", 429: "model_rate_limited"}
_FINAL_CODES = frozenset({"model_context_overflow", "model_quota", "model_auth", "model_not_found"})
_FINAL_WORDS = frozenset({"invalid_request_error", "not_found_error", "model_not_found", "content_filter"})


def refusal(
    value: Any,
    *,
    status: int | None = None,
    retry_after_ms: int | None = None,
    source: str = "the model endpoint",
    secrets: Sequence[str] = (),
) -> ModelError:
    """The error that an error object stands for. `value` is what was sent: an object, a text, or anything else.

    `status` is that of the HTTP answer; None when the object came inside a stream, where its own code may be one.
    """
    message, words, own_status = _read(value)
    status = status if status is not None else own_status
    code = _code(words, status, message)
    text = masked(message, secrets)[:MAX_MESSAGE_CHARS] or "no reason given"
    said = f"{source} answered {status}: {text}" if status is not None else f"{source} reported an error: {text}"
    return ModelError(
        said, code=code, retryable=_retryable(code, words, status), retry_after_ms=retry_after_ms, status=status
    )


def body_value(body: bytes) -> Any:
    """The error object in the body of a refusal, or its text."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return body.decode("utf-8", "replace").strip()


def masked(text: str, secrets: Sequence[str]) -> str:
    """The text without these values."""
    for secret in secrets:
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, "[masked]")
    return text


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """How long the provider wants us to wait: `retry-after-ms`, or `retry-after` as seconds or as a date."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return int(min(exact, MAX_WAIT_MS))
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return int(min(seconds * 1000, MAX_WAIT_MS))
    if not value:
        return None
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        left_ms = (moment - datetime.now(UTC)).total_seconds() * 1000
    except (ValueError, OverflowError):
        return None
    return int(max(0, min(left_ms, MAX_WAIT_MS)))


def _number(text: str | None) -> float | None:
    """A decimal number; an infinite one, of an exponent that is too large, is a long time like any other."""
    return float(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _read(value: Any) -> tuple[str, set[str], int | None]:
    """Message, code words and embedded status of an error object; wrappers of several proxies are taken off."""
    words: set[str] = set()
    status: int | None = None
    message = ""
    for _ in range(4):
        if not isinstance(value, dict):
            break
        for key in ("code", "type", "status"):
            item = value.get(key)
            if isinstance(item, str):
                words.add(item.lower())
            number = int(item) if isinstance(item, str) and item.isdigit() else item
            if isinstance(number, int) and 400 <= number <= 599:
                status = number
        found = next((value[key] for key in ("message", "detail") if value.get(key)), None)
        if isinstance(found, str):
            message, found = found, None
        value = value.get("error") or found
    if isinstance(value, str):
        message = message or value
    elif value is not None and not message:
        message = msgspec.json.encode(value).decode()
    return message, words, status


def _code(words: set[str], status: int | None, message: str) -> str:
    for code, known in _CODES:
        if words & known:
            return code
    # Anthropic, vLLM and several gateways have no code for it, only a phrase.
    if status in (None, 400, 413) and any(phrase in message for phrase in _CONTEXT_PHRASES):
        return "model_context_overflow"
    if status is not None and status in _STATUS_CODES:
        return _STATUS_CODES[status]
    return "model_overloaded" if status in (503, 529) else "model_error"


def _retryable(code: str, words: set[str], status: int | None) -> bool:
    if code in _FINAL_CODES:
        return False
    if status is not None:
        return status in _RETRYABLE_STATUSES or (status >= 500 and status not in _FINAL_5XX)
    return not words & _FINAL_WORDS  # inside a stream that had begun: the request was accepted, the server failed
