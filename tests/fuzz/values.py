"""Values that break readers: numbers at the edges, texts that are none, JSON that parsers differ on.

The edges are read from the code, so that they move with it.
"""

import importlib
import json
import pkgutil
from random import Random
from types import ModuleType
from typing import Any

import app.agent
import app.api
import app.definitions
import app.sessions
import app.store

PACKAGES = (app.agent, app.api, app.definitions, app.sessions, app.store)
LONGEST = 70_000  # characters of one text: over all limits but those of whole bodies
DEEP = 10_000
_COMMON = (0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**18, 10**30)


def _limits(package: ModuleType) -> set[int]:
    """The numbers that the modules of a package name as constants."""
    found: set[int] = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.isupper() and type(value) is int and value > 0:
                found.add(value)
    return found


LIMITS = sorted(set().union(*map(_limits, PACKAGES), _COMMON))
NUMBERS = sorted({sign * (limit + step) for limit in LIMITS for step in (-1, 0, 1) for sign in (1, -1)})
LENGTHS = [number for number in NUMBERS if 0 <= number <= LONGEST]
TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "é",
    "中文",
    "\U0001f600",
    "\u202e\u200b",
    "e\u0301",
    "\r\n\r\n",
    "../../etc/passwd",
    "%00",
    "%s%n{0}{{x}}",
    "' OR 1=1 --",
    "null",
    "true",
    "-0",
    "1e400",
    "٣",
    "１",
    "0x10",
    "NaN",
    "*",
    "Bash(",
    "<task_agent>",
    "scripted:nothing",
    "openai:x",
    "2026-13-40T99:99:99Z",
    "9999-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-02-30",
)
QUERIES = (  # percent-encoded already
    "%00",
    "a%00b",
    "%ED%A0%80",
    "%FF%FE",
    "%",
    "%zz",
    "+",
    "1e400",
    "1.5",
    "-1",
    "-0",
    "+5",
    " 5",
    "5_0",
    "%D9%A3",
    "%EF%BC%91",
    "true",
    "yes",
    "null",
    "[]",
    "NaN",
    "idle",
    "any",
    "tool",
    "bjUw",
    "WyJ0YXNrcyIsImhvXzEiXQ",
    "=",
    "%26a=b",
    "0001-01-01T00:00:00%2B23:59",
    "9999-12-31T23:59:59.999999-23:59",
    "2026-11-30T00:00:00Z",
    "1",
    "0",
    "99999999999999999999",
)
HEADERS = (
    b"",
    b" ",
    b"0",
    b"1",
    b"-1",
    b"5",
    b"1e3",
    b"999999999999999999",
    b"9" * 400,
    b"\xd9\xa3",
    b"\xff\xfe",
    b"\x00",
    b"a\tb",
    b"*/*",
    b"*",
    b"text/event-stream",
    b"application/json",
    b"application/x-ndjson",
    b"text/csv",
    b"text/event-stream;q=0",
    b"application/json;q=nan, text/event-stream;q=inf",
    b"text/html",
    b",,,;;q=",
    b'"x", "y"',
    b'W/"1"',
    b"x" * 255,
    b"x" * 256,
    b"multipart/form-data; boundary=x",
    b"application/json; charset=utf-7",
    b"gzip",
)


def text(rng: Random) -> str:
    """A text: one of the odd ones, or one whose length is at an edge."""
    if rng.random() < 0.8:
        return rng.choice(TEXTS)
    return rng.choice("a中\0\ud800\U0001f600") * rng.choice(LENGTHS)


def value(rng: Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return text(rng)
    if kind == 2:
        return rng.choice((True, False, None))
    if kind == 3:
        return rng.choice((0.0, -0.0, 1.5, 1e308, float("nan"), float("inf"), -float("inf"), 5e-324))
    if kind == 4:
        return rng.choice(([], {}, "", 0))
    if kind == 5:
        return nested(rng.choice((2, 39, 40, 41, 49, 50, 51, 52, 200)), rng)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {text(rng)[:40]: value(rng, depth + 1) for _ in range(rng.randrange(4))}


def nested(levels: int, rng: Random) -> Any:
    """A value of that many levels."""
    made: Any = rng.choice((1, "x", None))
    for _ in range(levels):
        made = [made] if rng.random() < 0.5 else {"a": made}
    return made


def mutated(rng: Random, body: Any) -> Any:
    """The value with one place in it changed, taken away or added."""
    copy = json.loads(json.dumps(body))
    places = list(_places(copy))
    if not places:
        return value(rng)
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.1:
        del holder[key]
    elif what < 0.2 and isinstance(holder, dict):
        holder[text(rng)[:40]] = value(rng)
    elif what < 0.3 and isinstance(holder[key], str):
        holder[key] += text(rng)
    else:
        holder[key] = value(rng)
    return copy


def _places(made: Any) -> Any:
    keys = list(made) if isinstance(made, dict) else range(len(made)) if isinstance(made, list) else ()
    for key in keys:
        yield made, key
        yield from _places(made[key])


def raw(rng: Random, body: Any) -> bytes:
    """The bytes of a body; now and then not what a proper encoder writes."""
    plain = json.dumps(body).encode()
    what = rng.randrange(14)
    if what == 0:
        return b"\xef\xbb\xbf" + plain
    if what == 1:  # every key twice, first with a value of another kind
        return plain.replace(b'{"', b'{"input": 7, "', 1)
    if what == 2:
        return rng.choice((b"[", b'{"a":', b'{"metadata":[')) * DEEP
    if what == 3:
        return plain[: rng.randrange(len(plain) + 1)]
    if what == 4:
        at = rng.randrange(len(plain) + 1)
        return (
            plain[:at] + rng.choice((b"\xff", b"\0", b"\xed\xa0\x80", b"/**/", b",", b"1e999", b"\\ud800")) + plain[at:]
        )
    if what == 5:
        return rng.choice(
            (b"", b"null", b"0", b'""', b"[]", b"NaN", b"1e999", b"9" * 5000, b"{}{}", b" " * 5000, b'{"":{}}')
        )
    if what == 6:
        return json.dumps(body).encode(rng.choice(("utf-16", "utf-32", "utf-16-le")))
    return plain
