"""Permissions: what persons are asked and answer, and which rule would decide a call."""

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from app.agent.approvals import Answer, AnswerKind
from app.agent.errors import InvalidRequest
from app.api.deps import Approving, Reading
from app.api.docs import new_router, problems
from app.api.pages import Cursor, Limit, Wanted, answer
from app.api.schemas import approvals
from app.api.schemas.requests import PermissionAnswer
from app.sessions.explaining import CallQuestion
from app.sessions.inbox import ApprovalFilter

router = new_router("permissions")

Status = Literal["pending", "allowed", "denied", "expired", "cancelled"]
Explain = Annotated[
    str | None, Query(description="A call, written like a rule: which rule would decide it? `Bash(git push)`, `Read`.")
]
Agents = Annotated[
    list[str] | None,
    Query(description="With `explain`: who calls; repeated: from the root down, the last one is meant."),
]
Depth = Annotated[int | None, Query(ge=0, le=100, description="With `explain`: how deep the agent stands.")]


@router.get(
    "/v1/permissions",
    response_model=approvals.PermissionPage | approvals.PermissionExplanation,
    responses=problems(404),
)
async def list_permissions(
    asked: Reading,
    session_id: Annotated[Wanted | None, Query(description="Of this session.")] = None,
    status: Status | None = None,
    explain: Explain = None,
    agent: Agents = None,
    depth: Depth = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """What persons are asked in all runs of all depths, newest first; with `explain`: what would hold for a call."""
    services = asked.services
    if explain is not None:
        question = CallQuestion(call=explain, agents=agent or (), depth=depth, session_id=session_id)
        return answer(await services.explaining.explain(asked.tenant, question))
    for name, value in (("agent", agent), ("depth", depth)):
        if value is not None:
            raise InvalidRequest(
                f"{name} belongs to a question with explain: add explain, or leave {name} out",
                errors=[{"at": name, "message": "only with explain"}],
            )
    if session_id is not None:
        await services.sessions.known(asked.tenant, session_id)
    filters = ApprovalFilter(session_id=session_id, status=status)
    return answer(await services.inbox.list(asked.tenant, filters, cursor, limit))


@router.get("/v1/permissions/{permission_id}", response_model=approvals.PermissionRequest, responses=problems(404))
async def get_permission(asked: Reading, permission_id: str) -> Response:
    """One permission request."""
    return answer(await asked.services.inbox.get(asked.tenant, permission_id))


@router.post(
    "/v1/permissions/{permission_id}",
    response_model=approvals.PermissionRequest,
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def answer_permission(asked: Approving, permission_id: str, body: PermissionAnswer) -> Response:
    """Settle an open request; one that is settled answers 409. The call goes on, or its model is told the denial."""
    asked.services.need_store()
    given = Answer(
        kind=AnswerKind(body.decision), by=asked.caller.key_id, arguments=body.arguments, message=body.message or ""
    )
    return answer(await asked.services.inbox.answer(asked.tenant, permission_id, given))
