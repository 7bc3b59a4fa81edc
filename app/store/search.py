"""Looks texts up in the index of messages: which rows may hold a text (`text_index.py` fills the index).

What the index gives are candidates; whether they hold the text is decided on the text itself. ASCII letters are found
in either case, everything else as it is written.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import msgspec
from sqlalchemy import Executable, Text, bindparam, cast, func, select, text

from app.sessions.audit import SHORTEST
from app.sessions.ports import TransientStoreError
from app.store.failures import is_index_damage
from app.store.reader import Reader, Record
from app.store.tables import messages
from app.store.text_index import PART, mark, part_of
from app.store.upkeep_tables import erased_texts, text_index

log = logging.getLogger(__name__)

CANDIDATES = 20_000  # looked at one by one: 0.1 s; a text that more may hold is found sooner by walking along the log
_TRIGRAMS = 24  # of a long text: enough to leave few candidates, and the text decides anyway
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_ASCII_WORD = re.compile(r"[a-z0-9]{3}")
_WORD = re.compile(r"[^\W_]{3}")

_state = select(text_index.c.upto, text_index.c.purge)
# Numbers come as one JSON text: as rows, twenty thousand of them would hold the event loop for some ms.
_tail_rows = select(messages.c.row_id).where(messages.c.row_id > bindparam("upto")).limit(bindparam("limit")).subquery()
_tail = {
    "sqlite": select(func.json_group_array(_tail_rows.c.row_id).label("rows")),
    "postgresql": select(cast(func.json_agg(_tail_rows.c.row_id), Text).label("rows")),
}
_erased = select(erased_texts.c.row_id).limit(1)
_next = (
    select(messages.c.row_id, func.length(messages.c.content).label("size"))
    .where(messages.c.row_id > bindparam("upto"))
    .order_by(messages.c.row_id)
    .limit(PART)
)
_fts = text(
    "SELECT json_group_array(row_id) AS rows, (SELECT upto FROM text_index) AS upto FROM "
    "(SELECT rowid AS row_id FROM messages_text WHERE messages_text MATCH :match LIMIT :limit)"
)
_trgm = text(
    "SELECT json_agg(row_id)::text AS rows FROM (SELECT row_id FROM messages_text "
    "WHERE tenant_id = :tenant AND content LIKE :pattern ESCAPE '\\' LIMIT :limit) AS found"
)
_has_trgm = text("SELECT to_regclass('ix_messages_text_trigrams') IS NOT NULL AS there")
_knows_words = text("SELECT cardinality(show_trgm('查奏折')) > 0 AS known")


def folded(wanted: str) -> str:
    """The text as it is compared."""
    return wanted.translate(_LOWER)


class TextIndex:
    """Reads the index of one database, through `reader`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._words: bool | None = None  # PostgreSQL: whether trigrams of other scripts than Latin are made

    async def candidates(self, tenant: str, wanted: str) -> Sequence[int] | None:
        """The `row_id`s of all messages of a tenant that may hold a text, and of those of anybody that are not in the
        index yet; None when they are too many, or the index cannot be asked for this text."""
        if len(wanted) < SHORTEST:
            return None
        # The end of the index first: what moves into it meanwhile is then found twice, and not passed over.
        upto = await self._upto()
        tail = await self._numbers(_tail[self._reader.dialect], {"upto": upto, "limit": CANDIDATES + 1})
        if len(tail) > CANDIDATES or (upto and await self.missing()):
            return None
        limit = CANDIDATES + 1 - len(tail)
        found = await self._found(tenant, folded(wanted), limit, upto) if upto else []
        if found is None or len(found) + len(tail) > CANDIDATES:
            return None
        return sorted({*found, *tail})

    async def _numbers(self, statement: Executable, parameters: Mapping[str, Any]) -> list[int]:
        return _numbers_of(await self._reader.row(statement, parameters))

    async def missing(self) -> str | None:
        """Why this database has no index; None when it has one."""
        if self._reader.dialect == "sqlite":
            return None
        row = await self._reader.row(_has_trgm)
        return None if row and row["there"] else NO_TRIGRAMS

    async def next_part(self) -> int | None:
        """Up to which `row_id` the next part goes that is to be indexed; None: all messages are."""
        rows = await self._reader.rows(_next, {"upto": await self._upto()})
        return rows[part_of([row["size"] for row in rows]) - 1]["row_id"] if rows else None

    async def erased(self) -> bool:
        """Whether texts of messages that are gone are still to be taken out of the index."""
        return await self._reader.row(_erased) is not None

    async def purging(self) -> bool:
        """Whether something that was taken out still stands in the index, marked as gone."""
        return bool((await self._reader.row(_state) or {"purge": 0})["purge"])

    async def _upto(self) -> int:
        return int((await self._reader.row(_state) or {"upto": 0})["upto"])

    @property
    def damaged(self) -> bool:
        """Whether a search met damage in the index since `mended`."""
        return self._reader.index_damaged

    def mended(self) -> None:
        """It is made anew."""
        self._reader.index_damaged = False

    async def _found(self, tenant: str, wanted: str, limit: int, upto: int) -> list[int] | None:
        if self._reader.dialect == "sqlite":
            return await self._in_fts(tenant, wanted, limit, upto)
        if not await self._extracts(wanted):
            return None
        return await self._numbers(_trgm, {"tenant": tenant, "pattern": pattern_of(wanted), "limit": limit})

    async def _in_fts(self, tenant: str, wanted: str, limit: int, upto: int) -> list[int] | None:
        """None as well when the index has been emptied since it was up to `upto`."""
        try:
            row = await self._reader.row(_fts, {"match": match_of(tenant, wanted), "limit": limit})
        except TransientStoreError as error:
            if not is_index_damage(error.__cause__):
                raise
            log.error("the text index is damaged, and a text is looked for without it: %s", error)
            return None
        return _numbers_of(row) if row and row["upto"] >= upto else None

    async def _extracts(self, wanted: str) -> bool:
        """Whether pg_trgm makes trigrams of a text: of three letters or digits in a row; without them it would go
        through the whole index. In a database with the locale C, no others than ASCII's are letters."""
        if _ASCII_WORD.search(wanted):
            return True
        if not _WORD.search(wanted):
            return False
        if self._words is None:
            row = await self._reader.row(_knows_words)
            self._words = bool(row and row["known"])
        return self._words


def _numbers_of(row: Record | None) -> list[int]:
    return msgspec.json.decode(row["rows"] or "[]", type=list[int]) if row else []


NO_TRIGRAMS = (
    "the extension pg_trgm could not be made in this database: searches look at up to 50,000 messages one by one; "
    "docs/audit.md says how to add it"
)


def match_of(tenant: str, wanted: str) -> str:
    """The question to FTS5: the trigrams of a text, each quoted, so that nothing in it is an operator."""
    last = len(wanted) - 3
    count = min(last + 1, _TRIGRAMS)
    places = [0] if count == 1 else sorted({last * place // (count - 1) for place in range(count)})
    trigrams = dict.fromkeys([mark(tenant), *(wanted[at : at + 3] for at in places)])
    return " AND ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams)


def pattern_of(wanted: str) -> str:
    """The pattern for LIKE that means the text and nothing else."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", wanted) + "%"
