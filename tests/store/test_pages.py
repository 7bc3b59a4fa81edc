"""Pages of the audit trail: every row once, in order, by an index, whatever the filters."""

import asyncio
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Delete, Select, Table, delete
from sqlalchemy.dialects import sqlite

from app.agent.errors import InvalidRequest
from app.agent.runs import Run
from app.sessions.audit import DECIDED, EXPORTED, MAX_COUNT, Counted, DecisionFilter, MessageFilter, Page, Record
from app.store import agents, approvals, events, keys, memories, pruning, retention, runs, tasks
from app.store import messages as messages_module
from app.store.cursors import pack, under
from app.store.database import Database
from app.store.messages import DECISION_ORDERS, EXPORT_CHARS, MESSAGE_ORDERS, SqlAuditStore
from app.store.pages import Order, question
from app.store.tables import approvals as approvals_table
from app.store.tables import decisions, messages
from tests.longer import examples, times
from tests.store.conftest import Store
from tests.store.facts import START, Facts, replaced

DIRECTIONS = pytest.mark.parametrize("newest_first", [False, True], ids=["oldest", "newest"])


async def all_pages(store: Store, filters: MessageFilter, limit: int) -> list[Record]:
    seen: list[Record] = []
    cursor = None
    for _ in range(200):
        page = await store.audit.messages("default", filters, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        seen += page.items
        cursor = page.next
        if cursor is None:
            return seen
        assert len(page.items) == limit
    raise AssertionError("the pages do not end")


class Archive:
    """Two sessions of one tenant, with subagents, in which the clock often stands still."""

    def __init__(self) -> None:
        self.sessions = [Facts(tick=0), Facts(tick=0)]
        self.runs: list[Run] = []
        self.events = [facts.created() for facts in self.sessions]
        for number in range(10):
            facts = self.sessions[number % 2]
            root = facts.run()
            child = facts.run(parent=root, agent=("scout", "reviewer")[number % 4 // 2], name=f"sub_{number}")
            self.events += facts.whole_run(root) + facts.whole_run(child, steps=2)
            self.runs += [root, child]
            facts.ts += (0, 0, 0, -1_000_000, 3_000_000)[number % 5]  # it also steps back by a second


@pytest.fixture
def archive(store: Store) -> Archive:
    made = Archive()
    store.stored(*made.events)
    return made


@DIRECTIONS
@pytest.mark.spec("12.4")
@pytest.mark.case("B177")
@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_pages_neither_skip_nor_repeat_when_many_messages_have_one_time(
    store: Store, archive: Archive, limit: int, newest_first: bool
) -> None:
    rows = await store.rows("messages")
    assert len({row["ts"] for row in rows}) < len(rows) / 10
    seen = await all_pages(store, MessageFilter(newest_first=newest_first), limit)
    expected = sorted(((row["ts"], row["id"]) for row in rows), reverse=newest_first)
    assert [(row["ts"], row["id"]) for row in seen] == expected


@DIRECTIONS
@pytest.mark.spec("12.2", "12.4", "14.6")
@pytest.mark.case("B177")
async def test_within_a_session_and_a_run_the_order_is_that_of_the_events(
    store: Store, archive: Archive, newest_first: bool
) -> None:
    for facts in archive.sessions:
        seen = await all_pages(store, MessageFilter(session_id=facts.session.id, newest_first=newest_first), 9)
        assert len(seen) == 56
        assert [row["seq"] for row in seen] == sorted((row["seq"] for row in seen), reverse=newest_first)
    for run in archive.runs[:4]:
        seen = await all_pages(store, MessageFilter(run_id=run.id, newest_first=newest_first), 2)
        places = [(row["turn"], row["step"], row["sub"]) for row in seen]
        assert places == sorted(places, reverse=newest_first)
        assert {row["run_id"] for row in seen} == {run.id}


@settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
@pytest.mark.spec("12.4")
def test_every_combination_of_filters_finds_what_a_plain_search_finds(shelf: "Shelf", data: st.DataObject) -> None:
    chosen = MessageFilter(
        session_id=data.draw(st.sampled_from([None, *shelf.values("session_id")])),
        run_id=data.draw(st.sampled_from([None, None, *shelf.values("run_id")])),
        agent=data.draw(st.sampled_from([None, *shelf.values("agent"), "nobody"])),
        role=data.draw(st.sampled_from([None, "system", "user", "assistant", "tool"])),
        tool=data.draw(st.sampled_from([None, None, "read_file", "grep"])),
        since=data.draw(st.sampled_from([None, START, START + 1, START + 3_000_000, -(2**80)])),
        until=data.draw(st.sampled_from([None, START, START + 1, START + 9_000_000, 2**80])),
        newest_first=data.draw(st.booleans()),
    )
    found, count = shelf.ask(chosen, data.draw(st.integers(1, 40)))
    wanted = [row for row in shelf.rows if shelf.fits(row, chosen)]
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in wanted)
    key = ("seq",) if chosen.session_id or chosen.run_id else ("ts", "id")
    keys = [tuple(row[name] for name in key) for row in found]
    assert keys == sorted(keys, reverse=chosen.newest_first)
    assert count == len(wanted)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.spec("12.4")
def test_pages_that_look_at_few_rows_go_on_until_all_that_fits_was_found(shelf: "Shelf", data: st.DataObject) -> None:
    draw = data.draw
    session, run = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    chosen = MessageFilter(
        session_id=draw(st.sampled_from(shelf.values("session_id"))) if session else None,
        run_id=draw(st.sampled_from(shelf.values("run_id"))) if run else None,
        agent=draw(st.sampled_from([None, *shelf.values("agent"), "nobody"])),
        role=draw(st.sampled_from([None, "system", "user", "assistant", "tool"])),
        tool=draw(st.sampled_from([None, None, "read_file", "grep"])),
        since=draw(st.sampled_from([None, START + 3_000_000])),
        newest_first=draw(st.booleans()),
    )
    looked_at, limit = draw(st.integers(1, 30)), draw(st.integers(1, 9))
    pages = shelf.bounded(chosen, looked_at, limit)
    wanted = [row["seq"] for row in shelf.rows if shelf.fits(row, chosen)]
    assert [row["seq"] for page in pages for row in page.items] == sorted(wanted, reverse=chosen.newest_first)
    assert all(len(page.items) <= limit for page in pages)
    assert len(pages) <= len(shelf.rows) // looked_at + len(wanted) // limit + 1


class Shelf:
    """The archive in a SQLite store, asked from plain functions."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        database = Database(path, synchronous="OFF")
        self._runner.run(database.open())
        self.store = Store(database)
        self.store.stored(*Archive().events)
        self.rows = self._runner.run(self.store.rows("messages"))

    def values(self, column: str) -> list[str]:
        return sorted({row[column] for row in self.rows})

    def ask(self, filters: MessageFilter, limit: int) -> tuple[list[Record], int]:
        async def both() -> tuple[list[Record], int]:
            return await all_pages(self.store, filters, limit), (await self.store.audit.count("default", filters)).count

        return self._runner.run(both())

    def bounded(self, filters: MessageFilter, looked_at: int, limit: int) -> list[Page]:
        """The pages of a store that looks at few rows."""
        audit = SqlAuditStore(self.store.database.reader, looked_at=looked_at)

        async def pages() -> list[Page]:
            found = [await audit.messages("default", filters, limit=limit)]
            while found[-1].next is not None and len(found) < 500:
                found.append(await audit.messages("default", filters, cursor=found[-1].next, limit=limit))
            return found

        return self._runner.run(pages())

    @staticmethod
    def fits(row: Mapping[str, Any], filters: MessageFilter) -> bool:
        equal = all(
            getattr(filters, name) in (None, row[name]) for name in ("session_id", "run_id", "agent", "role", "tool")
        )
        late = filters.since is None or row["ts"] >= filters.since
        return equal and late and (filters.until is None or row["ts"] < filters.until)

    def close(self) -> None:
        self.store.writer.close()
        self._runner.run(self.store.database.close())
        self._runner.close()


@pytest.fixture
def shelf(file: Path) -> Any:
    made = Shelf(file)
    yield made
    made.close()


@pytest.mark.spec("12.4")
async def test_an_export_gives_every_message_once(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    store.stored(facts.created(), facts.queued(run))
    for _ in range(6):
        store.stored(*(facts.message(run, "user", "x") for _ in range(200)))
    sizes = [
        [row[EXPORTED.index("seq")] for row in page] async for page in store.audit.export("default", MessageFilter())
    ]
    assert [len(page) for page in sizes] == [500, 500, 200]
    assert [seq for page in sizes for seq in page] == list(range(3, 1203))


@pytest.mark.spec("12.4")
@pytest.mark.parametrize("text", [None, "xxx"])
async def test_a_page_of_an_export_is_bounded_by_its_characters(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(messages_module, "EXPORT_PAGE", 10)
    facts = Facts()
    run = facts.run()
    sizes = [EXPORT_CHARS // 2 - 1000] * 3 + [EXPORT_CHARS + 1] * 2 + [3] * 25
    store.stored(facts.created(), facts.queued(run), *(facts.message(run, "user", "x" * size) for size in sizes))
    for newest_first in (False, True):
        filters = MessageFilter(text=text, newest_first=newest_first)
        pages = [
            [len(row[EXPORTED.index("content")]) for row in page]
            async for page in store.audit.export("default", filters)
        ]
        assert [size for page in pages for size in page] == (sizes[::-1] if newest_first else sizes)
        assert all(len(page) == 1 or sum(page) <= EXPORT_CHARS for page in pages)


@pytest.mark.spec("12.4", "8.3")
@pytest.mark.parametrize("text", ["short", "long"])
async def test_an_export_gives_every_decision_once_in_pages_that_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(messages_module, "EXPORT_PAGE", 10)
    monkeypatch.setattr(messages_module, "EXPORT_CHARS", 4_000)
    facts = Facts(tick=0)
    run, other, call = facts.run(), facts.run(agent="other"), facts.call()
    store.stored(facts.created(), facts.queued(run), facts.queued(other))
    size = {"short": 10, "long": 900}[text]
    for number in range(31):
        changes = {"decision": ("deny", "allow")[number % 2], "reason": "x" * size}
        store.stored(facts.answered((run, other)[number % 3 == 0], call, None, **changes))
    rows = await store.rows("decisions")
    assert len(rows) == 31
    for newest_first, chosen, fits in product(
        (False, True),
        ({}, {"session_id": facts.session.id}, {"agent": "other"}),
        ({}, {"decision": "deny"}),
    ):
        filters = DecisionFilter(newest_first=newest_first, **{**chosen, **fits})  # type: ignore[arg-type]
        pages = [list(page) async for page in store.audit.export("default", filters)]
        assert all(len(page) == 1 or sum(len(row[DECIDED.index("reason")]) for row in page) <= 4_000 for page in pages)
        assert max(map(len, pages)) == (4 if text == "long" else min(10, sum(map(len, pages))))
        seen = [dict(zip(DECIDED, row, strict=True)) for page in pages for row in page]
        expected = [row for row in rows if all(row[name] == value for name, value in {**chosen, **fits}.items())]
        key = ("ts", "session_id", "seq")
        expected.sort(key=lambda row: [row[name] for name in key], reverse=newest_first)
        assert seen == [{name: row[name] for name in DECIDED} for row in expected]


@pytest.mark.spec("12.4")
async def test_counting_stops(sqlite_store: Store) -> None:
    facts = Facts()
    run = facts.run()
    sqlite_store.stored(facts.created(), facts.queued(run))
    for _ in range(11):
        sqlite_store.stored(*(facts.message(run, "user", "x") for _ in range(1000)))
    assert (await sqlite_store.audit.count("default", MessageFilter())).count == MAX_COUNT == 10_001
    assert (await sqlite_store.audit.count("default", MessageFilter(role="system"))).count == 0
    few = SqlAuditStore(sqlite_store.database.reader, looked_at=1_000)
    mine = MessageFilter(session_id=facts.session.id)
    for role, counted in (("user", 2_000), ("tool", 0)):
        assert await few.count("default", replace(mine, role=role)) == Counted(count=counted, bounded=True)
    many = SqlAuditStore(sqlite_store.database.reader, looked_at=6_000)
    for role, counted in (("user", MAX_COUNT), ("tool", 0)):
        assert await many.count("default", replace(mine, role=role)) == Counted(count=counted)


@pytest.mark.spec("12.4")
async def test_a_cursor_of_another_question_is_refused_with_advice(sqlite_store: Store) -> None:
    facts = Facts()
    sqlite_store.stored(facts.created(), *facts.whole_run(facts.run(), steps=3))
    page = await sqlite_store.audit.messages("default", MessageFilter(), limit=2)
    order = under("messages/time/oldest", {})
    huge = pack(order, [2**63, "msg_1"])
    for cursor, filters in (
        (page.next, MessageFilter(newest_first=True)),
        (page.next, MessageFilter(session_id=facts.session.id)),
        (huge, MessageFilter()),
        ("", MessageFilter()),
        ("%%%", MessageFilter()),
        ("é" * 500, MessageFilter()),
        (pack(order, ["1", "msg_1"]), MessageFilter()),
        (pack(order, [1]), MessageFilter()),
    ):
        with pytest.raises(InvalidRequest, match="pass `next` of the page before") as caught:
            await sqlite_store.audit.messages("default", filters, cursor=cursor)
        assert caught.value.code == "invalid_cursor"
        assert len(caught.value.message) < 300


@pytest.mark.spec("12.4")
async def test_a_cursor_belongs_to_the_values_of_its_filters(store: Store) -> None:
    mine, other = Facts(), Facts()
    for facts in (mine, other):
        store.stored(facts.created(), *facts.whole_run(facts.run(), steps=3))
    asked = MessageFilter(session_id=mine.session.id, since=START)
    page = await store.audit.messages("default", asked, limit=2)
    for another in (
        replace(asked, session_id=other.session.id),
        replace(asked, since=START + 1),
        replace(asked, role="user"),
        replace(asked, text="x"),
    ):
        with pytest.raises(InvalidRequest, match="with the same filters"):
            await store.audit.messages("default", another, cursor=page.next)
    again = SqlAuditStore(store.database.reader)  # as another process has it
    following = await again.messages("default", asked, cursor=page.next, limit=2)
    assert [row["seq"] for row in following.items] > [row["seq"] for row in page.items]


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def library(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A connection to a store with some thousand messages."""
    path = tmp_path_factory.mktemp("library") / "store.db"
    path.write_bytes(migrated_file.read_bytes())
    writer = Database(path, synchronous="OFF").writer(replaced)
    for number in range(30):
        facts = Facts(tenant=("default", "other")[number % 3 == 0])
        batch = [facts.created()]
        for turn in range(8):
            root = facts.run()
            batch += facts.whole_run(root, steps=turn)
            batch += facts.whole_run(facts.run(parent=root, agent=f"agent_{turn}"), steps=2)
        assert list(writer.write(batch)) == []
    writer.close()
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, statement: Select[Any] | Delete, parameters: Mapping[str, Any]) -> str:
    """The query plan; parameters that are not given are 1."""
    compiled = statement.compile(dialect=sqlite.dialect(paramstyle="named"))
    values = {name: 1 if value is None else value for name, value in compiled.params.items()}
    expanded = compiled.construct_expanded_state({**values, **parameters})
    rows = connection.execute(f"EXPLAIN QUERY PLAN {expanded.statement}", expanded.parameters)
    return "; ".join(row[3] for row in rows)


def combinations(names: tuple[str, ...]) -> list[frozenset[str]]:
    """All of them; in the short form without most of the large ones."""
    picks = [pick for pick in product((False, True), repeat=len(names)) if sum(pick) <= times(2, 9) or all(pick)]
    return [frozenset(name for name, picked in zip(names, pick, strict=True) if picked) for pick in picks]


@pytest.mark.spec("12.4")
@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
@pytest.mark.parametrize(
    ("table", "orders", "names"),
    [
        (messages, MESSAGE_ORDERS, ("session_id", "run_id", "agent", "role", "tool", "since", "until")),
        (decisions, DECISION_ORDERS, ("session_id", "run_id", "agent", "tool", "decision", "since", "until")),
        (approvals_table, approvals.ORDERS, ("session_id", "status")),
    ],
    ids=["messages", "decisions", "approvals"],
)
def test_every_page_is_read_along_the_index_of_its_order(
    library: sqlite3.Connection, table: Table, orders: tuple[Order, ...], names: tuple[str, ...], analysed: bool
) -> None:
    library.execute("ANALYZE" if analysed else "SELECT 1")
    values = {"tenant": "default", "limit": 51, "since": START, "until": START + 10**9}
    values |= {"session_id": "s", "run_id": "r", "agent": "a", "role": "user", "tool": "t", "status": "ok"}
    values |= {"decision": "deny", "after_session_id": "s", "after_requested_at": START}
    values |= {"after_ts": START, "after_id": "msg_1", "after_seq": 5}
    values |= {"edge_ts": START + 9, "edge_id": "msg_9", "edge_seq": 9, "edge_session_id": "s", "edge_requested_at": 1}
    by_key = {"approvals": "id", "decisions": "session"}  # the order that is the primary key's
    merged = {"agent": "agent_role", "time": "role"}
    for filters, newest, after, edge in product(combinations(names), *(((False, True),) * 3)):
        asked = question(table, orders, dict.fromkeys(filters, 1), newest)
        if edge and not asked.passing:
            continue
        asked = replace(asked, after=after, edge=edge)
        index = f"ix_{table.name}_{merged[asked.order.name] if asked.order.each else asked.order.name}"
        if by_key.get(table.name) == asked.order.name:
            index = f"sqlite_autoindex_{table.name}_1"
        steps = plan(library, asked.page(), values)
        searches = [step for step in steps.split("; ") if not re.fullmatch(r"LEFT|RIGHT|MERGE \(UNION ALL\)", step)]
        assert len(searches) == (4 if asked.order.each else 1), (asked, steps)
        for step in searches:
            assert step.startswith(f"SEARCH {table.name} USING INDEX {index} (tenant_id=?"), (asked, steps)
            assert step.count(">") + step.count("<") >= after + edge, (asked, steps)
        counting = plan(library, asked.count(), values)
        assert f"SCAN {table.name}" not in counting, counting
        if asked.passing:
            place = plan(library, asked.place(), {**values, "steps": 9})
            assert re.fullmatch(rf"SEARCH {table.name} USING COVERING INDEX {index} \([^;]*", place), (asked, place)


RARE = {
    "_all",
    "_busy_sessions",
    "_newest",
    "_last",
    "_open_handoffs",
    "_open_runs",
    "_told_tasks",
    "_untold_tasks",
    "_every",
    "_one",
}  # at start, or for the operator


@pytest.mark.spec("12.4")
def test_every_other_read_searches_an_index(library: sqlite3.Connection) -> None:
    seen = 0
    for module in (agents, approvals, events, keys, memories, runs, tasks):
        for name, statement in vars(module).items():
            if not isinstance(statement, Select) or name in RARE:
                continue
            steps = plan(library, statement, {"handoffs": ["ho_1", "ho_2"]} if name == "_attempts" else {})
            scans = re.findall(r"SCAN (?!\(join-1\)|CONSTANT ROW)\S+", steps)  # these two read no table
            assert scans == [], (name, steps)
            assert "TEMP B-TREE FOR ORDER" not in steps, (name, steps)
            seen += 1
    assert seen >= 15
    for table, statement in (("runs", runs._open_runs), ("handoffs", runs._open_handoffs)):
        assert f"SCAN {table} USING INDEX ix_{table}_open" in plan(library, statement, {})
    assert "SCAN sessions USING COVERING INDEX ix_sessions_busy" in plan(library, runs._busy_sessions, {})
    assert "CORRELATED" not in plan(library, runs._untold_tasks, {}), "the notices of a session are read for each task"


@pytest.mark.spec("12.4")
@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
def test_whether_there_is_a_session_or_run_is_looked_up_in_indexes_alone(
    library: sqlite3.Connection, analysed: bool
) -> None:
    library.execute("ANALYZE" if analysed else "SELECT 1")
    steps = plan(library, messages_module._named, {}).split("; ")
    searches = [step for step in steps if "CONSTANT ROW" not in step and "SCALAR SUBQUERY" not in step]
    assert len(searches) == 6
    for step in searches:
        assert re.fullmatch(
            r"SEARCH \w+ USING (COVERING )?INDEX \w+ \(tenant_id=\? AND (session_id|run_id|id)=\?\)", step
        ), steps


@pytest.mark.spec("12.4", "12.5")
@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
def test_what_is_too_old_of_a_session_is_found_and_removed_by_searching_indexes(
    library: sqlite3.Connection, analysed: bool
) -> None:
    library.execute("ANALYZE" if analysed else "SELECT 1")
    steps = plan(library, retention._more, {})
    assert "SCAN" not in re.sub(r"SCAN CONSTANT ROW", "", steps), steps
    for table, goes in pruning.ended(START, START):
        of_session = table.c.tenant_id == "default", table.c.session_id == "s"
        steps = plan(library, delete(table).where(*of_session, goes), {})
        assert f"SEARCH {table.name} USING INDEX ix_{table.name}_session (tenant_id=? AND session_id=?" in steps, steps
        assert "SCAN" not in steps, steps
        assert "SEARCH cleared_tasks USING INDEX sqlite_autoindex_cleared_tasks_1 (tenant_id=? AND handoff" in steps, (
            steps
        )


@pytest.mark.spec("9.2", "12.4")
@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "statistics"])
def test_a_page_of_tasks_is_read_along_the_index_of_tasks_whatever_it_is_narrowed_by(
    library: sqlite3.Connection, analysed: bool
) -> None:
    library.execute("ANALYZE" if analysed else "SELECT 1")
    for names, after in product(
        combinations(("session_id", "status", "agent", "ended", "ended_before")), (False, True)
    ):
        steps = plan(library, tasks._page(names, after=after), {"limit": 51})
        assert steps.startswith("SEARCH handoffs USING INDEX ix_handoffs_tasks (tenant_id=?"), (names, steps)
        assert "TEMP B-TREE" not in steps, (names, steps)


def test_ids_made_in_one_process_are_in_the_order_of_time() -> None:
    facts = Facts()
    ids = [facts.call()["call_id"] for _ in range(1000)]
    assert all(one < two for one, two in pairwise(ids))
