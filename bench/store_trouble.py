"""`python -m bench.store_trouble [KIND …] [--runs 100]`: a loaded server whose store gets into trouble.

Real processes, real files, a small file system of its own, a real PostgreSQL behind a proxy (tests/trouble). Figures
and one line for each violation go to standard output. Exit code 1: something was violated.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from tests.postgres import Server as Database
from tests.postgres import binaries
from tests.trouble import damage, kinds
from tests.trouble.proxy import proxied
from tests.trouble.world import Plan, Report, Scene, stopped, under

INDEX = "ix_messages_session"
STOP_S = 24.0  # for an end while nothing can be stored: grace 2 s, and 20 s for the store to come back

Measured = Callable[[Path, int], AsyncIterator[Report]]


async def locked(folder: Path, runs: int) -> AsyncIterator[Report]:
    """Another process holds SQLite's write lock for 10 s."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        async with kinds.locked(scene.server.database):
            yield

    yield await under(folder, "locked for 10 s", Plan(runs=runs), trouble)


async def bound(folder: Path, runs: int) -> AsyncIterator[Report]:
    """Locked for 20 s under runs that say more than may wait."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        async with kinds.locked(scene.server.database):
            yield

    plan = Plan(runs=runs, steps=120, delay_ms=2, trouble_s=20)
    yield await under(folder, "locked for 20 s, more is said than may wait", plan, trouble)


async def full(folder: Path, runs: int) -> AsyncIterator[Report]:
    """The disk is full for 8 s."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        with kinds.full(scene.server.database.parent):
            yield

    with kinds.small_disk(folder / "disk", 192) as disk:
        yield await under(folder, "disk full for 8 s", Plan(runs=runs, trouble_s=8, data=disk), trouble)


async def slow(folder: Path, runs: int) -> AsyncIterator[Report]:
    """Each commit takes up to 2 s."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        with kinds.slow(scene.server.folder, 2000):
            yield

    plan = Plan(runs=runs, trouble_s=20, stops=False)
    yield await under(folder, "each commit takes 0 to 2 s, for 20 s", plan, trouble)


async def stop(folder: Path, runs: int) -> AsyncIterator[Report]:
    """SIGTERM while the disk is full for good, and while the database is locked."""
    for name in ("full", "locked"):
        here = folder / name
        here.mkdir()
        with kinds.small_disk(here / "disk", 192) as disk:

            @contextlib.asynccontextmanager
            async def trouble(scene: Scene, name: str = name) -> AsyncIterator[None]:
                if name == "full":
                    with kinds.full(scene.server.database.parent):
                        yield
                else:
                    async with kinds.locked(scene.server.database):
                        yield

            plan = Plan(runs=runs, steps=12, trouble_s=25, data=disk)
            yield await stopped(here, f"{name} for 25 s, then SIGTERM", plan, trouble, STOP_S)


async def postgres(folder: Path, runs: int) -> AsyncIterator[Report]:
    """PostgreSQL behind a proxy that delays, narrows, cuts, resets and holds."""
    programs = binaries()
    if programs is None:
        raise SystemExit("no PostgreSQL server binary is installed")
    home = folder / "postgres"
    home.mkdir()
    database = Database(programs, home)
    try:
        async with proxied(home / ".s.PGSQL.5432") as proxy:
            for number, toxic in enumerate(kinds.TOXICS):
                here = folder / f"toxic-{number}"
                here.mkdir()
                database.execute(f"CREATE DATABASE toxic_{number} TEMPLATE migrated")
                where = f"postgresql://tester@127.0.0.1:{proxy.port}/toxic_{number}"

                @contextlib.asynccontextmanager
                async def trouble(_scene: Scene, toxic: kinds.Toxic = toxic) -> AsyncIterator[None]:
                    async with kinds.poisoned(proxy, toxic):
                        yield

                plan = Plan(
                    runs=runs, trouble_s=10, where=where, stops=toxic.stops, readable=not toxic.stops,
                    recover_s=2 if toxic.ends else 35,
                )  # fmt: skip
                yield await under(here, f"PostgreSQL: {toxic.name}", plan, trouble)
    finally:
        database.stop()


async def readonly(folder: Path, runs: int) -> AsyncIterator[Report]:
    """The file system is mounted read-only; the writer finds out since it has to open the file again."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        with kinds.read_only(scene.server.database.parent):
            yield

    @contextlib.asynccontextmanager
    async def opened_again(scene: Scene) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(kinds.locked(scene.server.database))
            async with trouble(scene):
                await asyncio.sleep(0.5)
                await held.aclose()
                yield

    with kinds.small_disk(folder / "disk", 192) as disk:
        plan = Plan(runs=runs, data=disk, env={"SUBAGENTD_STORE__BUSY_TIMEOUT_MS": "0"})
        yield await under(folder, "read-only for 10 s", plan, opened_again)


async def corrupt(folder: Path, runs: int) -> AsyncIterator[Report]:
    """A page is overwritten where the messages of old sessions are found."""

    @contextlib.asynccontextmanager
    async def trouble(scene: Scene) -> AsyncIterator[None]:
        path, load, report = scene.server.database, scene.load, scene.report
        old = load.seen[0].session_id
        pages = damage.leaves(path, INDEX)
        page = next(page for page in pages if damage.holds(path, page, old))
        report.need(page != pages[-1], "the page is the one that new sessions need: load it for longer")
        async with kinds.locked(path):  # the writer opens the file again, and knows nothing of the page
            damage.destroy(path, page)
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)
        load.accepted.clear()
        asked = [await load.ask(f"/v1/sessions/{old}/runs", {"input": "again"}) for _ in range(2)]
        report.figures["runs asked for in the damaged session"] = asked[-1]
        report.need({status for status, _ in asked} == {503}, "a run was begun where nothing can be stored")
        report.need("damaged" in asked[-1][1], "the answer does not say what is wrong")
        yield
        report.figures["runs begun in other sessions meanwhile"] = len(load.accepted)
        report.need(len(load.accepted) > 0, "the other sessions do not go on")
        report.need("is damaged" in scene.server.log, "the log does not say what is wrong")

    plan = Plan(
        runs=runs, steps=3, delay_ms=100, before_s=10, stops=False, readable=False, recover_s=None, ends_ready=False,
        env={"SUBAGENTD_STORE__BUSY_TIMEOUT_MS": "0"},
    )  # fmt: skip
    yield await under(folder, "a page of an index is destroyed", plan, trouble)


MEASUREMENTS: dict[str, Measured] = {
    "locked": locked,
    "bound": bound,
    "full": full,
    "slow": slow,
    "stop": stop,
    "postgres": postgres,
    "readonly": readonly,
    "corrupt": corrupt,
}


@contextlib.contextmanager
def _folder(kept: Path | None, name: str) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="trouble-") as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)
    else:
        (kept / name).mkdir(parents=True)
        yield kept / name


async def _measure(reports: AsyncIterator[Report]) -> int:
    """Say what was found as it comes; how much was violated."""
    violated = 0
    async for report in reports:
        sys.stdout.write(f"{report.told()}\n")
        sys.stdout.flush()
        violated += len(report.violations)
    return violated


def main() -> int:
    """Run what was asked for and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.store_trouble", description="A store in trouble under load.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--runs", type=int, default=100, help="at a time")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder for what is left")
    given = parser.parse_args()
    unknown = [name for name in given.kinds if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"unknown kind {', '.join(unknown)}: there are {', '.join(MEASUREMENTS)}")
    began, violated = time.monotonic(), 0
    for name in given.kinds or list(MEASUREMENTS):
        with _folder(given.keep, name) as folder:
            violated += asyncio.run(_measure(MEASUREMENTS[name](folder, given.runs)))
    sys.stdout.write(f"{violated} violations, {time.monotonic() - began:.0f} s\n")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
