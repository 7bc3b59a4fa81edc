"""What the tables are made of: column types that are the same on SQLite and PostgreSQL, and the tenant on every table.

Knows no table.
"""

from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

from app.store.failures import Unreadable


class Json(TypeDecorator[Any]):
    """A JSON value as text: the same on every database, and text that JSONB refuses (escaped NUL) is no trouble."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        try:
            return None if value is None else msgspec.json.decode(value)
        except (msgspec.MsgspecError, TypeError) as problem:
            raise Unreadable("a text in it is not the JSON that it was") from problem


metadata = MetaData(naming_convention={"pk": "pk_%(table_name)s"})


def tenant() -> Column[str]:
    return Column("tenant_id", Text, nullable=False, server_default="default")


def key(*names: str) -> PrimaryKeyConstraint:
    """Tenant first."""
    return PrimaryKeyConstraint("tenant_id", *names)


def row_id() -> Column[int]:
    """An explicit row number: the text index refers to it, and SQLite may renumber implicit ones. Its table is made
    with `sqlite_autoincrement`: a number of an erased row that came back would be passed over by the indexer."""
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Column("row_id", kind, primary_key=True, autoincrement=True)


def text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def number(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=null)


def big(name: str, *, null: bool = False) -> Column[int]:
    """Times and event numbers: beyond 32 bits on PostgreSQL."""
    return Column(name, BigInteger, nullable=null)


def json(name: str, *, null: bool = True) -> Column[Any]:
    return Column(name, Json, nullable=null)


def flag(name: str, *, null: bool = False) -> Column[bool]:
    return Column(name, Boolean, nullable=null)


def blob(name: str, *, null: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=null)


def partial(name: str, table: Table, columns: str, condition: ColumnElement[bool]) -> Index:
    """An index, tenant first, of those rows alone that satisfy the condition."""
    names = (table.c[column] for column in ("tenant_id", *columns.split()))
    return Index(name, *names, sqlite_where=condition, postgresql_where=condition)
