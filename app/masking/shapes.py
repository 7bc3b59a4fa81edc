"""The forms of secrets that the service knows by itself: keys of well-known services, tokens, private keys, passwords.

Only what ordinary text, hashes, UUIDs and our own ids do not look like: masking must not change what it should keep.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from app.masking.patterns import Pattern, read_pattern

# Where a key may begin: at the edge of a word, in a name, and after an escape of JSON or of a URL.
_EDGE = r"(?:\b|_|\\[nrtbf]|\\u[0-9a-f]{4}|%[0-9A-Fa-f]{2})"
_GAP = r"(?:\s|\\[rnt]|\d{1,6}(?:\t|\\t|:|\|))*"  # between the lines of a private key: line numbers of tools too
_QUOTE = r"\\?[\"']?"
_PART = re.compile(r"[A-Za-z0-9]{12,}")
_DIGIT = re.compile(r"\d")
_PLACE_HOLDER = re.compile(r"[{}$*<>]|^(?:pass|password|passwd|pwd|secret|tiger|x+|\.+|\[masked\])$", re.IGNORECASE)


def _random(text: str) -> bool:
    """Whether letters and digits are mixed in one part, as in random keys and unlike names with hyphens."""
    return any(not part.isalpha() and not part.isdigit() for part in _PART.findall(text))


def _numbered(text: str) -> bool:
    """Whether it is a token and no word of a sentence."""
    return _DIGIT.search(text) is not None


def _encoded(text: str) -> bool:
    """Whether it is Base64 and no word of a sentence."""
    return text.endswith("=") or _random(text)


def _password(text: str) -> bool:
    """Whether it is more than a place-holder in an example."""
    return _PLACE_HOLDER.search(text) is None


_KNOWN: Final[dict[str, tuple[str, Callable[[str], bool] | None]]] = {
    "provider_key": (_EDGE + r"(sk-[A-Za-z0-9_-]{16,})", _random),
    "own_key": (_EDGE + r"([st]k_sub_[A-Za-z0-9_-]{20,})", None),
    "stripe": (_EDGE + r"([rs]k_(?:live|test)_[A-Za-z0-9]{16,})", None),
    "webhook_secret": (_EDGE + r"(whsec_[A-Za-z0-9+/=]{24,})", None),
    "github": (_EDGE + r"(gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})", None),
    "gitlab": (_EDGE + r"(glpat-[A-Za-z0-9_-]{20,})", None),
    "aws_key_id": (_EDGE + r"((?:AKIA|ASIA)[A-Z0-9]{16})\b", None),
    "aws_secret": (
        r"(?i)aws_secret_access_key" + _QUOTE + r"\s*[:=]\s*" + _QUOTE + r"([A-Za-z0-9/+]{40})",
        None,
    ),
    "google": (_EDGE + r"(AIza[A-Za-z0-9_-]{35})", None),
    "slack": (_EDGE + r"(xox[abeprs]-[A-Za-z0-9-]{10,})", _random),
    "huggingface": (_EDGE + r"(hf_[A-Za-z0-9]{34,})", None),
    "npm": (_EDGE + r"(npm_[A-Za-z0-9]{36})", None),
    "pypi": (_EDGE + r"(pypi-[A-Za-z0-9_-]{60,})", None),
    "jwt": (_EDGE + r"(eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})", None),
    "bearer": (r"(?i)\bbearer\s+([A-Za-z0-9._~+/=-]{16,})", _numbered),
    "basic": (r"(?i)\bbasic\s+([A-Za-z0-9+/]{12,}={0,2})", _encoded),
    "api_key_header": (
        r"(?i)\b(?:x-)?api-key" + _QUOTE + r"\s*[:=]\s*" + _QUOTE + r"([A-Za-z0-9._~+/=-]{16,})",
        _random,
    ),
    "url_password": (r"://[^\s/:@\"'<>\\]*:([^\s/@\"'<>\\]{3,})@", _password),
    "private_key": (
        r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
        rf"(?:{_GAP}[A-Za-z-]{{4,20}}: [^\s\\]+)*"  # how an encrypted one says what it is encrypted with
        rf"(?:{_GAP}[A-Za-z0-9+/=]{{16,}})+"
        # an output may be cut before the end
        rf"(?:{_GAP}(?:[A-Za-z0-9+/=]{{1,15}}{_GAP})?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----)?)",
        None,
    ),
}
NAMES: Final = tuple(_KNOWN)


def patterns_of(known: Iterable[str] = NAMES, own: Sequence[str] = ()) -> tuple[Pattern, ...]:
    """The known shapes of these names, and patterns of an operator. Raises `ValueError` that names the pattern."""
    found = [_known(name) for name in known]
    for source in own:
        try:
            found.append(read_pattern(source))
        except ValueError as error:
            raise ValueError(f"the pattern {source[:200]!r}: {error}") from None
    return tuple(found)


@cache
def _known(name: str) -> Pattern:
    source, accepts = _KNOWN[name]
    return read_pattern(source, accepts)
