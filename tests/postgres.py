"""A PostgreSQL server for tests: found among the installed binaries, started once, with a fresh database for each test.

Import the fixtures where they are used: `from tests.postgres import postgres_server, postgres_url`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

REQUIRED = "SUBAGENTD_TEST_REQUIRE_POSTGRES"
_numbers = count(1)
# Nothing here must outlive the tests, so nothing waits for the disk.
_OPTIONS = "-c listen_addresses= -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=60"


def binaries() -> Path | None:
    """The directory with `initdb` and `pg_ctl`, of the newest version that is installed."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl") is not None:
        return Path(found).parent
    versions = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb") if p.with_name("pg_ctl").exists()]
    return max(versions, key=lambda path: int(path.parent.name), default=None)


def _user() -> str | None:
    """Who runs the server: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Server:
    """A running server that listens on a socket in its own directory."""

    def __init__(self, programs: Path, home: Path) -> None:
        self._programs = programs
        self._home = home
        self._user = _user()
        if self._user is not None:
            shutil.chown(home, self._user)
        self._run("initdb", "-D", str(home / "data"), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        self._control("start", "-o", f"{_OPTIONS} -c unix_socket_directories={home}", "-l", str(home / "log"))
        from app.store.migrate import upgrade

        self.execute("CREATE DATABASE migrated")
        upgrade(self.url("migrated"))

    def url(self, database: str) -> str:
        return f"postgresql://tester@/{database}?host={self._home}"

    def execute(self, statement: str) -> None:
        """Run one statement outside a transaction."""
        import psycopg

        with psycopg.connect(f"host={self._home} user=tester dbname=postgres", autocommit=True) as connection:
            connection.execute(statement.encode())

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")

    def _control(self, action: str, *arguments: str) -> None:
        self._run("pg_ctl", action, "-w", "-t", "60", "-D", str(self._home / "data"), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        log = self._home / "out"
        with log.open("ab") as out:  # no pipe: the server inherits it and would keep it open
            done = subprocess.run(
                [self._programs / program, *arguments],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                user=self._user,
                extra_groups=[] if self._user is not None else None,
                cwd=self._home,
                timeout=90,
                check=False,
            )
        assert done.returncode == 0, f"{program}: {log.read_text()}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server; skips without binaries, unless they are required."""
    programs = binaries()
    if programs is None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but no PostgreSQL server binary was found in PATH or /usr/lib/postgresql")
        pytest.skip("no PostgreSQL server binary is installed")
    # Not below pytest's own directory: that one is closed to the server's user.
    home = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        server = Server(programs, home)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """A database with the newest schema and nothing in it."""
    name = f"test_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE migrated")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> Iterator[str]:
    """A database without any table."""
    name = f"test_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
