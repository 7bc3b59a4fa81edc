"""The questions that are asked of a large log over HTTP, with other values each time.

Values are those of random rows. Knows neither the client nor the clock.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from app.store.messages import DECISION_ORDERS, MESSAGE_ORDERS
from app.store.pages import question
from app.store.tables import decisions, messages
from app.wire import timestamp
from bench.stories import LARGEST, RARE_AGENT, RARE_TOOL

Ask = tuple[str, dict[str, Any]]  # path, query
HOUR_US = 3_600_000_000
_MESSAGES = ("session_id", "run_id", "agent", "role", "tool")


class Samples:
    """Random rows of the largest tenant, by the numbers of rows; `+` keeps SQLite from another index."""

    def __init__(self, connection: sqlite3.Connection, random: Random) -> None:
        connection.row_factory = sqlite3.Row
        self.random = random
        self._db = connection
        self._last = connection.execute("SELECT max(row_id) FROM messages").fetchone()[0]
        self._decisions = connection.execute("SELECT count(*) FROM decisions").fetchone()[0]
        self.long = connection.execute(
            "SELECT id FROM sessions WHERE tenant_id = ? ORDER BY next_seq DESC LIMIT 1", (LARGEST,)
        ).fetchone()[0]
        self.long_end = self._one("SELECT next_seq FROM sessions WHERE id = ?", self.long)["next_seq"]
        self.end = self._one("SELECT ts FROM messages WHERE row_id = ?", self._last)["ts"]

    def _one(self, sql: str, *values: Any) -> dict[str, Any]:
        return dict(self._db.execute(sql, values).fetchone())

    def message(self, more: str = "1") -> dict[str, Any]:
        """Some message."""
        at = self.random.randint(1, max(1, self._last * 9 // 10))
        sql = f"SELECT * FROM messages WHERE row_id >= ? AND +tenant_id = ? AND {more} LIMIT 1"
        return self._one(sql, at, LARGEST)

    def call(self) -> dict[str, Any]:
        """What a tool has said."""
        return self.message("+tool IS NOT NULL")

    def decision(self) -> dict[str, Any]:
        """Some decision."""
        at = self.random.randint(1, max(1, self._decisions * 9 // 10))
        return self._one("SELECT * FROM decisions WHERE rowid >= ? AND +tenant_id = ? LIMIT 1", at, LARGEST)

    def hours(self, count: int) -> dict[str, Any]:
        """So many hours, somewhere."""
        since = self.message()["ts"]
        return {"since": timestamp(since), "until": timestamp(since + count * HOUR_US)}


@dataclass(frozen=True, slots=True)
class Kind:
    """A question and how often it is asked with other values."""

    name: str
    ask: Callable[[], Ask]


def kinds(samples: Samples) -> list[Kind]:
    """All of them."""
    return [*_of_messages(samples), *_of_the_long_session(samples), *_of_decisions(samples), *_others(samples)]


def _picked(row: Mapping[str, Any], names: str) -> dict[str, Any]:
    return {name: row[name] for name in names.split()}


def _deep(table: Any, orders: Any, row: Mapping[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    """The same behind some row."""
    given = {name: query[name] for name in query if name in (*_MESSAGES, "decision") and query[name] != "any"}
    return {**query, "cursor": question(table, orders, given, True).cursor(row, given)}


def _of_messages(samples: Samples) -> list[Kind]:
    some, call = samples.message, samples.call

    def newest(source: Callable[[], dict[str, Any]], names: str, **more: Any) -> Callable[[], Ask]:
        return lambda: ("/v1/audit", {**_picked(source(), names), **more})

    def deep(source: Callable[[], dict[str, Any]], names: str) -> Callable[[], Ask]:
        def ask() -> Ask:
            row = source()
            return "/v1/audit", _deep(messages, MESSAGE_ORDERS, row, _picked(row, names))

        return ask

    found = []
    for names in ("", "agent", "role", "tool", "run_id", "session_id", "agent role", "agent tool"):
        source = call if "tool" in names else some
        found.append(Kind(f"audit {names or 'all'}, newest", newest(source, names)))
        found.append(Kind(f"audit {names or 'all'}, deep", deep(source, names)))
    for names in ("", "agent", "role", "tool", "agent role", "agent tool"):
        source = call if "tool" in names else some
        found.append(Kind(f"audit {names or 'all'}, counted", newest(source, names, count="true")))
        ask = newest(source, names)
        found.append(
            Kind(f"audit {names or 'all'}, an hour", lambda ask=ask: ("/v1/audit", ask()[1] | samples.hours(1)))
        )
    found.append(Kind("audit an hour, counted", lambda: ("/v1/audit", samples.hours(1) | {"count": "true"})))
    rare: dict[str, dict[str, Any]] = {
        "rare agent": {"agent": RARE_AGENT},
        "rare tool": {"tool": RARE_TOOL},
        "agent that is not": {"agent": "nobody"},
        "agent without tools, role tool": {"agent": "clerk", "role": "tool"},
        "agent without tools, a tool": {"agent": "clerk", "tool": "grep"},
        "rare agent, role system": {"agent": RARE_AGENT, "role": "system"},
        "a tool, role user": {"tool": "grep", "role": "user"},
    }
    for name, query in rare.items():
        found.append(Kind(f"audit {name}, counted", lambda query=query: ("/v1/audit", {**query, "count": "true"})))
    return found


def _of_the_long_session(samples: Samples) -> list[Kind]:
    path = f"/v1/sessions/{samples.long}/messages"

    def at(query: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if name in _MESSAGES} | {"session_id": samples.long}
        asked = question(messages, MESSAGE_ORDERS, given, False)
        return {**query, "cursor": asked.cursor({"seq": samples.random.randint(0, samples.long_end)}, given)}

    rare = {
        "": {}, " + role": {"role": "user"}, " + its agent": {"agent": "scout_1"}, " + tool": {"tool": "web_fetch"},
        " + agent that it has not": {"agent": "clerk"}, " + rare tool": {"tool": RARE_TOOL},
    }  # fmt: skip
    found = [
        Kind("session messages", lambda: (f"/v1/sessions/{samples.message()['session_id']}/messages", {})),
        Kind("run messages", lambda: (f"/v1/runs/{samples.message()['run_id']}/messages", {})),
    ]
    for name, query in rare.items():
        found.append(Kind(f"long session{name}, first", lambda query=query: (path, query)))
        found.append(Kind(f"long session{name}, deep", lambda query=query: (path, at(query))))
        found.append(Kind(f"long session{name}, counted", lambda query=query: (path, {**query, "count": "true"})))
    found.append(Kind("long session, an hour", lambda: (path, samples.hours(1))))
    return found


def _of_decisions(samples: Samples) -> list[Kind]:
    def newest(names: str, **more: Any) -> Callable[[], Ask]:
        return lambda: ("/v1/audit", {"decision": "any", **_picked(samples.decision(), names), **more})

    def deep(names: str) -> Callable[[], Ask]:
        def ask() -> Ask:
            row = samples.decision()
            query = {"decision": "any", **_picked(row, names)}
            return "/v1/audit", _deep(decisions, DECISION_ORDERS, row, query)

        return ask

    found = []
    for names in (
        "",
        "decision",
        "agent",
        "tool",
        "session_id",
        "run_id",
        "decision agent",
        "decision tool",
        "agent tool",
    ):
        label = names or "any"
        found.append(Kind(f"decisions {label}, newest", newest(names)))
        found.append(Kind(f"decisions {label}, deep", deep(names)))
        found.append(Kind(f"decisions {label}, counted", newest(names, count="true")))
    for name, query in {
        "expired": {"decision": "expired"},
        "expired + agent": {"decision": "expired", "agent": "lead_3"},
        "deny + agent without tools": {"decision": "deny", "agent": "clerk"},
        "allow + rare tool": {"decision": "allow", "tool": RARE_TOOL},
    }.items():
        found.append(Kind(f"decisions {name}", lambda query=query: ("/v1/audit", query)))
    found.append(Kind("decisions an hour", lambda: ("/v1/audit", {"decision": "any", **samples.hours(1)})))
    return found


def _others(samples: Samples) -> list[Kind]:
    def of_session(rest: str, **query: Any) -> Callable[[], Ask]:
        return lambda: (
            f"/v1/sessions/{samples.message('+session_id <> ' + repr(samples.long))['session_id']}{rest}",
            query,
        )

    def events(path: str) -> Ask:
        return path, {"after": samples.random.randint(0, samples.long_end), "limit": 100}

    def fixed(path: str, **query: Any) -> Callable[[], Ask]:
        return lambda: (path, query)

    long = f"/v1/sessions/{samples.long}"
    return [
        Kind("sessions, newest", fixed("/v1/sessions")),
        Kind("sessions, 500", fixed("/v1/sessions", limit=500)),
        Kind("permissions", fixed("/v1/permissions")),
        Kind("permissions pending", fixed("/v1/permissions", status="pending")),
        Kind("permissions expired", fixed("/v1/permissions", status="expired")),
        Kind("tasks", fixed("/v1/tasks")),
        Kind("tasks of a session", lambda: ("/v1/tasks", {"session_id": samples.message()["session_id"]})),
        Kind("run", lambda: (f"/v1/runs/{samples.message()['run_id']}", {})),
        Kind("tree of a session", of_session("/tree")),
        Kind("turns of a session", of_session("/runs")),
        Kind("events of a session", of_session("/events", after=0, limit=100)),
        Kind("events of the long session, deep", lambda: events(f"{long}/events")),
        Kind("events of a run", lambda: (f"/v1/runs/{samples.message()['run_id']}/events", {"after": 0, "limit": 100})),
        Kind("turns of the long session", fixed(f"{long}/runs")),
        Kind("tree of the long session", fixed(f"{long}/tree")),
    ]
