"""Filtered pages in keyset order: which index answers a question, and the statement that uses it.

Knows no row. The first order in which all of its equal columns are given is taken. Every other filter is written so
that no index serves it: a planner without statistics then cannot choose one that leaves the sorting to be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, literal, select, tuple_

from app.sessions.audit import MAX_COUNT
from app.store.cursors import pack, unpack

_HIDDEN = frozenset({"row_id", "tenant_id"})
_TIMES = ("since", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An index (tenant, `equal`…, `key`…): rows that are equal in the first are paged by the second."""

    name: str
    equal: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A filtered list, as far as its statement depends on it."""

    table: Table
    order: Order
    given: frozenset[str]
    newest_first: bool
    after: bool = False  # a page behind a cursor

    def page(self) -> Select[Any]:
        """The statement of one page; parameters are the filters, `tenant`, `limit` and `after_…` for the key."""
        return _page(self)

    def count(self) -> Select[Any]:
        """The statement that counts, up to `MAX_COUNT`."""
        return _count(self)

    def cursor(self, row: Mapping[str, Any]) -> str:
        """The cursor of the page after this row."""
        return pack(self._tag, [row[name] for name in self.order.key])

    def read(self, cursor: str) -> Mapping[str, Any]:
        """The parameters in a cursor. Raises `InvalidRequest` when it is of another question."""
        kinds = [self.table.c[name].type.python_type for name in self.order.key]
        values = unpack(cursor, self._tag, kinds)
        return {f"after_{name}": value for name, value in zip(self.order.key, values, strict=True)}

    @property
    def _tag(self) -> str:
        return f"{self.table.name}/{self.order.name}/{'newest' if self.newest_first else 'oldest'}"


def question(table: Table, orders: Sequence[Order], filters: Mapping[str, Any], newest_first: bool) -> Question:
    """The question that these filters (without those that are None) ask; the last order must need none of them."""
    given = frozenset(filters)
    order = next(order for order in orders if given.issuperset(order.equal))
    return Question(table=table, order=order, given=given, newest_first=newest_first)


@cache
def _page(asked: Question) -> Select[Any]:
    table, key = asked.table, [asked.table.c[name] for name in asked.order.key]
    shown = [column for column in table.c if column.name not in _HIDDEN]
    statement = select(*shown).where(*_conditions(asked))
    if asked.after:
        here, last = tuple_(*key), tuple_(*(bindparam(f"after_{c.name}", type_=c.type) for c in key))
        statement = statement.where(here < last if asked.newest_first else here > last)
    sorting = [column.desc() if asked.newest_first else column.asc() for column in key]
    return statement.order_by(*sorting).limit(bindparam("limit"))


@cache
def _count(asked: Question) -> Select[Any]:
    found = select(literal(1).label("one")).where(*_conditions(asked)).select_from(asked.table).limit(MAX_COUNT)
    return select(func.count().label("count")).select_from(found.subquery())


def _conditions(asked: Question) -> list[ColumnElement[bool]]:
    table, order = asked.table, asked.order
    conditions = [table.c.tenant_id == bindparam("tenant")]
    conditions += [table.c[name] == bindparam(name) for name in order.equal]
    for name in sorted(asked.given - set(order.equal) - set(_TIMES)):
        conditions.append(func.coalesce(table.c[name], "") == bindparam(name))
    if asked.given.isdisjoint(_TIMES):
        return conditions
    by_time = order.key[0] == "ts"
    moment: ColumnElement[int] = table.c.ts if by_time else func.coalesce(table.c.ts, 0)
    # Behind a cursor the key bounds that side more tightly; a second bound could be the one that the index is
    # searched by, and then every page would read all rows before it again.
    bounded = ("until" if asked.newest_first else "since") if by_time and asked.after else None
    if "since" in asked.given and bounded != "since":
        conditions.append(moment >= bindparam("since"))
    if "until" in asked.given and bounded != "until":
        conditions.append(moment < bindparam("until"))
    return conditions
