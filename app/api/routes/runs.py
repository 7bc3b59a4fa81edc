"""Runs: start one in a session of its own, look at it, cancel it."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from app.api import sse
from app.api.audit_query import Narrowing, Paging, messages
from app.api.deps import Asked, Reading, Running, Starting
from app.api.docs import STREAM, new_router, problems
from app.api.pages import WaitMs, answer
from app.api.schemas import answers
from app.api.schemas.requests import OneShotBody
from app.sessions.service import Started

router = new_router("runs")

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
    started = await asked.services.sessions.run_once(asked.tenant, body.session(), body.run())
    return await run_answer(request, asked, started, streaming=streaming)


async def run_answer(request: Request, asked: Asked, started: Started, *, streaming: bool) -> Response:
    """The answer to a run that was started: what it is, or its events."""
    run = started.run
    headers = {"Location": f"/v1/runs/{run.id}"}
    if streaming:
        view = await asked.services.sessions.run_stream(asked.tenant, run.id)
        return sse.stream(request, asked, view, started.after, headers)
    shown = {
        "id": run.id,
        "session_id": run.session_id,
        "memory_id": run.memory_id,
        "run": run.ordinal,
        "turn": run.turn,
        "depth": run.depth,
        "agent": run.agent,
        "status": "queued",
        "events": f"/v1/runs/{run.id}/events",
        "after": started.after,
    }
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
