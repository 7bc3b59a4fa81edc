"""Questions to the audit trail, as query parameters."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import AfterValidator, Field
from starlette.responses import Response

from app.agent.decisions import CallDecision, HookOutcome
from app.agent.errors import InvalidRequest
from app.api.deps import Asked
from app.api.pages import Cursor, Limit, Wanted, answer, given
from app.sessions.audit import ANY, MAX_TEXT, DecisionFilter, Filter, MessageFilter, Page, check_named
from app.sessions.views import decision_view, message_view
from app.wire import EXAMPLE, microseconds_of

Role = Literal["system", "user", "assistant", "tool"]


def _moment(value: str) -> str:
    try:
        microseconds_of(given(value))
    except ValueError as error:
        raise ValueError(f"{error}: write {EXAMPLE}, with + as %2B") from None
    return value


Moment = Annotated[str, AfterValidator(_moment), Field(json_schema_extra={"format": "date-time"})]
Agent = Annotated[Wanted | None, Query(description="Of this agent.")]
Tool = Annotated[Wanted | None, Query(description="Results of this tool.")]
RunId = Annotated[Wanted | None, Query(description="Of this run.")]
SessionId = Annotated[Wanted | None, Query(description="Of this session.")]
DecisionName = Literal["any", CallDecision, HookOutcome]
Decision = Annotated[
    DecisionName | None,
    Query(
        description="Decisions instead of messages: about calls by rules (`allow`, `deny`) and persons (`deny` too, "
        "`allow_once` to `released`), and those of hooks (`block` to `failed`); `any`: all of them."
    ),
]
Text = Annotated[
    # The bound stands before the check of ours: behind it, it would be said of items and not of characters.
    Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(given), Field(json_schema_extra={"minLength": 1})] | None,
    Query(
        description="Whose content holds this, literally: no character is an operator. ASCII letters are found in "
        "either case, everything else as it is written. Fewer than three characters need a session, a run or a time as "
        "well (422). At most 50,000 messages are looked at for a page; `bounded` says that it stopped there.",
    ),
]
Since = Annotated[Moment | None, Query(description="From this time on (RFC 3339; a date alone: as it begins in UTC).")]
Until = Annotated[Moment | None, Query(description="Before this time; like `since`.")]
Order = Annotated[Literal["oldest", "newest"] | None, Query(description="Which come first.")]
Count = Annotated[bool, Query(description="Count them too, up to 10,001.")]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Which messages, whosever they are; `order` None: that of the route."""

    filters: MessageFilter
    order: Literal["oldest", "newest"] | None

    def messages(self, *, session_id: str | None, run_id: str | None, newest_first: bool) -> MessageFilter:
        """The messages of a session, of a run, of all; `newest_first`: where no order is asked for."""
        first = self._newest_first(newest_first)
        return replace(self.filters, session_id=session_id, run_id=run_id, newest_first=first)

    def decisions(
        self, decision: DecisionName, *, session_id: str | None, run_id: str | None, newest_first: bool
    ) -> DecisionFilter:
        """The same of decisions, one kind or `any`. Raises `InvalidRequest` for filters that only messages have."""
        given = self.filters
        for name in ("role", "text"):
            if getattr(given, name) is not None:
                raise InvalidRequest(
                    f"{name} is about messages and decision is not: leave one of them out",
                    errors=[{"at": name, "message": "not with decision"}],
                )
        return DecisionFilter(
            session_id=session_id,
            run_id=run_id,
            agent=given.agent,
            tool=given.tool,
            decision=None if decision == ANY else decision,
            since=given.since,
            until=given.until,
            newest_first=self._newest_first(newest_first),
        )

    def _newest_first(self, otherwise: bool) -> bool:
        return otherwise if self.order is None else self.order == "newest"


@dataclass(frozen=True, slots=True)
class Paged:
    """Which page of the answer."""

    cursor: str | None
    limit: int
    count: bool


async def _narrowed(
    agent: Agent = None,
    role: Role | None = None,
    tool: Tool = None,
    since: Since = None,
    until: Until = None,
    text: Text = None,
    order: Order = None,
) -> Narrowed:
    filters = MessageFilter(
        agent=agent,
        role=role,
        tool=tool,
        since=None if since is None else microseconds_of(since),
        until=None if until is None else microseconds_of(until),
        text=text,
    )
    return Narrowed(filters, order)


async def _paged(cursor: Cursor = None, limit: Limit = 50, count: Count = False) -> Paged:
    return Paged(cursor, limit, count)


Narrowing = Annotated[Narrowed, Depends(_narrowed)]
Paging = Annotated[Paged, Depends(_paged)]


async def check_ids(asked: Asked, *, session_id: str | None = None, run_id: str | None = None) -> None:
    """Raises `NotFound` for a session or run that a question names and that there is not; before its first page."""
    if session_id is None and run_id is None:
        return
    await asked.services.journal.settle()  # what has begun is known
    await check_named(asked.services.audit, asked.tenant, session_id=session_id, run_id=run_id)


async def messages(
    asked: Asked,
    narrowed: Narrowed,
    paged: Paged,
    *,
    session_id: str | None = None,
    run_id: str | None = None,
    newest_first: bool = False,
) -> Response:
    """A page of messages."""
    filters = narrowed.messages(session_id=session_id, run_id=run_id, newest_first=newest_first)
    await asked.services.journal.settle()  # what has happened is to be in the answer
    page = await asked.services.audit.messages(asked.tenant, filters, cursor=paged.cursor, limit=paged.limit)
    return await _answered(asked, [message_view(row) for row in page.items], page, paged, filters)


async def decisions(
    asked: Asked,
    narrowed: Narrowed,
    paged: Paged,
    decision: DecisionName,
    *,
    session_id: str | None,
    run_id: str | None,
) -> Response:
    """A page of decisions."""
    filters = narrowed.decisions(decision, session_id=session_id, run_id=run_id, newest_first=True)
    await asked.services.journal.settle()
    page = await asked.services.audit.decisions(asked.tenant, filters, cursor=paged.cursor, limit=paged.limit)
    return await _answered(asked, [decision_view(row) for row in page.items], page, paged, filters)


async def _answered(asked: Asked, items: list[dict[str, Any]], page: Page, paged: Paged, filters: Filter) -> Response:
    """The page and, where that was asked for, the count; both say where they stopped early."""
    shown: dict[str, Any] = {"items": items, "next": page.next}
    of_text = isinstance(filters, MessageFilter) and filters.text is not None
    if page.bounded or of_text:
        shown["bounded"] = page.bounded
    if paged.count:
        counted = await asked.services.audit.count(asked.tenant, filters)
        shown["count"] = counted.count
        if counted.bounded or of_text:
            shown["count_bounded"] = counted.bounded
    return answer(shown)
