"""The audit trail over all sessions of a tenant."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from app.api.audit_query import Decision, Narrowing, Paging, RunId, decisions, messages
from app.api.deps import Reading
from app.api.docs import new_router, problems
from app.api.schemas import answers, approvals

router = new_router("audit")


@router.get("/v1/audit", response_model=answers.MessagePage | approvals.AuditDecisionPage, responses=problems())
async def get_audit(
    asked: Reading,
    narrowed: Narrowing,
    paged: Paging,
    session_id: Annotated[str | None, Query(description="Of this session.")] = None,
    run_id: RunId = None,
    decision: Decision = None,
) -> Response:
    """What was said and done, newest first; with `decision`: what was decided about it, and by what."""
    if decision is not None:
        return await decisions(asked, narrowed, paged, decision, session_id=session_id, run_id=run_id)
    return await messages(asked, narrowed, paged, session_id=session_id, run_id=run_id, newest_first=True)
