"""Verifying the chains: whatever is changed in the tables by hand is found, with the first event that it is about."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, text

from app.agent import events as kinds
from app.agent.errors import InvalidRequest, NotFound, Unavailable
from app.agent.events import Write
from app.sessions.verifying import BEGINNING, Checked, Flaw, Place, Verifying, read_cursor, write_cursor
from app.store import verifying
from app.store.as_stored import _spoken
from app.store.chain import Head, digest, link, seal
from app.store.database import Database, looking_connection, writing_connection
from app.store.location import locate, looking_at
from app.store.tables import events
from app.store.verifying import PAGE, Chains, SqlChainStore
from tests.store.conftest import AUDIT_KEY, Store
from tests.store.facts import Facts, replaced
from tests.trouble import damage

ALL = 100_000
MESSAGES = "ix_messages_session"


class Log:
    """A session of 20 events and more in a store, beside another one, and ways to spoil it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.facts = Facts()
        self.other = Facts()
        store.stored(self.other.created(), *self.other.whole_run(self.other.run()))
        store.stored(self.facts.created(), *self.facts.whole_run(self.facts.run(), steps=3))
        assert self.last > 15

    @property
    def id(self) -> str:
        return self.facts.session.id

    @property
    def last(self) -> int:
        return self.facts.seq

    @contextmanager
    def spoiling(self) -> Iterator[Connection]:
        """A connection of somebody who can write to the database."""
        with closing(writing_connection(self.store.database.location, "OFF", 3000)) as connection, connection.begin():
            yield connection

    def spoil(self, statement: str, **values: Any) -> None:
        """Do something to the session; `:session` is its id, and `:other` that of the one beside it."""
        given = {"session": self.id, "other": self.other.session.id, **values}
        with self.spoiling() as connection:
            assert connection.execute(
                text(statement), {k: v for k, v in given.items() if f":{k}" in statement}
            ).rowcount

    def column(self, name: str, seq: int) -> Any:
        """A value of one of its events."""
        with self.spoiling() as connection:
            asked = text(f"SELECT {name} FROM events WHERE session_id = :session AND seq = :seq")
            return connection.execute(asked, {"session": self.id, "seq": seq}).scalar_one()

    def change(self, seq: int, **values: Any) -> None:
        """Set columns of one event."""
        sets = ", ".join(f"{name} = :new_{name}" for name in values)
        self.spoil(
            f"UPDATE events SET {sets} WHERE session_id = :session AND seq = :seq",
            seq=seq,
            **{f"new_{name}": value for name, value in values.items()},
        )

    def exchange(self, one: int, two: int) -> None:
        """Let two events stand in each other's place."""
        for old, new in ((one, -1), (two, one), (-1, two)):
            self.spoil("UPDATE events SET seq = :new WHERE session_id = :session AND seq = :old", old=old, new=new)

    def check(self, key: bytes | None = None, place: Place = BEGINNING, limit: int | None = None) -> Checked:
        """Verify it."""
        with closing(self.store.database.looking()) as connection:
            checked = Chains(connection, key).check("default", self.id, place, limit)
        assert checked is not None
        return checked

    def found(self, key: bytes | None = None) -> tuple[int, str]:
        """The first event with which something is wrong, and what."""
        flaw = self.check(key).flaw
        assert flaw is not None
        return flaw.id, flaw.problem

    def is_sound(self, key: bytes | None = AUDIT_KEY) -> bool:
        """Nothing is wrong with it, to the end."""
        checked = self.check(key)
        assert checked.flaw is None, checked.flaw
        return checked.complete and checked.place.seq == checked.head == self.last


@pytest.fixture
async def log(store: Store) -> AsyncIterator[Log]:
    made = Log(store)
    yield made
    with closing(store.database.looking()) as connection:
        beside = Chains(connection, AUDIT_KEY).check("default", made.other.session.id)
    assert beside is not None
    assert beside.flaw is None, "what was done to one session must not be found in another"


def flipped(value: bytes) -> bytes:
    """With one bit changed in the middle."""
    middle = len(value) // 2
    return value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]


@pytest.mark.spec("12.5")
async def test_what_was_written_is_sound_with_and_without_the_key(log: Log) -> None:
    assert log.is_sound()
    assert log.is_sound(None)


@pytest.mark.spec("12.5")
@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("data", "its data was changed"),
        ("data_digest", "the digest of its data was changed"),
        ("envelope", "changed"),
        ("hash", "its hash was changed"),
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_one_changed_bit_is_found_at_its_event(log: Log, column: str, says: str, place: str) -> None:
    seq = {"first": 1, "middle": 9, "last": log.last}[place]
    log.change(seq, **{column: flipped(log.column(column, seq))})
    number, problem = log.found()
    assert (number, says in problem) == (seq, True), problem


@pytest.mark.spec("12.5")
@pytest.mark.parametrize(
    ("column", "value"), [("type", "notice"), ("run_id", "run_other"), ("ts", 1_700_000_000_000_000)]
)
async def test_a_column_that_says_something_else_than_the_envelope_is_found(log: Log, column: str, value: Any) -> None:
    log.change(7, **{column: value})
    number, problem = log.found()
    assert number == 7
    assert f"column {column} says" in problem


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("place", ["first", "middle"])
async def test_a_missing_event_is_found_by_its_number(log: Log, place: str) -> None:
    seq = 1 if place == "first" else 8
    log.spoil("DELETE FROM events WHERE session_id = :session AND seq = :seq", seq=seq)
    assert log.found() == (seq, f"event {seq} is missing: event {seq + 1} stands behind event {seq - 1}")


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("count", [1, 3])
async def test_a_cut_tail_is_found_at_the_first_event_that_is_gone(log: Log, count: int) -> None:
    log.spoil("DELETE FROM events WHERE session_id = :session AND seq > :seq", seq=log.last - count)
    number, problem = log.found()
    assert number == log.last - count + 1
    assert problem.startswith("the tail is cut")
    assert f"the session's head is event {log.last}" in problem


@pytest.mark.spec("12.5")
async def test_a_session_without_any_event_has_its_whole_tail_cut(log: Log) -> None:
    log.spoil("DELETE FROM events WHERE session_id = :session")
    assert log.found()[0] == 1


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("pair", [(5, 6), (1, 2), (4, 11)])
async def test_a_swapped_pair_is_found_at_the_first_of_the_two(log: Log, pair: tuple[int, int]) -> None:
    log.exchange(*pair)
    number, problem = log.found()
    assert number == pair[0]
    assert problem == f"event {pair[1]} stands in its place: swapped, moved or changed"


@pytest.mark.spec("12.5")
async def test_an_event_of_another_session_is_found_where_it_stands(log: Log) -> None:
    envelope = "SELECT envelope FROM events WHERE session_id = :other AND seq = 4"
    log.spoil(f"UPDATE events SET envelope = ({envelope}) WHERE session_id = :session AND seq = 4")
    number, problem = log.found()
    assert number == 4
    assert log.other.session.id in problem


@pytest.mark.spec("12.5")
async def test_a_changed_head_is_found(log: Log) -> None:
    last = log.last
    for statement, number, says in (
        ("head_hash = :value", last, "not the hash"),
        (f"next_seq = {last + 3}, head_mac = :value", last + 1, f"events {last + 1} to {last + 2} are missing"),
        (f"next_seq = {last - 1}, head_mac = :value", last - 1, "added, or the head was set back"),
        ("next_seq = 1, head_mac = :value", 1, "the head in the session's row is wrong"),
        ("next_seq = 0, head_mac = :value", 1, "the head in the session's row is wrong: it says that event 0"),
        ("next_seq = -7, head_mac = :value", 1, "the head in the session's row is wrong"),
    ):
        log.spoil(f"UPDATE sessions SET {statement} WHERE id = :session", value=b"x" * 32)
        found = log.found()
        assert (found[0], says in found[1]) == (number, True), found
        log.spoil(f"UPDATE sessions SET next_seq = {last + 1} WHERE id = :session")


@pytest.mark.spec("12.5")
async def test_a_seal_that_is_wrong_or_gone_is_found_with_the_key_alone(log: Log) -> None:
    assert log.found(b"another key")[1].startswith("the seal of the head is not of this audit.key")
    log.spoil("UPDATE sessions SET head_mac = :value WHERE id = :session", value=b"x" * 32)
    assert log.found(AUDIT_KEY)[0] == log.last
    assert log.is_sound(None)
    log.spoil("UPDATE sessions SET head_mac = NULL WHERE id = :session")
    assert log.found(AUDIT_KEY)[1].startswith("the head has no seal")
    assert log.is_sound(None)


def forge(log: Log, first: int, keep_mac: bool) -> None:
    """Change an event as somebody who knows how hashes are made and does not have the key."""
    previous = log.column("hash", first - 1)
    log.change(first, data=b'{"content":"never said"}', data_digest=digest(b'{"content":"never said"}'))
    for seq in range(first, log.last + 1):
        previous = link(previous, log.column("envelope", seq), log.column("data_digest", seq))
        log.change(seq, hash=previous)
    mac = None if keep_mac else seal(b"a key that was guessed", Head(log.last + 1, previous))
    sets = "head_hash = :hash" if keep_mac else "head_hash = :hash, head_mac = :mac"
    log.spoil(f"UPDATE sessions SET {sets} WHERE id = :session", hash=previous, mac=mac)


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("keep_mac", [True, False], ids=["old seal", "other seal"])
async def test_a_forged_tail_with_right_hashes_is_found_with_the_key_and_not_without(log: Log, keep_mac: bool) -> None:
    forge(log, 10, keep_mac)
    assert log.is_sound(None)
    number, problem = log.found(AUDIT_KEY)
    assert number == log.last
    assert "seal" in problem


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("keep_mac", [True, False], ids=["old seal", "other seal"])
async def test_the_service_seals_nothing_behind_a_forged_tail(log: Log, keep_mac: bool) -> None:
    forge(log, 10, keep_mac)
    for _ in range(2):  # behind a row that says nothing of a seal, too
        log.store.writer.close()
        log.store.writer = log.store.database.writer(replaced, audit_key=AUDIT_KEY)
        log.store.stored(log.facts.idle())
        assert log.is_sound(None)
        number, problem = log.found(AUDIT_KEY)
        assert number == log.last
        assert "seal" in problem


@pytest.mark.spec("12.5")
async def test_data_of_another_kind_is_named_and_breaks_nothing(log: Log) -> None:
    if log.store.database.location.path is None:
        pytest.skip("PostgreSQL keeps the kinds of its columns")
    for column, value in (("envelope", "text"), ("data", 7), ("hash", None), ("data_digest", "x"), ("ts", "soon")):
        kept = log.column(column, 6)
        if value is not None:
            log.change(6, **{column: value})
            assert log.found()[0] == 6, column
            log.change(6, **{column: kept})
    log.spoil("UPDATE events SET type = CAST(X'ff00fe' AS TEXT) WHERE session_id = :session AND seq = 6")
    assert log.found()[0] == 6
    log.spoil("UPDATE sessions SET next_seq = 'many' WHERE id = :session")
    assert "cannot be read" in log.found()[1]


ADD = "INSERT INTO events ({0}) SELECT {1} FROM events WHERE session_id = :session AND seq = 5"


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("away", [-6, -5, 4, 2**60])
async def test_an_event_that_was_added_outside_of_the_log_is_found_by_its_own_number(log: Log, away: int) -> None:
    names = [column.name for column in events.c]
    seq = away + (5 if away < 0 else log.last)
    log.spoil(ADD.format(", ".join(names), ", ".join(":seq" if name == "seq" else name for name in names)), seq=seq)
    number, problem = log.found()
    assert number == seq
    assert ("stands behind the head" if away > 0 else f"an event with the number {seq} was added") in problem


# ── deleted sessions ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.5", "14.2")
async def test_a_deleted_session_is_sound_by_its_digests(log: Log) -> None:
    log.store.stored(log.facts.closed("deleted"))
    assert log.column("data", 3) is None
    assert log.is_sound()


@pytest.mark.spec("12.5")
async def test_a_changed_digest_of_erased_data_is_found(log: Log) -> None:
    log.store.stored(log.facts.closed("deleted"))
    log.change(5, data_digest=flipped(log.column("data_digest", 5)))
    assert log.found()[0] == 5


@pytest.mark.spec("12.5")
async def test_data_that_is_gone_from_a_session_that_was_not_deleted_is_found(log: Log) -> None:
    log.spoil("UPDATE events SET data = NULL WHERE session_id = :session AND seq = 12")
    assert log.found() == (12, "its data is gone, though its session was not deleted")
    log.spoil("UPDATE sessions SET erased_at = 1 WHERE id = :session")
    assert log.found() == (12, "its data is gone, and no event behind it says that the session was deleted")
    log.spoil("UPDATE events SET data = NULL WHERE session_id = :session AND seq >= 12")
    assert log.found() == (12, "its data is gone, and no event behind it says that the session was deleted")


@pytest.mark.spec("12.5", "14.2")
async def test_a_session_that_says_it_was_deleted_and_has_its_data_is_found(log: Log) -> None:
    log.spoil("UPDATE sessions SET erased_at = 1, closed_seq = 1 WHERE id = :session")
    problem = "its data is there, though its session's row says that the session was deleted"
    assert log.found(AUDIT_KEY) == (1, problem)
    kept = [log.column("data", seq) for seq in (1, 2)]
    log.spoil("UPDATE events SET data = NULL WHERE session_id = :session AND seq <= 2")
    assert log.found() == (1, "its data is gone, and no event behind it says that the session was deleted")
    for seq, data in enumerate(kept, 1):
        log.change(seq, data=data)
    log.store.stored(log.facts.closed("deleted"))
    assert log.is_sound()


@pytest.mark.spec("12.5", "14.2")
async def test_a_deleted_session_whose_last_events_are_left_by_retention_is_sound(log: Log) -> None:
    log.store.stored(log.facts.closed("deleted"))
    deleted = log.last
    log.store.stored(log.facts.idle(), log.facts.idle())
    asked = {"tenant_id": "default", "session_id": log.id, "created_at": 1}
    for upto in (3, deleted):
        log.store.stored(writes=[Write(table="checkpoints", values={**asked, "upto": upto}, key=("session_id",))])
        assert log.is_sound()


@pytest.mark.spec("12.5", "14.2")
async def test_a_session_that_is_deleted_between_two_parts_of_a_check_stays_sound(log: Log) -> None:
    first = log.check(limit=6)
    log.store.stored(log.facts.closed("deleted"))
    rest = log.check(AUDIT_KEY, first.place)
    assert (rest.flaw, rest.complete, rest.place.seq) == (None, True, log.last)


# ── in parts ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_a_check_in_parts_comes_to_the_same_and_carries_what_it_knows(log: Log, limit: int) -> None:
    def walk() -> tuple[Checked, int]:
        checked, parts = log.check(limit=limit), 1
        while not checked.complete:
            assert checked.flaw is None
            checked, parts = log.check(AUDIT_KEY, read_cursor(write_cursor(checked.place)), limit), parts + 1
        return checked, parts

    checked, parts = walk()
    assert (checked.flaw, checked.place.seq) == (None, log.last)
    assert parts == -(-log.last // limit)
    log.change(13, data=b"{}")
    assert walk()[0].flaw == log.check().flaw
    assert log.check().place.seq == 12


@pytest.mark.spec("12.5")
async def test_what_was_found_sound_cannot_be_exchanged_between_two_parts(log: Log) -> None:
    place = log.check(limit=10).place
    forge(log, 5, True)
    flaw = log.check(None, place).flaw
    assert flaw is not None
    assert flaw.id == 11


@pytest.mark.spec("12.5")
async def test_a_session_of_many_pages_is_sound_and_its_last_page_counts(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created())
    while facts.seq <= 2 * PAGE:
        store.stored(*facts.whole_run(facts.run(), steps=40))
    with closing(store.database.looking()) as connection:
        chains = Chains(connection, AUDIT_KEY)
        whole = chains.check("default", facts.session.id)
        stopped = chains.check("default", facts.session.id, enough=lambda: True)
    assert whole is not None
    assert stopped is not None
    assert (whole.flaw, whole.complete, whole.place.seq) == (None, True, facts.seq)
    assert (stopped.flaw, stopped.complete, stopped.place.seq) == (None, False, PAGE)


# ── all of a database ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.5", "17.1")
async def test_all_sessions_are_checked_of_one_tenant_or_of_all_and_those_without_a_row_too(log: Log) -> None:
    theirs = Facts(tenant="zeta")
    log.store.stored(theirs.created())
    log.store.stored(log.facts.closed("deleted"))
    log.change(4, hash=b"x" * 32)

    def flaws(tenant: str | None) -> dict[str, int | None]:
        with closing(log.store.database.looking()) as connection:
            found = Chains(connection, AUDIT_KEY).all(tenant)
            return {session: None if checked.flaw is None else checked.flaw.id for _, session, checked in found}

    mine = {log.id: 4, log.other.session.id: None}
    assert flaws("default") == mine
    assert flaws("zeta") == {theirs.session.id: None}
    assert flaws(None) == {**mine, theirs.session.id: None}
    log.spoil("DELETE FROM sessions WHERE id = :session")
    assert flaws(None) == {log.id: 1, log.other.session.id: None, theirs.session.id: None}
    assert flaws("zeta") == {theirs.session.id: None}


@pytest.mark.spec("12.5")
async def test_sessions_whose_ids_are_no_texts_are_listed_once_each_and_hide_no_others(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_SESSIONS", 2)
    stories = [Facts(session_id=f"ses_{number}") for number in range(9)]
    sqlite_store.stored(*(facts.created() for facts in stories))
    odd = {2: "X'7365735FFF' AS TEXT", 3: "X'7365735FFFFF' AS TEXT", 4: "X'7365735FFE' AS TEXT", 6: "id AS BLOB"}
    with closing(writing_connection(sqlite_store.database.location, "OFF", 3000)) as connection, connection.begin():
        for number, kind in odd.items():
            connection.execute(text(f"UPDATE sessions SET id = CAST({kind}) WHERE id = 'ses_{number}'"))
    with closing(sqlite_store.database.looking()) as connection:
        found = [(name, checked.flaw is None) for _, name, checked in Chains(connection, None).all()]
    assert [name for name, sound in found if sound] == [f"ses_{number}" for number in range(9) if number not in odd]
    assert len([name for name, sound in found if not sound]) == 2 * len(odd), "rows without events, and events without"


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_flaw(log: Log) -> Flaw | None:
    """What is wrong with the rows, once the chain is sound."""
    with closing(log.store.database.looking()) as connection:
        chains = Chains(connection, AUDIT_KEY)
        checked = chains.check("default", log.id)
        assert checked is not None
        assert checked.flaw is None
        return chains.with_rows("default", log.id, checked).flaw


@pytest.mark.spec("12.5", "12.2")
async def test_rows_that_say_what_the_log_says_are_sound_before_and_after_the_session_was_deleted(log: Log) -> None:
    run = log.facts.run()
    call = log.facts.call()
    log.store.stored(
        log.facts.queued(run),
        log.facts.message(run, "assistant", "你好 🎈", step=1, tool_calls=[call], reasoning="why", opaque={"a": [1]}),
        log.facts.event(run, kinds.HOOK_DECISION, {"hook": "h", "point": "PreToolUse", "decision": "block", "by": "h"}),
    )
    assert len(await log.store.rows("messages", session_id=log.id)) > 5
    assert len(await log.store.rows("decisions", session_id=log.id)) == 1
    assert rows_flaw(log) is None
    log.store.stored(log.facts.closed("deleted"))
    assert rows_flaw(log) is None


@pytest.mark.spec("12.5", "12.2")
async def test_a_row_that_differs_is_missing_or_was_added_is_found_at_its_event(log: Log) -> None:
    seq = (await log.store.rows("messages", session_id=log.id))[2]["seq"]
    where = f"WHERE session_id = :session AND seq = {seq}"
    for name, value in (("content", "never said"), ("role", "system"), ("metadata", "no JSON"), ("depth", 3)):
        with log.spoiling() as connection:
            kept = connection.execute(text(f"SELECT {name} FROM messages {where}"), {"session": log.id}).scalar_one()
        log.spoil(f"UPDATE messages SET {name} = :value {where}", value=value)
        assert rows_flaw(log) == Flaw(id=seq, problem=f"the event is sound, and its row in messages differs: {name}")
        log.spoil(f"UPDATE messages SET {name} = :value {where}", value=kept)
    assert rows_flaw(log) is None
    log.spoil(f"UPDATE messages SET seq = 3 {where}")
    assert rows_flaw(log) == Flaw(id=3, problem="there is a row in messages that no event says")
    log.spoil("DELETE FROM messages WHERE session_id = :session AND seq = 3")
    assert rows_flaw(log) == Flaw(id=seq, problem="the event is sound, and its row in messages is missing")


# ── the service ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.5", "14.6", "17.1")
async def test_the_answer_says_what_was_found_and_what_such_a_check_cannot_find(log: Log) -> None:
    open_ = Verifying(SqlChainStore(log.store.database.looking, None), keyed=False)
    keyed = Verifying(SqlChainStore(log.store.database.looking, AUDIT_KEY), keyed=True)
    good = await keyed.verify("default", log.id)
    head = log.column("hash", log.last).hex()
    assert (good["ok"], good["events"], good["head"]) == (True, log.last, {"id": log.last, "hash": head})
    assert (good["first_bad"], good["keyed"], good["next"]) == (None, True, None)
    part = await open_.verify("default", log.id, limit=5)
    assert (part["ok"], part["events"], part["keyed"]) == (None, 5, False)
    assert "damage, not forgery" in part["says"]
    assert "damage" not in good["says"]
    log.change(3, data=b"{}")
    bad = await open_.verify("default", log.id)
    assert (bad["ok"], bad["events"], bad["next"]) == (False, 2, None)
    assert bad["first_bad"] == {"id": 3, "problem": "its data was changed"}
    assert (await open_.verify("default", log.id, cursor=part["next"]))["ok"] is True, "events 1 to 5 were seen before"
    for tenant, session in (("other", log.id), ("default", "ses_nobody"), ("default", "ses_\0")):
        with pytest.raises(NotFound):
            await open_.verify(tenant, session)


@pytest.mark.parametrize("begin", ["", "1", "1.0", "-1.0.", "9999999999999999999.0.", "١.0.", "1.0.z"])
def test_a_cursor_that_is_none_is_refused(begin: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_cursor(begin + "0" * 64)
    assert caught.value.code == "invalid_cursor"


class Slow:
    """A store that works until it is told to stop."""

    def __init__(self) -> None:
        self.thread = 0
        self.begun = threading.Event()
        self.stopped = threading.Event()

    def check(
        self, tenant: str, session_id: str, place: Place, *, limit: int, seconds: float, stop: threading.Event
    ) -> Checked | None:
        self.thread = threading.get_ident()
        self.begun.set()
        if stop.wait(20):
            self.stopped.set()
        return None


async def test_the_work_is_done_beside_the_event_loop_and_ends_with_the_client_that_goes_away() -> None:
    store = Slow()
    verifying = Verifying(store, keyed=False)
    task = asyncio.create_task(verifying.verify("default", "ses_1"))
    assert await asyncio.to_thread(store.begun.wait, 10)
    assert store.thread != threading.get_ident(), "the event loop has other things to do"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(store.stopped.wait, 10)


# ── looking without touching ────────────────────────────────────────────────────────────────────────────────────


def test_a_connection_that_looks_makes_no_file_and_writes_nothing(file: Path) -> None:
    before = file.read_bytes()
    with closing(looking_connection(Database(file).location)) as connection:
        assert list(Chains(connection, None).all()) == []
        with pytest.raises(Exception, match="readonly"):
            connection.exec_driver_sql("DELETE FROM events")
    assert file.read_bytes() == before
    missing = file.with_name("missing.db")
    with pytest.raises(Exception, match="unable to open"):
        looking_connection(Database(missing).location)
    assert not missing.exists()


@pytest.mark.spec("12.5", "16.4")
@pytest.mark.parametrize(("index", "says"), [("sqlite_autoindex_checkpoints_1", "checkpoint"), (MESSAGES, "rows")])
def test_a_page_that_cannot_be_read_is_found_in_its_session_and_the_others_are_verified(
    file: Path, index: str, says: str
) -> None:
    writer = Database(file).writer(replaced)
    stories = sorted((Facts() for _ in range(160)), key=lambda facts: facts.session.id)
    for facts in stories:
        writer.write([facts.created(), *facts.whole_run(facts.run())])
        removed = {"tenant_id": "default", "session_id": facts.session.id, "upto": 3, "created_at": 1}
        writer.write([], [Write(table="checkpoints", values=removed, key=("session_id",))])
    writer.close()
    page = damage.leaves(file, index)[0]
    damage.destroy(file, page)
    with closing(looking_connection(locate(file))) as connection:
        chains = Chains(connection, None)
        found = [(name, chains.with_rows(tenant, name, checked).flaw) for tenant, name, checked in chains.all()]
    assert [name for name, _ in found] == [facts.session.id for facts in stories]
    flaws = [flaw for _, flaw in found]
    assert flaws[0] is not None
    assert says in flaws[0].problem
    assert flaws[-1] is None


@pytest.mark.spec("12.5")
def test_whatever_byte_of_the_file_is_changed_the_log_is_as_it_was_or_is_found_not_to_be(file: Path) -> None:
    facts = Facts()
    writer = Database(file).writer(replaced, audit_key=AUDIT_KEY)
    writer.write([facts.created(), *facts.whole_run(facts.run(), steps=5)])
    writer.close()
    whole = file.read_bytes()
    with closing(sqlite3.connect(file)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        asked = "SELECT pageno FROM dbstat WHERE name = 'events'"
        try:
            pages = [number for (number,) in connection.execute(asked)]
        except sqlite3.OperationalError:  # built without it
            pages = [root, *range(len(whole) // size - 8, len(whole) // size)]
    before = log_of(file, facts.session.id)
    found = 0
    chosen = Random(7)
    for _ in range(150):
        place = (chosen.choice(pages) - 1) * size + chosen.randrange(size)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chosen.randrange(8)]) + whole[place + 1 :])
        try:
            with closing(looking_connection(Database(file).location)) as connection:
                sound = all(checked.flaw is None for _, _, checked in Chains(connection, AUDIT_KEY).all())
        except Unavailable:
            sound = False
        found += not sound
        assert not sound or log_of(file, facts.session.id) == before, f"byte {place}"
    assert found > 50


def log_of(file: Path, session: str) -> list[Any]:
    """What a reader gets of the log: by the index, as the service reads it."""
    with closing(sqlite3.connect(file)) as connection:
        asked = (
            "SELECT seq, type, run_id, ts / 1000, envelope, data FROM events "
            "WHERE tenant_id = 'default' AND session_id = ? ORDER BY seq"
        )
        return connection.execute(asked, (session,)).fetchall()


def test_a_file_in_a_place_where_nothing_can_be_written_is_read_unless_somebody_has_it_open(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looking_at(file) == {"mode": "ro"}
    monkeypatch.setattr("os.access", lambda *_: False)
    assert looking_at(file) == {"mode": "ro", "immutable": "1"}
    with closing(looking_connection(Database(file).location)) as connection:
        assert list(Chains(connection, None).all()) == []
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing was made beside it"
    file.with_name(f"{file.name}-wal").touch()
    assert looking_at(file) == {"mode": "ro"}


@pytest.mark.spec("12.5")
def test_the_statements_of_a_check_search_indexes(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for name in ("_one", "_of_all", "_of_tenant", "_page"):
            statement, own = _spoken("sqlite", getattr(verifying, name))
            given = {"tenant": "t", "session": "s", "limit": 1, "after": 1, "upto": 2, "seen": 3, **own}
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", given)]
            scans = [line for line in plan if line.startswith(("SCAN", "USE TEMP"))]
            assert scans == [], (name, plan)
