"""`python -m bench.readers [--cuts 50] [--restarts 4] [--seed N]`: clients that others wrote, behind an nginx that
buffers, on lines that are cut at random, over a service that is killed and started again now and then.

Prints for each client what it was shown, held against the JSON pages. Exit code 1 when anything is double, missing or
changed. Needs nginx, curl, node and chromium, and `npm ci` in `bench/readers`.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import aiohttp

from app.agent.events import KINDS
from tests.readers.between import Cutter, cutting, free_port, nginx
from tests.readers.followers import Shown, with_curl, with_httpx_sse, with_own_client
from tests.readers.judging import Verdict, stored
from tests.readers.talking import order, talking
from tests.service import Service, serving

SCRIPTS = Path(__file__).with_name("readers")
NEEDED = ("nginx", "curl", "node", "chromium")
VIEW_S = 120.0
LINE_BYTES = 1 << 26
Reader = Callable[[str, str], Awaitable[list[Shown]]]


def _all(follow: Callable[[str, str], AsyncGenerator[Shown, None]]) -> Reader:
    async def reader(url: str, path: str) -> list[Shown]:
        return [shown async for shown in follow(url, path)]

    return reader


async def with_parser(url: str, path: str) -> AsyncGenerator[Shown, None]:
    """eventsource-parser in node."""
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPTS / "parser.mjs"), url, path, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield Shown(**json.loads(line))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Browser:
    """A Chromium that is told what to follow."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[str, asyncio.Future[list[Shown]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["kind"])
            if "error" in answer:
                waiting.set_exception(RuntimeError(answer["error"]))
            else:
                waiting.set_result([Shown(type=kind, text=text) for kind, text in answer["shown"]])

    def reader(self, kind: str) -> Reader:
        """Follows with `eventsource` or `fetch`."""

        async def read(url: str, path: str) -> list[Shown]:
            assert self._process.stdin is not None
            self._waiting[kind] = asyncio.get_running_loop().create_future()
            told = {"kind": kind, "base": url, "path": path, "types": list(KINDS)}
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            return await self._waiting[kind]

        return read

    async def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def browser(service: str) -> AsyncIterator[Browser]:
    """A running Chromium."""
    chromium = shutil.which("chromium")
    assert chromium is not None
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPTS / "browser.mjs"), chromium, service,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES,
    )  # fmt: skip
    made = Browser(process)
    try:
        yield made
    finally:
        await made.close()


class Trial:
    """All clients over session after session, until each was cut often enough."""

    def __init__(self, service: Service, dice: Random, restarts: int) -> None:
        self.service = service
        self.verdicts: dict[str, Verdict] = {}
        self.sessions = 0
        self.restarted = 0
        self._dice = dice
        self._restarts = restarts

    async def run(self, readers: dict[str, tuple[Reader, Cutter]], cuts: int) -> None:
        """Go on until every line was cut so often and the service was restarted so often."""
        self.verdicts = {name: Verdict() for name in readers}
        async with aiohttp.ClientSession() as http:
            while min(cutter.cuts for _, cutter in readers.values()) < cuts or self.restarted < self._restarts:
                self.sessions += 1
                await self._session(http, readers)

    async def _session(self, http: aiohttp.ClientSession, readers: dict[str, tuple[Reader, Cutter]]) -> None:
        path = f"/v1/sessions/{await self._started()}/events"
        async with asyncio.timeout(VIEW_S):
            restarting = asyncio.create_task(self._restart())
            seen = await asyncio.gather(*(read(cutter.url, path) for read, cutter in readers.values()))
            await restarting
            log = await stored(http, f"{self.service.url}{path}")
        for verdict, shown in zip(self.verdicts.values(), seen, strict=True):
            verdict.look(shown, log)

    async def _started(self) -> str:
        async with self.service.client() as client:
            started = await client.request("POST", "/v1/runs", order(f"number {self.sessions}"))
            return str(started["session_id"])

    async def _restart(self) -> None:
        """Kill the service in mid-run, or end it in order, and start the next one."""
        if self.restarted >= self._restarts:
            return
        await asyncio.sleep(self._dice.uniform(0.3, 1.5))
        if self.restarted % 2:
            await self.service.stop()
        else:
            await self.service.kill()
        self.restarted += 1
        await self.service.start()

    def table(self, readers: dict[str, tuple[Reader, Cutter]]) -> str:
        """A line for each client."""
        lines = [
            "| client | cuts | events | doubles | gaps | changed bytes | deltas | wrong texts |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, (_, cutter) in readers.items():
            v = self.verdicts[name]
            lines.append(
                f"| {name} | {cutter.cuts} | {v.events} | {v.doubles} | {v.gaps} | {v.changed} | {v.deltas} "
                f"| {v.wrong_texts} |"
            )
        return "\n".join(lines)


async def trial(folder: Path, cuts: int, restarts: int, seed: int) -> int:
    """Run it and say what was found; the exit code."""
    dice, began = Random(seed), time.monotonic()
    env = {**talking(folder, delay_ms=25), "SUBAGENTD_HTTP__GRACE_S": "0.3"}
    (folder / "nginx").mkdir()
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(serving(folder, "--port", str(free_port()), env=env))
        port = await stack.enter_async_context(nginx(folder / "nginx", service.url))
        chromium = await stack.enter_async_context(browser(service.url))
        made: dict[str, Reader] = {
            "EventSource (Chromium, tickets)": chromium.reader("eventsource"),
            "@microsoft/fetch-event-source (Chromium)": chromium.reader("fetch"),
            "eventsource-parser (node, fetch)": _all(with_parser),
            "curl -N": _all(with_curl),
            "httpx-sse": _all(with_httpx_sse),
            "app.client": _all(with_own_client),
        }
        readers = {
            name: (reader, await stack.enter_async_context(cutting(port, Random(dice.random()))))
            for name, reader in made.items()
        }
        found = Trial(service, dice, restarts)
        await found.run(readers, cuts)
    sys.stdout.write(
        f"{found.table(readers)}\n\n{found.sessions} sessions, {found.restarted} restarts of the service, "
        f"seed {seed}, {time.monotonic() - began:.0f} s\n"
    )
    problems = [f"{name}: {p}" for name, verdict in found.verdicts.items() for p in verdict.problems[:5]]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return 0 if all(verdict.right for verdict in found.verdicts.values()) else 1


def main() -> int:
    """Look whether all is there, then run."""
    parser = argparse.ArgumentParser(prog="bench.readers", description="Other people's clients on lines that are cut.")
    parser.add_argument("--cuts", type=int, default=50, help="of each client's line, at least")
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    given = parser.parse_args()
    missing = [name for name in NEEDED if shutil.which(name) is None and shutil.which(name, path="/usr/sbin") is None]
    if missing or not (SCRIPTS / "node_modules").is_dir():
        sys.stderr.write(f"missing: {', '.join(missing) or 'bench/readers/node_modules (npm ci there)'}\n")
        return 2
    seed = given.seed if given.seed is not None else int(time.time())
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(trial(Path(folder), given.cuts, given.restarts, seed))


if __name__ == "__main__":
    sys.exit(main())
