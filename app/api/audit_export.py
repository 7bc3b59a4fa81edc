"""Messages or decisions as a file that is sent while it is read: which form a client wants, and the stream of it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from app.agent.errors import InvalidRequest
from app.api.deps import Asked
from app.api.errors import NotAcceptable
from app.api.event_stream import EventStream, whose
from app.api.sse import weights
from app.sessions.audit import Filter, MessageFilter, check_text
from app.sessions.exporting import CSV, NDJSON, Form, lines_for

Format = Annotated[str | None, Query(alias="format", description="`ndjson` (default) or `csv`; before `Accept`.")]
_MEDIA: dict[Form, str] = {"ndjson": NDJSON, "csv": f"{CSV}; charset=utf-8; header=present"}
_TEXT = {"schema": {"type": "string"}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One message, or with `decision` one decision, a line; with `csv` one a record, below the names "
        "of the columns.",
        "content": {NDJSON: _TEXT, CSV: _TEXT},
    }
}


def form_of(request: Request, wanted: str | None) -> Form:
    """The form that was asked for, by name or by `Accept`; of equals it is NDJSON. Raises `InvalidRequest` for another
    name, `NotAcceptable` when the client takes neither."""
    if wanted is not None:
        if wanted not in ("ndjson", "csv"):
            raise InvalidRequest(
                f"format {wanted!r}: there are ndjson and csv", errors=[{"at": "format", "message": "ndjson or csv"}]
            )
        return "csv" if wanted == "csv" else "ndjson"
    header = request.headers.get("accept")
    if not header:
        return "ndjson"
    given = weights(header)
    any_ = given.get("*/*", 0.0)
    lines = max(given.get(NDJSON, 0.0), given.get("application/*", 0.0), given.get("application/json", 0.0), any_)
    table = given.get(CSV, given.get("text/*", 0.0))
    if not lines and not table:
        raise NotAcceptable(f"Accept {header[:200]!r}: there are {NDJSON} and {CSV}")
    return "csv" if table > lines else "ndjson"


async def exported(
    request: Request,
    asked: Asked,
    filters: Filter,
    form: Form,
    *,
    name: str,
) -> Response:
    """All messages or decisions that are asked for. `name` is that of the file."""
    if isinstance(filters, MessageFilter):
        check_text(filters)  # before the answer begins
    await asked.services.journal.settle()
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    return EventStream(
        _lines(asked, filters, form),
        headers=headers,
        media_type=_MEDIA[form],
        ping=0,
        send_timeout=request.app.state.stream.send_timeout_s,
        about=whose(asked.caller.key_id, filters.session_id),
    )


async def _lines(asked: Asked, filters: Filter, form: Form) -> AsyncGenerator[bytes]:
    kind = lines_for(filters)
    lines = kind.of(form)
    yield kind.head(form)
    async for rows in asked.services.audit.export(asked.tenant, filters):
        yield await asyncio.to_thread(lines, rows)  # a page of long texts would keep all others waiting
