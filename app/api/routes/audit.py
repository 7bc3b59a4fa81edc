"""The audit trail over all sessions of a tenant, as pages and as a file, and whether the log of one is sound."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from app.api.audit_export import ANSWERS, Format, exported, form_of
from app.api.audit_query import (
    Decision,
    Narrowing,
    Paging,
    RunId,
    SessionId,
    check_ids,
    decisions,
    messages,
)
from app.api.deps import Reading
from app.api.docs import new_router, problems
from app.api.pages import answer
from app.api.schemas import answers, approvals
from app.sessions.verifying import MAX_EVENTS

router = new_router("audit")


@router.get("/v1/audit", response_model=answers.MessagePage | approvals.AuditDecisionPage, responses=problems(404))
async def get_audit(
    asked: Reading,
    narrowed: Narrowing,
    paged: Paging,
    session_id: SessionId = None,
    run_id: RunId = None,
    decision: Decision = None,
) -> Response:
    """What was said and done, newest first; with `decision`: what was decided about it, and by what."""
    if paged.cursor is None:
        await check_ids(asked, session_id=session_id, run_id=run_id)
    if decision is not None:
        return await decisions(asked, narrowed, paged, decision, session_id=session_id, run_id=run_id)
    return await messages(asked, narrowed, paged, session_id=session_id, run_id=run_id, newest_first=True)


@router.get("/v1/audit/export", responses={**ANSWERS, **problems(404, 406)})
async def export_audit(
    request: Request,
    asked: Reading,
    narrowed: Narrowing,
    session_id: SessionId = None,
    run_id: RunId = None,
    decision: Decision = None,
    form: Format = None,
) -> Response:
    """The messages of all sessions, or with `decision` what was decided, as a file, oldest first, read from the store
    page by page."""
    chosen = form_of(request, form)
    await check_ids(asked, session_id=session_id, run_id=run_id)
    if decision is not None:
        decided = narrowed.decisions(decision, session_id=session_id, run_id=run_id, newest_first=False)
        return await exported(request, asked, decided, chosen, name="decisions")
    said = narrowed.messages(session_id=session_id, run_id=run_id, newest_first=False)
    return await exported(request, asked, said, chosen, name="audit")


@router.get("/v1/sessions/{session_id}/audit/verify", response_model=answers.Verification, responses=problems(404, 503))
async def verify_session(
    asked: Reading,
    session_id: str,
    cursor: Annotated[str | None, Query(description="`next` of the answer before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS, description="How many events, at most.")] = MAX_EVENTS,
) -> Response:
    """Whether the log of a session, a deleted one too, is what was written: the first event that is changed, missing or
    swapped, or that the tail is cut. A log that is too long for one answer has a `next`."""
    await asked.services.journal.settle()
    return answer(await asked.services.verifying.verify(asked.tenant, session_id, cursor=cursor, limit=limit))
