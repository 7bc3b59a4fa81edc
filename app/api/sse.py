"""Event streams over HTTP: which form a client wants, of what, and from where on.

Knows no event: `EventFeed` makes the bytes, `event_stream.py` sends them.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from app.agent.errors import InvalidRequest
from app.agent.events import KINDS
from app.api.deps import Asked
from app.api.docs import STREAM, Responses, problems
from app.api.errors import BadRequest, Gone, NotAcceptable
from app.api.event_stream import EventStream, until_gone, whose
from app.api.pages import JSON, page_of
from app.sessions.feed import View
from app.wire import decode

SSE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store, no-transform"}
LAST_EVENT_ID = "Last-Event-ID"
_CLOSING = b"event: stream.closing\ndata: "
_CURSOR = re.compile(r"[0-9]{1,100}")
_LAST = (1 << 63) - 1  # behind it there is no event, wherever it was


class StreamQuery(BaseModel):
    """The query of an event stream. Read in one piece: one by one the framework takes ten times as long for them."""

    after: str | None = Field(None, description="Events behind this id; 0: from the first that is kept.")
    types: str | None = Field(None, description="Only these types, with commas between them.")
    run: int | None = Field(None, ge=1, description="Only the run with this ordinal.")
    depth: int | None = Field(None, ge=0, description="Only runs of this depth.")
    deltas: bool = Field(True, description="false: without text deltas.")
    limit: int = Field(50, ge=1, le=500, description="Events of a page, at most.")
    wait_ms: int = Field(0, ge=0, le=60_000, description="How long a page waits for its first event.")
    ticket: str | None = Field(None, description="Instead of a key, for a browser's EventSource.")


class SessionStreamQuery(StreamQuery):
    """The query of a session's event stream."""

    until: Literal["idle"] | None = Field(None, description="idle: end when no run is open any more.")


def documented(query: type[StreamQuery]) -> dict[str, Any]:
    """What OpenAPI says of the query and of the header that goes with it."""
    parameters = [
        {"name": name, "in": "query", "required": False, "description": shape.pop("description"), "schema": shape}
        for name, shape in query.model_json_schema()["properties"].items()
    ]
    header = {"name": LAST_EVENT_ID, "in": "header", "required": False, "schema": {"type": "string"}}
    return {"parameters": [*parameters, {**header, "description": "Wins over `after`."}]}


QUERY = documented(StreamQuery)
SESSION_QUERY = documented(SessionStreamQuery)
ANSWERS: Responses = {
    200: {"description": "Events: JSON or a stream, by `Accept`.", "content": STREAM},
    204: {"description": "The stream is over, and there is nothing behind the cursor."},
    **problems(400, 404, 406, 410, 429),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What a client wants to see of a stream, and from where on."""

    after: int = 0
    types: frozenset[str] | None = None
    run: int | None = None
    depth: int | None = None
    deltas: bool = True
    limit: int = 50
    wait_s: float = 0.0
    until_idle: bool = False

    def at(self, view: View) -> View:
        """The view with the filters of the request."""
        if self.types is None and self.run is None and self.depth is None and self.deltas:
            return view
        return replace(view, types=self.types, run=self.run, depth=self.depth, deltas=self.deltas)


FROM_THE_FIRST = Look()


def look_of(request: Request, model: type[StreamQuery] = StreamQuery) -> Look:
    """What a request wants to see. Raises `BadRequest` for a cursor that is none."""
    last = request.headers.get(LAST_EVENT_ID, "").strip(" \t")  # blanks around a value are no part of it
    text = request.scope["query_string"]
    if not text:
        return Look(after=_number(last, LAST_EVENT_ID)) if last else FROM_THE_FIRST
    try:
        query = model.model_validate(dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)))
    except ValidationError as error:
        found = [{**item, "loc": ("query", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(found) from error
    return Look(
        after=_number(last, LAST_EVENT_ID) if last else _number(query.after, "after"),
        types=_types(query.types),
        run=query.run,
        depth=query.depth,
        deltas=query.deltas,
        limit=query.limit,
        wait_s=query.wait_ms / 1000,
        until_idle=isinstance(query, SessionStreamQuery) and query.until == "idle",
    )


def _number(cursor: str | None, name: str) -> int:
    if not cursor:
        return 0
    if _CURSOR.fullmatch(cursor) is None:
        raise BadRequest(
            f"{name} {cursor[:80]!r} is no event id: send the id of the last event that you have, or 0",
            code="invalid_cursor",
            errors=[{"at": name, "message": "not an event id"}],
        )
    return min(int(cursor), _LAST)


def _types(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    names = frozenset(name for part in text.split(",") if (name := part.strip()))
    unknown = sorted(names - KINDS.keys())
    if unknown or not names:
        raise InvalidRequest(
            f"types {', '.join(unknown) or '(none)'}: there are {', '.join(KINDS)}",
            errors=[{"at": "types", "message": "no event type"}],
        )
    return names


# ── which form ──────────────────────────────────────────────────────────────────────────────────────────────────


def wants_stream(request: Request, *, default: bool) -> bool:
    """Whether the client wants a stream rather than JSON; `default` is for those that take either.

    Raises `NotAcceptable` when it takes none of the two.
    """
    header = ", ".join(request.headers.getlist("accept"))
    if not header or header == "*/*":
        return default
    given = weights(header)
    stream, page = _wanted(given, SSE), _wanted(given, JSON)
    if not stream[0] and not page[0]:
        raise NotAcceptable(f"Accept {header[:200]!r}: there are {SSE} and {JSON}")
    return stream > page or (stream == page and default)


def _wanted(given: Mapping[str, float], kind: str) -> tuple[float, int]:
    """How much a media type is wanted, by the entry that names it best, and how well that names it: of two that are
    wanted as much it is the one that was meant."""
    for rank, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in given:
            return given[name], rank
    return 0.0, 0


def weights(header: str) -> dict[str, float]:
    """The media types of an `Accept` header, with how much each is wanted."""
    found = {}
    for entry in header.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        found[kind] = value if 0 <= value <= 1 else 0.0
    return found


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def events(request: Request, asked: Asked, view: View, look: Look) -> Response:
    """The events of a view, as a stream or as a page."""
    view = look.at(view)
    over = view.ended_seq is not None and look.after >= view.ended_seq
    if over:
        head = await asked.services.feed.head(view)
        # A new title may stand behind the last idle. A cursor of another database: the stream says so and begins anew.
        over = look.after == head if view.until_idle else look.after <= head
    if not over and (look.after or view.ended_seq is not None):
        await _kept(asked, view, look.after)
    if wants_stream(request, default=True):
        if over:
            return Response(status_code=204)
        check_room(asked)
        return stream(request, asked, view, look.after)
    return page_of([], None) if over else await _page(request, asked, view, look)


async def _kept(asked: Asked, view: View, after: int) -> None:
    """Raises `Gone` when events behind a cursor were removed for their age: a client that goes on would miss them. And
    without one when that which ended the view was: it would be waited for in vain. A view until idle needs no event to
    end: who begins it anew is shown what is kept."""
    oldest = await asked.services.feed.oldest(view, after)
    behind = max(after, view.begins)  # of what stands before a view nothing is missed
    if after and behind < oldest - 1 and view.run_id is not None and not view.begins:  # not known of every open run
        behind = max(behind, await asked.services.sessions.begins(asked.tenant, view.run_id))
    over = view.ended_seq is not None and view.ended_seq < oldest and not view.until_idle
    if over or (after and behind < oldest - 1):
        state = f"/v1/sessions/{view.session_id}/tree"
        rest = "nothing follows" if over else f"then go on without a cursor, or after {oldest - 1}"
        raise Gone(
            f"the events behind {after} are older than they are kept (audit.retention_h): the oldest is {oldest}. Read "
            f"the present state at {state}; {rest}",
            code="events_gone",
            oldest=oldest,
            head=await asked.services.feed.head(view),
            state=state,
        )


def check_room(asked: Asked) -> None:
    """Raises `TooMany` when one more stream is too much; asked before anything is begun."""
    asked.services.feed.check(asked.caller.key_id)


def stream(
    request: Request, asked: Asked, view: View, after: int, headers: Mapping[str, str] | None = None
) -> Response:
    """A view as a stream."""
    services, caller = asked.services, asked.caller
    services.access.watch(caller, services.feed)
    settings = request.app.state.stream
    return EventStream(
        services.feed.follow(view, after, caller.key_id),
        headers={**HEADERS, **headers} if headers else HEADERS,
        ping=settings.heartbeat_s,
        sep="\n",
        send_timeout=settings.send_timeout_s,
        about=whose(caller.key_id, view.session_id),
        reason_of=_closed_for,
        told=services.metrics.stream_ended,
    )


def _closed_for(frame: bytes) -> str | None:
    """Why the server closed a stream, if this frame says that."""
    return str(decode(frame[len(_CLOSING) :])["reason"]) if frame.startswith(_CLOSING) else None


async def _page(request: Request, asked: Asked, view: View, look: Look) -> Response:
    feed = asked.services.feed
    head = await feed.head(view)
    if look.after > head:
        raise BadRequest(
            f"after {look.after} lies behind the last event of this session, {head}: begin again at 0",
            code="invalid_cursor",
            errors=[{"at": "after", "message": f"at most {head}"}],
        )
    if not look.wait_s:
        page = await feed.page(view, look.after, look.limit, 0.0)
    else:  # such a page holds as much as a stream does, and no longer than its client is there
        check_room(asked)
        asked.services.access.watch(asked.caller, feed)
        gone = asyncio.create_task(until_gone(request.receive), name="page client")
        try:
            page = await feed.page(view, look.after, look.limit, look.wait_s, asked.caller.key_id, gone)
        finally:
            gone.cancel()
    return page_of(page["items"], page["next"], oldest=page["oldest"], bounded=page["bounded"])
