"""Looking for texts: what is indexed, what is not yet, and what is gone; every answer is bounded and says so."""

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.dialects import sqlite

from app.agent.errors import InvalidRequest
from app.agent.events import Write
from app.sessions.audit import MAX_COUNT, MessageFilter
from app.store import search
from app.store.messages import MESSAGE_ORDERS, SqlAuditStore
from app.store.pages import question
from app.store.reader import Reader, Record
from app.store.search import TextIndex, match_of
from app.store.tables import messages
from tests.longer import times
from tests.store.conftest import Store
from tests.store.facts import Facts
from tests.store.test_pages import DIRECTIONS

TENANT = "default"


def moved(upto: int) -> Write:
    """What the indexer writes."""
    return Write(table="text_index", values={"tenant_id": TENANT, "upto": upto}, key=("tenant_id",))


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
    for number in range(times(24, 60)):
        source = other if number % 3 == 2 else facts
        text = f"{number} needle" if number % 4 else f"{number} hay"
        source.ts += (0, 0, 5, -2)[number % 4]
        store.stored(source.message(runs[number % 3], ("user", "assistant")[number % 2], text))
        if number == 15:
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
