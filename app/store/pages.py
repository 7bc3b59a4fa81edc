"""Filtered pages in keyset order: which index answers a question, and the statement that uses it.

Knows no row. The first order in which all of its equal columns are given is taken. Every other filter is written so
that no index serves it: a planner without statistics then cannot choose one that leaves the sorting to be done. Such a
filter may fit no row of millions, so that a page or count with one looks at so many rows and no more (`place`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    CompoundSelect,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    type_coerce,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from app.sessions.audit import MAX_COUNT
from app.store.columns import Json
from app.store.cursors import pack, under, unpack

_HIDDEN = frozenset({"row_id", "tenant_id"})
_TIMES = frozenset({"since", "until"})
LONG = ("content", "reasoning", "tool_calls", "metadata", "reason", "rule")  # texts that others write

Statement = Select[Any] | CompoundSelect[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An index (tenant, `equal`…, `key`…): rows that are equal in the first are paged by the second. `each`: a column
    of the index between the two, with all values that it can have; their rows are merged, so that one index serves
    questions with and without that column."""

    name: str
    equal: tuple[str, ...]
    key: tuple[str, ...]
    each: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A filtered list, as far as its statement depends on it."""

    table: Table
    order: Order
    given: frozenset[str]
    newest_first: bool
    after: bool = False  # a page behind a cursor
    edge: bool = False  # only up to the place of `edge()`
    text: bool = False  # only rows whose content holds a text
    among: bool = False  # only these rows, by their `row_id`; no index is walked along
    shown: tuple[str, ...] = ()  # these columns, JSON as the text that is stored; none: all that are shown

    def page(self) -> Statement:
        """The statement of one page; parameters are the filters, `tenant`, `limit` and `after_…` for the key."""
        return _page(self)

    def sizes(self) -> Statement:
        """The same page: of each row the key, `row_id` where it has one, and `size`, the characters of its texts."""
        return _sizes(self)

    def these(self, shown: tuple[str, ...]) -> "Question":
        """The question for rows that it has found, by their `row_id` (parameter `rows`, as JSON), in its order."""
        return replace(self, among=True, text=False, after=False, edge=False, shown=shown)

    def count(self) -> Select[Any]:
        """The statement that counts, up to `MAX_COUNT`."""
        return _count(self)

    def place(self) -> Statement:
        """The statement of where a walk along the index has to stop: the key `edge_…` of the row behind `steps`
        others, by what the index alone tells; no row when there are not that many."""
        return _place(self)

    @property
    def passing(self) -> frozenset[str]:
        """The filters that the index does not serve: rows that do not fit are passed over, who knows how many."""
        served = frozenset(self.order.equal)
        return self.given - (served | _TIMES if self.order.key[0] == "ts" else served)

    def bounds(self, place: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters of a place for the statements with `edge`."""
        return {f"edge_{name}": place[name] for name in self.order.key}

    def cursor(self, row: Mapping[str, Any], filters: Mapping[str, Any]) -> str:
        """The cursor of the page after this row, for these filters and no others."""
        return pack(self._tag(filters), [row[name] for name in self.order.key])

    def read(self, cursor: str, filters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters in a cursor. Raises `InvalidRequest` when it is of another question."""
        kinds = [self.table.c[name].type.python_type for name in self.order.key]
        values = unpack(cursor, self._tag(filters), kinds)
        return {f"after_{name}": value for name, value in zip(self.order.key, values, strict=True)}

    def _tag(self, filters: Mapping[str, Any]) -> str:
        return under(f"{self.table.name}/{self.order.name}/{'newest' if self.newest_first else 'oldest'}", filters)


def question(table: Table, orders: Sequence[Order], filters: Mapping[str, Any], newest_first: bool) -> Question:
    """The question that these filters (without those that are None) ask; the last order must need none of them."""
    given = frozenset(filters)
    order = next(order for order in orders if given.issuperset(order.equal))
    return Question(table=table, order=order, given=given, newest_first=newest_first)


@cache
def _page(asked: Question) -> Statement:
    shown: list[Any] = [column for column in asked.table.c if column.name not in _HIDDEN]
    if asked.shown:
        shown = [_as_stored(asked.table.c[name]) for name in asked.shown]
    return _in_order(asked, shown).limit(bindparam("limit"))


@cache
def _sizes(asked: Question) -> Statement:
    columns = asked.table.c
    texts = (_as_stored(columns[name]) for name in LONG if name in columns)
    size = sum((func.coalesce(func.length(text), 0) for text in texts), start=literal(0))
    shown = [columns[name] for name in (*asked.order.key, "row_id") if name in columns]
    return _in_order(asked, [*shown, size.label("size")]).limit(bindparam("limit"))


@cache
def _count(asked: Question) -> Select[Any]:
    # Times and places stand in the index behind the column that is merged.
    apart = asked.edge or not asked.given.isdisjoint(_TIMES)
    one = literal(1).label("one")
    pieces = [
        select(one).where(*conditions).select_from(asked.table).limit(MAX_COUNT)
        for conditions in _branches(asked, apart=apart)
    ]
    found = union_all(*(select(piece.subquery()) for piece in pieces)).subquery()
    first = select(one).select_from(found).limit(MAX_COUNT).subquery()
    return select(func.count().label("count")).select_from(first)


@cache
def _place(asked: Question) -> Statement:
    narrow = replace(asked, given=asked.given - asked.passing, text=False, edge=False)
    # Not for a page: nothing but the index is passed over, and never more than a bounded part of it.
    found = _in_order(narrow, [asked.table.c[name] for name in asked.order.key])
    return found.offset(bindparam("steps")).limit(1)


def _as_stored(column: Column[Any]) -> Any:
    return type_coerce(column, Text).label(column.name) if isinstance(column.type, Json) else column


def _in_order(asked: Question, shown: list[Any]) -> Statement:
    """These columns of the rows, in order; of several values of a column the rows are merged."""
    pieces = [select(*shown).where(*conditions) for conditions in _branches(asked)]
    merged = len(pieces) > 1
    key = [literal_column(name) if merged else asked.table.c[name] for name in asked.order.key]
    sorting = [column.desc() if asked.newest_first else column.asc() for column in key]
    return union_all(*pieces).order_by(*sorting) if merged else pieces[0].order_by(*sorting)


def _branches(asked: Question, *, apart: bool = True) -> list[list[ColumnElement[bool]]]:
    """The conditions of the rows, `apart` for each value of the column that is merged."""
    conditions = [*_conditions(asked), *_between(asked)]
    if asked.order.each is None or asked.among or not apart:
        return [conditions]
    name, values = asked.order.each
    return [[*conditions, asked.table.c[name] == value] for value in values]


def _between(asked: Question) -> list[ColumnElement[bool]]:
    """Behind the cursor, and up to the place where a walk stops."""
    here, found = tuple_(*(asked.table.c[name] for name in asked.order.key)), list[ColumnElement[bool]]()
    if asked.after:
        last = _key(asked, "after")
        found.append(here < last if asked.newest_first else here > last)
    if asked.edge:
        last = _key(asked, "edge")
        found.append(here >= last if asked.newest_first else here <= last)
    return found


def _key(asked: Question, prefix: str) -> Any:
    columns = (asked.table.c[name] for name in asked.order.key)
    return tuple_(*(bindparam(f"{prefix}_{column.name}", type_=column.type) for column in columns))


def _conditions(asked: Question) -> list[ColumnElement[bool]]:
    table, order = asked.table, asked.order
    conditions = _equal(asked)
    for name in sorted(asked.given - set(order.equal) - _TIMES):
        conditions.append(func.coalesce(table.c[name], "") == bindparam(name))
    if asked.text:
        conditions.append(Position(table.c.content, bindparam("text", type_=Text())) > 0)
    if asked.given.isdisjoint(_TIMES):
        return conditions
    by_time = order.key[0] == "ts"
    moment: ColumnElement[int] = table.c.ts if by_time and not asked.among else func.coalesce(table.c.ts, 0)
    # Where the key bounds a side, it does so more tightly; a second bound could be the one that the index is searched
    # by, and then every page would read all rows before it again.
    first, last = ("until", "since") if asked.newest_first else ("since", "until")
    bounded = {name for name, there in ((first, asked.after), (last, asked.edge)) if there and by_time}
    if "since" in asked.given and "since" not in bounded:
        conditions.append(moment >= bindparam("since"))
    if "until" in asked.given and "until" not in bounded:
        conditions.append(moment < bindparam("until"))
    return conditions


def _equal(asked: Question) -> list[ColumnElement[bool]]:
    """Whose rows, and what the order needs; written for its index, or for none when the rows are named."""
    table, equal = asked.table, asked.order.equal
    if not asked.among:
        return [table.c.tenant_id == bindparam("tenant"), *(table.c[name] == bindparam(name) for name in equal)]
    mine = [func.coalesce(table.c.tenant_id, "") == bindparam("tenant")]
    mine += [func.coalesce(table.c[name], "") == bindparam(name) for name in equal]
    return [*mine, table.c.row_id.op("IN", is_comparison=True)(Listed(bindparam("rows", type_=Text())))]


# ── what the two databases say differently ──────────────────────────────────────────────────────────────────────


# Numbers and rows, not truth values: SQLite would compare those with 1, and search no index for them.


class Position(FunctionElement[int]):
    """Where a text stands in another, whatever the case of ASCII letters, 0: nowhere. The wanted one comes in lower
    case."""

    type = Integer()
    inherit_cache = True


class Listed(FunctionElement[int]):
    """The numbers of a list, which comes as JSON, as rows."""

    type = BigInteger()
    inherit_cache = True


def _parts(element: FunctionElement[int], compiler: SQLCompiler, options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(compiler.process(part, **options) for part in element.clauses)


@compiles(Position, "sqlite")
def _position_on_sqlite(element: Position, compiler: SQLCompiler, **options: Any) -> str:
    whole, part = _parts(element, compiler, options)
    return f"instr(lower({whole}), {part})"


@compiles(Position, "postgresql")
def _position_on_postgresql(element: Position, compiler: SQLCompiler, **options: Any) -> str:
    whole, part = _parts(element, compiler, options)
    return f'strpos(lower({whole} COLLATE "C"), {part})'


@compiles(Listed, "sqlite")
def _listed_on_sqlite(element: Listed, compiler: SQLCompiler, **options: Any) -> str:
    (listed,) = _parts(element, compiler, options)
    return f"(SELECT value FROM json_each({listed}))"  # noqa: S608  the name of a parameter


@compiles(Listed, "postgresql")
def _listed_on_postgresql(element: Listed, compiler: SQLCompiler, **options: Any) -> str:
    (listed,) = _parts(element, compiler, options)
    rows = f"json_array_elements_text(CAST({listed} AS json))"
    return f"(SELECT CAST(value AS bigint) FROM {rows})"  # noqa: S608  the name of a parameter
