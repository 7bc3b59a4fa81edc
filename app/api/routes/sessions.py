"""Sessions: make, list, change, close and delete them, start turns, look at what happens in them."""

from fastapi import Request
from starlette.responses import Response

from app.api import sse
from app.api.audit_export import ANSWERS, Format, exported, form_of
from app.api.audit_query import Narrowing, Paging, RunId, check_ids, messages
from app.api.deps import REPLAYED, Reading, Running, Starting
from app.api.docs import new_router, problems
from app.api.pages import Cursor, Limit, answer, cursor_after, number_of, tree_answer
from app.api.routes.runs import STARTED, run_answer
from app.api.schemas import answers
from app.api.schemas.requests import RunBody, SessionBody, SessionPatch
from app.sessions.idempotency import SESSION, TURN
from app.sessions.views import run_view

router = new_router("sessions")

_READ = problems(404)
_CHANGE = problems(400, 404, 409, 413, 415, 503)


@router.post("/v1/sessions/{session_id}/runs", status_code=202, response_model=answers.StartedRun, responses=STARTED)
async def start_turn(request: Request, asked: Starting, session_id: str, body: RunBody) -> Response:
    """Start a turn: a run of the lead agent over the conversation so far."""
    streaming = sse.wants_stream(request, default=False)
    if streaming:
        sse.check_room(asked)
    sessions = asked.services.sessions
    started = await asked.once(TURN, lambda: sessions.start(asked.tenant, session_id, body.run()))
    return await run_answer(request, asked, started, streaming=streaming)


@router.get(
    "/v1/sessions/{session_id}/events",
    response_model=answers.EventPage,
    responses=sse.ANSWERS,
    openapi_extra=sse.SESSION_QUERY,
)
async def get_session_events(request: Request, asked: Reading, session_id: str) -> Response:
    """Everything that happens in a session, of all runs of all depths, in order."""
    look = sse.look_of(request, sse.SessionStreamQuery)
    view = await asked.services.sessions.session_stream(asked.tenant, session_id, until_idle=look.until_idle)
    return await sse.events(request, asked, view, look)


@router.post("/v1/sessions", status_code=201, response_model=answers.Session, responses=_CHANGE)
async def create_session(asked: Starting, body: SessionBody) -> Response:
    """Make a session; all fields may be left out."""
    sessions = asked.services.sessions
    once = await asked.once(SESSION, lambda: sessions.create(asked.tenant, body.session()))
    session = once.made
    if session is None:
        assert once.kept is not None
        session = await sessions.created(asked.tenant, once.kept["id"])
    headers = {"Location": f"/v1/sessions/{session['id']}"}
    return answer(session, 201, headers | REPLAYED if once.replayed else headers)


@router.get("/v1/sessions", response_model=answers.SessionPage, responses=problems())
async def list_sessions(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Sessions, newest first."""
    return answer(await asked.services.sessions.sessions(asked.tenant, cursor, limit))


@router.get("/v1/sessions/{session_id}", response_model=answers.Session, responses=_READ)
async def get_session(asked: Reading, session_id: str) -> Response:
    """One session."""
    return answer(await asked.services.sessions.session(asked.tenant, session_id))


@router.patch("/v1/sessions/{session_id}", response_model=answers.Session, responses=_CHANGE)
async def update_session(asked: Running, session_id: str, body: SessionPatch) -> Response:
    """Change title and metadata; `{"closed": true}` ends the session for good."""
    asked.services.need_store()
    changed = await asked.services.sessions.update(
        asked.tenant, session_id, body.changes(), close=body.closed is not None
    )
    return answer(changed)


@router.delete("/v1/sessions/{session_id}", status_code=204, responses=problems(404, 503))
async def delete_session(asked: Running, session_id: str) -> Response:
    """Cancel everything in a session, close it and erase its data."""
    asked.services.need_store()
    await asked.services.sessions.delete(asked.tenant, session_id)
    return Response(status_code=204)


@router.post("/v1/sessions/{session_id}/cancel", response_model=answers.Cancelled, responses=problems(404))
async def cancel_session(asked: Running, session_id: str) -> Response:
    """Cancel every run of a session; the answer says which ones this stopped."""
    return answer(await asked.services.sessions.cancel_session(asked.tenant, session_id))


@router.get("/v1/sessions/{session_id}/runs", response_model=answers.RunPage, responses=_READ)
async def list_turns(asked: Reading, session_id: str, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """The turns of a session, in order; `tree` shows the runs below them."""
    after = number_of(cursor, session_id)
    rows, more = await asked.services.sessions.turns(asked.tenant, session_id, after=after, limit=limit)
    following = cursor_after(rows[-1]["ordinal"], session_id) if more else None
    return answer({"items": [run_view(row) for row in rows], "next": following})


@router.get("/v1/sessions/{session_id}/tree", response_model=answers.Tree, responses=_READ)
async def get_tree(asked: Reading, session_id: str) -> Response:
    """All runs of a session under those that started them, with what they used."""
    return tree_answer(await asked.services.sessions.tree(asked.tenant, session_id), "runs", "children")


@router.get("/v1/sessions/{session_id}/messages", response_model=answers.MessagePage, responses=_READ)
async def get_session_messages(
    asked: Reading, session_id: str, narrowed: Narrowing, paged: Paging, run_id: RunId = None
) -> Response:
    """What was said in a session, at every depth."""
    await asked.services.sessions.known(asked.tenant, session_id)
    if paged.cursor is None:
        await check_ids(asked, run_id=run_id)
    return await messages(asked, narrowed, paged, session_id=session_id, run_id=run_id)


@router.get("/v1/sessions/{session_id}/export", responses={**ANSWERS, **problems(404, 406)})
async def export_session(
    request: Request, asked: Reading, session_id: str, narrowed: Narrowing, run_id: RunId = None, form: Format = None
) -> Response:
    """All messages of a session as a file, oldest first, read from the store page by page."""
    chosen = form_of(request, form)
    await asked.services.sessions.known(asked.tenant, session_id)
    await check_ids(asked, run_id=run_id)
    filters = narrowed.messages(session_id=session_id, run_id=run_id, newest_first=False)
    return await exported(request, asked, filters, chosen, name=session_id)
