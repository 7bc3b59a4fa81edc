"""Runs: start one in a session of its own, look at it, cancel it."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from app.api import sse
from app.api.audit_query import Narrowing, Paging, messages
from app.api.deps import REPLAYED, Asked, Reading, Running, Starting, Telling
from app.api.docs import STREAM, new_router, problems
from app.api.pages import WaitMs, answer
from app.api.schemas import answers
from app.api.schemas.requests import MessageBody, OneShotBody, ResumeBody
from app.sessions.idempotency import ONE_SHOT, RESUMED, Once
from app.sessions.service import Started
from app.sessions.views import started_view

router = new_router("runs")
AS_IT_WAS = ResumeBody()  # where a request has no body

STARTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The events of the run.", "content": STREAM},
    **problems(400, 404, 406, 409, 413, 415, 429, 503),
}


@router.post("/v1/runs", status_code=202, response_model=answers.StartedRun, responses=STARTED)
async def start_run(request: Request, asked: Starting, body: OneShotBody) -> Response:
    """Make a session and start its first turn; `{"input": "…"}` alone is enough."""
    streaming = sse.wants_stream(request, default=False)
    if streaming:
        sse.check_room(asked)
    sessions = asked.services.sessions
    started = await asked.once(ONE_SHOT, lambda: sessions.run_once(asked.tenant, body.session(), body.run()))
    return await run_answer(request, asked, started, streaming=streaming)


async def run_answer(request: Request, asked: Asked, once: Once[Started], *, streaming: bool) -> Response:
    """The answer to a run that was started: what it is, or its events."""
    sessions = asked.services.sessions
    started = once.made
    shown = once.kept if started is None or once.kept is not None else started_view(started.run, started.after)
    assert shown is not None  # one of the two is there
    headers = {"Location": f"/v1/runs/{shown['id']}"}
    if once.replayed:
        await sessions.known(asked.tenant, shown["session_id"])  # it may have been deleted
        headers |= REPLAYED
    if streaming:
        view = await sessions.run_stream(asked.tenant, shown["id"])
        return sse.stream(request, asked, view, shown["after"], headers)
    return answer(shown, 202, headers)


@router.get("/v1/runs/{run_id}", response_model=answers.Run, responses=problems(404))
async def get_run(asked: Reading, run_id: str, wait_ms: WaitMs = 0) -> Response:
    """A run; `wait_ms` waits for its end."""
    return answer(await asked.services.sessions.run(asked.tenant, run_id, wait_ms / 1000))


@router.get(
    "/v1/runs/{run_id}/events", response_model=answers.EventPage, responses=sse.ANSWERS, openapi_extra=sse.QUERY
)
async def get_run_events(request: Request, asked: Reading, run_id: str) -> Response:
    """The events of a run and of all runs below it."""
    look = sse.look_of(request)
    view = await asked.services.sessions.run_stream(asked.tenant, run_id)
    return await sse.events(request, asked, view, look)


@router.get("/v1/runs/{run_id}/messages", response_model=answers.MessagePage, responses=problems(404))
async def get_run_messages(asked: Reading, run_id: str, narrowed: Narrowing, paged: Paging) -> Response:
    """What was said in a run."""
    await asked.services.sessions.run(asked.tenant, run_id)
    return await messages(asked, narrowed, paged, run_id=run_id)


@router.post("/v1/runs/{run_id}/cancel", response_model=answers.CancelledRun, responses=problems(404))
async def cancel_run(asked: Running, run_id: str) -> Response:
    """Cancel a run and everything below it; the answer says which runs this stopped."""
    return answer(await asked.services.sessions.cancel(asked.tenant, run_id))


@router.post(
    "/v1/runs/{run_id}/messages",
    status_code=202,
    response_model=answers.ToldRun,
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def tell_run(asked: Telling, run_id: str, body: MessageBody) -> Response:
    """Say something to a run under way: it reads it before its next model call, and answers only after that. A run that
    has ended takes none (409)."""
    asked.services.need_store()
    return answer(await asked.services.follow_ups.tell(asked.tenant, run_id, body.content), 202)


@router.post("/v1/runs/{run_id}/resume", status_code=202, response_model=answers.StartedRun, responses=STARTED)
async def resume_run(request: Request, asked: Starting, run_id: str, body: ResumeBody = AS_IT_WAS) -> Response:
    """Start a run that goes on with the memory of one that has ended: a turn of the session, or a subagent that no run
    waits for. One that goes on answers 409, and so does a memory that somebody else goes on with."""
    streaming = sse.wants_stream(request, default=False)
    if streaming:
        sse.check_room(asked)
    follow_ups = asked.services.follow_ups
    once = await asked.once(RESUMED, lambda: follow_ups.resume(asked.tenant, run_id, body.resumption()))
    started = await follow_ups.resumed(asked.tenant, once)
    return await run_answer(request, asked, started, streaming=streaming)
