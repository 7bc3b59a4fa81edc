"""The newest published events of each session, so that a reader who comes soon after the start needs no database.

A cache: whatever is not here is in the log. Bounded for each session and in all.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from app.agent.events import Event, StoredEvent

SESSION_BYTES = 256 << 10
ALL_BYTES = 12 << 20
EVENT_BYTES = 384  # of an event, beside its text


class Recent:
    """Remembers the tail of each session's log."""

    def __init__(self, session_bytes: int = SESSION_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._session_bytes = session_bytes
        self._all_bytes = all_bytes
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._size = 0

    def add(self, session_id: str, events: Sequence[Event]) -> None:
        """Durable events that were just published, in order."""
        tail = self._tails.get(session_id)
        if tail is None:
            tail = self._tails[session_id] = _Tail()
        self._size += tail.add(events, self._session_bytes)
        self._tails.move_to_end(session_id)
        while self._size > self._all_bytes and len(self._tails) > 1:
            _, oldest = self._tails.popitem(last=False)
            self._size -= oldest.size

    def after(self, session_id: str, seq: int, upto: int) -> Sequence[StoredEvent] | None:
        """The events with `seq < number <= upto`; None when they are not all here."""
        tail = self._tails.get(session_id)
        return None if tail is None else tail.after(seq, upto)

    def forget(self, session_id: str) -> None:
        """The session was erased."""
        tail = self._tails.pop(session_id, None)
        if tail is not None:
            self._size -= tail.size


class _Tail:
    """Consecutive events, so that a place is found by counting. Behind a gap it begins anew."""

    __slots__ = ("events", "size")

    def __init__(self) -> None:
        self.events: deque[StoredEvent] = deque()
        self.size = 0

    def add(self, events: Sequence[Event], limit: int) -> int:
        """Returns by how much the tail grew, in bytes."""
        before = self.size
        for event in events:
            if self.events and event.seq != self.events[-1].seq + 1:
                self.events.clear()
                self.size = 0
            # without what was recorded with it, which may be megabytes
            kept = StoredEvent(seq=event.seq, type=event.type, envelope=event.envelope, data=event.data)
            self.events.append(kept)
            self.size += _cost(kept)
        while self.size > limit and self.events:
            self.size -= _cost(self.events.popleft())
        return self.size - before

    def after(self, seq: int, upto: int) -> Sequence[StoredEvent] | None:
        if not self.events or self.events[0].seq > seq + 1 or self.events[-1].seq < upto:
            return None
        first = seq + 1 - self.events[0].seq
        return [event for event in list(self.events)[first:] if event.seq <= upto]


def _cost(event: StoredEvent) -> int:
    return EVENT_BYTES + len(event.envelope) + len(event.data)
