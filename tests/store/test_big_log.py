"""The log that measurements are made on is one that the service could have written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.store.database import looking_connection
from app.store.location import locate
from app.store.migrate import upgrade
from app.store.verifying import Chains
from bench.big_log import KEY, build, database_of
from tests.chaos.checker import Replay
from tests.chaos.evidence import Evidence

MESSAGES, WRITTEN = 900, 300  # the rest are two copies


def _indexes(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}


@pytest.mark.spec("12.4", "12.5")
def test_a_log_that_was_built_is_sound_and_its_rows_are_what_it_leads_to(tmp_path: Path) -> None:
    path, plain = database_of(tmp_path), tmp_path / "plain.db"
    upgrade(plain)
    events = build(path, MESSAGES, written=WRITTEN)
    assert _indexes(path) == _indexes(plain)
    with closing(looking_connection(locate(path))) as connection:
        found = [checked for _, _, checked in Chains(connection, KEY).all()]
    assert [checked.flaw for checked in found] == [None] * len(found)
    assert sum(checked.place.seq for checked in found) == events
    with closing(Evidence(tmp_path)) as evidence, closing(Replay(path, KEY)) as replay:
        refused = [problem for session in evidence.sessions() for problem in replay.take(session)]
        assert refused == []
        assert replay.differences() == []
        (kept,) = evidence.rows("SELECT count(*) AS messages, count(DISTINCT id) AS ids FROM messages")
    assert MESSAGES <= kept["messages"] == kept["ids"]
