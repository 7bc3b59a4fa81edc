"""The readable part of web pages, taken out by a child process that is killed when it takes too long.

Not in a thread, which nothing could stop: one element with 100,000 attributes keeps a parser of HTML busy for minutes.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

EXTRACTION_S = 10.0
AT_ONCE = 2  # they compute
# Isolated: neither the directory it is started in nor variables say what it imports.
_COMMAND = (sys.executable, "-I", "-B", str(Path(__file__).with_name("extraction_child.py")))

_ENVIRONMENT = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}  # of the interpreter


class Extraction:
    """Takes texts out of pages, some at a time."""

    def __init__(self, *, command: Sequence[str] = _COMMAND, timeout_s: float = EXTRACTION_S) -> None:
        """`command`: gets a line with the URL and then the page on its stdin; every user of the machine can read
        arguments, and a URL may hold a secret."""
        self._command = command
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, html: str, url: str) -> str:
        """The readable part as Markdown; empty when none is found, or not in time, waiting included."""
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return await self._run(html.encode("utf-8", "replace"), url)
        except TimeoutError:
            log.info("no text was taken out of a page of %d characters within %g s", len(html), self._timeout_s)
        except OSError as error:
            log.warning("the program that takes texts out of pages cannot be started: %s", error.strerror)
        return ""

    async def _run(self, page: bytes, url: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
        )
        try:
            found, _ = await process.communicate(url.encode("utf-8", "replace") + b"\n" + page)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:  # it met its limits, or cannot run at all
            log.warning("the program that takes texts out of pages ended with code %s", process.returncode)
            return ""
        return found.decode("utf-8", "replace")
