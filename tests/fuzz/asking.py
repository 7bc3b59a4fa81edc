"""Requests at random: a method and a path of the OpenAPI document, with ids that there are, that are another tenant's,
or that are none, and with everything else a little or quite wrong.

Knows the document and the ids, not the application.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz import values
from tests.fuzz.seeded import AGENTS, KINDS, LEADS, Known, start

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "FOO", "")
ODD_PATHS = (
    "/",
    "//",
    "/v1",
    "/v1/",
    "/v1//runs",
    "/V1/runs",
    "/v1/runs/../runs",
    "/openapi.json",
    "/docs",
    "*",
    "/v1/\0",
)
ODD_IDS = (
    "x",
    "..",
    "%2e%2e",
    "%00",
    "%FF",
    "a%2Fb",
    "run_",
    "ses_" + "0" * 26,
    "中",
    "%ED%A0%80",
    "x" * 5000,
    " ",
    "*",
)
HEADER_NAMES = (
    b"last-event-id",
    b"idempotency-key",
    b"accept",
    b"content-type",
    b"content-length",
    b"if-match",
    b"transfer-encoding",
    b"expect",
    b"origin",
    b"x-forwarded-for",
    b"range",
    b"cookie",
    b"authorization",
    b"host",
)
REASONABLE = {  # of query parameters: values that lead on
    "limit": ("1", "2", "500"),
    "after": ("0", "1", "5"),
    "wait_ms": ("0", "1", "50"),
    "timeout_ms": ("0", "1", "50"),
    "types": ("message", "run.queued,run.completed"),
    "run": ("1", "2"),
    "depth": ("0", "1"),
    "deltas": ("false",),
    "until": ("idle",),
    "block": ("false",),
    "role": ("tool", "user"),
    "agent": LEADS,
    "order": ("oldest", "newest"),
    "count": ("true",),
    "explain": ("Bash(git push)", "read_file", "Agent(quick)"),
    "decision": ("any", "allow"),
    "format": ("csv", "ndjson"),
    "status": ("pending", "completed", "running"),
    "tool": ("glob",),
    "since": ("2020-01-01T00:00:00Z",),
    "until_": ("2030-01-01T00:00:00Z",),
}
BODIES: Mapping[str, Sequence[Any]] = {
    "/v1/runs": [start(name) for name in LEADS[:3]] + [{"input": "x"}, start("quick", max_steps=3, deadline_ms=1000)],
    "/v1/sessions": [
        {},
        {
            **{key: value for key, value in start("boss").items() if key != "input"},
            "title": "t",
            "metadata": {"k": [1]},
        },
        {
            "agent": "lead",
            "budget": {"model_calls": 9, "tokens": 5000},
            "policy": {"max_depth": 2, "on_error": "report"},
        },
        {"surfaces": ["task", {"kind": "dispatch", "templates": {"description": "x {agents}"}}], "thinking": "off"},
        {"permissions": {"allow": ["Read(./docs/**)"], "deny": ["Bash(rm *)"], "default": "ask"}, "texts": "zh"},
        {"workspace": "sub", "user": "somebody", "model": "scripted:echo", "texts": {"language": "en"}},
    ],
    "/v1/sessions/{session_id}/runs": [{"input": "more"}, {"input": "x", "on_busy": "enqueue", "max_steps": 2}],
    "/v1/sessions/{session_id}": [{"title": "new", "metadata": {"a": 1}}, {"closed": True}],
    "/v1/runs/{run_id}/messages": [{"content": "Hello."}],
    "/v1/runs/{run_id}/resume": [{}, {"input": "Go on."}],
    "/v1/delegations": [
        {"agent": AGENTS[1], "task": "x"},
        {"agent": AGENTS[2], "task": "x", "background": True, "name": "looky"},
        {
            "agent": AGENTS[1],
            "task": "x",
            "policy": {"max_retries": 1, "timeout_ms": 500},
            "output_schema": {"type": "object"},
        },
        {
            "agent": AGENTS[1],
            "task": "x",
            "tools": [],
            "max_steps": 2,
            "context": "c",
            "permissions": {"ask": ["Read"]},
        },
    ],
    "/v1/tasks/clear": [{}, {"older_than_s": 3600}],
    "/v1/permissions/{permission_id}": [{"decision": "allow_once"}, {"decision": "deny", "message": "no"}],
    "/v1/agents/{name}": [
        {"description": "d", "prompt": "You are x."},
        {
            "description": "d",
            "prompt": "p",
            "tools": ["Read", "Agent(quick)"],
            "max_steps": 3,
            "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
            "handoff": {"max_retries": 1, "input_filter": "mask_secrets"},
            "permissions": {"allow": ["Read"]},
            "surfaces": ["task"],
            "inherit_context": "last:3",
        },
    ],
    "/v1/keys": [{"name": "k", "scopes": ["read"], "expires_in_s": 60}, {"expires_at": "2030-01-01T00:00:00Z"}],
    "/v1/tickets": [{"path": "/v1/sessions/x/events"}, {"run_id": "x"}],
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request. `leaves`: after how many times that the application wants to read from or send to the client it is
    gone, None: never. `route`: of which path of the document it is, if of one. `foreign`: the path names something of
    another tenant, with a key of this one."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    leaves: int | None
    pieces: int = 1
    foreign: bool = False
    route: str = ""

    def told(self) -> str:
        """For people who want to send it again."""
        headers = b", ".join(b"%s: %s" % pair for pair in self.headers)[:300]
        target = f"{self.method} {self.path[:200]!r} ?{self.query[:200]!r}"
        return f"{target} [{headers!r}] {self.body[:500]!r} leaves={self.leaves}"


@dataclass(frozen=True)
class Tenant:
    """Who asks: the key (None: a service without keys), and what is known of its things."""

    key: str | None
    known: Known
    others: Known = field(default_factory=Known)


class Asking:
    """Makes requests from a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._operations = [
            (method.upper(), path, operation.get("parameters", []))
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        ]

    def next(self, rng: Random, tenant: Tenant) -> Asked:
        """The next request of a tenant."""
        method, path, parameters = rng.choice(self._operations)
        if tenant.key is None and (method, path) == ("POST", "/v1/keys"):
            method = "GET"  # from the first key on one would be needed
        target, foreign = self._target(rng, path, tenant)
        odd = rng.random() < 0.03
        body = b"" if method in ("GET", "DELETE") and rng.random() < 0.95 else self._body(rng, path, tenant)
        if rng.random() < 0.04:
            method = rng.choice(METHODS)
        return Asked(
            method=method,
            path=rng.choice(ODD_PATHS) if odd else target,
            query=self._query(rng, parameters, tenant),
            headers=tuple(self._headers(rng, tenant, body)),
            body=body,
            leaves=rng.randrange(6) if rng.random() < 0.2 else None,
            pieces=rng.choice((1, 1, 1, 2, 7)),
            foreign=foreign and not odd,
            route="" if odd else path,
        )

    @staticmethod
    def _target(rng: Random, path: str, tenant: Tenant) -> tuple[str, bool]:
        foreign = False
        for name in (*KINDS, "name"):
            if "{" + name + "}" not in path:
                continue
            chosen: str | None = rng.choice((*LEADS, "mine", "lead", "nobody")) if name == "name" else None
            if chosen is None and rng.random() < 0.85:
                chosen = tenant.known.pick(rng, name)
            elif chosen is None and rng.random() < 0.5:
                chosen = tenant.others.pick(rng, name)
                foreign = chosen is not None
            if chosen is None or rng.random() < 0.05:
                chosen, foreign = rng.choice(ODD_IDS), False
            path = path.replace("{" + name + "}", chosen)
        return path, foreign

    @staticmethod
    def _query(rng: Random, parameters: Sequence[Mapping[str, Any]], tenant: Tenant) -> bytes:
        names = [each["name"] for each in parameters if each["in"] == "query"]
        parts: list[str] = []
        while names and rng.random() < 0.5:
            name = rng.choice(names)
            chosen = tenant.known.pick(rng, name)
            if chosen is not None and rng.random() < 0.7:
                text = chosen
            elif name in REASONABLE and rng.random() < 0.6:
                text = quote(rng.choice(REASONABLE[name]))
            elif rng.random() < 0.7:
                text = rng.choice(values.QUERIES)
            else:
                text = str(rng.choice(values.NUMBERS))
            if name in ("wait_ms", "timeout_ms") and text not in REASONABLE[name] and rng.random() < 0.95:
                text = rng.choice(REASONABLE[name])  # a wait of minutes is tried as well, but now and then
            parts.append(f"{name}={text}")
            if rng.random() < 0.05:
                parts.append(parts[-1])
        if rng.random() < 0.03:
            parts.append(
                rng.choice(
                    ("x=1", "&&&", "=", "limit", "a" * 20_000 + "=1", "ticket=x", "key=secret", "x" + "&x=1" * 3000)
                )
            )
        return "&".join(parts).encode()

    @staticmethod
    def _body(rng: Random, path: str, tenant: Tenant) -> bytes:
        samples = BODIES.get(path)
        if samples is None:
            return b"" if rng.random() < 0.8 else values.raw(rng, values.value(rng))
        body = json.loads(json.dumps(rng.choice(samples)))
        if path == "/v1/tickets" and rng.random() < 0.5:
            body = {"run_id": tenant.known.pick(rng, "run_id")}
        if path in ("/v1/delegations", "/v1/tasks/clear") and rng.random() < 0.2:
            body["session_id"] = tenant.known.pick(rng, "session_id")
        if path == "/v1/delegations" and rng.random() < 0.1:
            body["resume"] = tenant.known.pick(rng, rng.choice(("task_id", "run_id")))
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            body = values.mutated(rng, body)
        return values.raw(rng, body) if rng.random() < 0.4 else json.dumps(body).encode()

    @staticmethod
    def _headers(rng: Random, tenant: Tenant, body: bytes) -> list[tuple[bytes, bytes]]:
        headers = [(b"host", b"127.0.0.1:8080")]
        if tenant.key is not None:
            headers.append((b"authorization", b"Bearer " + tenant.key.encode()))
        if body:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if rng.random() < 0.3:
            headers.append((b"accept", rng.choice((b"application/json", b"text/event-stream"))))
        if rng.random() < 0.1:
            headers.append((b"idempotency-key", b"k%d" % rng.randrange(200)))
        while rng.random() < 0.15:
            name = rng.choice(HEADER_NAMES)
            replaced = rng.random() < 0.7
            headers = [pair for pair in headers if not (replaced and pair[0] == name)]
            headers.append((name, rng.choice(values.HEADERS)))
        return headers
