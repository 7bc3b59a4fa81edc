"""Many sessions, verified by several processes: the same is found as by one, in the same order."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from app.agent.errors import Unavailable
from app.cli import shares as shares_module
from app.cli.shares import SHARE, Shares
from app.sessions.verifying import Checked
from app.store.database import Database, looking_connection
from app.store.location import Location, locate
from app.store.migrate import upgrade
from app.store.verifying import Chains, SessionHead
from tests.store.facts import Facts, replaced

KEY = b"an audit key of some length, for tests"


@pytest.fixture
def where(tmp_path: Path) -> Location:
    """A database with some sessions, one of them damaged and one whose row is missing."""
    file = tmp_path / "log.db"
    upgrade(locate(file))
    writer = Database(file).writer(replaced, audit_key=KEY)
    stories = [Facts() for _ in range(3 * SHARE + 1)]
    for facts in stories:
        writer.write([facts.created(), *facts.whole_run(facts.run())])
    writer.close()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "UPDATE events SET hash = zeroblob(32) WHERE seq = 4 AND session_id = ?", (stories[SHARE + 3].session.id,)
        )
        connection.execute("DELETE FROM messages WHERE session_id = ?", (stories[2].session.id,))
        connection.execute("DELETE FROM sessions WHERE id = ?", (stories[-1].session.id,))
    return locate(file)


def by_one(where: Location, *, rows: bool) -> list[tuple[str, str, Checked]]:
    with closing(looking_connection(where)) as connection:
        chains = Chains(connection, KEY)

        def here(heads: Sequence[SessionHead]) -> list[Checked]:
            return list(chains.checked(heads, rows=rows))

        return list(chains.all(by=here))


@pytest.mark.spec("12.5", "16.4")
@pytest.mark.parametrize("rows", [False, True])
def test_several_processes_find_what_one_finds_in_the_same_order(
    where: Location, monkeypatch: pytest.MonkeyPatch, rows: bool
) -> None:
    monkeypatch.setattr(shares_module, "_cores", lambda: 2)
    expected = by_one(where, rows=rows)
    assert sum(checked.flaw is not None for _, _, checked in expected) == (3 if rows else 2)
    with closing(looking_connection(where)) as connection:
        chains = Chains(connection, KEY)
        with Shares(chains, where, KEY, rows=rows, many=1) as shares:
            assert list(chains.all(by=shares.checked)) == expected
            assert shares._pool is not None


@pytest.mark.spec("12.5")
def test_few_sessions_are_verified_without_other_processes(where: Location) -> None:
    with closing(looking_connection(where)) as connection:
        chains = Chains(connection, KEY)
        with Shares(chains, where, KEY, rows=False) as shares:
            assert list(chains.all(by=shares.checked)) == by_one(where, rows=False)
            assert shares._pool is None


@pytest.mark.spec("12.5", "16.6")
def test_what_goes_wrong_in_another_process_is_said_here(where: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "_cores", lambda: 2)
    with closing(looking_connection(where)) as connection:
        chains = Chains(connection, KEY)
        gone = Location(
            path=where.path and where.path.with_name("gone.db"), writing=where.writing, reading=where.reading
        )
        with Shares(chains, gone, KEY, rows=False, many=1) as shares, pytest.raises(Unavailable, match="opened"):
            list(chains.all(by=shares.checked))
