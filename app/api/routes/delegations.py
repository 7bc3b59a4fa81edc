"""Delegations: one task for one subagent, for a caller that has no parent session here."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from app.api import sse
from app.api.deps import REPLAYED, Asked, Reading, Starting
from app.api.docs import STREAM, new_router, problems
from app.api.pages import answer
from app.api.schemas import answers
from app.api.schemas.requests import DelegationBody
from app.sessions.delegations import Delegated
from app.sessions.idempotency import DELEGATION, DELEGATION_IN_SESSION, KeyInUse

NO_HEADERS: Mapping[str, str] = {}
router = new_router("delegations")


@router.post(
    "/v1/delegations",
    response_model=answers.Delegation,
    responses={
        200: {"description": "The result, or the events on the way to it.", "content": STREAM},
        202: {"description": "A task that goes on in the background.", "model": answers.StartedTask},
        **problems(400, 404, 406, 409, 413, 415, 429, 503),
    },
)
async def delegate(request: Request, asked: Starting, body: DelegationBody) -> Response:
    """Hand a task to a subagent and wait for the result, or in the background get a task id at once. Who does not wait
    finds it under the id later; a denial is a 403, a failed subagent a result with its status."""
    streaming = sse.wants_stream(request, default=False)
    if streaming:
        sse.check_room(asked)
    services = asked.services
    there = body.session_id is not None or body.resume is not None  # what is resumed says in which
    making = DELEGATION_IN_SESSION if there else DELEGATION
    once = await asked.once(making, lambda: services.delegations.start(asked.tenant, body.delegation()))
    delegated = once.made
    if delegated is None:
        assert once.kept is not None
        return await _again(request, asked, once.kept, streaming=streaming)
    headers = {"Location": f"/v1/delegations/{delegated.handoff_id}"}
    if streaming and not _ended(delegated):
        view = await services.delegations.stream(asked.tenant, delegated.handoff_id)
        return sse.stream(request, asked, view, delegated.after, headers)
    if delegated.background and not streaming:
        return await _task(asked, delegated)
    result = await services.delegations.result(asked.tenant, delegated)
    if streaming:  # it was not denied, or this would have been raised now
        view = await services.delegations.stream(asked.tenant, delegated.handoff_id)
        return sse.stream(request, asked, view, delegated.after, headers)
    return answer(result, headers=headers)


async def _again(request: Request, asked: Asked, kept: Mapping[str, Any], *, streaming: bool) -> Response:
    """The answer to a delegation that was carried out before, or is under way."""
    delegations = asked.services.delegations
    headers = {"Location": f"/v1/delegations/{kept['id']}", **REPLAYED}
    result = await delegations.answered(asked.tenant, kept["id"])
    if streaming:
        view = await delegations.stream(asked.tenant, kept["id"])
        return sse.stream(request, asked, view, kept["after"], headers)
    if await asked.services.tasks.is_one(asked.tenant, kept["id"]):
        return await _started_task(asked, kept["id"], kept["after"], REPLAYED)
    if result is None:
        raise KeyInUse(
            f"the first request with this key is not answered yet: its delegation {kept['id']} goes on",
            handoff_id=kept["id"],
        )
    return answer(result, headers=headers)


async def _task(asked: Asked, delegated: Delegated) -> Response:
    """The answer to a delegation that nobody waits for."""
    asked.services.delegations.check(delegated)
    return await _started_task(asked, delegated.handoff_id, delegated.after)


async def _started_task(asked: Asked, task_id: str, after: int, more: Mapping[str, str] = NO_HEADERS) -> Response:
    shown = await asked.services.tasks.get(asked.tenant, task_id)
    shown |= {
        "handoff_id": task_id,
        "run_id": next(iter(shown["run_ids"]), None),
        "events": f"/v1/delegations/{task_id}/events",
        "after": after,
    }
    return answer(shown, 202, {"Location": f"/v1/tasks/{task_id}", **more})


def _ended(delegated: Delegated) -> bool:
    return delegated.result.done()


@router.get("/v1/delegations/{handoff_id}", response_model=answers.Delegation, responses=problems(404))
async def get_delegation(asked: Reading, handoff_id: str) -> Response:
    """A delegation, also while it goes on, also one of a model."""
    return answer(await asked.services.delegations.get(asked.tenant, handoff_id))


@router.get(
    "/v1/delegations/{handoff_id}/events",
    response_model=answers.EventPage,
    responses=sse.ANSWERS,
    openapi_extra=sse.QUERY,
)
async def get_delegation_events(request: Request, asked: Reading, handoff_id: str) -> Response:
    """Start and end of a delegation, and everything of its attempts."""
    look = sse.look_of(request)
    view = await asked.services.delegations.stream(asked.tenant, handoff_id)
    return await sse.events(request, asked, view, look)
