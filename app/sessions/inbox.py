"""The inbox: what persons are asked, at every depth, and their answers (spec 8.2, 14.11).

Knows no HTTP and no SQL: open questions wait in the kernel, everything that was ever asked stands in rows.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.agent.approvals import Answer, AnswerKind, Approvals
from app.agent.errors import Conflict, InvalidRequest, NotFound, Unavailable
from app.agent.permissions import PermissionRule
from app.agent.runs import Session
from app.sessions.audit import Page
from app.sessions.journal import TAKE_S, Journal
from app.sessions.requests import AgentReader
from app.sessions.views import approval_view

log = logging.getLogger(__name__)

PENDING = "pending"
AGAIN_S = 10.0  # for a run that goes on after a restart to come to its question


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFilter:
    """Which permission requests, newest first; None: all. `status`: pending, allowed, denied, expired, cancelled."""

    session_id: str | None = None
    status: str | None = None


class ApprovalStore(Protocol):
    """Reads permission requests back; every function takes the tenant. Keys of a row are the columns of its table."""

    async def approval(self, tenant: str, approval_id: str) -> Mapping[str, Any] | None:
        """One request."""

    async def approvals(self, tenant: str, filters: ApprovalFilter, *, cursor: str | None, limit: int) -> Page:
        """A page of requests. Raises `InvalidRequest` for a cursor that another question gave."""

    async def session_rules(self, tenant: str, session_id: str) -> Sequence[str]:
        """The rules that answers left for a session, as they are written."""


class Inbox:
    """Lists requests and settles open ones. One per process."""

    def __init__(self, approvals: Approvals, store: ApprovalStore, journal: Journal, reader: AgentReader) -> None:
        self._approvals = approvals
        self._store = store
        self._journal = journal
        self._reader = reader
        self.gate: Callable[[str], Awaitable[None]] = _open_gate

    async def list(self, tenant: str, filters: ApprovalFilter, cursor: str | None, limit: int) -> dict[str, Any]:
        """A page of requests of all runs of all depths, newest first."""
        await self._journal.settle()
        page = await self._store.approvals(tenant, filters, cursor=cursor, limit=limit)
        return {"items": [approval_view(row) for row in page.items], "next": page.next}

    async def get(self, tenant: str, approval_id: str) -> dict[str, Any]:
        """One request. Raises `NotFound`."""
        await self._journal.settle()
        return approval_view(await self._row(tenant, approval_id))

    async def answer(self, tenant: str, approval_id: str, answer: Answer) -> dict[str, Any]:
        """Settle an open request; it as it is after the commit. Raises `NotFound` for an unknown one, `Conflict` for
        one that is settled."""
        if answer.arguments is not None and answer.kind is not AnswerKind.ALLOW_ONCE:
            raise InvalidRequest(
                f"arguments are part of an answer allow_once, not of {answer.kind.value}: leave them out",
                errors=[{"at": "arguments", "message": "only with allow_once"}],
            )
        if self._approvals.find(tenant, approval_id) is None:
            await self._put_again(tenant, approval_id)
        question = self._approvals.find(tenant, approval_id)
        try:
            self._approvals.answer(tenant, approval_id, answer)
        except NotFound:  # its time is over, or its run is ending, in this very moment
            raise await self._settled(tenant, approval_id) from None
        await self._journal.flush(TAKE_S, of=None if question is None else question.session.id)
        return approval_view(await self._row(tenant, approval_id))

    async def _put_again(self, tenant: str, approval_id: str) -> None:
        """Wait for a question of an earlier process to be put again. Raises `NotFound` for an unknown one, `Conflict`
        for one that is settled."""
        row = await self._row(tenant, approval_id)
        if row["status"] == PENDING:
            await self.gate(row["session_id"])
            await self._approvals.expected(approval_id, AGAIN_S)
        if self._approvals.find(tenant, approval_id) is None:
            raise await self._settled(tenant, approval_id)

    async def _settled(self, tenant: str, approval_id: str) -> Conflict:
        """Why a request takes no answer any more. Raises `NotFound` for one that there never was, `Unavailable` for one
        that is open and nobody here waits for as yet."""
        await self._journal.flush(TAKE_S)  # raises where the service stops: the next process puts the question again
        row = await self._row(tenant, approval_id)
        if row["status"] == PENDING:
            raise Unavailable("the run that asks is being taken up: answer again in a moment", code="not_asked_yet")
        how = row["status"]
        by = f" by {row['decided_by']}" if row["decided_by"] else ""
        return Conflict(
            f"permission request {approval_id} is settled: it was {how}{by}; the tool call does not wait any more",
            code="not_pending",
        )

    async def _row(self, tenant: str, approval_id: str) -> Mapping[str, Any]:
        row = await self._store.approval(tenant, approval_id)
        if row is None:
            raise NotFound(f"there is no permission request {approval_id!r}")
        return row

    async def rules(self, session: Session) -> tuple[PermissionRule, ...]:
        """What persons have allowed for a session, whether it is open here or not."""
        known = self._approvals.rules(session.id)
        await self._journal.settle()
        return tuple(dict.fromkeys((*known, *await self._stored(session))))

    async def restore(self, session: Session) -> None:
        """Put the rules that persons gave for a session in force again, after a restart. Everything recorded is
        stored when this is called."""
        self._approvals.add_rules(session.id, await self._stored(session))

    async def _stored(self, session: Session) -> Sequence[PermissionRule]:
        found: list[PermissionRule] = []
        for text in await self._store.session_rules(session.tenant, session.id):
            try:
                found += self._reader.allowed(text)
            except ValueError as error:  # asked again: nothing is allowed by a guess
                log.warning("session %s: the allowed rule %r is left out: %s", session.id, text, error)
        return found

    def forget(self, session_id: str) -> None:
        """The session was deleted."""
        self._approvals.forget(session_id)


async def _open_gate(session_id: str) -> None:
    """Nothing was left by an earlier process."""
