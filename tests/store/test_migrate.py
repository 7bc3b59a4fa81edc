"""Migrations: they match the models, run once however many start, and stay out of the way afterwards."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Column, Integer, inspect, text

from app.agent.approvals import digest_of
from app.sessions.views import handoff_view
from app.store import migrate
from app.store.columns import metadata
from app.store.database import Database, writing_connection
from app.store.location import locate, make_file
from app.store.migrate import MigrationError, differences, main, newest, upgrade
from app.store.runs import SqlRunStore
from app.store.tables import runs
from app.store.verifying import Chains
from tests.store.facts import Facts, replaced


@pytest.mark.spec("12.1")
def test_the_migrations_build_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.spec("12.1")
def test_the_check_names_a_column_that_no_migration_makes(capsys: pytest.CaptureFixture[str]) -> None:
    column: Column[int] = Column("colour", Integer)
    runs.append_column(column)
    try:
        assert main(["check"]) == 1
    finally:
        runs._columns.remove(column)  # there is no public way back
    assert "add_column" in (shown := capsys.readouterr().out)
    assert "colour" in shown
    assert differences() == []


@pytest.mark.spec("12.1")
@pytest.mark.postgres
def test_postgresql_gets_the_same_tables_columns_and_indexes(file: Path, postgres_url: str) -> None:
    def shape(where: str) -> dict[str, object]:
        with writing_connection(locate(where), "FULL", 1000) as connection:
            seen = inspect(connection)
            tables = [name for name in seen.get_table_names() if not name.startswith("messages_text")]
            return {
                name: (
                    sorted((column["name"], column["nullable"]) for column in seen.get_columns(name)),
                    sorted((str(index["name"]), *map(str, index["column_names"])) for index in seen.get_indexes(name)),
                    seen.get_pk_constraint(name)["constrained_columns"],
                )
                for name in tables
                if name != "sqlite_sequence"
            }

    assert shape(postgres_url) == shape(str(file))


@pytest.mark.spec("17.1")
def test_every_table_has_a_tenant_and_every_index_begins_with_it() -> None:
    for table in metadata.tables.values():
        tenant = table.c.tenant_id
        assert not tenant.nullable
        assert str(getattr(tenant.server_default, "arg", None)) == "default"
        keys = [list(table.primary_key.columns)] if table.name != "messages" else []
        for columns in [*keys, *(list(index.columns) for index in table.indexes if index.name != "ix_api_keys_hash")]:
            assert columns[0] is tenant, (table.name, columns)


@pytest.mark.spec("12.1", "12.4")
def test_sqlite_gets_an_empty_text_index_that_finds_chinese(file: Path) -> None:
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT upto FROM text_index").fetchone() == (0,)
    connection.execute("INSERT INTO messages_text(rowid, content) VALUES (1, '小黄门去查一查奏折')")
    found = connection.execute("SELECT rowid FROM messages_text WHERE messages_text MATCH '查奏折'").fetchall()
    assert found == [(1,)]
    connection.close()


@pytest.mark.spec("12.1")
def test_a_database_of_a_newer_version_is_left_alone(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(MigrationError, match=f"has schema 9999, this version knows {newest()}: start the newer"):
        upgrade(file)


@pytest.mark.spec("12.1", "17.2")
def test_a_new_file_is_for_its_owner_alone_and_its_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "data" / "deep" / "store.db"
    old = os.umask(0)
    try:
        assert upgrade(path) is True
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert upgrade(path) is False
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


START = "import sys; from app.store.migrate import upgrade; sys.stdin; print(upgrade(sys.argv[1]))"


def start_many(where: str, count: int) -> list[str]:
    started = [run_python(START, where) for _ in range(count)]
    answers = []
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
        answers.append(out.strip())
    return answers


@pytest.mark.spec("12.1")
@pytest.mark.case("B172")
def test_many_processes_may_start_on_one_fresh_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert sorted(start_many(str(path), 4)) == ["False"] * 3 + ["True"]
    assert upgrade(path) is False


@pytest.mark.spec("12.1")
@pytest.mark.case("B172")
@pytest.mark.postgres
def test_many_processes_may_start_on_one_empty_database_at_once(empty_postgres_url: str) -> None:
    assert sorted(start_many(empty_postgres_url, 3)) == ["False"] * 2 + ["True"]
    with writing_connection(locate(empty_postgres_url), "FULL", 1000) as connection:
        assert connection.execute(text("SELECT count(*) FROM sessions")).scalar_one() == 0


@pytest.mark.spec("12.1")
def test_a_start_on_a_current_database_does_not_load_the_migration_library(file: Path) -> None:
    code = f"{START}; print('alembic' in sys.modules)"
    out, _ = run_python(code, str(file)).communicate(timeout=60)
    assert out.split() == ["False", "False"]


@pytest.mark.spec("12.1")
def test_a_migration_that_fails_leaves_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE tool_calls (mine TEXT)")
    connection.commit()
    with pytest.raises(Exception, match="tool_calls already exists"):
        upgrade(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("tool_calls",)]
    connection.close()


@pytest.mark.spec("12.1")
def test_the_command_says_how_it_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert main(["upgrade", str(tmp_path / "new.db")]) == 0
    assert upgrade(tmp_path / "new.db") is False


# ── a database that an older version filled ─────────────────────────────────────────────────────────────────────


def at_revision(where: str, revision: str) -> None:
    """Bring an empty database to an older schema."""
    location = locate(where)
    if location.path is not None:
        make_file(location.path)
    with migrate._locked(location) as connection:
        command.upgrade(migrate._config(connection), revision)


def filled_from(where: str, source: str) -> None:
    """Copy every row of another database, as far as there are tables and columns for it."""
    with (
        writing_connection(locate(source), "FULL", 1000) as new,
        writing_connection(locate(where), "FULL", 1000) as old,
        old.begin(),
    ):
        for table in metadata.sorted_tables:
            if table.name == "text_index" or not inspect(old).has_table(table.name):
                continue  # a migration has filled it
            there = [column["name"] for column in inspect(old).get_columns(table.name)]
            names = ", ".join(f'"{name}"' for name in there)
            rows = [dict(row) for row in new.execute(text(f"SELECT {names} FROM {table.name}")).mappings()]
            if rows:
                values = ", ".join(f":{name}" for name in there)
                old.execute(text(f"INSERT INTO {table.name} ({names}) VALUES ({values})"), rows)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def old_and_new(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """An empty database, and one with the newest schema."""
    if request.param == "sqlite":
        return str(tmp_path / "old.db"), str(request.getfixturevalue("file"))
    return str(request.getfixturevalue("empty_postgres_url")), str(request.getfixturevalue("postgres_url"))


@pytest.mark.spec("12.1")
async def test_a_database_of_the_first_schema_keeps_its_rows_and_takes_new_ones(old_and_new: tuple[str, str]) -> None:
    old, new = old_and_new
    facts = Facts()
    root = facts.run()
    writer = Database(new).writer(replaced)
    whole = [facts.created(), facts.handoff(root, "ho_done"), *facts.whole_run(root)]
    assert not writer.write([*whole, facts.handed_back(root, "ho_done", ["run_a"]), facts.handoff(None, "ho_open")])
    writer.close()
    at_revision(old, "0001")
    filled_from(old, new)
    assert upgrade(old) is True
    assert upgrade(old) is False
    database = Database(old)
    await database.open()
    writer = database.writer(replaced)
    try:
        before = await SqlRunStore(database.reader).handoffs("default", facts.session.id)
        assert [(row["id"], row["status"]) for row in before] == [("ho_done", "completed"), ("ho_open", "running")]
        assert {(row["session_scope"], row["fallback"]) for row in before} == {(None, None)}
        assert handoff_view(before[0], ())["run_ids"] == ["run_a"]
        (run,) = await SqlRunStore(database.reader).runs("default", facts.session.id)
        assert (run["id"], run["status"]) == (root.id, "completed")
        fallback = {"kind": "model", "target": "scripted:other"}
        assert not writer.write([facts.handed_back(None, "ho_open", [], status="fallback", fallback=fallback)])
        after = await SqlRunStore(database.reader).handoff("default", "ho_open")
        assert after is not None
        assert (after["status"], after["fallback"]) == ("fallback", fallback)
    finally:
        writer.close()
        await database.close()


@pytest.mark.spec("12.1", "8.3", "12.5")
async def test_approvals_of_an_older_version_say_over_which_arguments_and_their_rows_stay_sound(
    old_and_new: tuple[str, str],
) -> None:
    old, new = old_and_new
    facts = Facts()
    run, call = facts.run(), facts.call()
    edited = {"path": "《b》.txt", "limit": [1, 2.5, None]}
    writer = Database(new).writer(replaced)
    told = [facts.created(), facts.queued(run)]
    answers: tuple[dict[str, Any], ...] = (
        {"decision": "allow_once", "arguments": edited},
        {"decision": "allow_once"},
        {"decision": "allow_once", "reason": 'I read the "arguments".'},
        {"decision": "allow_once", "arguments": edited, "edited_digest": "11" * 32},
        {"decision": "deny"},
    )
    for number, changes in enumerate(answers):
        told += [facts.asked(run, call, f"apr_{number}"), facts.answered(run, call, f"apr_{number}", **changes)]
    assert not writer.write(told)
    writer.close()
    at_revision(old, "0012")
    filled_from(old, new)
    assert upgrade(old) is True
    with writing_connection(locate(old), "FULL", 1000) as connection:
        found = connection.execute(text("SELECT edited_digest FROM decisions ORDER BY seq")).scalars().all()
        assert found[:3] == [digest_of(call["name"], edited), None, None]
        # as of an event of this version, which an older one cannot have written
        connection.execute(
            text("UPDATE decisions SET edited_digest = :new WHERE approval_id = 'apr_3'"), {"new": "11" * 32}
        )
        connection.commit()
    with closing(Database(old).looking()) as looking:
        chains = Chains(looking, None)
        checked = chains.check("default", facts.session.id)
        assert checked is not None
        assert chains.with_rows("default", facts.session.id, checked).flaw is None


@pytest.mark.spec("12.1", "12.7")
async def test_sessions_of_an_older_version_that_were_not_idle_after_their_work_are_found(
    old_and_new: tuple[str, str],
) -> None:
    old, new = old_and_new
    story: dict[str, Facts] = {}
    writer = Database(new).writer(replaced)
    for name in ("open", "ended", "delegated", "at rest", "again", "closed", "new"):
        facts = story[name] = Facts()
        run = facts.run()
        told = [facts.created()]
        if name == "open":
            told.append(facts.queued(run))
        elif name == "delegated":
            told += [facts.handoff(None, "ho_one"), facts.handed_back(None, "ho_one", [])]
        elif name != "new":
            told += facts.whole_run(run)
        if name in ("at rest", "again"):
            told.append(facts.idle())
        if name == "again":
            told += facts.whole_run(facts.run())
        if name == "closed":
            told.append(facts.closed())
        assert not writer.write(told), name
    writer.close()
    at_revision(old, "0013")
    filled_from(old, new)
    assert upgrade(old) is True
    found, rows = [], []
    for where in (old, new):
        database = Database(where)
        await database.open()
        try:
            found.append({row["id"] for row in await SqlRunStore(database.reader).busy_sessions()})
        finally:
            await database.close()
        with writing_connection(locate(where), "FULL", 1000) as connection:
            rows.append(connection.execute(text("SELECT id, busy_seq FROM sessions ORDER BY id")).all())
    busy = {story[name].session.id for name in ("open", "ended", "delegated", "again")}
    assert found == [busy, busy]
    assert rows[0] == rows[1]


@pytest.mark.spec("12.1")
async def test_a_database_is_not_upgraded_under_a_server_that_uses_it(old_and_new: tuple[str, str]) -> None:
    old, _ = old_and_new
    at_revision(old, "0013")
    server = Database(old)
    await server.lock()
    try:
        with pytest.raises(MigrationError, match="has schema 0013 and is used by a server of that version: stop it"):
            upgrade(old)
        with writing_connection(locate(old), "FULL", 1000) as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "0013"
        assert upgrade(old, locked=True) is True, "that server itself may"
        assert upgrade(old) is False, "then there is nothing to do, whoever asks"
    finally:
        await server.close()


# ── installed and changed ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as a wheel lays it out, beside somebody else's `migrations`."""
    home = tmp_path / "site"
    package = Path(migrate.__file__).parent.parent
    shutil.copytree(package, home / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(migrate.scripts(), home / "app" / "_migrations", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "migrations" / "versions").mkdir(parents=True)
    return home


def run_installed(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "app.store.migrate", *arguments]
    place = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(command, cwd=home, env=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spec("12.1")
def test_an_installed_package_finds_its_own_migrations_and_a_new_one_is_run_on_old_data(
    installed: Path, file: Path
) -> None:
    writer = Database(file).writer(replaced)
    facts = Facts()
    writer.write([facts.created()])
    writer.close()
    tables = installed / "app" / "store" / "tables.py"
    tables.write_text(tables.read_text().replace('text("purpose", null=True),', 'json("colour"),'))
    made = Path(run_installed(installed, "revise", "colours").splitlines()[-1])
    assert made == installed / "app" / "_migrations" / "versions" / f"{int(newest()) + 1:04}_colours.py"
    run_installed(installed, "check")
    run_installed(installed, "upgrade", str(file))
    connection = sqlite3.connect(file)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(handoffs)")]
    assert ("colour" in columns, "purpose" in columns) == (True, False)
    assert connection.execute("SELECT id FROM sessions").fetchall() == [(facts.session.id,)]
    connection.close()
