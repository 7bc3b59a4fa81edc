"""Delegations: one task for one subagent, for a caller that has no parent session here."""

from fastapi import Request
from starlette.responses import Response

from app.api import sse
from app.api.deps import Reading, Starting
from app.api.docs import STREAM, new_router, problems
from app.api.pages import answer
from app.api.schemas import answers
from app.api.schemas.requests import DelegationBody
from app.sessions.delegations import Delegated

router = new_router("delegations")


@router.post(
    "/v1/delegations",
    response_model=answers.Delegation,
    responses={
        200: {"description": "The result, or the events on the way to it.", "content": STREAM},
        **problems(400, 404, 406, 409, 413, 415, 429, 503),
    },
)
async def delegate(request: Request, asked: Starting, body: DelegationBody) -> Response:
    """Hand a task to a subagent and wait for the result. Who does not wait finds it under the id later; a denial is a
    403, a failed subagent a result with its status."""
    streaming = sse.wants_stream(request, default=False)
    if streaming:
        sse.check_room(asked)
    services = asked.services
    delegated = await services.delegations.start(asked.tenant, body.delegation())
    headers = {"Location": f"/v1/delegations/{delegated.handoff_id}"}
    if streaming and not _ended(delegated):
        view = await services.delegations.stream(asked.tenant, delegated.handoff_id)
        return sse.stream(request, asked, view, delegated.after, headers)
    result = await services.delegations.result(asked.tenant, delegated)
    if streaming:  # it was not denied, or this would have been raised now
        view = await services.delegations.stream(asked.tenant, delegated.handoff_id)
        return sse.stream(request, asked, view, delegated.after, headers)
    return answer(result, headers=headers)


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
