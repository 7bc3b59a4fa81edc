"""What a server has left over: processes, files, sockets, tasks, rows that do not fit.

Linux only: processes and files are found by /proc.
"""

import asyncio
import contextlib
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path

import aiohttp

from app.client import Client
from tests.cancels.plans import Model, plan
from tests.cancels.tools import DEAF_S
from tests.service import Service, agent, finished

SETTLE_S = DEAF_S + 10  # what is deaf ends by itself
SPARE = 8  # files more than at first: connections that are kept for the next request
RUNS = (
    "run ",
    "tool ",
    "cancel ",
    "time out ",
    "cut ",
    "runner ",
    "end processes",
)  # names of tasks that end with runs


class Leftovers:
    """Of one server process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: Counter[str] = Counter()
        self._late: list[str] = []

    def remember(self) -> None:
        """Take what there is now as the measure."""
        self._files = self._open_files()

    async def settled(self, service: Service, model: Model) -> None:
        """Wait until nothing is under way, for a bounded time."""
        async with service.client() as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    while self._open(await self._gauges(client.url), model):
                        await asyncio.sleep(0.05)
            self._late = self._open(await self._gauges(client.url), model)

    def _open(self, gauges: dict[str, float], model: Model) -> list[str]:
        found = [f"{name} is {gauges[name]:g}" for name in ("runs_in_flight", "open_streams") if gauges[name]]
        found += [f"a process is left: {name}" for name in self._children()]
        return found + ([f"{model.playing} answers of the model are under way"] if model.playing else [])

    def problems(self) -> list[str]:
        """What was still there after the time to settle, and files that were not there at first."""
        more = self._open_files() - self._files
        return self._late + ([f"more files are open: {dict(more)}"] if more.total() > SPARE else [])

    def _children(self) -> list[str]:
        found: list[str] = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = status.read_text().rpartition(")")
            except OSError:
                continue
            if int(rest.split()[1]) == self._pid:
                found.append(name + ")")
        return found

    def _open_files(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for number in os.listdir(f"/proc/{self._pid}/fd"):
            with contextlib.suppress(OSError):
                found[os.readlink(f"/proc/{self._pid}/fd/{number}").partition(":")[0]] += 1
        return found

    @staticmethod
    async def _gauges(url: str) -> dict[str, float]:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
            lines = [line.split() for line in (await answer.text()).splitlines() if line.startswith("subagentd_")]
        return {
            name.removeprefix("subagentd_"): float(value) for name, value in (line for line in lines if len(line) == 2)
        }


async def census(service: Service) -> list[str]:
    """Tasks in the server that belong to runs which have ended, once what is deaf had the time to end."""
    async with service.client() as client:
        until = asyncio.get_running_loop().time() + SETTLE_S
        while (left := await _counted(client)) and asyncio.get_running_loop().time() < until:
            pass
    return left


async def _counted(client: Client) -> list[str]:
    task = plan({"calls": [("census", {})]}, {"echo": True})
    body = {"agent": "lead", "agents": [agent("lead", mode="primary", tools=["census"])], "input": task}
    run = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
    if run["status"] != "completed":
        return [f"the census ended {run['status']}: {run['error']}"]
    names = [name for name in json.loads(run["output"]) if name.startswith(RUNS) and run["id"] not in name]
    return [f"a task is left: {name}" for name in names if name != "tool census"]


def store_problems(database: Path) -> list[str]:
    """Of the file that the server has closed."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        found = [f"integrity: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        for table, states in (("runs", "queued running waiting"), ("handoffs", "running"), ("approvals", "pending")):
            marks = ", ".join(f"'{state}'" for state in states.split())
            (left,) = db.execute(f"SELECT count(*) FROM {table} WHERE status IN ({marks})").fetchone()
            found += [f"{left} rows of {table} are open"] if left else []
    return found
