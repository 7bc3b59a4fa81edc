"""What there is to judge by: the recordings of clients, model and nemesis, the witness of the tools, the database.

Read once, after the last server has ended. Knows what each line means, and nothing of what is right.
"""

import json
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.wire import event_json

Row = dict[str, Any]
KEPT = ("id", "session_id", "status", "output", "ended_at", "decision", "cancelled", "code")  # of answers
EFFECTS = ("mark", "alone", "command", "guarded")  # tools with side effects; `look` has none


@dataclass(slots=True, kw_only=True)
class Boot:
    """One server process. Times: µs since 1970; `ready` None: it died before, `how`: kill, fault or term."""

    number: int
    start: int
    ready: int | None = None
    dead: int = 2**62
    how: str = ""
    code: int | None = None
    took_ms: float = 0.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """One view as one client saw it, over all its connections."""

    client: str
    tenant: str
    path: str
    query: Mapping[str, Any]
    ids: list[int] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)  # frames that name another one as the one before
    session: str = ""
    ended: bool = False
    healed: int = 0  # gaps and repeats that the client put right by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request with its answer; `status` None: it was lost."""

    tenant: str
    method: str
    path: str
    key: str | None
    status: int | None
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One stored event. `data` is decoded, `raw` the bytes; both None where it was erased."""

    tenant: str
    session: str
    seq: int
    type: str
    run: str | None
    ts: int
    envelope: bytes
    raw: bytes | None
    digest: bytes
    hash: bytes
    head: Row
    data: Row

    @property
    def sent(self) -> str:
        """The digest of what a client must have got."""
        return sha256(event_json(self.envelope, self.raw or b"{}")).hexdigest()


class Session:
    """The log of one session, and who a run is by it."""

    def __init__(self, row: Row, events: list[Logged]) -> None:
        self.row = row
        self.id: str = row["id"]
        self.events = events

    @cached_property
    def queued(self) -> dict[str, Logged]:
        """By run."""
        return {e.run: e for e in self.events if e.type == "run.queued" and e.run is not None}

    @cached_property
    def background(self) -> set[str]:
        """Handoffs that nobody waits for."""
        return {e.data["handoff_id"] for e in self.events if e.type == "handoff.start" and e.data.get("background")}

    @cached_property
    def attempts(self) -> list[tuple[Logged, int, int]]:
        """Every event of a run with the attempt and epoch that the run is in by then."""
        known: dict[str, tuple[int, int]] = {}
        found = []
        for event in self.events:
            if event.run is None:
                continue
            attempt, epoch = known.get(event.run, (1, 1))
            if event.type in ("run.queued", "run.started", "run.resumed"):
                again = event.type == "run.resumed" and event.data.get("reason") == "restart"
                attempt = event.data.get("attempt", attempt + again)
                epoch = event.data.get("epoch", epoch + again)
                known[event.run] = attempt, epoch
            found.append((event, attempt, epoch))
        return found

    def below(self, run: str) -> set[str]:
        """The run and everything below it, by their paths."""
        top = self.queued[run].head["path"]
        return {other for other, e in self.queued.items() if e.head["path"][: len(top)] == top}


class Evidence:
    """Everything of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.abilities: Row = {"background": False, "idempotent": False, "recovery": "interrupt"}
        self.boots: list[Boot] = []
        self.exchanges: list[Exchange] = []
        self.views: dict[str, list[Seen]] = defaultdict(list)  # by session
        self.received: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))  # session, id: digests
        self.limits: dict[str, int | None] = {}  # of model calls, by the tag of a tree
        self.model_calls: dict[str, list[int]] = defaultdict(list)  # by the tag of a tree: when, in µs
        self.refused: list[str] = []
        self.notes: list[Row] = []
        self.frames = 0
        self.strictly = 0  # sessions that were held against the strict rules for logs
        for path in sorted(folder.glob("*.jsonl")):
            self._read(path)
        witness = folder / "witness"
        self.witness = [line.split() for line in witness.read_text().splitlines()] if witness.exists() else []
        self.ran: dict[str, list[tuple[str, str]]] = defaultdict(list)  # call: tool and attempt, each time it ran
        self.ran_in: dict[str, set[str]] = defaultdict(set)  # run: calls that ran in it
        for kind, call, run, attempt, _ in self.witness:
            self.ran[call].append((kind, attempt))
            self.ran_in[run].add(call)
        self.log = (folder / "service.log").read_text() if (folder / "service.log").exists() else ""
        self._db = sqlite3.connect(folder / "service.db")
        self._db.row_factory = sqlite3.Row

    def close(self) -> None:
        """Let the database go."""
        self._db.close()

    @property
    def database(self) -> Path:
        """The file."""
        return self.folder / "service.db"

    # ── recordings ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, path: Path) -> None:
        calls: dict[int, Row] = {}
        views: dict[str, Seen] = {}
        tenant = ""
        with path.open("rb") as file:
            for raw in file:
                line = json.loads(raw)
                match line["op"]:
                    case "client":
                        tenant = line["tenant"]
                    case "call":
                        calls[line["n"]] = line
                    case "return" | "lost":
                        self._exchange(tenant, calls.pop(line["n"]), line)
                    case "open":
                        views[line["stream"]] = Seen(
                            client=path.stem, tenant=tenant, path=line["path"], query=line["query"]
                        )
                    case "event":
                        self._frame(views[line["stream"]], line["frame"], raw)
                    case "end":
                        views[line["stream"]].ended = True
                        views[line["stream"]].healed = line["healed"]
                    case _:
                        self._note(line)
        for left in calls.values():  # asked when the client went
            self._exchange(tenant, left, {})
        for view in views.values():
            self.views[view.session].append(view)

    def _exchange(self, tenant: str, call: Row, answer: Row) -> None:
        path, body = call["path"].partition("?")[0], answer.get("body")
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name in KEPT}
        self.exchanges.append(
            Exchange(
                tenant=tenant, method=call["method"], path=path, key=call["key"], status=answer.get("status"),
                body=body,
            )
        )  # fmt: skip

    def _frame(self, view: Seen, frame: Row, raw: bytes) -> None:
        self.frames += 1
        sent = raw[raw.index(b'"frame": ') + 9 : raw.rindex(b"}")]
        prev = frame.get("prev")
        if prev is not None:  # a view of a run says which frame was before, and is otherwise what was stored
            sent = sent.replace(b'{"prev":%d,' % prev, b"{", 1)
            # an id-only frame may have moved the cursor on, over frames that are not of this view (all are held against
            # the log as well)
            if not (view.ids[-1] if view.ids else 0) <= prev < frame["id"]:
                view.breaks.append(frame["id"])
        view.session = frame["session_id"]
        view.ids.append(frame["id"])
        self.received[view.session][frame["id"]].add(sha256(sent).hexdigest())

    def _note(self, line: Row) -> None:
        match line["op"]:
            case "tree":
                self.limits[line["tag"]] = line["limit"]
            case "model":
                self.model_calls[line["tag"]].append(_us(line))
            case "refused":
                self.refused.append(line["problem"])
            case "abilities":
                self.abilities = line
            case "start":
                self.boots.append(Boot(number=line["boot"], start=_us(line)))
            case "ready":
                self.boots[-1].ready = _us(line)
            case "dead":
                boot = self.boots[-1]
                boot.dead, boot.how, boot.code, boot.took_ms = _us(line), line["how"], line["code"], line.get("ms", 0.0)
            case _:
                self.notes.append(line)

    # ── database ────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, statement: str, *values: Any) -> Iterator[Row]:
        """Rows of a statement."""
        for row in self._db.execute(statement, values):
            yield dict(row)

    @cached_property
    def runs(self) -> dict[str, Row]:
        """Every run's row, without what it was shown."""
        columns = "id, tenant_id, session_id, status, output, attempt, epoch, ended_at"
        return {row["id"]: row for row in self.rows(f"SELECT {columns} FROM runs")}

    def sessions(self) -> Iterator[Session]:
        """Each with its log."""
        for row in list(self.rows("SELECT * FROM sessions ORDER BY tenant_id, id")):
            events = self.rows(
                "SELECT * FROM events WHERE tenant_id = ? AND session_id = ? ORDER BY seq", row["tenant_id"], row["id"]
            )
            yield Session(row, [_logged(event) for event in events])

    def boot_at(self, ts: int) -> int | None:
        """The number of the process that lived at a time (µs), None for none."""
        at = bisect_right(self._starts, ts)
        return self.boots[at - 1].number if at and ts <= self.boots[at - 1].dead else None

    @cached_property
    def _starts(self) -> list[int]:
        return [boot.start for boot in self.boots]


def _logged(row: Row) -> Logged:
    raw = row["data"]
    return Logged(
        tenant=row["tenant_id"],
        session=row["session_id"],
        seq=row["seq"],
        type=row["type"],
        run=row["run_id"],
        ts=row["ts"],
        envelope=row["envelope"],
        raw=raw,
        digest=row["data_digest"],
        hash=row["hash"],
        head=json.loads(row["envelope"]),
        data=json.loads(raw) if raw is not None else {},
    )


def _us(line: Row) -> int:
    return int(line["t"] * 1_000_000)
