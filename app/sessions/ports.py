"""How facts reach the store: the port that the journal's writer thread calls.

Knows no database. One call is one transaction; what a caller may show to anybody is what the call has stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.agent.errors import Unavailable
from app.agent.events import Event, Write

DAMAGED = "store_damaged"  # the code of errors that do not pass until somebody mends the store


class TransientStoreError(Unavailable):
    """The store is away for now (locked, disk full, read-only, connection lost). Nothing of the batch was stored,
    or it was stored and cannot be told: calling again with the same events in front is right in both cases."""

    code = "store_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A fact that could not be stored, with the reason in words for a log.

    `event` with `replacement`: the replacement, an `error` event, stands in the store under the same number.
    `event` without one: the number does not follow the session's last one in the store (another process numbers this
    session), so nothing stands there and nothing may be shown. `write`: a lone row was refused. `damaged`: the store is
    broken at the place where this belongs, while it takes the rest: nothing stands there, and what comes later in its
    session has to wait too.
    """

    reason: str
    event: Event | None = None
    replacement: Event | None = None
    write: Write | None = None
    damaged: bool = False


Replace = Callable[[Event, str], Event]
"""Builds the `error` event, encoded, that takes the place and the `seq` of an event that cannot be stored."""


class EventWriter(Protocol):
    """Stores events and rows. Synchronous, and called by one thread only."""

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """Store numbered events, in order, each with its `also`, and lone rows, in one transaction.

        Single bad rows do not cost the batch: they are returned, everything else is stored. Raises
        `TransientStoreError` when the same call should be repeated later.
        """

    def rest(self) -> float | None:
        """Nothing waits to be written: do what was put off. In how many seconds it is to be called again, None: not
        before the next `write`."""

    def close(self) -> None:
        """Give the connection back; the last call."""
