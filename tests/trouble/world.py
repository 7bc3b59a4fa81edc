"""A real server under load whose store gets into trouble, and what must be true of it: the figures of one kind.

    report = await under(folder, Plan(...), trouble)

`trouble` is an async context manager: entered when the load runs, left when the trouble is over.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.server import ColdProcess, free_port
from tests.service import ROOT, WAIT_S, Service
from tests.trouble.lag import lags, share
from tests.trouble.load import Load, play
from tests.trouble.watch import Watch

MEMORY_MB = 64
LAG_MS = 100.0
RECOVER_S = 2.0
GRACE_S = 2.0
DRAINED_S = 2.0  # beyond the grace
IDLE_S = 4.0
Trouble = Callable[["Scene"], contextlib.AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`runs` at a time of `steps` steps, each reply in 6 pieces `delay_ms` apart; trouble for `trouble_s` after
    `before_s` of quiet. `stops`: whether the store takes nothing meanwhile. `recover_s`: what it may take afterwards,
    None: it does not come back; it `ends_ready` or not.
    `where`: the database; None: a file, in `data` or the folder."""

    runs: int = 100
    steps: int = 6
    delay_ms: int = 60
    before_s: float = 4.0
    trouble_s: float = 10.0
    after_s: float = 4.0
    stops: bool = True
    readable: bool = True
    recover_s: float | None = RECOVER_S
    ends_ready: bool = True
    where: str | None = None
    data: Path | None = None
    cold: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """Figures by name, in order, and what was violated."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    readiness: list[str] = field(default_factory=list)

    def need(self, holds: bool, otherwise: str) -> None:
        """A pass criterion."""
        if not holds:
            self.violations.append(otherwise)

    def told(self) -> str:
        """All of it as lines."""
        lines = [f"== {self.name}"]
        lines += [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [f"  readiness {turn}" for turn in self.readiness]
        lines += [f"  VIOLATED {what}" for what in self.violations] or ["  all criteria hold"]
        return "\n".join(lines)


class Server(Service):
    """`cold`: started from nothing, as users start it; otherwise forked."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        scripts = folder / "scripts"
        scripts.mkdir(exist_ok=True)
        (scripts / "play.yaml").write_text(play(plan.steps, plan.delay_ms))
        env = {
            "SUBAGENTD_MODELS__SCRIPTS": str(scripts),
            "SUBAGENTD_MODEL": "scripted:play",
            "SUBAGENTD_TOOLS__FUNCTIONS": '["tests.trouble.tools:everything"]',
            "SUBAGENTD_STREAM__MAX_PER_OWNER": "2000",
            "SUBAGENTD_LIMITS__CONCURRENT_RUNS": "200",
            "SUBAGENTD_HTTP__GRACE_S": str(GRACE_S),
            "TROUBLE_FOLDER": str(folder),
            **plan.env,
        }
        super().__init__(folder, args=("--port", str(free_port())), env=env)
        if plan.data is not None:
            self.database = plan.data / "service.db"
            self.where = str(self.database)
        self.where = plan.where or self.where
        self._cold = plan.cold

    async def start(self) -> "Server":
        """Start and wait for the address."""
        if not self._cold:
            await super().start()
            return self
        args, env = self.command()
        process: Any = await ColdProcess.start(args, self.folder, env)
        self.process = process
        async with asyncio.timeout(WAIT_S):
            line = await process.first_line()
        assert line, f"the server did not start:\n{self.log}"
        self.url = json.loads(line)["listening"]
        return self


@dataclass(slots=True)
class Scene:
    """What a trouble may look at while it lasts."""

    server: Server
    load: Load
    watch: Watch
    report: Report
    began: float = 0.0
    ended: float = 0.0


async def under(folder: Path, name: str, plan: Plan, trouble: Trouble) -> Report:
    """Serve, load, trouble, recovery, check; at the end SIGTERM."""
    async with _begun(folder, name, plan) as scene:
        await _play(scene, plan, trouble)
        await _afterwards(scene, plan)
        await _memory_and_reads(scene, plan)
        await _ended(scene, GRACE_S + DRAINED_S)
    return _closed(scene)


async def stopped(folder: Path, name: str, plan: Plan, trouble: Trouble, within_s: float) -> Report:
    """Serve, load, trouble, SIGTERM while it lasts; a second process finds everything that anybody was shown."""
    async with _begun(folder, name, plan) as scene:
        scene.load.begin()
        await asyncio.sleep(plan.before_s)
        async with trouble(scene):
            scene.began = time.monotonic()
            await asyncio.sleep(plan.trouble_s)
            await _look_at_the_file(scene, plan)
            scene.ended = time.monotonic()
            scene.load.stop()
            await _memory_and_reads(scene, plan)
            await _ended(scene, within_s, "SIGTERM in the trouble to exit")
        scene.report.figures["facts that were not stored"] = "told" if "are lost" in scene.server.log else "NOT told"
        await scene.server.start()
        await scene.load.finish(60)
        scene.report.figures["runs accepted"] = len(scene.load.seen)
        scene.report.figures["events received"] = await scene.load.check()
        await _ended(scene, GRACE_S + DRAINED_S)
    return _closed(scene)


@contextlib.asynccontextmanager
async def _begun(folder: Path, name: str, plan: Plan) -> AsyncIterator[Scene]:
    idle = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.trouble.lag", folder / "idle", cwd=ROOT)
    server = await Server(folder, plan).start()
    try:
        async with Load(server.url, plan.runs) as load:
            first = await load.post("/v1/runs", {"input": "the first one"})
            assert first is not None and server.process is not None
            async with load.http.get(f"{server.url}/v1/runs/{first['id']}?wait_ms=20000") as answer:
                await answer.read()
            read = f"/v1/sessions/{first['session_id']}/messages"
            async with Watch(server.url, server.process.pid, read) as watch:
                yield Scene(server, load, watch, Report(name))
    finally:
        idle.terminate()
        if server.process is not None and server.process.returncode is None:
            await server.kill()
        await idle.wait()


def _closed(scene: Scene) -> Report:
    report, log = scene.report, scene.server.log
    _lags(scene.server.folder, scene, report)
    tracebacks = log.count("Traceback")
    report.need(tracebacks == 0, f"{tracebacks} tracebacks in the log: {_around(log)}")
    report.figures["lines of the log"] = log.count("\n")
    report.violations += _unique(scene.load.wrong)
    return report


async def _play(scene: Scene, plan: Plan, trouble: Trouble) -> None:
    scene.load.begin()
    await asyncio.sleep(plan.before_s)
    async with trouble(scene):
        scene.began = time.monotonic()
        await asyncio.sleep(plan.trouble_s)
        await _look_at_the_file(scene, plan)
    scene.ended = time.monotonic()
    await asyncio.sleep(plan.after_s)


async def _look_at_the_file(scene: Scene, plan: Plan) -> None:
    """Whether everything that was shown so far stands in the file, read by another process than the server."""
    if plan.where is not None:
        return
    load = scene.load
    async with load.http.get(f"{load.url}/metrics") as answer:
        sizes = [line for line in (await answer.text()).splitlines() if "journal_waiting_bytes" in line]
    scene.report.figures["waits to be stored"] = f"{float(sizes[-1].split()[-1]) / 2**20:.1f} MiB"
    shown = [(seen.session_id, number) for seen in load.seen for number in list(seen.events)]
    scene.report.figures["events shown before the end, looked for in the file"] = len(shown)
    lost = await asyncio.to_thread(missing, scene.server.database, shown)
    scene.report.need(not lost, f"{len(lost)} events were shown and are not stored: {lost[:3]}")


def missing(path: Path, shown: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Which of these events, by session and number, are not in a file that another process writes."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        wanted = "SELECT 1 FROM events WHERE tenant_id = 'default' AND session_id = ? AND seq = ?"
        return [each for each in shown if connection.execute(wanted, each).fetchone() is None]
    finally:
        connection.close()


async def _afterwards(scene: Scene, plan: Plan) -> None:
    load, watch, report, ended = scene.load, scene.watch, scene.report, scene.ended
    if plan.recover_s is not None:
        green = await watch.until(True, 30, ended)
        report.need(green is not None, "readiness does not become green again")
        event = next((at for at in load.moments if at > ended), None)
        report.figures["first event after the end"] = "none" if event is None else f"{event - ended:.2f} s"
        report.figures["ready after the end"] = "never" if green is None else f"{green - ended:.2f} s"
        report.need(event is not None and event - ended <= plan.recover_s, f"no event within {plan.recover_s:g} s")
        report.need(green is not None and green - ended <= plan.recover_s, f"not ready within {plan.recover_s:g} s")
    await load.finish(60)
    report.figures["runs accepted"] = len(load.seen)
    report.figures["events received"] = await load.check()
    if not plan.ends_ready:
        report.need(bool(watch.turns[-1][1]), "it says that it is ready")
        used = _cpu_s(watch.pid)
        await asyncio.sleep(IDLE_S)
        share = (_cpu_s(watch.pid) - used) / IDLE_S
        report.figures["CPU without work afterwards"] = f"{share:.0%}"
        report.need(share < 0.2, "it is busy without work")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _memory_and_reads(scene: Scene, plan: Plan) -> None:
    load, watch, report, began, ended = scene.load, scene.watch, scene.report, scene.began, scene.ended
    during = [at for at in load.moments if began + 0.5 < at < ended]
    report.figures["durable events received in the trouble"] = len(during)
    if plan.stops:
        report.need(
            not during or plan.data is not None, f"{len(during)} events were shown while nothing could be stored"
        )
        report.need(watch.was_red(began, ended), "readiness stayed green")
    report.figures["answers"] = dict(load.statuses)
    report.figures["longest wait for a POST"] = f"{max(load.waits, default=0.0):.1f} s"
    statuses, longest = watch.read_statuses(began, ended)
    report.figures["reads in the trouble"] = f"{dict(statuses)}, longest {longest:.2f} s"
    if plan.readable:
        report.need(set(statuses) == {200}, f"reads were answered with {dict(statuses)}")
    grown = watch.growth(began - 1, time.monotonic()) / 2**20
    report.figures["memory"] = f"{_at(watch.memory, began) / 2**20:.0f} MiB before, {grown:+.0f} MiB at most"
    report.need(grown <= MEMORY_MB, f"memory grew by {grown:.0f} MiB")
    report.readiness += [f"{at - began:+.1f} s: {why or 'ready'}" for at, why in watch.turns]


def _at(memory: list[tuple[float, int]], moment: float) -> int:
    return next((size for at, size in memory if at >= moment), 0)


async def _ended(scene: Scene, within_s: float, what: str = "SIGTERM to exit") -> None:
    server, report = scene.server, scene.report
    assert server.process is not None
    if server.process.returncode is not None:
        report.violations.append(f"the process ended by itself with {server.process.returncode}")
        return
    began = time.monotonic()
    server.process.terminate()
    try:
        code = await server.ended()
    except TimeoutError:
        report.violations.append(f"the process does not end within {WAIT_S:g} s of SIGTERM")
        server.process.send_signal(signal.SIGKILL)
        code = await server.ended()
    took = time.monotonic() - began
    report.figures[what] = f"{took:.1f} s, code {code}"
    report.need(took <= within_s and code == 0, f"{what} took {took:.1f} s, code {code}, not {within_s:g} s")


def _lags(folder: Path, scene: Scene, report: Report) -> None:
    since, until = scene.began - 1, scene.ended + 5
    for what, found in (
        ("event loop lag", lags(folder / "lag", since, until)),
        ("without what others had the machine for", lags(folder / "lag", since, until, own=True)),
        ("of an idle process meanwhile", lags(folder / "idle", since, until)),
    ):
        told = f"p50 {share(found, 0.5):.1f}, p99 {share(found, 0.99):.1f}, most {share(found, 1):.1f} ms"
        report.figures[what] = told
    own = lags(folder / "lag", since, until, own=True)
    p99 = share(own, 0.99)
    report.need(bool(own), "the lag of the event loop was not seen")
    report.need(p99 <= LAG_MS, f"99 of 100 looks found the event loop up to {p99:.0f} ms late, not {LAG_MS:g}")


def _around(log: str) -> str:
    at = log.find("Traceback")
    return log[max(0, at - 300) : at + 2500] if at >= 0 else ""


def _unique(lines: list[str], most: int = 10) -> list[str]:
    found = list(dict.fromkeys(lines))
    return found[:most] + ([f"and {len(found) - most} more"] if len(found) > most else [])
