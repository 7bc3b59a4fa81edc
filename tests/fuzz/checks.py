"""What must hold for every answer, whatever was asked.

Knows HTTP and RFC 9457, not the routes.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from tests.fuzz.asking import Asked
from tests.fuzz.playing import Answered

PROBLEM = "application/problem+json"
_NOT_READY = b'{"ready":false,'  # which is not an error, but what was asked
_NO_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what a server refuses to send, and cuts the connection for


def faults(asked: Asked, answered: Answered, *, left: bool) -> list[str]:
    """What is wrong with an answer; `left`: its client went away before it was complete."""
    if answered.raised is not None:
        return [f"it raised {answered.raised!r}"]
    if not answered.complete:
        return [] if left else ["there is no whole answer"]
    found = answer_faults(answered.status, answered.headers, answered.body, head=asked.method == "HEAD", left=left)
    if asked.foreign and answered.status < 400:
        found.append(f"{answered.status} for what is another tenant's")
    return found


def answer_faults(status: int, headers: Mapping[str, str], body: bytes, *, head: bool, left: bool = False) -> list[str]:
    """What is wrong with a complete answer."""
    found: list[str] = []
    kind = headers.get("content-type", "")
    if status >= 500 and not (status == 503 and headers.get("retry-after", "").isdigit()):
        found.append(f"status {status}: {body[:300]!r}")
    if not 200 <= status < 600 or 300 <= status < 400:
        found.append(f"status {status}")
    found += [f"header {name}: {value!r}" for name, value in headers.items() if _NO_HEADER.search(value)]
    if status == 405 and not headers.get("allow"):
        found.append("405 without Allow")
    if status == 401 and not headers.get("www-authenticate"):
        found.append("401 without WWW-Authenticate")
    length = headers.get("content-length")
    if length is not None and not head and not left and int(length) != len(body):
        found.append(f"Content-Length {length}, {len(body)} bytes")
    if head or left:
        return found
    if status >= 400:
        found += _problem_faults(status, kind, body)
    elif kind.startswith("application/json"):
        found += _json_faults(body)
    elif status == 204 and body:
        found.append("204 with a body")
    return found


def _problem_faults(status: int, kind: str, body: bytes) -> list[str]:
    if status == 503 and body.startswith(_NOT_READY):
        return []
    if kind != PROBLEM:
        return [f"an error {status} of type {kind!r}: {body[:200]!r}"]
    found = _json_faults(body)
    if found:
        return found
    problem: Any = json.loads(body)
    if not isinstance(problem, dict) or not str(problem.get("type", "")).startswith("/problems/"):
        return [f"no problem: {body[:200]!r}"]
    if problem.get("status") != status:
        found.append(f"the problem says {problem.get('status')}, the answer {status}")
    return found + [f"the problem has no {name}" for name in ("title", "detail", "code") if not problem.get(name)]


def _json_faults(body: bytes) -> list[str]:
    try:
        json.loads(body.decode(), parse_constant=_refused)
    except ValueError as error:
        return [f"no JSON: {error}: {body[:200]!r}"]
    return []


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class Listening(logging.Handler):
    """Keeps what was logged as an error, or with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that nothing that a client does may lead to."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.heard.append(f"{record.name}: {self.format(record)}"[:4000])
