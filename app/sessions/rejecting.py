"""What the store did not take: what stands in its place, and what is said to whoever waits for it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.agent import events
from app.agent.errors import Unavailable
from app.agent.events import Event
from app.agent.payloads import ErrorLogged
from app.sessions.ports import DAMAGED, Rejected
from app.wire import encode, encode_payload, envelope, scope_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rejections:
    """Those of one batch, by the identity of what was handed over: `replaced` events, `refused` rows, and why events
    were `dropped` with nothing in their place."""

    replaced: dict[int, Event] = field(default_factory=dict)
    refused: dict[int, Exception] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)


def sorted_out(rejected: Sequence[Rejected]) -> Rejections:
    """What becomes of each. Events of damaged sessions are none of these: they wait."""
    found = Rejections()
    for item in rejected:
        if item.damaged:
            if item.write is not None:
                found.refused[id(item.write)] = Unavailable(
                    f"the store is damaged where this belongs: {item.reason}", code=DAMAGED, retry_after_s=60
                )
            continue
        log.error("not stored: %s", item.reason)
        if item.event is not None and item.replacement is not None:
            found.replaced[id(item.event)] = item.replacement
        elif item.event is not None:
            found.dropped[id(item.event)] = item.reason
        elif item.write is not None:
            found.refused[id(item.write)] = ValueError(item.reason)
    return found


def replacement(event: Event, reason: str) -> Event:
    """The `error` event that takes the place and number of one that cannot be stored."""
    scope = scope_bytes(event.run) if event.run is not None else b'"session_id":' + encode(event.session_id)
    payload = ErrorLogged(code="not_stored", message=reason, event=event.type)
    kept, data = encode_payload(payload)
    return Event(
        seq=event.seq,
        type=events.ERROR.name,
        ts=event.ts,
        tenant=event.tenant,
        session_id=event.session_id,
        run=event.run,
        step=event.step,
        payload=kept,
        envelope=envelope(event.seq, events.ERROR, event.ts, scope, event.step),
        data=data,
    )
