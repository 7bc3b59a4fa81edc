"""A directory for one command (`$TMPDIR`), and that nothing of it is left. Knows no box."""

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.boxes.ownership import Identity
from app.boxes.warden import cleared_away

log = logging.getLogger(__name__)

_REMOVAL_S = 30.0  # a command that fills it for so long has had to take about as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """`place`: a handle of it."""

    path: str
    place: int


@asynccontextmanager
async def temporary(owner: Identity) -> AsyncIterator[Temporary]:
    """A new directory that the command's user owns. At the end it is removed, in a thread if anything is in it, and
    logged if that takes too long. Raises OSError."""
    path = tempfile.mkdtemp(prefix="subagentd-command-")
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if owner.dropped:
                os.fchown(place, owner.user, owner.group)
            yield Temporary(path=path, place=place)
        finally:
            os.close(place)
    finally:
        if not cleared_away(path, 0):  # usually whoever ran the command has removed it
            await asyncio.to_thread(_clear_away, path)


def _clear_away(path: str) -> None:
    if not cleared_away(path, _REMOVAL_S):
        log.error("the temporary directory %s of a command could not be removed within %g s", path, _REMOVAL_S)
