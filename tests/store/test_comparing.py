"""Messages and decisions that no event leads to are found, wherever they stand: answers and exports show them."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Table

from app.agent import events as kinds
from app.sessions.verifying import Flaw
from app.store import comparing
from app.store.tables import metadata
from app.store.verifying import Chains
from tests.store.conftest import AUDIT_KEY, Store
from tests.store.facts import Facts
from tests.store.test_pruning import check, pruned, spoil

Rows = Mapping[int, Mapping[str, Any]]
HEAD = 21


def told(store: Store) -> Facts:
    """A session with messages and a decision, of `HEAD` events or more."""
    facts = Facts()
    run, said = facts.run(), {"hook": "h", "point": "PreToolUse", "decision": "block", "by": "h"}
    store.stored(facts.created(), *facts.whole_run(run, steps=5), facts.event(run, kinds.HOOK_DECISION, said))
    store.stored(facts.idle(), facts.idle())
    assert facts.seq >= HEAD
    return facts


def forge(store: Store, table: str, facts: Facts, **values: Any) -> None:
    """Add a row that says what the last one of a session says, but for these columns."""
    names = [column.name for column in metadata.tables[table].c if column.name != "row_id"]
    columns = ", ".join(f":{name}" if name in values else name for name in names)
    last = f"SELECT {columns} FROM {table} WHERE session_id = :of ORDER BY seq DESC LIMIT 1"
    spoil(store, f"INSERT INTO {table} ({', '.join(names)}) {last}", of=facts.session.id, **values)


def all_flaws(store: Store, *, rows: bool = True, tenant: str | None = None) -> dict[tuple[str, str], Flaw | None]:
    with closing(store.database.looking()) as connection:
        chains = Chains(connection, AUDIT_KEY)
        return {(owner, name): checked.flaw for owner, name, checked in chains.all(tenant, rows=rows)}


@pytest.mark.spec("12.5", "12.2")
@pytest.mark.parametrize("table", ["messages", "decisions"])
@pytest.mark.parametrize("seq", [-5, 0, 9_999, 2**62])
async def test_a_row_outside_of_the_log_is_found_by_its_number(store: Store, table: str, seq: int) -> None:
    facts = told(store)
    forge(store, table, facts, seq=seq)
    assert check(store, facts).flaw == Flaw(id=seq, problem=f"there is a row in {table} that no event says")


@pytest.mark.spec("12.5", "12.2")
@pytest.mark.parametrize("table", ["messages", "decisions"])
@pytest.mark.parametrize("seq", [-0.5, 5.5, 1e300, "soon", b"soon"])
async def test_a_row_whose_number_is_none_is_found(sqlite_store: Store, table: str, seq: Any) -> None:
    facts = told(sqlite_store)
    forge(sqlite_store, table, facts, seq=seq)
    flaw = check(sqlite_store, facts).flaw
    assert flaw is not None
    assert f"a row in {table} that no event says, with the number {seq!r}" in flaw.problem


@pytest.mark.spec("12.5", "12.2", "17.1")
@pytest.mark.parametrize("table", ["messages", "decisions"])
async def test_rows_of_no_session_and_under_another_tenant_are_found_among_all(store: Store, table: str) -> None:
    facts = told(store)
    for owner, name in (("default", "ses_nobody"), ("zeta", facts.session.id)):
        forge(store, table, facts, tenant_id=owner, session_id=name)
        found = all_flaws(store)
        assert found.pop(("default", facts.session.id)) is None
        assert found == {
            (owner, name): Flaw(id=1, problem=f"there are rows in {table}, but tenant '{owner}' has no such session")
        }
        assert all_flaws(store, tenant="default").keys() >= {key for key in found if key[0] == "default"}
        assert (owner, name) not in all_flaws(store, rows=False)
        spoil(store, f"DELETE FROM {table} WHERE tenant_id = :owner AND session_id = :name", owner=owner, name=name)
    assert all_flaws(store) == {("default", facts.session.id): None}


@pytest.mark.spec("12.5")
async def test_of_rows_between_two_events_no_more_are_read_than_tell_that_there_are_too_many(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = told(sqlite_store)
    names = [column.name for column in metadata.tables["messages"].c if column.name != "row_id"]
    many = f"WITH RECURSIVE part(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM part WHERE n < {3 * comparing.PAGE})"
    odd = {"seq": "5 + n / 10000.0", "id": "'msg_' || n"}
    rows = (
        f"{many} SELECT {', '.join(odd.get(name, name) for name in names)} FROM messages, part WHERE session_id = :id"
    )
    spoil(sqlite_store, f"INSERT INTO messages ({', '.join(names)}) {rows} AND seq = 5", id=facts.session.id)
    most, look = 0, comparing._first

    def first(table: Table, wanted: Rows, found: Rows) -> Flaw | None:
        nonlocal most
        most = max(most, len(found))
        return look(table, wanted, found)

    monkeypatch.setattr(comparing, "_first", first)
    flaw = check(sqlite_store, facts).flaw
    assert flaw is not None
    assert (flaw.id, most) == (5, comparing.PAGE + 1)


# ── before the checkpoint ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.5", "12.2")
async def test_before_the_checkpoint_a_decision_and_a_message_of_no_memory_are_found(store: Store) -> None:
    facts = told(store)
    pruned(store, facts, 10)
    assert check(store, facts).flaw is None
    forged: list[tuple[str, dict[str, Any]]] = [
        ("decisions", {}), ("messages", {"memory_id": "mem_nobody"}), ("messages", {"memory_seq": 500}),
    ]  # fmt: skip
    for table, values in forged:
        forge(store, table, facts, seq=2, **values)
        flaw = check(store, facts).flaw
        assert flaw is not None
        assert (flaw.id, "before the checkpoint, event 10" in flaw.problem) == (2, True), flaw
        spoil(store, f"DELETE FROM {table} WHERE seq = 2 AND session_id = :id", id=facts.session.id)
    assert check(store, facts).flaw is None


@pytest.mark.spec("12.5", "14.2")
async def test_a_message_that_a_deleted_session_has_kept_is_found(store: Store) -> None:
    facts = told(store)
    other = facts.beside()
    store.stored(other.created(), *other.whole_run(other.run(memory_id=facts.session.memory_id)))
    pruned(store, facts, 10)
    store.stored(facts.closed("deleted"))
    assert check(store, facts).flaw is None
    forge(store, "messages", other, session_id=facts.session.id, seq=3)
    assert check(store, facts).flaw == Flaw(id=3, problem="there is a row in messages, though the session was deleted")


@pytest.mark.spec("12.5")
async def test_a_front_that_is_removed_while_rows_are_compared_is_no_fault(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = told(store)
    look = comparing._before_log

    def first(*given: Any) -> Flaw | None:
        monkeypatch.setattr(comparing, "_before_log", look)
        pruned(store, facts, 10)
        return look(*given)

    monkeypatch.setattr(comparing, "_before_log", first)
    assert check(store, facts).flaw is None
    assert await store.number("SELECT count(*) FROM messages WHERE seq <= 10") > 0
