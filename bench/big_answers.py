"""Asks a real server about a large log over HTTP, exports it, verifies it, and says how long that took."""

import asyncio
import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from bench.big_questions import Kind, Samples, kinds
from bench.stories import LARGEST

PING_S = 0.02


def _service(*args: str) -> list[str]:
    return [sys.executable, "-m", "app", *args]


def key_of(path: Path) -> str:
    """A new key that can read the largest tenant."""
    made = subprocess.run(
        _service("keys", "create", "--tenant", LARGEST, "--scopes", "read", "--json", "--db", str(path)),
        check=True,
        capture_output=True,
    )
    return str(json.loads(made.stdout)["key"])


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """A client of a server on this database, and the server's process."""
    key = key_of(path)
    workspace = path.parent / "workspace"
    workspace.mkdir(exist_ok=True)
    args = _service("serve", "--json", "--port", "0", "--db", str(path), "--workspace", str(workspace))
    process = await asyncio.create_subprocess_exec(
        *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["listening"]
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout) as client:
            yield client, process.pid
    finally:
        process.terminate()
        await process.wait()


def at(times: Sequence[float], share: float) -> float:
    """So many of the times are not above this; in ms."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


async def ask(client: aiohttp.ClientSession, pid: int, kind: Kind, asks: int) -> None:
    """Print median and 95 % of one question, and the server's CPU for each."""
    times, rows, size, cpu = [], [], 0, _cpu_s(pid)
    for _ in range(asks):
        path, query = kind.ask()
        begun = time.perf_counter()
        async with client.get(path, params=query, headers={"Accept": "application/json"}) as answer:
            body = await answer.read()
        times.append(time.perf_counter() - begun)
        if answer.status != 200:
            raise ValueError(f"{kind.name}: {answer.status} {body[:300]!r} for {path} {query}")
        rows.append(len(json.loads(body).get("items", ())))
        size = max(size, len(body))
    flag = "  <<<" if at(times, 0.5) > 20 else ""
    print(
        f"{kind.name:<46} {sorted(rows)[len(rows) // 2]:>4} rows  p50 {at(times, 0.5):7.1f}  p95 {at(times, 0.95):7.1f}"
        f"  most {at(times, 1):7.1f}  CPU {(_cpu_s(pid) - cpu) / asks * 1000:6.1f} ms {size / 1024:7.0f} KiB{flag}",
        flush=True,
    )


def _memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def export(client: aiohttp.ClientSession, pid: int, form: str, most: int) -> None:
    """Print rows a second of a whole export, how far memory went, and how long others waited meanwhile."""
    pings: list[float] = []
    pinging = asyncio.create_task(_ping(client, pings))
    rows, size, before, top = 0, 0, _memory_mib(pid), 0.0
    begun, cpu = time.perf_counter(), _cpu_s(pid)
    async with client.get("/v1/audit/export", params={"format": form}) as answer:
        async for chunk in answer.content.iter_any():
            rows += chunk.count(b"\n")
            size += len(chunk)
            top = max(top, _memory_mib(pid))
            if rows >= most:
                break
    took, cpu = time.perf_counter() - begun, _cpu_s(pid) - cpu
    pinging.cancel()
    print(
        f"export {form:<7} {rows:>9} rows in {took:6.1f} s: {rows / took:>8,.0f} a second, {rows / cpu:,.0f} a second "
        f"of CPU, {size / 2**20:.0f} MiB; memory {before:.0f} to {top:.0f} MiB; /healthz meanwhile "
        f"p50 {at(pings, 0.5):.1f}, p99 {at(pings, 0.99):.1f}, most {at(pings, 1):.1f} ms ({len(pings)})",
        flush=True,
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ping(client: aiohttp.ClientSession, times: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        async with client.get("/healthz") as answer:
            await answer.read()
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(PING_S)


async def verify_over_http(client: aiohttp.ClientSession, session_id: str) -> None:
    """Print events a second of the longest session, answer by answer."""
    begun, cursor, answers = time.perf_counter(), "", 0
    while True:
        query = {"cursor": cursor} if cursor else {}
        async with client.get(f"/v1/sessions/{session_id}/audit/verify", params=query) as answer:
            told: dict[str, Any] = await answer.json()
        answers += 1
        if told["ok"] is False:
            raise ValueError(str(told))
        if not told["next"]:
            break
        cursor = told["next"]
    took = time.perf_counter() - begun
    print(
        f"verify over HTTP: {told['events']} events in {answers} answers, {took:.1f} s: "
        f"{told['events'] / took:,.0f} a second",
        flush=True,
    )


def verify(path: Path) -> None:
    """Print events a second of `subagentd audit verify --all`."""
    with closing(sqlite3.connect(path)) as db:
        events = db.execute("SELECT sum(next_seq - 1) FROM sessions").fetchone()[0]
    begun = time.perf_counter()
    process = subprocess.Popen(
        _service("audit", "verify", "--all", "--json", "--db", str(path)), stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)  # what this process has used, and no other
    took, cpu = time.perf_counter() - begun, used.ru_utime + used.ru_stime
    print(
        f"verify: exit {os.waitstatus_to_exitcode(status)}, {events} events in {took:.1f} s: {events / took:,.0f} a "
        f"second, {events / cpu:,.0f} a second of CPU; memory at most {used.ru_maxrss / 1024:.0f} MiB",
        flush=True,
    )


async def measure(path: Path, asks: int, only: str, most: int) -> None:
    """Everything but `verify`; `only`: questions whose name has this in it, `-`: none."""
    with closing(sqlite3.connect(path)) as connection:
        # As if texts were indexed: the server would begin with that, for an hour or more.
        connection.execute("UPDATE text_index SET upto = (SELECT max(row_id) FROM messages)")
        connection.commit()
        samples = Samples(connection, Random(7))
        async with serving(path) as (client, pid):
            for kind in kinds(samples):
                if only in kind.name and only != "-":
                    await ask(client, pid, kind, asks)
            if only in ("", "-"):
                for form in ("ndjson", "csv"):
                    await export(client, pid, form, most)
                await verify_over_http(client, samples.long)
