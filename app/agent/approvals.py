"""Ask a person and wait: questions that pause one call, their answers, and rules that an answer leaves for the session.

Knows neither HTTP nor rows: what was asked and answered are events, and the rows follow from those.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.agent import events
from app.agent.errors import Conflict, InvalidRequest, NotFound
from app.agent.events import Event
from app.agent.governed import PermissionRequested, PermissionResolved
from app.agent.ids import new_id, now_us
from app.agent.permissions import Decision, PermissionRule, Scope, Verdict
from app.agent.ports import Recorder
from app.agent.runs import AskedBefore, LeftCall, Run, Session

EXPIRES_MS = 300_000  # spec 8.2


class AnswerKind(StrEnum):
    """How a question was settled. Only the first three are a person's; `released`: an answer to an equal question
    covers this one as well."""

    ALLOW_ONCE = "allow_once"
    ALLOW_SESSION = "allow_session"
    DENY = "deny"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a question was settled: by whom (the id of a key, empty for nobody), with which arguments instead, and what
    is to be told to the model."""

    kind: AnswerKind
    by: str = ""
    arguments: Mapping[str, Any] | None = None
    message: str = ""

    @property
    def allows(self) -> bool:
        """Whether the call may run."""
        return self.kind in (AnswerKind.ALLOW_ONCE, AnswerKind.ALLOW_SESSION, AnswerKind.RELEASED)


@dataclass(slots=True, kw_only=True)
class Question:
    """One call that waits for an answer. `digest` binds the answer to these arguments; `again` decides the call anew
    when a rule was added; `problem` says what is wrong with arguments that an answer gives. `stands_in`: it is about an
    agent in the place of another. Times in µs."""

    id: str
    session: Session
    run: Run
    step: int
    call_id: str
    tool: str
    arguments: Any
    digest: str
    decision: Decision
    asked_at: int
    expires_at: int
    again: Callable[[], Decision]
    problem: Callable[[Mapping[str, Any]], str | None]
    stands_in: bool
    answered: "asyncio.Future[Answer]" = field(repr=False)


class Approvals:
    """All open questions of a process, and the rules that persons gave for sessions."""

    def __init__(self, recorder: Recorder, expires_ms: int = EXPIRES_MS) -> None:
        self._recorder = recorder
        self._expires_ms = expires_ms
        self._open: dict[str, Question] = {}
        self._rules: dict[str, list[PermissionRule]] = {}
        self._expected: dict[str, asyncio.Future[None]] = {}
        self._ending = False

    def rules(self, session_id: str) -> tuple[PermissionRule, ...]:
        """What persons have allowed for a session."""
        return tuple(self._rules.get(session_id, ()))

    def add_rules(self, session_id: str, rules: Iterable[PermissionRule]) -> None:
        """Rules that were given before a restart."""
        known = self._rules.setdefault(session_id, [])
        known.extend(rule for rule in rules if rule not in known)

    def forget(self, session_id: str) -> None:
        """The session was deleted, or has not been worked in for long: its rules are read again then."""
        self._rules.pop(session_id, None)

    def pending(self, tenant: str, session_id: str | None = None) -> list[Question]:
        """The open questions of a tenant, in the order of asking."""
        return [
            question
            for question in self._open.values()
            if question.run.tenant == tenant and session_id in (None, question.session.id)
        ]

    def find(self, tenant: str, approval_id: str) -> Question | None:
        """One open question."""
        question = self._open.get(approval_id)
        return question if question is not None and question.run.tenant == tenant else None

    async def ask(
        self,
        session: Session,
        run: Run,
        step: int,
        call_id: str,
        tool: str,
        arguments: Any,
        decision: Decision,
        again: Callable[[], Decision],
        problem: Callable[[Mapping[str, Any]], str | None],
        before: AskedBefore | None = None,
        *,
        stands_in: bool = False,
    ) -> Answer:
        """State the question and wait for its answer; without one in time it is expired. Exactly one settlement is
        recorded, also when the waiting run is cancelled. `before`: it was stated in an earlier process, and may have
        been answered there."""
        if before is not None and before.answer is not None:
            return _given(before.answer)
        asked = now_us() if before is None else before.asked_at
        expires = asked + self._expires_ms * 1000 if before is None else before.expires_at
        question = Question(
            id=new_id("apr") if before is None else before.approval_id,
            session=session,
            run=run,
            step=step,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            digest=digest_of(tool, arguments) if before is None else before.digest,
            decision=decision,
            asked_at=asked,
            expires_at=expires,
            again=again,
            problem=problem,
            stands_in=stands_in,
            answered=asyncio.get_running_loop().create_future(),
        )
        self._open[question.id] = question
        if before is None:
            self._recorder.record(run, events.PERMISSION_REQUESTED, _requested(question), step=step)
        self.unexpect(question.id)
        answer = Answer(kind=AnswerKind.CANCELLED)
        try:
            async with asyncio.timeout(max(0.0, (expires - now_us()) / 1e6)):
                answer = await question.answered
        except TimeoutError:
            # in the same moment somebody may have answered: what is recorded holds
            late = not question.answered.done() or question.answered.cancelled()
            answer = Answer(kind=AnswerKind.EXPIRED) if late else question.answered.result()
        finally:
            if self._open.pop(question.id, None) is not None:  # else its settlement is recorded
                self._resolve(question, answer)
        return answer

    # ── after a restart ─────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, approval_id: str) -> None:
        """A question of an earlier process that its run is about to put again."""
        waiting = self._expected[approval_id] = asyncio.get_running_loop().create_future()
        if self._ending:
            waiting.set_result(None)

    def unexpect(self, approval_id: str) -> None:
        """It is settled, or nobody puts it again."""
        waiting = self._expected.pop(approval_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def is_expected(self, question: AskedBefore) -> bool:
        """Whether a question of an earlier process was not put again."""
        return question.approval_id in self._expected

    async def expected(self, approval_id: str, seconds: float) -> None:
        """Wait until a question is put again, if it is one of those; at most so long."""
        waiting = self._expected.get(approval_id)
        if waiting is not None:
            await asyncio.wait([waiting], timeout=seconds)

    def expect_no_more(self) -> None:
        """The process ends: what was not put again is put by the next one, unless its run ends before."""
        self._ending = True
        for waiting in self._expected.values():
            if not waiting.done():
                waiting.set_result(None)

    def withdraw(self, run: Run, question: AskedBefore, call_id: str, tool: str) -> None:
        """Nobody puts this question again: its run has ended without."""
        self.unexpect(question.approval_id)
        payload = PermissionResolved(
            approval_id=question.approval_id,
            call_id=call_id,
            tool=tool,
            digest=question.digest,
            decision=AnswerKind.CANCELLED.value,
            kind="cancelled",
            by=None,
            rule=None,
            scope=None,
            owner=None,
            reason="the run ended before it was answered",
            arguments=None,
        )
        self._recorder.record(run, events.PERMISSION_RESOLVED, payload, step=question.step)

    def answer(self, tenant: str, approval_id: str, answer: Answer) -> Event:
        """Settle an open question; the event that says so. Raises `NotFound` for one that is not open here, `Conflict`
        and `InvalidRequest` for an answer that it cannot have; then it stays open."""
        question = self.find(tenant, approval_id)
        if question is None or question.answered.done():
            raise NotFound(f"there is no open permission request {approval_id!r}", code="not_pending")
        rule = question.decision.suggested_rule
        if answer.kind is AnswerKind.ALLOW_SESSION and rule is None:
            raise Conflict(
                "this call has no rule that could hold for the session: answer allow_once or deny",
                code="no_suggested_rule",
            )
        wrong = None if answer.arguments is None else question.problem(answer.arguments)
        if wrong is not None:
            raise InvalidRequest(
                f"arguments: {question.tool} cannot be called with these: {wrong}",
                errors=[{"at": "arguments", "message": wrong}],
            )
        given = rule if answer.kind is AnswerKind.ALLOW_SESSION else None
        event = self._settle(question, answer, given)
        if given is not None:
            self.add_rules(question.session.id, [given])
            self._release(question, given)
        return event

    def _settle(self, question: Question, answer: Answer, rule: PermissionRule | None) -> Event:
        del self._open[question.id]
        event = self._resolve(question, answer, rule)
        question.answered.set_result(answer)
        return event

    def _release(self, given: Question, rule: PermissionRule) -> None:
        """Let go what the new rule covers as well."""
        for question in self.pending(given.run.tenant, given.session.id):
            if not question.answered.done() and question.again().verdict is Verdict.ALLOW:
                same = Answer(kind=AnswerKind.RELEASED, message=f"as answered for {given.id}")
                self._settle(question, same, rule)

    def _resolve(self, question: Question, answer: Answer, rule: PermissionRule | None = None) -> Event:
        return self._recorder.record(
            question.run, events.PERMISSION_RESOLVED, _resolved(question, answer, rule), step=question.step
        )


def known_arguments(left: LeftCall) -> str:
    """The text of the arguments with which a call of an earlier process would go on; empty for one that was not
    allowed."""
    asked = left.asked
    if asked is None:
        return left.raw
    if asked.answer is None:
        return json.dumps(asked.arguments)
    answer = _given(asked.answer)
    if not answer.allows:
        return ""
    return json.dumps(asked.arguments if answer.arguments is None else answer.arguments)


def _given(payload: Mapping[str, Any]) -> Answer:
    """An answer as it was recorded."""
    return Answer(
        kind=AnswerKind(payload["decision"]),
        by=payload.get("by") or "",
        arguments=payload.get("arguments"),
        message=payload.get("reason") or "",
    )


def digest_of(tool: str, arguments: Any) -> str:
    """SHA-256 in hex of a tool's name and its arguments, whatever the order of their keys."""
    text = json.dumps([tool, arguments], ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _requested(question: Question) -> PermissionRequested:
    decision = question.decision
    rule = decision.suggested_rule
    payload = PermissionRequested(
        approval_id=question.id,
        call_id=question.call_id,
        tool=question.tool,
        arguments=question.arguments if isinstance(question.arguments, str) else dict(question.arguments),
        digest=question.digest,
        rule=decision.rule or None,
        scope=decision.scope.value if decision.scope is not None else None,
        owner=decision.owner or None,
        reason=decision.reason,
        suggested_rule=None if rule is None else str(rule),
        expires_at=question.expires_at,
    )
    if question.stands_in:
        payload["stands_in"] = True
    return payload


def _resolved(question: Question, answer: Answer, rule: PermissionRule | None) -> PermissionResolved:
    """`rule`: what a person's answer allows from now on, for this question and for those that it releases."""
    person = answer.kind in (AnswerKind.ALLOW_ONCE, AnswerKind.ALLOW_SESSION, AnswerKind.DENY)
    kinds = {AnswerKind.EXPIRED: "timeout", AnswerKind.CANCELLED: "cancelled", AnswerKind.RELEASED: "rule"}
    payload = PermissionResolved(
        approval_id=question.id,
        call_id=question.call_id,
        tool=question.tool,
        digest=question.digest,
        decision=answer.kind.value,
        kind="person" if person else kinds[answer.kind],
        by=answer.by or None,
        rule=None if rule is None else str(rule),
        scope=None if rule is None else Scope.SESSION.value,
        owner=None,
        reason=answer.message or None,
        arguments=dict(answer.arguments) if answer.arguments is not None else None,
    )
    if answer.arguments is not None:
        payload["edited_digest"] = digest_of(question.tool, dict(answer.arguments))  # before anything is masked
    return payload
