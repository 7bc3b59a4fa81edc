"""Holds what was recorded against the rules; the ones about single sessions are in `rules.py`.

python -m tests.chaos.checker FOLDER   (of an earlier `python -m bench.chaos --keep FOLDER`)
"""

import contextlib
import json
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.agent.events import Event
from app.agent.runs import Run
from app.store.database import Database
from app.store.migrate import upgrade
from app.store.statements import _PROJECTED
from tests.chaos.evidence import Evidence, Logged, Session
from tests.chaos.plans import answer_of, named
from tests.chaos.rules import SESSION_RULES
from tests.chaos.server import AUDIT_KEY, DRAINED_S, GRACE_S
from tests.store.facts import replaced
from tests.strict import FINAL

BATCH = 400
RULES = frozenset({*(f"C{number}" for number in range(1, 13)), "goes on", "idle", "told", "pairs", "log", "chain",
                   "answers", "history", "notices", "server"})  # fmt: skip
OPEN = {
    "runs": "ended_at IS NULL",
    "handoffs": "ended_at IS NULL",
    "approvals": "status = 'pending'",
    "tool_calls": "ended_at IS NULL",
}


@dataclass(kw_only=True)
class Found:
    """`violations` by rule, for each that was asked."""

    violations: dict[str, list[str]]
    figures: dict[str, float | str] = field(default_factory=dict)


def check(folder: Path, *, only: Collection[str] = RULES, timed: bool = False) -> Found:
    """Ask the rules. `timed`: how long an end in order takes counts too, which says nothing on a busy machine."""
    found, evidence = Found(violations={rule: [] for rule in sorted(only)}), Evidence(folder)
    ends: Counter[str] = Counter()
    sessions, events, longest = set[str](), 0, 0
    with closing(evidence), contextlib.ExitStack() as stack:
        replay = stack.enter_context(closing(Replay(evidence.database))) if "C10" in only else None
        for session in evidence.sessions():
            sessions.add(session.id)
            events += len(session.events)
            longest = max(longest, len(session.queued))
            ends.update(e.type.removeprefix("run.") for e in session.events if e.type in FINAL)
            for rule, ask in SESSION_RULES.items():
                if rule in only:
                    found.violations[rule] += ask(evidence, session)
            if replay is not None:
                found.violations["C10"] += replay.take(session)
        if replay is not None:
            found.violations["C10"] += replay.differences()
        for rule, look in WORLD_RULES:
            if rule in only:
                found.violations[rule] += look(evidence)
        if timed:
            found.violations["server"] += _late(evidence)
    found.figures = {
        "runs that ended": ", ".join(f"{count} {name}" for name, count in ends.most_common()) or "none",
        "sessions": f"{len(sessions)}, {evidence.strictly} of them strictly as logs without a restart in them",
        "events stored": events,
        "events seen by clients": evidence.frames,
        "runs of the largest session": longest,
        "requests": f"{len(evidence.exchanges)}, {sum(e.status is None for e in evidence.exchanges)} without an answer",
        "model calls": sum(map(len, evidence.model_calls.values())),
        "tools that really ran": len(evidence.witness),
        "histories refused": len(evidence.refused),
        "streams told of the end": sum(note.get("type") == "stream.closing" for note in evidence.notes),
    }
    return found


def c1_what_was_seen_is_known(evidence: Evidence) -> list[str]:
    """Every session of which a client got an event exists."""
    known = {row["id"] for row in evidence.rows("SELECT id FROM sessions")}
    return [f"events of {one} were seen, and there is no such session" for one in evidence.received.keys() - known]


def c3_answers_are_kept(evidence: Evidence) -> list[str]:
    """What a 2xx said was made, decided, ended or final is so in the store."""
    approvals = {row["id"]: row for row in evidence.rows("SELECT id, status, decision FROM approvals")}
    found = []
    for each in evidence.exchanges:
        if each.status is None or not 200 <= each.status < 300 or not isinstance(each.body, dict):
            continue
        body, row = each.body, evidence.runs.get(str(each.body.get("id")))
        if each.path.startswith("/v1/permissions/"):
            known = approvals.get(body["id"], {})
            if (known.get("status"), known.get("decision")) != (body["status"], body["decision"]):
                found.append(f"question {body['id']} was answered with {body['status']}, its row says {known}")
        elif each.path.endswith("/cancel"):
            open_ = [run for run in body["cancelled"] if (evidence.runs.get(run) or {}).get("ended_at") is None]
            other = [run for run in body["cancelled"] if evidence.runs.get(run, {}).get("status") != "cancelled"]
            found += [f"a cancel said that it ended {run}, whose row says otherwise" for run in {*open_, *other}]
        elif each.method == "POST" and each.path.endswith("/runs"):
            if row is None or (row["session_id"], row["tenant_id"]) != (body["session_id"], each.tenant):
                found.append(f"{body['id']} was said to be started for {each.tenant}, its row says {row}")
        elif each.method == "GET" and body.get("ended_at") and row and _shown(row) != _shown(body):
            found.append(f"{body['id']} was shown as {_shown(body)}, its row says {_shown(row)}")
    return found


def _shown(run: Mapping[str, Any]) -> tuple[str, str | None]:
    return run["status"], run["output"]


def c5_no_row_is_left(evidence: Evidence) -> list[str]:
    """In the end no row is open: run, handoff, question, tool call."""
    found = [f"not everything had ended {note['after_s']:g} s after the last start"
             for note in evidence.notes if note["op"] == "unsettled"]  # fmt: skip
    for table, open_ in OPEN.items():
        found += [f"{table} {row['id']} is open" for row in evidence.rows(f"SELECT id FROM {table} WHERE {open_}")]
    return found


def c9_one_run_for_a_key(evidence: Evidence) -> list[str]:
    """However often a start was asked for, with or without an answer, there is at most one run of it; answers under
    one key name the same run."""
    roots = Counter(name for depth, name, _ in _planned(evidence) if not depth)
    found = [f"{count} runs were started for {name}" for name, count in roots.items() if count > 1]
    led: dict[str, set[str]] = defaultdict(set)
    for each in evidence.exchanges:
        if each.key and each.status is not None and 200 <= each.status < 300:
            led[f"{each.tenant} {each.key}"].add(each.body["id"])
    return found + [f"the key {key} led to {sorted(ids)}" for key, ids in led.items() if len(ids) > 1]


def _planned(evidence: Evidence) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Depth, plan and row of each run that has a plan."""
    for row in evidence.rows("SELECT id, depth, status, stop_reason, input, output FROM runs"):
        name = named(row["input"])
        if name is not None:
            yield row["depth"], name, row


def c11_foreign_things_are_unknown(evidence: Evidence) -> list[str]:
    """Who asks for another tenant's run is told that there is none."""
    pried = [note for note in evidence.notes if note["op"] == "pried"]
    return [
        f"another tenant asked for {note['run']} and got {note['status']}" for note in pried if note["status"] != 404
    ]


def answers_are_right(evidence: Evidence) -> list[str]:
    """A run that completed with an answer gives the one that its plan ends with."""
    return [
        f"{row['id']} answered {row['output']!r}, not {answer_of(name)!r}"
        for _, name, row in _planned(evidence)
        if (row["status"], row["stop_reason"]) == ("completed", "answer") and row["output"] != answer_of(name)
    ]


def histories_are_accepted(evidence: Evidence) -> list[str]:
    """A strict model took every history that it was sent."""
    return list(evidence.refused)


def one_notice_for_a_task(evidence: Evidence) -> list[str]:
    """A background task that has ended has exactly one notice in its parent's inbox, posted once."""
    tasks = list(evidence.rows("SELECT id FROM handoffs WHERE background AND ended_at IS NOT NULL"))
    kept = Counter(row["handoff_id"] for row in evidence.rows("SELECT handoff_id FROM notices"))
    told: Counter[str] = Counter()
    for row in evidence.rows("SELECT data FROM events WHERE type = 'notice' AND data IS NOT NULL"):
        data = json.loads(row["data"])
        told[str(data.get("task_id") or data.get("handoff_id"))] += 1
    found = [f"task {row['id']} has {kept[row['id']]} notices" for row in tasks if kept[row["id"]] != 1]
    return found + [f"the end of task {task} was posted {count} times" for task, count in told.items() if count > 1]


def servers_behave(evidence: Evidence) -> list[str]:
    """No traceback, no 5xx but 503, an end in order with code 0, a file that is whole."""
    found = [f"{e.method} {e.path} got {e.status}: {e.body}" for e in evidence.exchanges
             if e.status is not None and e.status >= 500 and e.status != 503]  # fmt: skip
    found += [line[:1000] for line in evidence.log.splitlines() if "Traceback" in line]
    found += [f"process {boot.number} ended with {boot.code} after SIGTERM" for boot in evidence.boots
              if boot.how == "term" and boot.code != 0]  # fmt: skip
    found += [f"a stream was refused: {note}" for note in evidence.notes if note["op"] == "refused stream"]
    found += [f"a stream began anew: {note}" for note in evidence.notes if note.get("type") == "stream.reset"]
    whole = [row["integrity_check"] for row in evidence.rows("PRAGMA integrity_check")]
    return found + [f"the file is damaged: {line}" for line in whole if line != "ok"]


def _late(evidence: Evidence) -> list[str]:
    limit = (GRACE_S + DRAINED_S) * 1000
    return [f"process {boot.number} took {boot.took_ms:.0f} ms to end" for boot in evidence.boots
            if boot.how == "term" and boot.took_ms > limit]  # fmt: skip


WORLD_RULES = (
    ("C1", c1_what_was_seen_is_known),
    ("C3", c3_answers_are_kept),
    ("C5", c5_no_row_is_left),
    ("C9", c9_one_run_for_a_key),
    ("C11", c11_foreign_things_are_unknown),
    ("answers", answers_are_right),
    ("history", histories_are_accepted),
    ("notices", one_notice_for_a_task),
    ("server", servers_behave),
)


# ── C10 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Replay:
    """C10: all rows are what the log leads to. Sends every event through the writer and its projection into a fresh
    database and compares the tables, but for the numbers of rows that follow from the order of commits."""

    def __init__(self, original: Path, key: bytes = AUDIT_KEY.encode()) -> None:
        self._original = original
        self._fresh = original.with_name("replayed.db")
        for path in self._fresh.parent.glob("replayed.db*"):
            path.unlink()
        upgrade(self._fresh)
        self._writer = Database(self._fresh, synchronous="NORMAL").writer(replaced, audit_key=key)

    def close(self) -> None:
        """Let the files go."""
        self._writer.close()

    def take(self, session: Session) -> list[str]:
        """Replay a session; those that were erased have nothing to be replayed."""
        events = list(_events(session))
        found = []
        for at in range(0, len(events), BATCH):
            found += [f"{session.id}: {rejected.reason}" for rejected in self._writer.write(events[at : at + BATCH])]
        return found

    def differences(self) -> list[str]:
        """Rows that one of both has."""
        self._writer.close()
        found = []
        with closing(sqlite3.connect(self._fresh)) as db:
            db.execute("ATTACH ? AS original", (str(self._original),))
            for table in _PROJECTED:
                columns = ", ".join(f'"{column.name}"' for column in table.c if column.name != "row_id")
                for one, other, what in (("original", "main", "not"), ("main", "original", "only")):
                    rows = db.execute(
                        f"SELECT {columns} FROM {one}.{table.name} EXCEPT SELECT {columns} FROM {other}.{table.name}"
                    ).fetchall()
                    found += [f"{table.name} {str(row)[:300]} is {what} in what the log leads to" for row in rows]
        return found


def _events(session: Session) -> Iterator[Event]:
    attempts = {event.seq: (attempt, epoch) for event, attempt, epoch in session.attempts}
    for event in session.events:
        if event.raw is None:
            continue
        run = None
        if event.run in session.queued:
            run = _run(session.queued[event.run], event, *attempts[event.seq])
        yield Event(
            seq=event.seq,
            type=event.type,
            ts=event.ts,
            tenant=event.tenant,
            session_id=event.session,
            run=run,
            step=event.head.get("step"),
            payload=event.data,
            envelope=event.envelope,
            data=event.raw,
        )


def _run(queued: Logged, event: Logged, attempt: int, epoch: int) -> Run:
    """Who a run is, from the envelope of an event of it and from the one that made it."""
    head, data = event.head, queued.data
    return Run(
        id=head["run_id"],
        session_id=event.session,
        tenant=event.tenant,
        memory_id=data["memory_id"],
        turn=data["turn"],
        ordinal=head["run"],
        depth=head["depth"],
        path=tuple(head["path"]),
        agent=head["agent"],
        name=head.get("name"),
        parent_id=head.get("parent_run_id"),
        parent_call_id=data.get("parent_call_id"),
        handoff_id=data.get("handoff_id"),
        attempt=attempt,
        epoch=epoch,
    )


def main() -> int:
    """Check a folder again."""
    found = check(Path(sys.argv[1]))
    lines = [f"{name}: {value}" for name, value in found.figures.items()]
    lines += [f"{rule}: {text}" for rule, texts in found.violations.items() for text in texts]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if any(found.violations.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
