"""The command `subagentd` (spec 16): serve, demo, run, audit, agents, keys, db, settings.

Each command lies in a module that is imported when it is used: `--help` must not load the service.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import click

from app import __version__
from app.agent.decisions import DECISIONS

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3  # exit codes (spec 16.6)

as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
database = click.option("--db", help="SQLite path or database URL. [SUBAGENTD_DB]")


def given(**options: Any) -> dict[str, Any]:
    """Command-line options as nested settings; unset ones are left out."""
    places = {
        "host": ("http", "host"),
        "port": ("http", "port"),
        "db": ("store", "url"),
        "model": ("models", "default"),
        "workspace": ("tools", "workspace"),
    }
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == ():
            continue
        if name == "agents":
            values["agents"] = list(value)
            continue
        group, field = places[name]
        values.setdefault(group, {})[field] = value
    return values


def settings_or_exit(**options: Any) -> Any:
    """The settings; wrong ones end the command with a text that names the setting."""
    from pydantic import ValidationError  # noqa: PLC0415  not for --help
    from pydantic_settings import SettingsError  # noqa: PLC0415

    from app.settings import TOML_FILE, load  # noqa: PLC0415

    try:
        return load(**given(**options))
    except ValidationError as error:
        for item in error.errors():
            place = ".".join(str(part) for part in item["loc"])
            unknown = "there is no such setting: `subagentd settings` lists all"
            click.echo(f"setting {place}: {unknown if item['type'] == 'extra_forbidden' else item['msg']}", err=True)
    except SettingsError as error:
        click.echo(f"environment: {error}: {error.__cause__ or 'no JSON'} (lists and groups are JSON there)", err=True)
    except (OSError, ValueError) as error:
        click.echo(f"{TOML_FILE} cannot be read: {error}", err=True)
    sys.exit(USAGE)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="subagentd")
def main() -> None:
    """Hand tasks to AI subagents over HTTP and watch them work."""


@main.command()
@click.option("--host", help="Address to listen on. [SUBAGENTD_HOST]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, 0 for a free one. [SUBAGENTD_PORT]")
@database
@click.option("--agents", multiple=True, type=click.Path(path_type=Path), help="Directory of agents; repeatable.")
@click.option("--model", help="provider:model or a profile. [SUBAGENTD_MODEL]")
@click.option("--workspace", type=click.Path(path_type=Path), help="Root of all workspaces. [SUBAGENTD_WORKSPACE]")
@as_json
def serve(as_json: bool, **options: Any) -> None:
    """Run the service."""
    gc.disable()  # until everything is there that stays: a tenth of the start went into looking at that
    from app.cli.serving import run  # noqa: PLC0415  the service is heavy

    sys.exit(run(settings_or_exit(**options), as_json=as_json))


@main.command()
@click.option("--model", help="provider:model instead of the small local model.")
@click.option("--workspace", type=click.Path(path_type=Path, exists=True, file_okay=False), help="What is worked on.")
@as_json
def demo(model: str | None, workspace: Path | None, as_json: bool) -> None:
    """Start the service and let a parent and two subagents work on real files."""
    from app.cli.demo import run  # noqa: PLC0415

    sys.exit(run(model=model, workspace=workspace or Path.cwd(), as_json=as_json))


@main.command("run")
@click.argument("agent")
@click.argument("task")
@click.option("--url", help="The service; default: the address in the settings.")
@click.option("--model", help="provider:model or a profile.")
@as_json
def run_agent(agent: str, task: str, url: str | None, model: str | None, as_json: bool) -> None:
    """Let AGENT work on TASK; shows the tree live and ends with the answer."""
    from app.cli.running import run  # noqa: PLC0415

    settings = settings_or_exit()
    address = url or f"http://{settings.http.host}:{settings.http.port}"
    key = settings.http.key.get_secret_value() if settings.http.key else None
    sys.exit(run(address, key, agent=agent, task=task, model=model, as_json=as_json))


@main.group()
def audit() -> None:
    """What was said and done: from a service (--url), or straight from its database, in use or not."""


def _source(command: Any) -> Any:
    command = click.option("--url", help="A running service; its key comes from SUBAGENTD_KEY.")(command)
    return as_json(database(command))


def _filters(command: Any) -> Any:
    for option, help_ in (
        ("--until", "Before this time; like --since."),
        ("--since", "From this time on: RFC 3339, or how long ago: 30d, 12h, 45m."),
        ("--text", "Whose content holds this, literally; ASCII letters in either case."),
        ("--decision", f"Decisions instead of messages: {', '.join(DECISIONS)}; any: all of them."),
        ("--tool", "Results of this tool, or decisions about it."),
        ("--role", "system, user, assistant or tool."),
        ("--agent", "Of this agent."),
        ("--run", "Of this run."),
    ):
        command = click.option(option, help=help_)(command)
    command = click.option("--tenant", help="Whose, in the database. [default: default]")(command)
    return click.argument("session", required=False)(_source(command))


def _asked(session: str | None, url: str | None, db: str | None, tenant: str | None, **filters: Any) -> Any:
    """Which messages or decisions of which place; ends the command where that makes no sense."""
    from app.cli.audit import Asked, time_of  # noqa: PLC0415
    from app.sessions.audit import MessageFilter  # noqa: PLC0415
    from app.wire import EXAMPLE, clean  # noqa: PLC0415

    _one_place(url, db, tenant)
    for name, said in {"SESSION": session, "--tenant": tenant, **{f"--{key}": filters[key] for key in filters}}.items():
        if said == "":
            raise click.UsageError(f"{name} is empty: say what to look for, or leave it out")
    for name in ("since", "until"):
        value = filters[name]
        try:
            filters[name] = None if value is None else time_of(value)
        except ValueError:
            raise click.UsageError(
                f"--{name} {value!r} is neither RFC 3339 ({EXAMPLE}) nor a length of time (30d, 12h)"
            ) from None
    if filters["role"] not in (None, "system", "user", "assistant", "tool"):
        raise click.UsageError(f"--role {filters['role']!r}: there are system, user, assistant and tool")
    filters["text"] = clean(filters["text"])  # an argument may be no UTF-8
    filters |= {"session_id": session, "run_id": filters.pop("run")}
    decision = filters.pop("decision")
    given = MessageFilter(**filters) if decision is None else _decisions(decision, **filters)
    return Asked(settings=settings_or_exit(db=db), url=url, tenant=tenant or "default", filters=given)


def _decisions(decision: str, *, role: str | None, text: str | None, **filters: Any) -> Any:
    from app.sessions.audit import ANY, DecisionFilter  # noqa: PLC0415

    for name, said in (("role", role), ("text", text)):
        if said is not None:
            raise click.UsageError(f"--{name} is about messages and --decision is not: leave one of them out")
    if decision not in (ANY, *DECISIONS):
        raise click.UsageError(f"--decision {decision!r}: there are {ANY}, {', '.join(DECISIONS)}")
    return DecisionFilter(decision=None if decision == ANY else decision, **filters)


def _one_place(url: str | None, db: str | None, tenant: str | None) -> None:
    if url is not None and (db is not None or tenant is not None):
        raise click.UsageError("--url asks a service, as the tenant of its key: --db and --tenant are for a database")


@audit.command("show")
@_filters
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many, the newest.")
def audit_show(as_json: bool, limit: int, **options: str | None) -> None:
    """Show the newest messages (of SESSION), tool calls and their results among them; or what was decided."""
    from app.cli.audit import show  # noqa: PLC0415

    sys.exit(show(_asked(**options), limit=limit, as_json=as_json))


@audit.command("export")
@_filters
@click.option("--format", "form", type=click.Choice(["ndjson", "csv"]), default="ndjson", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of the terminal.")
def audit_export(as_json: bool, form: Any, output: Path | None, **options: str | None) -> None:
    """Write all messages, or all decisions, (of SESSION) as lines of JSON or as CSV."""
    from app.cli.audit import export  # noqa: PLC0415

    sys.exit(export(_asked(**options), form=form, output=output, as_json=as_json))


@audit.command("verify")
@click.argument("session", required=False)
@click.option("--all", "everything", is_flag=True, help="All sessions; of the tenant with --tenant or --url.")
@click.option("--tenant", help="Whose, in the database. [default for SESSION: default]")
@click.option("--rows", is_flag=True, help="Messages and decisions too: what exports show is made of them.")
@_source
def audit_verify(
    session: str | None,
    everything: bool,
    rows: bool,
    tenant: str | None,
    url: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Recompute the hashes of SESSION, or of all sessions; ends with 1 when something is wrong."""
    from app.cli.audit import verify  # noqa: PLC0415

    if everything == (session is not None):
        raise click.UsageError("name a SESSION, or say --all")
    _one_place(url, db, tenant)
    if rows and url is not None:
        raise click.UsageError("--rows reads the database: use it with --db")
    settings = settings_or_exit(db=db)
    sys.exit(verify(settings, session=session, url=url, tenant=tenant, rows=rows, as_json=as_json))


@main.group()
def agents() -> None:
    """Agent definitions."""


def _agent_options(command: Any) -> Any:
    command = click.argument("directories", nargs=-1, type=click.Path(path_type=Path))(command)
    return as_json(command)


@agents.command("list")
@_agent_options
def agents_list(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the agents of DIRECTORIES (default: the settings') and of the library."""
    from app.cli.admin import list_agents  # noqa: PLC0415

    sys.exit(list_agents(settings_or_exit(agents=directories), as_json=as_json))


@agents.command("check")
@_agent_options
def agents_check(directories: tuple[Path, ...], as_json: bool) -> None:
    """Report everything wrong with the agent files; ends with 1 when a file is broken."""
    from app.cli.admin import check_agents  # noqa: PLC0415

    sys.exit(check_agents(settings_or_exit(agents=directories), as_json=as_json))


@main.group()
def keys() -> None:
    """API keys, straight in the database."""


@keys.command("create")
@database
@click.option("--tenant", default="default", show_default=True, help="A new name creates the tenant.")
@click.option("--name", default="", help="A label for people.")
@click.option("--scopes", default="run,read", show_default=True, help="run, read, approve, admin; comma separated.")
@click.option("--expires", help="When it ends: 30d, 12h, 45m or an RFC 3339 time.")
@as_json
def keys_create(db: str | None, **options: Any) -> None:
    """Create a key and show it, this once."""
    from app.cli.admin import create_key  # noqa: PLC0415

    sys.exit(create_key(settings_or_exit(db=db), **options))


@keys.command("list")
@database
@click.option("--tenant", help="Only this tenant's.")
@as_json
def keys_list(db: str | None, tenant: str | None, as_json: bool) -> None:
    """List keys, without their secrets."""
    from app.cli.admin import list_keys  # noqa: PLC0415

    sys.exit(list_keys(settings_or_exit(db=db), tenant=tenant, as_json=as_json))


@keys.command("revoke")
@click.argument("key_id")
@database
@as_json
def keys_revoke(key_id: str, db: str | None, as_json: bool) -> None:
    """Revoke a key by its id (key_…)."""
    from app.cli.admin import revoke_key  # noqa: PLC0415

    sys.exit(revoke_key(settings_or_exit(db=db), key_id, as_json=as_json))


@main.group()
def db() -> None:
    """The database."""


@db.command("upgrade")
@database
@as_json
def db_upgrade(db: str | None, as_json: bool) -> None:
    """Bring the tables up to date; `serve` does this by itself."""
    from app.cli.admin import upgrade  # noqa: PLC0415

    sys.exit(upgrade(settings_or_exit(db=db), as_json=as_json))


@main.command("settings")
@as_json
def show_settings(as_json: bool) -> None:
    """All settings with their source; secrets are masked."""
    from app.settings import sources  # noqa: PLC0415

    rows = sources(settings_or_exit(), {})
    if as_json:
        echo_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['value']!r}  ({row['source']})")
