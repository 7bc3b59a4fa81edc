"""Whatever stands in a column: it is named in its session, and the other sessions are verified all the same."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from app.agent import events as kinds
from app.agent.events import Write
from app.store.database import Database, writing_connection
from app.store.location import locate
from app.store.tables import checkpoints, decisions, events, messages, sessions
from app.store.verifying import Chains
from tests.longer import examples
from tests.store.conftest import AUDIT_KEY
from tests.store.facts import Facts, replaced

DEEP = b'{"id":' + b"[" * 200_000
ODD = (
    "", "odd", "\ufffd", "9" * 400, b"", b"odd", b"\xff\xfe", bytes(32), DEEP, DEEP.decode(),
    0, -1, 3, 2**31, 2**63 - 1, -(2**63), 0.5, 6.5, 1e300, -1e300, float("inf"), float("-inf"), float("nan"), None,
)  # fmt: skip
NOT_UTF8 = "CAST(X'6Fff00fe' AS TEXT)"
# What is not compared: the number that the text index knows a message by; what follows from no event alone.
FREE = {"messages": {"row_id"}, "sessions": {column.name for column in sessions.c} - {"tenant_id", "id"}}
CHAIN = {"next_seq", "head_hash", "head_mac", "erased_at"}
PLACES = [
    (table.name, column.name)
    for table in (events, sessions, messages, decisions, checkpoints)
    for column in table.c
    if column.name not in FREE.get(table.name, ()) or column.name in CHAIN
]
_values = st.sampled_from(ODD) | st.text(max_size=9) | st.binary(max_size=40) | st.integers(-(2**63), 2**63 - 1)


class Spoiled:
    """Three sessions, each with messages, decisions and a checkpoint, over a connection that takes everything back."""

    def __init__(self, connection: Connection, ids: list[str]) -> None:
        self.connection = connection
        self.ids = ids
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda found: found.decode("utf-8", "replace")

    def put(self, table: str, column: str, value: Any) -> bool:
        """Put something into one row of the second session; whether it is something else then. Raises IntegrityError
        where it cannot stand."""
        key = "id" if table == "sessions" else "session_id"
        order = "" if table in ("sessions", "checkpoints") else "ORDER BY seq DESC LIMIT 1 OFFSET :offset"
        row = self._one(
            f"SELECT rowid FROM {table} WHERE {key} = :id {order}", id=self.ids[1], offset=2 * (table == "events")
        )
        before = self._one(f"SELECT {column} FROM {table} WHERE rowid = :row", row=row)
        new = NOT_UTF8 if value == NOT_UTF8 else ":value"
        self.connection.execute(
            text(f"UPDATE {table} SET {column} = {new} WHERE rowid = :row"),
            {"row": row} if value == NOT_UTF8 else {"row": row, "value": value},
        )
        return not self._one(f"SELECT {column} IS :before FROM {table} WHERE rowid = :row", row=row, before=before)

    def _one(self, statement: str, **values: Any) -> Any:
        asked = {name: value for name, value in values.items() if f":{name}" in statement}
        return self.connection.execute(text(statement), asked).scalar_one()

    def found(self) -> dict[str, bool]:
        """Which sessions are sound."""
        chains = Chains(self.connection, AUDIT_KEY)
        return {name: checked.flaw is None for _, name, checked in chains.all(rows=True)}


@pytest.fixture
def spoiled(file: Path) -> Iterator[Spoiled]:
    writer = Database(file).writer(replaced, audit_key=AUDIT_KEY)
    stories = sorted((Facts() for _ in range(3)), key=lambda facts: facts.session.id)
    for facts in stories:
        run, said = facts.run(), {"hook": "h", "point": "PreToolUse", "decision": "block", "by": "h"}
        writer.write([facts.created(), *facts.whole_run(run, steps=3), facts.event(run, kinds.HOOK_DECISION, said)])
        asked = {"tenant_id": "default", "session_id": facts.session.id, "upto": 7, "created_at": facts.ts}
        writer.write([facts.idle(), facts.updated(title="x")])
        writer.write([], [Write(table="checkpoints", values=asked, key=("session_id",))])
    writer.close()
    with closing(writing_connection(locate(file), "OFF", 3000)) as connection:
        yield Spoiled(connection, [facts.session.id for facts in stories])


@pytest.mark.spec("12.5", "16.6")
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(place=("events", "seq"), value="odd")
@example(place=("events", "seq"), value=b"odd")
@example(place=("events", "seq"), value=0)
@example(place=("events", "ts"), value=1e300)
@example(place=("events", "envelope"), value=DEEP)
@example(place=("sessions", "id"), value=b"odd")
@example(place=("sessions", "next_seq"), value=-(2**63))
@example(place=("messages", "seq"), value=float("inf"))
@example(place=("decisions", "tenant_id"), value=NOT_UTF8)
@given(place=st.sampled_from(PLACES), value=_values | st.just(NOT_UTF8))
def test_whatever_stands_in_a_column_is_named_and_the_other_sessions_are_verified(
    spoiled: Spoiled, place: tuple[str, str], value: Any
) -> None:
    held(spoiled, *place, value)


def held(spoiled: Spoiled, table: str, column: str, value: Any) -> None:
    with spoiled.connection.begin() as change:
        try:
            is_other = spoiled.put(table, column, value)
        except IntegrityError:  # no null, no second row of that name, no number of a row that is none
            is_other = False
        found = spoiled.found()
        change.rollback()
    assert not is_other or not all(found.values()), (table, column, value)
    assert [found[name] for name in (spoiled.ids[0], spoiled.ids[2])] == [True, True]
