"""The ports through which facts become durable and visible, and texts are masked on the way."""

from collections.abc import Sequence
from typing import Protocol

from app.agent.events import Event, EventKind, P, Scope, StoredEvent, Write
from app.agent.payloads import TextDelta, TextSnapshot
from app.agent.runs import Run


class Recorder(Protocol):
    """How the kernel states facts. Nothing here waits for the disk but the two coroutines."""

    def record(
        self, scope: Scope, kind: EventKind[P], payload: P, *, step: int | None = None, also: tuple[Write, ...] = ()
    ) -> Event:
        """Number a durable fact and hand it over; never blocks, never fails a run."""

    def emit(self, run: Run, kind: EventKind[TextDelta], step: int, text: str, call_id: str | None = None) -> None:
        """Show a piece of text; it is numbered by its offset and not stored."""

    async def committed(self, event: Event) -> None:
        """Wait until the event is in the store."""

    async def secured(self, session_id: str) -> None:
        """Wait until what was recorded of a session is in the store, before its work asks a model: what is asked is
        known afterwards, whatever ends the process. Does not wait while the store takes nothing."""

    async def room(self, session_id: str, *, taken_up: bool = False) -> None:
        """Wait while too much waits to be written, or for ever once there is a pause: called at step boundaries of a
        session's runs. One that was `taken_up` of an earlier process may have to wait for its like as well."""

    def pause(self) -> None:
        """No step begins any more: the process is about to end."""

    def seal(self) -> None:
        """Nothing is recorded any more: another process goes on from here."""


class EventLog(Protocol):
    """Reads the durable events of one session in order."""

    async def page(
        self, tenant: str, session_id: str, *, after: int, upto: int | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """Events with `after < seq <= upto`, at most `limit`."""

    async def head(self, tenant: str, session_id: str) -> int | None:
        """The last number stored, 0 for none, None for an unknown session."""

    async def oldest(self, tenant: str, session_id: str) -> int:
        """The first number that is kept: what stood before it was removed for its age."""


class Subscription(Protocol):
    """One reader's place in the live stream of a session."""

    @property
    def head(self) -> int:
        """The last durable event that was published before the subscription began."""

    @property
    def snapshots(self) -> Sequence[tuple[Run, TextSnapshot]]:
        """The texts of the steps that were under way then."""

    @property
    def ended(self) -> str | None:
        """Why it is to stop; None while it is not."""

    async def next(self) -> Sequence[Event]:
        """All that came since the last call; empty only after `poke`. Raises `Lagging` when the reader was too slow,
        `Ended` when the connection is to be closed."""

    def poke(self) -> None:
        """Let a waiting reader return with nothing."""

    def end(self, reason: str) -> None:
        """Let the reader take what is there and then stop."""

    def close(self) -> None:
        """Stop receiving."""


class Lagging(Exception):
    """The live part was dropped for a slow reader: read on from the log. `deltas` says how many were lost."""

    def __init__(self, deltas: int) -> None:
        super().__init__(deltas)
        self.deltas = deltas


class Ended(Exception):
    """The server closes this reader's connection. `reason` as in `stream.closing`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EventBus(Protocol):
    """Hands published events to whoever looks at a session."""

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Show events in order."""

    def subscribe(self, session_id: str, *, head: int) -> Subscription:
        """Begin to receive; `head` is used when the session was not published here yet."""


class Masker(Protocol):
    """Takes secrets out of texts."""

    def text(self, value: str) -> str:
        """The text with every known secret replaced."""

    def hides(self, value: str) -> bool:
        """Whether something was replaced in a text."""
