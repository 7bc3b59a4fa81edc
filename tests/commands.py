"""The command `subagentd`, run to its end: what it prints, and its exit code."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import ROOT, forked
from tests.service import Service

ENDS_S = 60.0


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("SUBAGENTD_", "OPENAI_", "ANTHROPIC_"))}
    return {**base, "PYTHONPATH": str(ROOT), **(env or {})}


async def run(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> Ended:
    """One command in a process of its own, which is forked: it has everything imported."""
    with tempfile.NamedTemporaryFile("r") as said:
        process = forked(arguments, folder, _environment(env), Path(said.name))
        async with asyncio.timeout(ENDS_S):
            out, code = await process.communicate()
        return Ended(code, out.decode(), said.read())


async def run_cold(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> Ended:
    """One command as a user starts it, from nothing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder, env=_environment(env),
    )  # fmt: skip
    async with asyncio.timeout(ENDS_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def key_for(service: Service, tenant: str, *scopes: str) -> str:
    """A key for a tenant, made by the command beside the service."""
    made = await run(
        *("keys", "create", "--json", "--tenant", tenant, "--scopes", ",".join(scopes), "--db", str(service.database)),
        folder=service.database.parent,
    )
    assert made.code == 0, made.err
    return str(made.lines[0]["key"])
