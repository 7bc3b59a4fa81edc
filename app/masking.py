"""Secrets out of every sink, by value: what settings and the environment hold must appear in no log, event or row.

Knows the values only; masking by shape is configured elsewhere.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MASK = "[masked]"
MIN_LENGTH = 8  # shorter values (a port, "true", "x") would mask ordinary text
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE)", re.IGNORECASE)


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The values of variables whose names say that they hold a secret."""
    return [value for name, value in environment.items() if _SECRET_NAME.search(name) and _is_value(name, value)]


def _is_value(name: str, value: str) -> bool:
    # a path to a key file is no secret, and masking it would hide where things are
    return len(value) >= MIN_LENGTH and not (name.upper().endswith(("_FILE", "_PATH")) or value.startswith("/"))


class ValueMasker:
    """Replaces every known secret in texts and payloads. Of two that begin at one place the longer one counts."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {form for value in values if len(value) >= MIN_LENGTH for form in _forms(value)}
        self.values = tuple(sorted(known, key=len, reverse=True))
        self.pattern = re.compile("|".join(re.escape(v) for v in self.values)) if self.values else None
        encoded = [re.escape(msgspec.json.encode(v)[1:-1]) for v in self.values]
        self._data = re.compile(b"|".join(encoded)) if encoded else None

    def text(self, value: str) -> str:
        """The text with every known secret replaced."""
        return self.pattern.sub(MASK, value) if self.pattern is not None else value

    def payload(self, payload: Mapping[str, Any], data: bytes) -> tuple[Mapping[str, Any], bytes]:
        """A payload and its JSON with every known secret replaced; the same objects when there is none."""
        # The search in the JSON is fast and may err on the safe side: an escape can look like a letter of a secret.
        # What is replaced are the texts themselves, so that the result is JSON in any case.
        if self._data is None or self._data.search(data) is None:
            return payload, data
        masked = {key: self.value(value) for key, value in payload.items()}
        return masked, msgspec.json.encode(masked)

    def value(self, value: Any) -> Any:
        """A value as JSON has it, with every known secret in its texts and keys replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list | tuple) else value

    def stream(self) -> "StreamMasker | None":
        """A masker for one text that comes in pieces; None when there is nothing to mask."""
        return StreamMasker(self.values, self.pattern) if self.pattern is not None else None


def _forms(value: str) -> set[str]:
    """A secret as it is, and as it stands in the JSON text of a tool call's arguments."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


class StreamMasker:
    """Masks a text that comes in pieces, as if it had come whole: an end that may begin a secret is held back."""

    __slots__ = ("_held", "_pattern", "_values")

    def __init__(self, values: tuple[str, ...], pattern: re.Pattern[str]) -> None:
        self._values = values
        self._pattern = pattern
        self._held = ""

    def feed(self, piece: str) -> str:
        """What of the text may be shown after this piece."""
        text = self._held + piece
        shown: list[str] = []
        at = 0
        while True:
            open_at = self._open(text, at)
            match = self._pattern.search(text, at)
            if match is None or match.start() >= open_at:  # a longer secret may begin at the same place
                break
            shown += text[at : match.start()], MASK
            at = match.end()
        self._held = text[open_at:]
        if not at:
            return text[:open_at]
        return "".join((*shown, text[at:open_at]))

    def flush(self) -> str:
        """The rest, when no more comes."""
        rest, self._held = self._held, ""
        return self._pattern.sub(MASK, rest)

    def _open(self, text: str, at: int) -> int:
        """Where the longest end of the text begins that is the beginning of a secret, not before `at`."""
        first = len(text)
        for value in self._values:
            start = text.find(value[0], max(at, len(text) - len(value) + 1))
            while 0 <= start < first:  # most hits fail on the second character
                if value.startswith(text[start:]):
                    first = start
                    break
                start = text.find(value[0], start + 1)
        return first
