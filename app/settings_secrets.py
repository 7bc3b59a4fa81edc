"""Secrets in settings, by shape: passwords and parameters of URLs, headers with such a name.

Knows no option; the values that it finds are for the masker, the masked forms for people.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
# In http(s) a password ends at the last `@` before the path, elsewhere at the first one, as SQLAlchemy reads it; there
# it may hold slashes, and a user name may hold an `@`.
_PASSWORD = re.compile(
    r"(https?://[^:/?#@\s]*:)([^/?#\s]*)(?=@)"
    r"|([a-z][\w+.-]*://(?<!http://)(?<!https://)[^:/]*:)([^@]*)(?=@)",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"([?&])([^=&#\s]+)=([^&#\s]+)")
_SECRET_NAME = re.compile(
    r"authorization|(?<![a-z])auth(?![a-z])|key|token|secret|cookie|passw|credential", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether a header or a parameter of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def url_secrets(url: str) -> list[str]:
    """The secrets that a URL carries, as they stand and decoded: its password, and parameters with such a name."""
    found = [match[2] or match[4] for match in _PASSWORD.finditer(url)]
    found += [match[3] for match in _PARAMETER.finditer(url) if is_secret_name(match[2])]
    return list(dict.fromkeys(form for text in found if text for form in (text, unquote(text))))


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """The values of headers that hold a secret; of `Bearer abc` also what comes after the scheme."""
    found: list[str] = []
    for name, value in headers.items():
        if is_secret_name(name):
            scheme, blank, rest = value.strip().partition(" ")
            found += [value, rest.strip()] if blank and scheme.isalpha() else [value]
    return found


def masked(place: tuple[str, ...], value: Any) -> Any:
    """A setting as people may see it; `place` are the names that lead to it."""
    if isinstance(value, Mapping):
        return {key: masked((*place, key), item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(place, item) for item in value]
    if not isinstance(value, str):
        return value
    if len(place) > 1 and place[-2] == "headers" and is_secret_name(place[-1]):
        return MASK
    if place[:2] == ("mcp", "servers") and place[-2] in ("env", "headers"):
        return MASK if value != "" else value
    if "://" not in value:
        return value
    value = _PASSWORD.sub(lambda match: f"{match[1] or match[3]}{MASK}", value)
    return _PARAMETER.sub(lambda m: f"{m[1]}{m[2]}={MASK}" if is_secret_name(m[2]) else m[0], value)
