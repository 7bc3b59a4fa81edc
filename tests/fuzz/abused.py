"""A real server process whose connections are abused, and what must be so meanwhile and afterwards.

report = await abused(folder, connections=60, seed=7)
assert report.violations == []
"""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httpx

from tests.cancels.leftovers import Leftovers, store_problems
from tests.fuzz.checks import answer_faults
from tests.fuzz.seeded import environment, start
from tests.fuzz.sockets import all_suffered
from tests.service import WAIT_S, Service, finished, serving

ALLOWED_S = 0.5  # for a head, and for a body
SLOW_S = 2.0  # longer than both, also where the machine is busy
SPARE_FILES = 8  # connections that are kept for the next request
LOOK_S = 0.2


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    seed: int
    connections: int = 0
    healthy_ms: list[float] = field(default_factory=list)  # of those who behave, meanwhile
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def told(self) -> str:
        """For people."""
        took = sorted(self.healthy_ms) or [0.0]
        middle, late = took[len(took) // 2], took[int(len(took) * 0.99)]
        lines = [
            f"seed {self.seed}: {self.connections} connections abused in {self.seconds:.0f} s",
            f"{len(took)} healthy requests: {middle:.0f} ms (median), {late:.0f} ms (99 %), {took[-1]:.0f} ms (most)",
            f"{len(self.violations)} violations",
        ]
        return "\n".join([*lines, *self.violations[:100]])


async def abused(folder: Path, *, connections: int, seed: int, at_once: int = 60) -> Report:
    """Abuse so many connections, some at a time, beside a client that behaves."""
    report = Report(seed=seed)
    env = environment(folder) | {
        "SUBAGENTD_HTTP__HEAD_TIMEOUT_S": str(ALLOWED_S),
        "SUBAGENTD_HTTP__BODY_TIMEOUT_S": str(ALLOWED_S),
        "SUBAGENTD_HTTP__KEEP_ALIVE_S": "1",  # as long as the checks wait for little
    }
    async with serving(folder, env=env) as service:
        assert service.process is not None
        leftovers = Leftovers(service.process.pid)
        async with service.client() as client:
            run = await client.request("POST", "/v1/runs", start("slow"))
            leftovers.remember()
            healthy = asyncio.create_task(_behave(service, report))
            began = time.monotonic()
            port = urlsplit(service.url).port
            assert port is not None

            def told(done: int) -> None:
                report.connections = done

            session = run["session_id"]
            report.violations += await all_suffered(
                Random(seed), port, session, connections, slow_s=SLOW_S, at_once=at_once, told=told
            )
            report.seconds = time.monotonic() - began
            healthy.cancel()
            await asyncio.gather(healthy, return_exceptions=True)
            await client.request("POST", f"/v1/sessions/{session}/cancel")
            ended = await finished(client, (await client.request("POST", "/v1/runs", start("boss")))["id"])
            if ended["status"] != "completed":
                report.violations.append(f"a normal run ended {ended['status']}: {ended['error']}")
        report.violations += await _left(service, leftovers)
    report.violations += store_problems(service.database)
    return report


async def _behave(service: Service, report: Report) -> None:
    """Ask again and again."""
    async with httpx.AsyncClient(base_url=service.url, timeout=WAIT_S) as http:
        while True:
            began = time.monotonic()
            answer = await http.get("/v1/sessions", headers={"Connection": "close"})
            report.healthy_ms.append((time.monotonic() - began) * 1000)
            report.violations += answer_faults(answer.status_code, answer.headers, answer.content, head=False)
            await asyncio.sleep(LOOK_S)  # the pace of this client


async def _left(service: Service, leftovers: Leftovers) -> list[str]:
    """Streams and files that are still open, once there was time to close them."""
    async with httpx.AsyncClient(base_url=service.url, timeout=WAIT_S) as http, asyncio.timeout(WAIT_S):
        while True:
            lines = (await http.get("/metrics")).text.splitlines()
            streams = [line for line in lines if line.startswith("subagentd_open_streams ")]
            if streams and float(streams[0].split()[1]) == 0 and not leftovers.problems():
                return []
            await asyncio.sleep(0.05)
