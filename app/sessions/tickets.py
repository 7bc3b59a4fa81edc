"""Tickets: one stream for a browser, whose EventSource can send no header (spec 17.3). One use, one minute, one path.

Kept in memory, by their SHA-256 only. Knows no HTTP.
"""

import hashlib
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.agent.errors import InvalidRequest, TooMany, Unauthorized
from app.agent.ids import now_us
from app.sessions.access import Caller

LIFE_US = 60 * 1_000_000
MAX_OPEN = 10_000  # tickets that nobody has used yet; each lives a minute, so that this is 166 a second
MAX_OF_TENANT = 2_500  # of these; one tenant leaves something for others
PREFIX = "tk_sub_"
_STREAM = re.compile(r"/v1/(sessions|runs|delegations)/([\w-]{1,64})/events", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a ticket opens, for whom, until when (µs)."""

    digest: bytes
    path: str
    caller: Caller
    expires_at: int


class Tickets:
    """Gives tickets out and takes them back once. One per process."""

    def __init__(self, clock: Callable[[], int] = now_us) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, Ticket] = OrderedDict()  # all live equally long: the oldest ends first
        self._of_tenant: Counter[str] = Counter()

    def issue(self, caller: Caller, path: str) -> tuple[str, Ticket]:
        """The text of a new ticket for the stream at `path`, and what it opens."""
        self._forget_old()
        most = MAX_OPEN if len(self._open) >= MAX_OPEN else MAX_OF_TENANT
        if most == MAX_OPEN or self._of_tenant[caller.tenant] >= most:
            raise TooMany(f"{most} tickets are unused: use them, or wait a minute until they expire")
        text = PREFIX + secrets.token_urlsafe(32)
        ticket = Ticket(digest=_digest(text), path=path, caller=caller, expires_at=self._clock() + LIFE_US)
        self._keep(ticket)
        return text, ticket

    def take(self, text: str, path: str) -> Ticket:
        """The ticket, which nobody else can use from now on. Raises `Unauthorized` unless it opens this path now."""
        ticket = self._drop(_digest(text))
        if ticket is None or ticket.expires_at <= self._clock():
            raise Unauthorized(
                "the ticket is unknown, used or older than 60 s: POST /v1/tickets gives another one",
                code="invalid_ticket",
            )
        if ticket.path != path:
            raise Unauthorized(
                f"the ticket opens {ticket.path} only, and is used up now: POST /v1/tickets gives another one",
                code="invalid_ticket",
            )
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """It has opened nothing: it can be used again, for the rest of its time."""
        self._keep(ticket)

    def _keep(self, ticket: Ticket) -> None:
        self._open[ticket.digest] = ticket
        self._of_tenant[ticket.caller.tenant] += 1

    def _drop(self, digest: bytes) -> Ticket | None:
        ticket = self._open.pop(digest, None)
        if ticket is not None:
            tenant = ticket.caller.tenant
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
        return ticket

    def _forget_old(self) -> None:
        now = self._clock()
        while self._open and (oldest := next(iter(self._open.values()))).expires_at <= now:
            self._drop(oldest.digest)


def stream_of(path: str) -> tuple[str, str]:
    """`sessions`, `runs` or `delegations`, and the id, of the path of an event stream. Raises `InvalidRequest`."""
    match = _STREAM.fullmatch(path)
    if match is None:
        raise InvalidRequest(
            f"path {path!r} is no event stream: use /v1/sessions/{{id}}/events, /v1/runs/{{id}}/events or "
            "/v1/delegations/{id}/events, without a query",
            errors=[{"at": "path", "message": "not the path of an event stream"}],
        )
    return match[1], match[2]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
