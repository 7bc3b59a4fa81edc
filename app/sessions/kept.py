"""Session values at hand, so that a request needs no database for the session it is about.

A cache: whatever is not here is in the store. Bounded in number and in weight, since what a session was made with may
be as large as a body.
"""

from collections import OrderedDict

from app.agent.runs import Session
from app.wire import encode

SESSION_BYTES = 2_048  # of one without anything of its own
AGENT_BYTES = 4_096  # of an inline definition, its texts and schemas apart


class KeptSessions:
    """The sessions that were used last; None for one that was deleted."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[Session | None, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, session_id: str) -> Session | None:
        """A session that is here, which is used now; None for one that was deleted."""
        self._kept.move_to_end(session_id)
        return self._kept[session_id][0]

    def keep(self, session_id: str, session: Session | None) -> None:
        """Remember it as it is now; those that were used longest ago make room, but never the last one."""
        _, before = self._kept.pop(session_id, (None, 0))
        weight = 0 if session is None else weight_of(session)
        self._kept[session_id] = session, weight
        self._bytes += weight - before
        while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed


def weight_of(session: Session) -> int:
    """About how much memory a session takes, in bytes."""
    weight = SESSION_BYTES + (len(encode(session.metadata)) if session.metadata else 0)
    for definition in session.inline.values():
        weight += AGENT_BYTES + len(definition.prompt) + len(definition.description)
        for value in (definition.metadata, definition.input_schema, definition.output_schema):
            weight += len(encode(value)) if value else 0
    return weight
