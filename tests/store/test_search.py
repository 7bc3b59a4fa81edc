"""Looking for texts: what is indexed, what is not yet, and what is gone; every answer is bounded and says so."""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.dialects import sqlite

from app.agent import faults
from app.agent.errors import InvalidRequest
from app.agent.events import Write
from app.sessions.audit import MAX_COUNT, MessageFilter
from app.sessions.ports import TransientStoreError
from app.store import search, text_index
from app.store.database import Database, writing_connection
from app.store.location import locate
from app.store.messages import MESSAGE_ORDERS, SqlAuditStore
from app.store.migrate import upgrade
from app.store.pages import question
from app.store.reader import Reader, Record
from app.store.search import TextIndex, match_of
from app.store.tables import messages
from tests.store.conftest import Store
from tests.store.facts import Facts
from tests.store.test_pages import DIRECTIONS

TENANT = "default"


def moved(upto: int) -> Write:
    """What the indexer writes."""
    return Write(table="text_index", values={"tenant_id": TENANT, "upto": upto}, key=("tenant_id",))


PURGE = Write(table="text_index", values={"tenant_id": TENANT, "purge": True}, key=("tenant_id",))


async def indexed(store: Store) -> None:
    """Let the index catch up, as the indexer does."""
    index = TextIndex(store.database.reader)
    while (upto := await index.next_part()) is not None:
        store.stored(writes=[moved(upto)])


def said(store: Store, *texts: str, tenant: str = TENANT, agent: str = "lead") -> Facts:
    """A session in which these texts were said."""
    facts = Facts(tenant)
    run = facts.run(agent=agent)
    store.stored(facts.created(), facts.queued(run), *(facts.message(run, "user", text) for text in texts))
    return facts


async def found(store: Store, text: str, tenant: str = TENANT, **filters: Any) -> list[str]:
    """The contents that a search gives, over all pages."""
    seen: list[str] = []
    cursor = None
    for _ in range(200):
        page = await store.audit.messages(tenant, MessageFilter(text=text, **filters), cursor=cursor, limit=3)
        seen += [row["content"] for row in page.items]
        cursor = page.next
        if cursor is None:
            return seen
    raise AssertionError("the pages do not end")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm()


INDEXED = pytest.mark.parametrize("in_index", [True, False], ids=["indexed", "not yet indexed"])


@INDEXED
@pytest.mark.spec("12.4")
async def test_a_text_is_found_in_every_script_and_ascii_in_either_case(store: Store, in_index: bool) -> None:
    said(store, "小黄门去查一查奏折", "The Quick brown FOX", "Ünïcödé ÄRGER 🦊🦊🦊", "nothing of that")
    if in_index:
        await indexed(store)
    assert await found(store, "查一查") == ["小黄门去查一查奏折"]
    assert await found(store, "查折奏") == []
    assert await found(store, "quick BROWN fox") == ["The Quick brown FOX"]
    assert await found(store, "ÄRG") == ["Ünïcödé ÄRGER 🦊🦊🦊"]
    assert await found(store, "ärg") == [], "only ASCII letters have two cases here"
    assert await found(store, "🦊🦊🦊") == ["Ünïcödé ÄRGER 🦊🦊🦊"]


ODD = [
    'say "no"', '"""', "***", "a AND b", "NEAR(a b, 2)", "content:abc", "100%_\\%", "'; DROP TABLE messages; --",
    "tab\there\nand there", "a\\'b\"c*", "^start", "-minus +plus", "{col}:x", "]]>", "%%%", "___", "\\\\\\",
]  # fmt: skip


@INDEXED
@pytest.mark.spec("12.4")
async def test_no_character_of_a_text_is_an_operator(store: Store, in_index: bool) -> None:
    decoys = ["a b", "100 and more", "aXb", "content abc", "abc"]
    said(store, *(f"<{text}>" for text in ODD), *decoys)
    if in_index:
        await indexed(store)
    for text in ODD:
        assert await found(store, text) == [f"<{text}>"], text
    for text in ("abc OR 100", "abc*", "a_b", "%", "zz\\"):
        assert await found(store, text, since=0) == [t for t in (f"<{o}>" for o in ODD) if text in t], text


@INDEXED
@pytest.mark.spec("12.4")
async def test_what_no_store_takes_is_looked_for_as_what_was_stored_instead(store: Store, in_index: bool) -> None:
    said(store, "before\ufffdafter")
    if in_index:
        await indexed(store)
    for text in ("before\0after", "before\ud800after"):
        assert await found(store, text) == ["before\ufffdafter"]
    assert await found(store, "before\0\0after") == []
    assert await found(store, "x" * 900 + "before") == []


@pytest.mark.spec("12.4")
async def test_a_long_text_is_found_by_some_of_its_trigrams_and_told_from_its_like(store: Store) -> None:
    long = "".join(chr(0x4E00 + number * 7 % 5000) for number in range(900))
    other = long[:450] + "别" + long[451:]
    said(store, f"<{long}>", f"<{other}>")
    await indexed(store)
    assert await found(store, long) == [f"<{long}>"]
    assert match_of(TENANT, long).count(" AND ") <= 24


@pytest.mark.spec("12.4", "17.1")
async def test_nobody_finds_what_another_tenant_has_said(store: Store) -> None:
    said(store, "the word is xylophone", tenant="a")
    said(store, "my xylophone is mine", tenant="b")
    await indexed(store)
    said(store, "a new xylophone", tenant="a")
    assert await found(store, "xylophone", "a") == ["the word is xylophone", "a new xylophone"]
    assert await found(store, "xylophone", "b") == ["my xylophone is mine"]
    assert await found(store, "xylophone") == []


@pytest.mark.spec("12.4", "17.1")
async def test_the_texts_of_other_tenants_do_not_count_as_candidates(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CANDIDATES", 5)
    said(sqlite_store, *["a common word"] * 20, tenant="a")
    said(sqlite_store, "a common word of b", tenant="b")
    await indexed(sqlite_store)
    index = TextIndex(sqlite_store.database.reader)
    assert await index.candidates("a", "common") is None
    assert len(await index.candidates("b", "common") or ()) == 1


@pytest.mark.spec("12.4")
async def test_short_texts_need_a_session_a_run_or_a_time(store: Store) -> None:
    facts = said(store, "奏折", "no")
    await indexed(store)
    for filters in ({}, {"agent": "lead"}, {"role": "user"}):
        with pytest.raises(InvalidRequest, match="fewer than 3 characters: name a session, a run or a time") as refused:
            await found(store, "奏折", **filters)
        assert refused.value.errors[0]["at"] == "text"
        with pytest.raises(InvalidRequest):
            await store.audit.count(TENANT, MessageFilter(text="奏", **filters))
    for filters in ({"session_id": facts.session.id}, {"since": 0}, {"until": 2**62}):
        assert await found(store, "奏折", **filters) == ["奏折"]
        assert await found(store, "奏", **filters) == ["奏折"]


@DIRECTIONS
@pytest.mark.spec("12.4")
@pytest.mark.parametrize("candidates", [20_000, 4], ids=["few candidates", "along the log"])
async def test_pages_and_counts_with_a_text_are_those_without_it_where_it_stands(
    store: Store, newest_first: bool, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CANDIDATES", candidates)
    facts, other = Facts(tick=0), Facts(tick=0)
    runs = [facts.run(), facts.run(agent="scout"), other.run()]
    store.stored(facts.created(), other.created(), facts.queued(runs[0]), facts.queued(runs[1]), other.queued(runs[2]))
    for number in range(40):
        source = other if number % 3 == 2 else facts
        text = f"{number} needle" if number % 4 else f"{number} hay"
        source.ts += (0, 0, 5, -2)[number % 4]
        store.stored(source.message(runs[number % 3], ("user", "assistant")[number % 2], text))
        if number == 25:
            await indexed(store)
    sessions = (None, facts.session.id, other.session.id)
    asked = [MessageFilter(session_id=session, agent=agent) for session in sessions for agent in (None, "scout")]
    asked += [MessageFilter(role="user"), MessageFilter(run_id=runs[1].id), MessageFilter(since=Facts().ts + 8)]
    asked += [MessageFilter(until=Facts().ts + 8, agent="lead")]
    bounded = SqlAuditStore(store.database.reader, scanned=7)
    for filters in asked:
        plain = replace(filters, newest_first=newest_first)
        everything = (await store.audit.messages(TENANT, plain, limit=100)).items
        wanted = [row["id"] for row in everything if "needle" in row["content"]]
        for audit in (store.audit, bounded):
            seen: list[str] = []
            cursor = None
            for _ in range(60):
                page = await audit.messages(TENANT, replace(plain, text="NEEDLE"), cursor=cursor, limit=2)
                seen += [row["id"] for row in page.items]
                assert page.bounded == (page.next is not None and len(page.items) < 2) or len(page.items) == 2
                cursor = page.next
                if cursor is None:
                    break
            assert seen == wanted, filters
        counted = await store.audit.count(TENANT, replace(plain, text="needle"))
        assert (counted.count, counted.bounded) == (len(wanted), False)


@pytest.mark.spec("12.4")
async def test_a_search_stops_after_its_bound_says_so_and_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CANDIDATES", 4)
    said(store, *["hay"] * 30, "needle", *["hay"] * 30)
    audit = SqlAuditStore(store.database.reader, scanned=25)
    filters = MessageFilter(text="needle")
    page = await audit.messages(TENANT, filters)
    assert (page.items, page.bounded) == ([], True)
    assert page.next is not None
    page = await audit.messages(TENANT, filters, cursor=page.next)
    assert ([row["content"] for row in page.items], page.bounded) == (["needle"], True)
    page = await audit.messages(TENANT, filters, cursor=page.next)
    assert (page.items, page.next, page.bounded) == ([], None, False)
    counted = await audit.count(TENANT, filters)
    assert (counted.count, counted.bounded) == (0, True)
    assert [len(rows) async for rows in audit.export(TENANT, filters)] == [1]


@pytest.mark.spec("12.4")
async def test_counting_hits_stops_like_other_counting(sqlite_store: Store) -> None:
    said(sqlite_store, *["a common word"] * (MAX_COUNT + 99))
    counted = await sqlite_store.audit.count(TENANT, MessageFilter(text="common"))
    assert (counted.count, counted.bounded) == (MAX_COUNT, False)


@pytest.mark.spec("12.4")
async def test_a_cursor_of_another_order_is_refused_with_a_text_too(store: Store) -> None:
    facts = said(store, *["needle"] * 9)
    page = await store.audit.messages(TENANT, MessageFilter(text="needle"), limit=2)
    for filters in (MessageFilter(text="needle", newest_first=True), MessageFilter(session_id=facts.session.id)):
        with pytest.raises(InvalidRequest, match="does not belong to this question"):
            await store.audit.messages(TENANT, filters, cursor=page.next)


# ── the index ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.4")
async def test_index_and_its_end_move_together_or_not_at_all(store: Store) -> None:
    said(store, "one needle", "two needle")
    upto = await TextIndex(store.database.reader).next_part()
    assert upto is not None

    def lost() -> None:
        raise TransientStoreError("the process died")

    faults.arm("store.commit", lost)
    with pytest.raises(TransientStoreError):
        store.write(writes=[moved(upto)])
    faults.disarm()
    assert await store.number("SELECT upto FROM text_index") == 0
    assert await found(store, "needle") == ["one needle", "two needle"]
    faults.arm("store.committed", lost)
    with pytest.raises(TransientStoreError):
        store.write(writes=[moved(upto)])
    faults.disarm()
    store.stored(writes=[moved(upto)])  # its answer was lost, so it comes again
    assert await store.number("SELECT upto FROM text_index") == upto
    store.stored(writes=[moved(1)])
    assert await store.number("SELECT upto FROM text_index") == upto, "it never goes back"
    assert await TextIndex(store.database.reader).next_part() is None
    assert len(await TextIndex(store.database.reader).candidates(TENANT, "needle") or ()) == 2
    assert await found(store, "needle") == ["one needle", "two needle"]


@pytest.mark.spec("12.4")
async def test_a_part_for_the_indexer_is_bounded_by_messages_and_characters(store: Store) -> None:
    said(store, *["x"] * 150, "y" * 80_000, "y" * 69_000, "y" * 2_000)
    index, sizes, before = TextIndex(store.database.reader), [], 0
    while (upto := await index.next_part()) is not None:
        store.stored(writes=[moved(upto)])
        sizes.append(upto - before)
        before = upto
    assert sizes == [100, 50, 1, 1, 1]


@pytest.mark.spec("12.4", "14.2")
async def test_what_a_deleted_session_said_is_not_found_whatever_was_indexed(store: Store) -> None:
    gone, stays = said(store, "old needle"), said(store, "needle that stays")
    await indexed(store)
    run = gone.run()
    store.stored(gone.queued(run), gone.message(run, "user", "new needle"))
    store.stored(gone.closed("deleted"))
    assert await found(store, "needle") == ["needle that stays"]
    await indexed(store)
    assert await found(store, "needle") == ["needle that stays"]
    assert len(await TextIndex(store.database.reader).candidates(TENANT, "needle") or ()) == 1
    assert stays.session.id != gone.session.id


def terms(path: Path) -> Sequence[bytes]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT block FROM messages_text_data")]


@pytest.mark.spec("12.4", "14.2")
async def test_nothing_of_a_deleted_session_is_left_in_the_index(sqlite_store: Store, file: Path) -> None:
    secret, part = "鱻鱻鱻", b"\xbb\xe9\xb1\xbb\xe9\xb1\xbb"  # terms share at most their first bytes with others
    gone = said(sqlite_store, f"the word is {secret}", *["padding of many words"] * 50)
    await indexed(sqlite_store)
    for number in range(5):
        said(sqlite_store, *(f"other texts {number}" for _ in range(120)))
        await indexed(sqlite_store)
    assert any(part in block for block in terms(file))
    sqlite_store.stored(gone.closed("deleted"))
    assert await sqlite_store.number("SELECT purge FROM text_index") == text_index.PURGE_WANTED
    index = TextIndex(sqlite_store.database.reader)
    for _ in range(200):
        if not await index.purging():
            break
        sqlite_store.stored(writes=[PURGE])
    assert not await index.purging()
    assert not any(part in block for block in terms(file))
    assert len(await found(sqlite_store, "other texts 3")) == 120
    sqlite_store.writer.close()
    await sqlite_store.database.close()
    assert part not in file.read_bytes()


@pytest.mark.spec("12.4")
async def test_the_index_of_sqlite_agrees_with_itself(sqlite_store: Store) -> None:
    facts = [said(sqlite_store, *(f"{number} words {number * 7}" for number in range(90))) for _ in range(4)]
    await indexed(sqlite_store)
    sqlite_store.stored(facts[1].closed("deleted"))
    said(sqlite_store, "words at the end")
    await indexed(sqlite_store)
    assert len(await TextIndex(sqlite_store.database.reader).candidates(TENANT, "words") or ()) == 271


@pytest.mark.postgres
@pytest.mark.spec("12.1", "12.4")
async def test_without_pg_trgm_texts_are_found_one_by_one_and_readiness_says_why(postgres_url: str) -> None:
    with writing_connection(locate(postgres_url), "OFF", 1000) as connection, connection.begin():
        connection.exec_driver_sql("DROP INDEX ix_messages_text_trigrams")
    database = Database(postgres_url)
    await database.open()
    store = Store(database)
    index = TextIndex(database.reader)
    assert "pg_trgm could not be made" in (await index.missing() or "")
    said(store, "one needle", "two hays")
    assert await found(store, "needle") == ["one needle"]
    await indexed(store)  # it was there before, and somebody took it away
    assert await index.candidates(TENANT, "needle") is None
    assert await found(store, "needle") == ["one needle"]
    store.writer.close()
    await database.close()


@pytest.mark.postgres
@pytest.mark.spec("12.1", "12.4")
async def test_where_the_extension_may_not_be_made_the_migration_goes_on_without(empty_postgres_url: str) -> None:
    with writing_connection(locate(empty_postgres_url), "OFF", 1000) as connection, connection.begin():
        taken = "CREATE FUNCTION similarity(text, text) RETURNS real LANGUAGE sql AS 'SELECT 1::real'"
        connection.exec_driver_sql(taken)
    assert upgrade(empty_postgres_url)
    database = Database(empty_postgres_url)
    await database.open()
    assert await TextIndex(database.reader).missing() is not None
    await database.close()


@pytest.mark.spec("12.4")
def test_candidates_are_read_by_their_number_and_walks_go_along_an_index(file: Path) -> None:
    by_number = replace(question(messages, MESSAGE_ORDERS, {}, True), text=True, among=True)
    asked = [dict.fromkeys(names, 1) for names in ((), ("agent",), ("session_id", "role"), ("since", "until"))]
    along = [question(messages, MESSAGE_ORDERS, given, True) for given in asked]
    walks = [replace(walk, text=True, edge=True, after=True) for walk in along]
    statements = [by_number.page(), *(walk.page() for walk in walks), *(walk.place() for walk in walks)]
    plans = []
    with sqlite3.connect(file) as connection:
        for statement in statements:
            compiled = statement.compile(dialect=sqlite.dialect(paramstyle="named"))
            given = {name: "[]" if name == "rows" else 1 for name in compiled.params}
            plans.append([row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {compiled}", given)])
    assert plans[0][0] == "SEARCH messages USING INTEGER PRIMARY KEY (rowid=?)"
    merging = {"MERGE (UNION ALL)", "LEFT", "RIGHT"}  # of walks that are in order already: nothing is sorted
    for plan, how in ((plan, "INDEX" if at < 5 else "COVERING INDEX") for at, plan in enumerate(plans[1:], 1)):
        walks = [step for step in plan if step not in merging]
        assert all(step.startswith(f"SEARCH messages USING {how} ix_messages_") for step in walks), plan
        assert len(walks) == (4 if len(plan) > 1 else 1), "one for each role where none is given"


@pytest.mark.spec("12.3", "12.4", "14.2")
async def test_a_damaged_index_costs_no_fact_and_no_answer_and_is_made_anew_once_it_is_noticed(
    sqlite_store: Store, file: Path
) -> None:
    gone = said(sqlite_store, *["needle that goes"] * 60)
    said(sqlite_store, "needle that stays")
    await indexed(sqlite_store)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM messages_text_data WHERE id > 10")  # all but what says where things are
    said(sqlite_store, "needle that is new")
    assert len(await found(sqlite_store, "needle", since=0)) == 62
    await indexed(sqlite_store)
    assert len(await found(sqlite_store, "needle", since=0)) == 62
    sqlite_store.stored(gone.closed("deleted"))
    assert await found(sqlite_store, "needle", since=0) == ["needle that stays", "needle that is new"]
    sqlite_store.stored(writes=[PURGE])  # here it is noticed
    assert await sqlite_store.number("SELECT upto + purge FROM text_index") == 0
    await indexed(sqlite_store)
    assert len(await TextIndex(sqlite_store.database.reader).candidates(TENANT, "needle") or ()) == 2


class Watched(Reader):
    """Notes how many statements were under way at a time."""

    under_way = most = 0

    async def rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> list[Record]:
        """See `Reader.rows`."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().rows(statement, parameters)
        finally:
            self.under_way -= 1


@pytest.mark.spec("12.4")
async def test_searches_leave_readers_to_others(sqlite_store: Store) -> None:
    said(sqlite_store, *["needle"] * 20)
    reader = Watched(sqlite_store.database._engine)
    audit = SqlAuditStore(reader)
    asked = MessageFilter(text="needle")
    found, counted = await asyncio.gather(
        asyncio.gather(*(audit.messages(TENANT, asked) for _ in range(9))),
        asyncio.gather(*(audit.count(TENANT, asked) for _ in range(9))),
    )
    assert {len(page.items) for page in found} == {count.count for count in counted} == {20}
    assert reader.most == 2
