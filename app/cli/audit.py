"""`subagentd audit`: show, export and verify what was said and decided, from a running service or its database.

The database is only read, and may be in use by a server.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import click

from app.agent.errors import InvalidRequest, NotFound, Unavailable
from app.agent.ids import now_us
from app.cli import DONE, FAILED, UNREACHABLE, USAGE, echo_json
from app.cli.audit_lines import lines_of
from app.cli.output import Unwritable, writing
from app.cli.shares import Shares
from app.cli.tree import printable
from app.client import Client, CutOff, ServiceError, Unreachable
from app.sessions.audit import ANY, DecisionFilter, Filter, MessageFilter, Page, check_named
from app.sessions.exporting import Form, lines_for
from app.sessions.verifying import DAMAGE, FORGERY, Checked, report
from app.sessions.views import decision_view, message_view, moment
from app.settings import Settings
from app.store.as_stored import Damaged
from app.store.database import Database, looking_connection
from app.store.location import Location, locate
from app.store.messages import SqlAuditStore
from app.store.migrate import newest, revision
from app.store.reader import can_be_stored
from app.store.verifying import Chains
from app.wire import microseconds_of
from app.wiring import audit_key_of

PAGE = 500
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
View = dict[str, Any]
Report = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which messages or decisions, and where they are read: from the service at `url`, or (None) in the database of the
    settings, as `tenant`. Times in µs."""

    settings: Settings
    url: str | None
    tenant: str
    filters: Filter

    def query(self) -> dict[str, Any]:
        """The filters as parameters of the service."""
        given = asdict(self.filters)
        given["order"] = "newest" if given.pop("newest_first") else "oldest"
        if isinstance(self.filters, DecisionFilter):
            given["decision"] = self.filters.decision or ANY
        return given | {"since": moment(self.filters.since), "until": moment(self.filters.until)}

    @property
    def about(self) -> str:
        """What is asked for, in a word."""
        return "decision" if isinstance(self.filters, DecisionFilter) else "message"

    def client(self) -> Client:
        """A client of the service."""
        key = self.settings.http.key.get_secret_value() if self.settings.http.key else None
        return Client(self.url or "", key)


def time_of(text: str) -> int:
    """A time in µs: RFC 3339 as over HTTP, or how long ago (`30d`, `12h`, `45m`). Raises ValueError."""
    count, unit = text[:-1], text[-1:]
    if unit in _UNITS and count.isascii() and count.isdigit() and len(count) <= 6:
        return now_us() - int(count) * _UNITS[unit] * 1_000_000
    return microseconds_of(text)


# ── show ────────────────────────────────────────────────────────────────────────────────────────────────────────


def show(asked: Asked, *, limit: int, as_json: bool) -> int:
    """Print the newest messages or decisions, the oldest of them first."""
    return _carried_out(lambda: _show(asked, limit, as_json=as_json))


async def _show(asked: Asked, limit: int, *, as_json: bool) -> int:
    asked = replace(asked, filters=replace(asked.filters, newest_first=True))
    found: list[View] = []
    async for page in _pages(asked, limit):
        found += page
    with writing():
        for view in reversed(found):
            if as_json:
                echo_json(view)
            else:
                for line in lines_of(view):
                    click.echo(line)
    if not found:
        click.echo(f"no {asked.about} is of that kind", err=True)
    return DONE


async def _pages(asked: Asked, limit: int) -> AsyncIterator[list[View]]:
    """At most `limit` messages or decisions in pages."""
    cursor, left = None, limit
    if asked.url is not None:
        async with asked.client() as client:
            while left > 0:
                page = await client.page("/v1/audit", cursor=cursor, limit=min(left, PAGE), **asked.query())
                yield page["items"]
                left, cursor = left - len(page["items"]), page["next"]
                if cursor is None:
                    return
        return
    async with _database(asked.settings) as database:
        store = SqlAuditStore(database.reader)
        await _check_ids(store, asked)
        while left > 0:
            rows, views = await _page(store, asked, cursor, min(left, PAGE))
            yield views
            left, cursor = left - len(rows.items), rows.next
            if cursor is None:
                return


async def _check_ids(store: SqlAuditStore, asked: Asked) -> None:
    """Raises `NotFound` for a session or run that there is not; a service says it by itself."""
    filters = asked.filters
    try:
        await check_named(store, asked.tenant, session_id=filters.session_id, run_id=filters.run_id)
    except NotFound as error:
        raise NotFound(f"{error.message} of tenant {asked.tenant!r}") from None


async def _page(store: SqlAuditStore, asked: Asked, cursor: str | None, limit: int) -> tuple[Page, list[View]]:
    filters = asked.filters
    if isinstance(filters, DecisionFilter):
        page = await store.decisions(asked.tenant, filters, cursor=cursor, limit=limit)
        return page, [decision_view(row) for row in page.items]
    page = await store.messages(asked.tenant, filters, cursor=cursor, limit=limit)
    return page, [message_view(row) for row in page.items]


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────


def export(asked: Asked, *, form: Form, output: Path | None, as_json: bool) -> int:
    """Write all of them, oldest first, to a file or to standard output. A file is there once it is complete."""
    return _carried_out(lambda: _export(asked, form, output, as_json=as_json))


async def _export(asked: Asked, form: Form, output: Path | None, *, as_json: bool) -> int:
    if output is None:
        with writing():
            await _write(asked, form, sys.stdout.buffer)
        return DONE
    part = output.with_name(f"{output.name}.part")
    try:
        with writing(str(output)):
            # For the owner alone: conversations are in it.
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                await _write(asked, form, file)
                size = file.tell()
            part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    if as_json:
        echo_json({"file": str(output), "format": form, "size_bytes": size})
    else:
        click.echo(f"{output}: {size} bytes", err=True)
    return DONE


async def _write(asked: Asked, form: Form, file: IO[bytes]) -> None:
    if asked.url is not None:
        async with asked.client() as client:
            async for chunk in client.download("/v1/audit/export", format=form, **asked.query()):
                file.write(chunk)
    else:
        kind = lines_for(asked.filters)
        lines = kind.of(form)
        async with _database(asked.settings) as database:
            store = SqlAuditStore(database.reader)
            await _check_ids(store, asked)
            file.write(kind.head(form))
            async for rows in store.export(asked.tenant, asked.filters):
                file.write(lines(rows))
    file.flush()


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(
    settings: Settings, *, session: str | None, url: str | None, tenant: str | None, rows: bool, as_json: bool
) -> int:
    """Verify one session, or (None) all of a tenant or of the whole database; FAILED when something is wrong. `rows`:
    whether messages and decisions say what the log says, too."""
    for name in (session, tenant, url):
        if not can_be_stored(name):
            click.echo(f"{name!r} is no text in UTF-8, so nothing has that name", err=True)
            return USAGE
    if url is not None:
        asked = Asked(settings=settings, url=url, tenant="", filters=MessageFilter())
        return _carried_out(lambda: _verify_there(asked, session, as_json=as_json))
    return _carried_out(lambda: _verify_here(settings, session, tenant, rows=rows, as_json=as_json))


class _Tally:
    """Prints each report, and at the end what they come to."""

    def __init__(self, *, one: bool, as_json: bool) -> None:
        self._one = one
        self._as_json = as_json
        self._sessions = self._events = self._bad = 0
        self._says = ""

    def add(self, found: Report) -> None:
        self._sessions += 1
        self._events += found["events"]
        self._bad += not found["ok"]
        if found["removed"] or not self._says:  # of events that were removed there is more to say
            self._says = found["says"]
        name = _shown(found["session_id"])
        if self._as_json:
            echo_json(found)
        elif found["ok"]:
            head = found["head"]
            gone = f" ({found['removed']} of them removed for their age)" if found["removed"] else ""
            click.echo(f"ok   {name}  {found['events']} events{gone}, head {head['id']} {head['hash']}")
        else:
            bad = found["first_bad"]
            click.echo(f"BAD  {name}  event {bad['id']}: {_shown(bad['problem'])}")

    def end(self, *, keyed: bool, otherwise: str = "") -> int:
        """`otherwise`: what is said of no session at all."""
        says = self._says or otherwise
        if not self._as_json:
            click.echo(f"{self._sessions} sessions, {self._events} events sound, {self._bad} sessions with a fault")
            click.echo(says)
        elif not self._one:
            total = {"sessions": self._sessions, "events": self._events, "bad": self._bad}
            echo_json({**total, "ok": not self._bad, "keyed": keyed, "says": says})
        return FAILED if self._bad else DONE


def _shown(text: str) -> str:
    """What comes out of a damaged database, so that it does nothing to a terminal and forges no line."""
    return printable(" ".join(text.split()))


async def _verify_there(asked: Asked, session: str | None, *, as_json: bool) -> int:
    tally = _Tally(one=session is not None, as_json=as_json)
    keyed = False
    async with asked.client() as client:
        names = _sessions_there(client) if session is None else _alone(session)
        async for name in names:
            found = await client.page(f"/v1/sessions/{name}/audit/verify")
            while found["next"] is not None:
                found = await client.page(f"/v1/sessions/{name}/audit/verify", cursor=found["next"])
            tally.add(found)
            keyed = found["keyed"]
    return tally.end(keyed=keyed)


async def _alone(session: str) -> AsyncIterator[str]:
    yield session


async def _sessions_there(client: Client) -> AsyncIterator[str]:
    """All sessions of the tenant; deleted ones are not listed."""
    cursor = None
    while True:
        page = await client.page("/v1/sessions", cursor=cursor, limit=PAGE)
        for item in page["items"]:
            yield item["id"]
        cursor = page["next"]
        if cursor is None:
            return


async def _verify_here(
    settings: Settings, session: str | None, tenant: str | None, *, rows: bool, as_json: bool
) -> int:
    key = audit_key_of(settings)
    tally = _Tally(one=session is not None, as_json=as_json)
    with _looking(settings, key) as (chains, location), Shares(chains, location, key, rows=rows) as shares:
        if session is None and tenant not in (None, "default") and not chains.knows(tenant):
            click.echo(f"there is no tenant {tenant!r}: the database has nothing of it", err=True)
            return USAGE
        found = (
            chains.all(tenant, shares.checked, rows=rows)
            if session is None
            else _one(chains, tenant or "default", session, rows=rows)
        )
        for _, name, checked in found:
            tally.add(report(name, checked, keyed=key is not None))
    return tally.end(keyed=key is not None, otherwise=FORGERY if key is not None else DAMAGE)


def _one(chains: Chains, tenant: str, session: str, *, rows: bool) -> Iterator[tuple[str, str, Checked]]:
    found = chains.check(tenant, session)
    if found is None:
        click.echo(f"there is no session {session!r} of tenant {tenant!r}", err=True)
        sys.exit(USAGE)
    yield tenant, session, chains.with_rows(tenant, session, found) if rows else found


# ── where it is read ────────────────────────────────────────────────────────────────────────────────────────────


def _carried_out(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Do it; the exit code, with one line about what went wrong."""
    try:
        return asyncio.run(work())
    except Unwritable as error:
        click.echo(str(error), err=True)
        return USAGE
    except CutOff as error:
        click.echo(
            f"{error}: what came is not all. The log of the service may say why; try again, or use --db.", err=True
        )
        return UNREACHABLE
    except Unreachable as error:
        click.echo(f"{error}. Start it with `subagentd serve`, or read its database with --db.", err=True)
        return UNREACHABLE
    except ServiceError as error:
        click.echo(str(error), err=True)
        return USAGE if error.status < 500 else FAILED
    except (InvalidRequest, NotFound) as error:
        click.echo(error.message, err=True)
        return USAGE
    except Damaged as error:
        click.echo(error.message, err=True)
        return FAILED
    except Unavailable as error:
        click.echo(error.message, err=True)
        return UNREACHABLE


@contextlib.contextmanager
def _looking(settings: Settings, key: bytes | None = None) -> Iterator[tuple[Chains, Location]]:
    """The chains of the database, on a connection that can only read, and where it is. Ends the command where there is
    none."""
    try:
        location = locate(settings.store.url)
    except ValueError as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE)
    if location.path is not None and not location.path.is_file():
        click.echo(f"there is no database {location}: name it with --db, or a service with --url", err=True)
        sys.exit(USAGE)
    with closing(looking_connection(location)) as connection:
        found = revision(connection)
        if found != newest():
            what = f"has schema {found}" if found else "has no schema of this service"
            click.echo(
                f"database {location} {what}, this version reads {newest()}: run `subagentd db upgrade`", err=True
            )
            sys.exit(USAGE)
        yield Chains(connection, key), location


@contextlib.asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database]:
    with _looking(settings):
        pass  # it is there and can be read
    database = Database(settings.store.url, exclusive=False, read_only=True, readers=1)
    try:
        yield database
    finally:
        await database.close()
