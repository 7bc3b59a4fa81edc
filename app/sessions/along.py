"""Rows that a request wants stored with the event that it leads to, in the same transaction.

They travel with the context of the work, so that nothing between a request and its event has to hand them on. Knows
neither the request nor what the rows say.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from app.agent.events import Event, Write

Rows = Callable[[Event], Write | None]
"""Gives the row that goes along with an event; None: it is not the one that is waited for."""


class _Companion:
    """What waits for its event."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows: Rows | None = rows


_waiting: ContextVar[_Companion | None] = ContextVar("along", default=None)


@contextmanager
def along(rows: Rows) -> Iterator[None]:
    """Show `rows` every event that is recorded in here, also by tasks that begin in here, until it has given a row;
    that one is stored with its event, or neither of the two."""
    token = _waiting.set(_Companion(rows))
    try:
        yield
    finally:
        _waiting.reset(token)


def accompanied(event: Event) -> Event:
    """The event with the row that waits for it, if any does."""
    companion = _waiting.get()
    if companion is None or companion.rows is None:
        return event
    row = companion.rows(event)
    if row is None:
        return event
    companion.rows = None
    return replace(event, also=(*event.also, row))
