"""Known secrets by value: which ones the environment holds, and in which forms one may come along.

Not found are those that somebody took apart: wrapped over lines, in two fields, encrypted, in hexadecimal digits.
"""

import base64
import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

MIN_LENGTH = 8  # shorter values (a port, "true", "x") would mask ordinary text
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE)", re.IGNORECASE)
_ESCAPE = re.compile(r"%[0-9A-F]{2}")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The values of variables whose names say that they hold a secret."""
    return [value for name, value in environment.items() if _SECRET_NAME.search(name) and _is_value(name, value)]


def _is_value(name: str, value: str) -> bool:
    # a path to a key file is no secret, and masking it would hide where things are; but one in 64 secrets in Base64
    # begins as a path does
    if len(value) < MIN_LENGTH or name.upper().endswith(("_FILE", "_PATH")):
        return False
    return not (value.startswith("/") and os.path.exists(value))


def forms_of(value: str) -> set[str]:
    """A secret as it is, and as it stands in the JSON text of a tool call's arguments, in a traceback, in a page, in a
    URL, and in Base64 of whatever text it is in."""
    written = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    written |= {html.escape(value), html.escape(value, quote=False)}
    for quoted in (quote(value, safe="", errors="replace"), quote(value, errors="replace")):
        written |= {quoted, _ESCAPE.sub(lambda match: match[0].lower(), quoted)}
    written.add(quote_plus(value, errors="replace"))
    written.update(_base64(value.encode("utf-8", "replace")))
    return {form for form in written if len(form) >= MIN_LENGTH}


def _base64(secret: bytes) -> Iterator[str]:
    """The digits that depend on nothing but the secret, for each of the three places where it can begin."""
    for before in range(3):
        digits = base64.b64encode(bytes(before) + secret).decode().rstrip("=")
        first = (8 * before + 5) // 6
        last = (8 * (before + len(secret))) // 6
        sure = digits[first:last]
        yield sure
        yield sure.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
