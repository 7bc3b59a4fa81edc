"""Commands beside a running service: agents, keys and the database, straight from files."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from app.agent.errors import InvalidRequest
from app.agent.ids import now_us
from app.cli import DONE, FAILED, USAGE, echo_json
from app.definitions.catalog import Catalog
from app.sessions.access import SCOPES, new_key, revocation
from app.sessions.rejecting import replacement
from app.sessions.views import moment
from app.settings import Settings
from app.store.database import Database
from app.store.keys import SqlKeyStore
from app.store.migrate import MigrationError
from app.store.migrate import upgrade as migrate
from app.wire import EXAMPLE, microseconds_of
from app.wiring import checks_with
from app.wiring_definitions import catalog_of, skills_of
from app.wiring_hooks import OwnHooks
from app.wiring_tools import tool_names

T = TypeVar("T")
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def list_agents(settings: Settings, *, as_json: bool) -> int:
    """Print the agents in force."""
    report = _catalog(settings).report("default")
    rows = [
        {
            "name": agent.name,
            "description": agent.description,
            "mode": agent.mode.value,
            "tools": None if agent.tools is None else list(agent.tools),
            "source": agent.source.path or agent.source.kind,
        }
        for agent in report.agents
    ]
    if as_json:
        echo_json(rows)
        return DONE
    for agent in report.agents:
        click.echo(f"{agent.name:<20} {agent.mode.value:<9} {agent.description[:80]}")
    return DONE


def check_agents(settings: Settings, *, as_json: bool) -> int:
    """Print every problem of agents and skills; FAILED when a file gives none."""
    catalog = _catalog(settings)
    report, skills = catalog.report("default"), catalog.skills.report()
    problems = (*report.problems, *skills.problems)
    errors = sum(problem.severity == "error" for problem in problems)
    if as_json:
        fields = ("severity", "path", "line", "message", "key")
        echo_json([{name: str(getattr(p, name) or "") for name in fields} for p in problems])
    else:
        for problem in problems:
            click.echo(str(problem))
        found = f"{len(report.agents)} agents, {len(skills.skills)} skills"
        click.echo(f"{found}, {errors} errors, {len(problems)} remarks in all")
    return FAILED if errors else DONE


def _catalog(settings: Settings) -> Catalog:
    try:
        known = tool_names(settings)
    except ValueError as error:
        click.echo(str(error), err=True)
        raise SystemExit(USAGE) from None
    catalog = catalog_of(settings, known, skills_of(settings), checks_with(OwnHooks(settings)))
    catalog.reload()
    return catalog


def create_key(settings: Settings, *, tenant: str, name: str, scopes: str, expires: str | None, as_json: bool) -> int:
    """Store a new key and print it, this once."""
    wanted = tuple(dict.fromkeys(part.strip() for part in scopes.split(",") if part.strip()))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        click.echo(f"unknown scope {', '.join(unknown) or '(none)'}: use {', '.join(sorted(SCOPES))}", err=True)
        return USAGE
    try:
        ends = None if expires is None else expiry(expires)
    except ValueError:
        click.echo(
            f"--expires {expires!r} is neither a length of time (30d, 12h) nor a time such as {EXAMPLE}", err=True
        )
        return USAGE
    if ends is not None and ends <= now_us():
        click.echo(f"--expires {expires}: the key would have expired at {moment(ends)} already", err=True)
        return USAGE
    try:
        made = new_key(tenant=tenant, name=name, scopes=wanted, expires_at=ends)
    except InvalidRequest as error:
        click.echo(str(error), err=True)
        return USAGE
    _write(settings, made.writes)
    shown = {"id": made.id, "key": made.text, "tenant": tenant, "scopes": list(wanted), "expires_at": moment(ends)}
    if as_json:
        echo_json(shown)
    else:
        click.echo(f"{made.text}\n(id {made.id}, tenant {tenant}, scopes {', '.join(wanted)}; it is not shown again)")
    return DONE


def expiry(text: str) -> int:
    """When something ends, in µs: `30d`, `12h`, `45m`, or an RFC 3339 time. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,6})([dhms])", text)
    if match:
        return now_us() + int(match[1]) * _UNITS[match[2]] * 1_000_000
    return microseconds_of(text)


def list_keys(settings: Settings, *, tenant: str | None, as_json: bool) -> int:
    """Print the keys, without their secrets."""

    async def read(database: Database) -> list[dict[str, Any]]:
        store = SqlKeyStore(database.reader)
        return [
            {
                "id": key.id,
                "tenant": key.tenant,
                "name": key.name,
                "scopes": list(key.scopes),
                "created_at": moment(key.created_at),
                "expires_at": moment(key.expires_at),
                "revoked_at": moment(key.revoked_at),
            }
            for key in await store.list(tenant)
        ]

    rows = _with_database(settings, read)
    if as_json:
        echo_json(rows)
        return DONE
    for row in rows:
        state = "revoked" if row["revoked_at"] else (f"until {row['expires_at']}" if row["expires_at"] else "valid")
        click.echo(f"{row['id']}  {row['tenant']:<16} {','.join(row['scopes']):<28} {state}  {row['name']}")
    return DONE


def revoke_key(settings: Settings, key_id: str, *, as_json: bool) -> int:
    """Revoke a key; a running service notices within 30 s."""

    async def find(database: Database) -> Any:
        return next((key for key in await SqlKeyStore(database.reader).list(None) if key.id == key_id), None)

    key = _with_database(settings, find)
    if key is None:
        click.echo(f"there is no key {key_id!r}: `subagentd keys list` shows those that exist", err=True)
        return FAILED
    _write(settings, (revocation(key, now_us()),))
    if as_json:
        echo_json({"id": key_id, "revoked": True})
    else:
        click.echo(f"{key_id} is revoked")
    return DONE


def upgrade(settings: Settings, *, as_json: bool) -> int:
    """Migrate the database."""
    changed = _migrated(settings)
    if as_json:
        echo_json({"upgraded": changed})
    else:
        click.echo("the database was upgraded" if changed else "the database is up to date")
    return DONE


def _migrated(settings: Settings) -> bool:
    """Whether the database had to be upgraded. One that cannot be used ends the command with the reason."""
    try:
        return migrate(settings.store.url)
    except (MigrationError, OSError, ValueError) as error:
        click.echo(str(error), err=True)
        raise SystemExit(USAGE) from None


def _with_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    _migrated(settings)

    async def inside() -> T:
        database = Database(settings.store.url, exclusive=False)
        await database.open()
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(inside())


def _write(settings: Settings, writes: Any) -> None:
    """Store rows beside a running service: one short transaction."""
    _migrated(settings)
    database = Database(settings.store.url, exclusive=False)
    writer = database.writer(replacement)
    try:
        for rejected in writer.write((), writes):
            raise click.ClickException(f"not stored: {rejected.reason}")
    finally:
        writer.close()
        asyncio.run(database.close())
