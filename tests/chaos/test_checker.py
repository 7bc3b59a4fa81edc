"""The checker is no decoration: each rule finds what was planted into the evidence of a good run, and only that."""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.evidence import Logged, Session
from tests.chaos.plans import named, tag_of
from tests.chaos.world import Plan, chaos

ENDED = "type IN ('run.completed', 'run.interrupted', 'run.failed', 'run.cancelled')"
TEXT = "CAST(data AS TEXT)"
MARKS = f"{TEXT} LIKE '%\"mark\"%'"
Plant = Callable[["Copy"], None]


class Copy:
    """A copy of the evidence, to be falsified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sql(self, *statements: str) -> None:
        """Change the database; each statement must change something."""
        with closing(sqlite3.connect(self.folder / "service.db")) as db, db:
            for statement in statements:
                assert db.execute(statement).rowcount > 0, statement

    def line(self, glob: str, pattern: str, replacement: str, count: int = 1) -> None:
        """Change the first line of a recording that has the pattern."""
        for path in sorted(self.folder.glob(glob)):
            text = path.read_text()
            changed, times = re.subn(pattern, replacement, text, count=count, flags=re.MULTILINE)
            if times:
                path.write_text(changed)
                return
        raise AssertionError(f"{pattern} is in none of {glob}")

    def append(self, name: str, text: str) -> None:
        """One line more."""
        with (self.folder / name).open("a") as file:
            file.write(text + "\n")

    def first(self, statement: str) -> tuple[str, ...]:
        """The first row of a question."""
        with closing(sqlite3.connect(self.folder / "service.db")) as db:
            row: tuple[str, ...] | None = db.execute(statement).fetchone()
        assert row is not None, statement
        return row


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world that was killed once, and without a violation."""
    folder = tmp_path_factory.mktemp("evidence")
    plan = Plan(
        kills=1, terms=0, trees=6, seed=4, aimed=0, moments=(1.0, 1.2), recovery="interrupt", background=False
    )  # fmt: skip
    report = asyncio.run(chaos(folder, plan))
    assert report.violations == [], report.told()
    return folder


def _replaced(old: str, new: str) -> str:
    return f"CAST(replace({TEXT}, '{old}', '{new}') AS BLOB)"


def _changed_bytes(copy: Copy) -> None:
    copy.line(
        "everything-*.jsonl", r'"type":"run.started"(.*)"model":"[^"]*"', r'"type":"run.started"\1"model":"other"'
    )


def _lost_event(copy: Copy) -> None:
    copy.sql("DELETE FROM events WHERE (session_id, seq) IN (SELECT session_id, max(seq) FROM events GROUP BY 1)")


def _hole(copy: Copy) -> None:
    copy.sql("DELETE FROM events WHERE seq = 3")


def _missed_frame(copy: Copy) -> None:
    copy.line("everything-*.jsonl", r'^.*"op": "event".*"id":4,.*\n', "")


def _healed_gap(copy: Copy) -> None:
    copy.line("everything-*.jsonl", r'"healed": 0', '"healed": 1')


def _forgotten_run(copy: Copy) -> None:
    copy.sql("DELETE FROM runs WHERE depth = 0")


def _other_decision(copy: Copy) -> None:
    copy.sql("UPDATE approvals SET status = 'expired', decision = 'expired' WHERE decision IN ('allow_once', 'deny')")


def _second_end(copy: Copy) -> None:
    session, run = copy.first(f"SELECT session_id, run_id FROM events WHERE {ENDED} AND seq > 5")
    here = f"session_id = '{session}' AND run_id = '{run}'"
    copy.sql(f"UPDATE events SET type = 'run.failed' WHERE {here} AND type = 'message'")


def _open_run(copy: Copy) -> None:
    copy.sql(
        "UPDATE runs SET ended_at = NULL, status = 'running' WHERE depth = 0",
        f"UPDATE events SET type = 'step.started' WHERE {ENDED}",
    )


def _open_row(copy: Copy) -> None:
    copy.sql("UPDATE handoffs SET ended_at = NULL")


def _stranded(copy: Copy) -> None:
    copy.sql("UPDATE events SET ts = ts + 600000000 WHERE type = 'run.interrupted'")


def _asleep(copy: Copy) -> None:
    """Where runs are continued: what the last process found open does nothing for a minute."""
    copy.line("nemesis.jsonl", r'"recovery": "interrupt"', '"recovery": "continue"')
    copy.sql("UPDATE events SET ts = ts + 60000000 WHERE type <> 'run.queued'")


def _effect_twice(copy: Copy) -> None:
    lines = (copy.folder / "witness").read_text().splitlines()
    copy.append("witness", next(line for line in lines if line.startswith("mark")))


def _effect_without_start(copy: Copy) -> None:
    copy.sql(f"UPDATE events SET type = 'tool.call' WHERE type = 'tool.start' AND {MARKS}")


def _result_of_nothing(copy: Copy) -> None:
    text = (copy.folder / "witness").read_text()
    (copy.folder / "witness").write_text("".join(line + "\n" for line in text.splitlines() if line[:4] != "look"))


def _second_start(copy: Copy) -> None:
    changed = _replaced('"arguments"', '"read_only":false,"was"')
    copy.sql(f"UPDATE events SET type = 'tool.start', data = {changed} WHERE type = 'tool.call' AND {MARKS}")


def _orphan(copy: Copy) -> None:
    """A child's end changes places with its parent's."""
    session, child, end, parent_end = copy.first(
        f"SELECT c.session_id, c.run_id, c.seq, p.seq FROM events c JOIN runs r ON r.id = c.run_id "
        f"JOIN events p ON p.run_id = r.parent_id AND p.{ENDED} WHERE c.{ENDED}"
    )
    copy.sql(
        f"UPDATE events SET seq = -1 WHERE session_id = '{session}' AND seq = {end}",
        f"UPDATE events SET seq = {end} WHERE session_id = '{session}' AND seq = {parent_end}",
        f"UPDATE events SET seq = {parent_end} WHERE session_id = '{session}' AND seq = -1",
    )
    assert child


def _over_budget(copy: Copy) -> None:
    """A tree that may ask its model once, and has asked as often as it wanted."""
    copy.line("*.jsonl", rf'("op": "tree", "tag": "{_asking(copy)}", "limit": )\w+', r"\g<1>1")


def _asked_aside(copy: Copy) -> None:
    """A tree that asked its model more often than it says, with a limit or without."""
    for _ in range(100):
        copy.append("model.jsonl", json.dumps({"t": 0, "op": "model", "tag": _asking(copy)}))


def _asking(copy: Copy) -> str:
    """The tag of a tree that has asked its model twice."""
    (task,) = copy.first(
        "SELECT input FROM runs JOIN events ON run_id = runs.id WHERE depth = 0 AND input LIKE '%plan%' "
        "AND events.type = 'step.completed' GROUP BY runs.id HAVING count(*) > 1"
    )
    return tag_of(named(task) or "")


def _second_run(copy: Copy) -> None:
    (columns,) = copy.first(
        "SELECT group_concat('\"' || name || '\"') FROM pragma_table_info('runs') WHERE name <> 'id'"
    )
    copy.sql(f"INSERT INTO runs (id, {columns}) SELECT 'run_second', {columns} FROM runs WHERE depth = 0 LIMIT 1")


def _wrong_row(copy: Copy) -> None:
    copy.sql("UPDATE messages SET content = content || '!' WHERE role = 'assistant'")


def _stranger(copy: Copy) -> None:
    copy.line("everything-*.jsonl", r'"tenant": "left"', '"tenant": "right"')


def _pried(copy: Copy) -> None:
    copy.append("client-0.jsonl", json.dumps({"t": 0, "op": "pried", "run": "run_x", "status": 200}))


def _old_attempt(copy: Copy) -> None:
    second = _replaced('"attempt":1', '"attempt":2')
    copy.sql(f"UPDATE events SET data = {second} WHERE type = 'run.queued'",
             "UPDATE events SET data = CAST('{\"attempt\":1}' AS BLOB) WHERE type = 'run.started'")  # fmt: skip


def _two_processes(copy: Copy) -> None:
    """What the last process did is said to have been done in the first one."""
    start, dead = (json.loads(line)["t"] * 1e6 for line in (copy.folder / "nemesis.jsonl").read_text().splitlines()
                   if json.loads(line)["op"] in ("start", "dead") and json.loads(line)["boot"] == 1)  # fmt: skip
    copy.sql(f"UPDATE events SET ts = {int((start + dead) / 2)} WHERE type = 'step.completed'")


def _goes_on_as_it_was(copy: Copy) -> None:
    """A run works in a second process without a second attempt."""
    copy.sql("UPDATE events SET type = 'step.started' WHERE type = 'run.interrupted'")


def _lost_end(copy: Copy) -> None:
    copy.sql("UPDATE events SET type = 'error' WHERE type = 'handoff.end'")


def _wrong_usage(copy: Copy) -> None:
    more = _replaced('"model_calls":', '"model_calls":1')
    copy.sql(f"UPDATE events SET data = {more} WHERE type = 'run.completed'")


def _bent_chain(copy: Copy) -> None:
    copy.sql(f"UPDATE events SET data = CAST({TEXT} || ' ' AS BLOB) WHERE seq = 2")


def _cut_tail(copy: Copy) -> None:
    copy.sql("UPDATE sessions SET head_hash = zeroblob(32)")


def _wrong_answer(copy: Copy) -> None:
    copy.sql("UPDATE runs SET output = 'something else' WHERE status = 'completed'")


def _refused_history(copy: Copy) -> None:
    copy.append("model.jsonl", json.dumps({"t": 0, "op": "refused", "problem": "messages[3]: empty"}))


def _task_without_notice(copy: Copy) -> None:
    copy.sql("UPDATE handoffs SET background = 1 WHERE ended_at IS NOT NULL")


def _given_up(copy: Copy) -> None:
    """Where runs are continued: those that a kill had left were not."""
    copy.line("nemesis.jsonl", r'"recovery": "interrupt"', '"recovery": "continue"')


def _notice(copy: Copy) -> str:
    """A notice for a root, after its first step and before two more; the root's id."""
    (root,) = copy.first(
        "SELECT run_id FROM events JOIN runs ON runs.id = run_id WHERE depth = 0 AND status = 'completed' "
        "AND events.type = 'step.started' GROUP BY run_id HAVING count(*) > 2"
    )
    (seq,) = copy.first(f"SELECT min(seq) FROM events WHERE run_id = '{root}' AND type = 'step.completed'")
    data = json.dumps({"notice_id": "ntc_1", "kind": "task", "for_run": root, "handoff_id": "ho_1"})
    here = f"run_id = '{root}' AND seq = {seq}"
    copy.sql(f"UPDATE events SET type = 'notice', data = CAST('{data}' AS BLOB) WHERE {here}")
    return root


def _idle_too_early(copy: Copy) -> None:
    """The last two events of a session change places."""
    session, seq = copy.first("SELECT session_id, max(seq) FROM events WHERE type = 'session.idle'")
    copy.sql(
        f"UPDATE events SET type = 'notice' WHERE session_id = '{session}' AND seq = {seq}",
        f"UPDATE events SET type = 'session.idle' WHERE session_id = '{session}' AND seq = {seq} - 1",
    )


def _never_told(copy: Copy) -> None:
    _notice(copy)


def _told_twice(copy: Copy) -> None:
    root = _notice(copy)
    named_ = _replaced('"role":"assistant"', '"role":"assistant","notices":["ntc_1"]')
    copy.sql(f"UPDATE events SET data = {named_} WHERE type = 'message' AND run_id = '{root}'")


def _traceback(copy: Copy) -> None:
    copy.append("service.log", '{"level":"error","message":"Traceback (most recent call last)"}')


def _bad_exit(copy: Copy) -> None:
    copy.line("nemesis.jsonl", r'"code": 0, "how": "term"', '"code": 1, "how": "term"')


PLANTED: list[tuple[str, Plant]] = [
    ("C1", _changed_bytes), ("C1", _lost_event), ("C2", _hole), ("C2", _missed_frame), ("C2", _healed_gap),
    ("C3", _forgotten_run),
    ("C3", _other_decision), ("C4", _second_end), ("C5", _open_run), ("C5", _open_row), ("C5", _stranded),
    ("C5", _asleep), ("C6", _effect_twice), ("C6", _effect_without_start), ("C6", _result_of_nothing),
    ("C6", _second_start), ("C7", _orphan), ("C8", _over_budget), ("C8", _asked_aside),
    ("C9", _second_run), ("C10", _wrong_row),
    ("C11", _stranger), ("C11", _pried), ("C12", _old_attempt), ("C12", _two_processes), ("C12", _goes_on_as_it_was),
    ("goes on", _given_up), ("idle", _idle_too_early), ("told", _never_told), ("told", _told_twice),
    ("pairs", _lost_end), ("log", _wrong_usage), ("chain", _bent_chain), ("chain", _cut_tail),
    ("answers", _wrong_answer), ("history", _refused_history), ("notices", _task_without_notice),
    ("server", _traceback), ("server", _bad_exit),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[f"{rule}{plant.__name__}" for rule, plant in PLANTED])
def test_a_violation_is_found(evidence: Path, tmp_path: Path, rule: str, plant: Plant) -> None:
    copy = Copy(Path(shutil.copytree(evidence, tmp_path / "copy")))
    plant(copy)
    assert check(copy.folder, only={rule}).violations[rule]


def test_every_rule_has_something_planted() -> None:
    assert {rule for rule, _ in PLANTED} == RULES


@pytest.mark.slow
def test_a_background_task_may_outlive_its_parent(evidence: Path, tmp_path: Path) -> None:
    copy = Copy(Path(shutil.copytree(evidence, tmp_path / "copy")))
    _orphan(copy)
    assert check(copy.folder, only={"C7"}).violations["C7"]
    detached = _replaced('"background":false', '"background":true')
    copy.sql(f"UPDATE events SET data = {detached} WHERE type = 'handoff.start'")
    assert check(copy.folder, only={"C7"}).violations["C7"] == []


def test_a_run_that_goes_on_after_a_restart_is_in_its_next_attempt_from_there_on() -> None:
    again = {"reason": "restart"}
    told: list[tuple[str, dict[str, Any]]] = [
        ("run.queued", {}),
        ("run.resumed", {"reason": "child"}),
        ("run.resumed", again),
        ("step.started", {}),
        ("run.resumed", {**again, "attempt": 3, "epoch": 7}),
    ]
    nothing: dict[str, Any] = {"envelope": b"", "raw": b"", "digest": b"", "hash": b"", "head": {}}
    events = [
        Logged(tenant="t", session="ses_1", seq=seq, type=kind, run="run_1", ts=seq, data=data, **nothing)
        for seq, (kind, data) in enumerate(told, 1)
    ]
    known = [(attempt, epoch) for _, attempt, epoch in Session({"id": "ses_1"}, events).attempts]
    assert known == [(1, 1), (1, 1), (2, 2), (2, 2), (3, 7)]
