"""Keeps the text index of messages: what goes in, what comes out, and that nothing of it stays behind.

Works on the writing connection, inside the transaction of its caller; `search.py` reads. The row of `text_index` says
how far the index is; it moves in the transaction that fills the index, so that the two cannot disagree.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    table,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from app.store.failures import is_index_damage
from app.store.tables import messages
from app.store.upkeep_tables import erased_texts, text_index

log = logging.getLogger(__name__)

PART, PART_CHARS = 100, 70_000  # messages of one transaction: 5 to 10 ms
MERGED_PAGES = 64  # of one transaction: about 10 ms
PURGE_WANTED, PURGE_UNDER_WAY = 1, 2
_PRIVATE = 0xE000  # Unicode's private use area: 6,400 characters that no text should hold
_PRIVATE_SIZE = 6_400

_state = select(text_index.c.upto, text_index.c.purge)
_between = (
    select(messages.c.row_id, messages.c.tenant_id, messages.c.content)
    .where(messages.c.row_id > bindparam("after"), messages.c.row_id <= bindparam("upto"))
    .order_by(messages.c.row_id)
)
_ADD = "INSERT INTO messages_text (rowid, content) VALUES (?, ?)"
_REMOVE = "INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', ?, ?)"
_EMPTY = "INSERT INTO messages_text (messages_text) VALUES ('delete-all')"
_MERGE = "INSERT INTO messages_text (messages_text, rank) VALUES ('merge', ?)"
_COPY = text(
    'INSERT INTO messages_text (tenant_id, row_id, content) SELECT tenant_id, row_id, lower(content COLLATE "C") '
    "FROM messages WHERE row_id > :after AND row_id <= :upto"
)
_copies = table("messages_text", column("row_id", BigInteger))  # PostgreSQL
_erased_sizes = (
    select(erased_texts.c.row_id, func.length(erased_texts.c.content).label("size"))
    .order_by(erased_texts.c.tenant_id, erased_texts.c.row_id)
    .limit(PART)
)
_erased = select(erased_texts).where(erased_texts.c.row_id.in_(bindparam("rows", expanding=True)))
_forgotten = delete(erased_texts).where(erased_texts.c.row_id.in_(bindparam("rows", expanding=True)))


def mark(tenant: str) -> str:
    """Three characters that stand before every text of a tenant in SQLite's index: one trigram that only the texts of
    that tenant have, so that a search never goes through those of others."""
    number = int.from_bytes(sha256(tenant.encode("utf-8", "replace")).digest()[:8])
    found = ""
    for _ in range(3):
        number, place = divmod(number, _PRIVATE_SIZE)
        found += chr(_PRIVATE + place)
    return found


def index_messages(connection: Connection, upto: int) -> None:
    """Take the messages behind those that are in the index in, up to that `row_id`. Done twice it is done once."""
    state = connection.execute(_state).one()
    if upto <= state.upto:
        return
    span = {"after": state.upto, "upto": upto}
    if connection.dialect.name == "sqlite":
        rows = connection.execute(_between, span).all()
        if rows and not _in_fts(connection, partial(_into_fts, connection, rows)):
            return
    else:
        connection.execute(_COPY, span)
    connection.execute(update(text_index).values(upto=upto))


def forget_messages(connection: Connection, which: ColumnElement[bool]) -> None:
    """Take messages out of the index that are about to be deleted; `which` is a condition on their table. SQLite's is
    told of them later, by `forget_part`: that takes as long as it took to index them."""
    state = connection.execute(_state).one()
    mine = and_(which, messages.c.row_id <= state.upto)
    if connection.dialect.name == "sqlite":
        texts = select(messages.c.tenant_id, messages.c.row_id, messages.c.content).where(mine)
        connection.execute(insert(erased_texts).from_select(["tenant_id", "row_id", "content"], texts))
    else:
        connection.execute(delete(_copies).where(_copies.c.row_id.in_(select(messages.c.row_id).where(mine))))


def forget_part(connection: Connection) -> None:
    """Take some of the texts that were erased out of SQLite's index, at least one."""
    sizes = connection.execute(_erased_sizes).all()
    if not sizes:
        return
    part = {"rows": [row.row_id for row in sizes[: part_of([row.size for row in sizes])]]}
    if _in_fts(connection, partial(_out_of_fts, connection, connection.execute(_erased, part).all())):
        connection.execute(_forgotten, part)
        connection.execute(update(text_index).values(purge=PURGE_WANTED))


def part_of(sizes: Sequence[int], most: int = PART_CHARS) -> int:
    """How many of the texts with these sizes (characters) have at most so many together; of some, at least one."""
    size = 0
    for count, more in enumerate(sizes):
        size += more
        if count and size > most:
            return count
    return len(sizes)


def make_anew(connection: Connection) -> None:
    """Empty SQLite's index: it is filled again from the first message on."""
    connection.exec_driver_sql(_EMPTY)
    connection.execute(update(text_index).values(upto=0, purge=0))
    connection.execute(delete(erased_texts))  # it has never heard of them


def _in_fts(connection: Connection, work: Callable[[], object]) -> bool:
    """Change the index. False: it is broken, was emptied instead, and is filled again from the first message on: facts
    are stored and erased whatever becomes of it."""
    try:
        with connection.begin_nested():
            work()
    except DBAPIError as problem:
        if not is_index_damage(problem):
            raise
        log.error("the text index is damaged, and made anew: %s", problem.orig)
        make_anew(connection)
        return False
    return True


def _into_fts(connection: Connection, rows: Sequence[Any]) -> None:
    connection.exec_driver_sql(_ADD, [(row.row_id, mark(row.tenant_id) + row.content) for row in rows])
    connection.exec_driver_sql(_MERGE, (MERGED_PAGES,))


def _out_of_fts(connection: Connection, rows: Sequence[Any]) -> None:
    connection.exec_driver_sql(_REMOVE, [(row.row_id, mark(row.tenant_id) + row.content) for row in rows])


def purge(connection: Connection) -> None:
    """One bounded step of merging all parts of SQLite's index into one: until then what was taken out is only marked
    as gone. The row says when that is done."""
    state = connection.execute(_state).one()
    if connection.dialect.name != "sqlite" or not state.purge:
        return
    first = state.purge == PURGE_WANTED
    before = _changes(connection)
    merge = partial(connection.exec_driver_sql, _MERGE, (-MERGED_PAGES if first else MERGED_PAGES,))
    if not _in_fts(connection, merge):
        return
    done = not first and _changes(connection) - before < 2  # SQLite's sign that there was nothing left to merge
    connection.execute(update(text_index).values(purge=0 if done else PURGE_UNDER_WAY))


def _changes(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT total_changes()").scalar_one())
