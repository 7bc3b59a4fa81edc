"""Copies of a database that is written to, a service on one of them, and readers whose cursors are from the future."""

import asyncio
import contextlib
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from app.client import Client
from tests.chaos.checker import check
from tests.chaos.server import AUDIT_KEY
from tests.readers.between import free_port
from tests.readers.followers import Shown
from tests.readers.judging import Verdict, stored
from tests.readers.talking import order, talking
from tests.service import WAIT_S, Service, finished, serving

RULES = {"C2", "C4", "C10", "log", "chain"}


@dataclass
class Restored:
    """What was found. `copies`: (ms, bytes) of each; `resets`: readers that were told to begin anew; `read`: what they
    were shown then."""

    copies: list[tuple[float, int]] = field(default_factory=list)
    resets: int = 0
    readers: int = 0
    read: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)


def copy(database: Path, target: Path) -> None:
    """The online backup that docs/operations.md shows."""
    with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(target)) as to:
        source.backup(to)


async def restored(folder: Path, *, sessions: int, copies: int) -> Restored:
    """Sessions that talk, copies of the database meanwhile, and the service on the last of these."""
    found = Restored()
    env = {**talking(folder, delay_ms=5), "SUBAGENTD_AUDIT__KEY": AUDIT_KEY, "SUBAGENTD_HTTP__GRACE_S": "0.2"}
    async with serving(folder, "--port", str(free_port()), env=env, check_log=False) as service:
        async with service.client() as client:
            names = [str(number) for number in range(sessions)]
            started = [await client.request("POST", "/v1/runs", order(name)) for name in names]
            await asyncio.gather(*(_in_mid_run(client, one["session_id"]) for one in started))
            for number in range(copies):
                await _copied(service, folder / f"copy{number}.db", found)
            cursors = dict(await asyncio.gather(*(_later(client, one) for one in started)))
        await service.kill()
        for path in folder.glob("service.db*"):
            path.unlink()
        (folder / f"copy{copies - 1}.db").rename(service.database)
        await service.start()
        async with aiohttp.ClientSession() as http, service.client() as client, asyncio.timeout(WAIT_S):
            await asyncio.gather(*(_come_again(client, http, *at, found) for at in cursors.items()))
    found.problems += [f"{rule}: {p}" for rule, all_of in check(folder, only=RULES).violations.items() for p in all_of]
    return found


async def _in_mid_run(client: Client, session_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(f"/v1/sessions/{session_id}/events"):
            if frame.type == "handoff.start":
                return


async def _copied(service: Service, target: Path, found: Restored) -> None:
    began = time.monotonic()
    await asyncio.to_thread(copy, service.database, target)
    found.copies.append(((time.monotonic() - began) * 1000, target.stat().st_size))
    with contextlib.closing(sqlite3.connect(target)) as database:
        ((verdict,),) = database.execute("PRAGMA integrity_check").fetchall()
    if verdict != "ok":
        found.problems.append(f"{target.name}: {verdict}")


async def _later(client: Client, started: dict[str, Any]) -> tuple[str, int]:
    """Two more turns that no copy has; how far a reader then is."""
    session, run = started["session_id"], started["id"]
    for turn in range(2):
        await finished(client, run)
        body = {"input": f"more {turn} of {session}"}
        run = (await client.request("POST", f"/v1/sessions/{session}/runs", body))["id"]
    await finished(client, run)
    shown = [frame.id async for frame in client.events(f"/v1/sessions/{session}/events", until="idle")]
    return session, max(number for number in shown if number is not None)


async def _come_again(
    client: Client, http: aiohttp.ClientSession, session_id: str, cursor: int, found: Restored
) -> None:
    path = f"/v1/sessions/{session_id}/events"
    frames = [frame async for frame in client.events(path, cursor, until="idle")]
    found.readers += 1
    if frames and frames[0].type == "stream.reset" and frames[0].data["head"] < cursor:
        found.resets += 1
    log = await stored(http, client.url + path)
    found.read.look([Shown(frame.type, frame.text) for frame in frames[1:]], log)
