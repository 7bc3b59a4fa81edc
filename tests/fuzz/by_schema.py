"""Requests that schemathesis makes from the OpenAPI document, one by one and in chains, against a real server process
whose ids the document offers. Each answer must be one that the document describes.

    report = await by_schema(folder, tool, cases=20, keyed=True, seed=7)
    assert report.violations == []

The tool lives in an environment of its own (`make fuzz` makes it): its releases ask for other versions of libraries
than the service does.
"""

import asyncio
import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.fuzz.seeded import KINDS, LEADS, Known, environment, seed, start
from tests.service import WAIT_S, Service, finished, serving

KEY = "a-bootstrap-key-of-some-length"
OFFERED = 4  # ids of a kind
MOST_WAIT_MS = 20  # what waits longer would only cost time
END_S = 3600.0
# What the tool means by valid is the document alone, what makes sense besides is told by the service: so "valid data is
# accepted" and its converse are no rules here. Of /v1/tasks/clear and /v1/agents/reload, which name a task and an
# agent as well, it thinks that they take POST only.
LEFT_OUT = (
    "positive_data_acceptance",
    "negative_data_rejection",
    "use_after_free",
    "ensure_resource_availability",
    "unsupported_method",
    "allow_header_conformance",
)


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    seed: int
    keyed: bool
    summary: str = ""
    violations: list[str] = field(default_factory=list)

    def told(self) -> str:
        """For people."""
        lines = [f"seed {self.seed}, {'with' if self.keyed else 'without'} keys, by schema: {self.summary}"]
        return "\n".join([*lines, f"{len(self.violations)} violations", *self.violations])


def prepared(document: Mapping[str, Any], known: Known, *, keyed: bool) -> dict[str, Any]:
    """The document with the ids that there are, and without long waits; for a service without keys also without the
    making of one, since from the first on they are needed."""
    rng, made = Random(0), copy.deepcopy(dict(document))
    if not keyed:
        del made["paths"]["/v1/keys"]["post"]
        del made["components"]["securitySchemes"]
    for operations in made["paths"].values():
        for operation in operations.values():
            if not keyed:
                del operation["security"]
            for parameter in operation.get("parameters", ()):
                name, shape = parameter["name"], parameter["schema"]
                if parameter["in"] == "path":
                    there = {*LEADS, "mine"} if name == "name" else {known.pick(rng, name) for _ in range(OFFERED)}
                    shape["enum"] = [*sorted(each for each in there if each), "unknown"]
                elif name in ("wait_ms", "timeout_ms"):
                    shape["maximum"] = MOST_WAIT_MS
                elif name in KINDS:
                    parameter["schema"] = {"enum": [known.pick(rng, name) or "unknown", "unknown"]}
    return made


async def by_schema(folder: Path, tool: Path, *, cases: int, keyed: bool, seed: int) -> Report:
    """At most so many cases for each operation and phase of the tool."""
    report = Report(seed=seed, keyed=keyed)
    env = environment(folder) | ({"SUBAGENTD_KEY": KEY} if keyed else {})
    async with serving(folder, env=env) as service:
        known = await _seeded(service)
        async with service.client() as client:
            document = await client.request("GET", "/openapi.json")
        (folder / "openapi.json").write_text(json.dumps(prepared(document, known, keyed=keyed)))
        code, text = await _run(folder, tool, service.url, cases, report)
        report.summary = _summary(text)
        if code != 0:
            report.violations.append(f"exit code {code}\n{text[-20_000:]}")
        async with service.client() as client:
            run = await finished(client, (await client.request("POST", "/v1/runs", start("boss")))["id"])
            if run["status"] != "completed":
                report.violations.append(f"a normal run ended {run['status']}: {run['error']}")
    return report


async def _seeded(service: Service) -> Known:
    known = Known()
    headers = {"Authorization": f"Bearer {service.key}"} if service.key else {}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, timeout=WAIT_S) as http:
        await seed(http, known)
    return known


async def _run(folder: Path, tool: Path, url: str, cases: int, report: Report) -> tuple[int, str]:
    """The exit code of the tool, and what it said."""
    args = ["run", "openapi.json", "--url", url, "--checks", "all", "--exclude-checks", ",".join(LEFT_OUT)]
    args += ["--mode", "all", "--max-examples", str(cases), "--seed", str(report.seed), "--continue-on-failure"]
    args += [
        "--header",
        "Accept: application/json",
        "--generation-database",
        "none",
        "--no-color",
        "--no-shrink",
        "--request-timeout",
        "30",
    ]
    args += ["--header", f"Authorization: Bearer {KEY}"] if report.keyed else []
    process = await asyncio.create_subprocess_exec(
        tool, *args, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(END_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, said.decode("utf-8", "replace")


def _summary(text: str) -> str:
    """The line that counts the cases."""
    found = re.search(r"^\s*(\d[\d,]* generated.*)$", text, re.MULTILINE)
    return found[1] if found else "no summary"
