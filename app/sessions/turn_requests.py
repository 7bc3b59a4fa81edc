"""A turn as it is asked for, checked: whatever can be refused is refused before anything is begun.

Knows neither how a turn is started nor what becomes of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.budget import check_prices
from app.agent.chat import ModelCatalog
from app.agent.definition import MAX_STEPS, AgentDefinition
from app.agent.delegation import Roster, chosen
from app.agent.equipment import Equipment
from app.agent.errors import InvalidRequest
from app.agent.policy import BudgetLimits, HandoffPolicy, Reaction
from app.agent.runs import RunRequest, Session
from app.sessions.opening import Opening
from app.sessions.policies import Policies
from app.sessions.requests import RunInput
from app.sessions.webhooks import Webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What applies where nobody said anything."""

    agent: str
    parent_steps: int
    max_steps: int = MAX_STEPS


class TurnRequests:
    """Makes them, and has the checks that delegations share. Everything raises `InvalidRequest`."""

    def __init__(
        self,
        roster: Roster,
        models: ModelCatalog,
        opening: Opening,
        defaults: Defaults,
        policies: Policies,
        webhooks: Webhooks,
        equipment: Equipment,
    ) -> None:
        self._roster = roster
        self._models = models
        self._opening = opening
        self._defaults = defaults
        self._policies = policies
        self._webhooks = webhooks
        self._equipment = equipment

    def request(self, session: Session, given: RunInput) -> RunRequest:
        """The request of a session's turn; everything that can be refused is refused here."""
        self._webhooks.check(given.webhook)
        definition = self._roster.find(session, session.agent or "")
        if definition is None:
            raise InvalidRequest(
                f"there is no agent {session.agent!r}: GET /v1/agents lists those that exist", code="unknown_agent"
            )
        chosen_model = session.model or definition.model
        policy = HandoffPolicy().replaced(definition.policy).replaced(session.policy)
        parallel = [p for p in (session.parallel_tool_calls, definition.parallel_tool_calls) if p is not None]
        own = None if given.budget is None else self._opening.reader.budget(given.budget, "budget")
        schema = (
            None if given.output_schema is None else self._opening.reader.schema(given.output_schema, "output_schema")
        )
        # a session's policy replaces fields of the lead's, but a budget bounds whatever else does
        bounds = (definition.budget, definition.policy.budget, session.policy.budget, own)
        request = RunRequest(
            session=session,
            definition=definition,
            task=given.input,
            policy=policy,
            max_steps=self.steps(given.max_steps) or definition.max_steps or self._defaults.parent_steps,
            surfaces=chosen(session.surfaces, definition.surfaces),
            memory_id=session.memory_id,
            model=chosen_model,
            effort=definition.effort,
            thinking=definition.thinking if session.thinking is None else session.thinking,
            parallel_tool_calls=all(parallel),
            deadline_ms=given.deadline_ms,
            timeout_ms=given.timeout_ms,
            budgets=tuple(limits for limits in bounds if limits is not None),
            output_schema=definition.output_schema if schema is None else schema,
            permissions=self._policies.lead(session, definition),
            given=_given(given),
        )
        if definition.runner is None:
            self._models.resolve(chosen_model)
        self.check_fallbacks(policy)
        self.check_prices(session, request.budgets, [(definition, chosen_model)])
        self._equipment.check(request)
        return request

    def again(self, session: Session, row: Mapping[str, Any], given: Mapping[str, Any] | None) -> RunRequest:
        """The request of a turn that an earlier process had begun. Raises `InvalidRequest` where it cannot be made any
        more, since its agent is gone for example."""
        wanted = given or {}
        run = RunInput(
            input=row["input"],
            max_steps=min(row["max_steps"], self._defaults.max_steps),
            deadline_ms=row["deadline_ms"] or 0,
            timeout_ms=row["timeout_ms"] or 0,
            output_schema=wanted.get("output_schema"),
            budget=wanted.get("budget"),
        )
        return self.request(session, run)

    def check_fallbacks(self, policy: HandoffPolicy) -> None:
        """Raises `InvalidRequest` when a fallback names a model that there is not."""
        for wanted in (policy.on_denied, policy.on_error):
            if wanted is not None and wanted.reaction is Reaction.MODEL:
                self._models.resolve(wanted.target)

    def check_prices(
        self,
        session: Session,
        budgets: Sequence[BudgetLimits],
        agents: Sequence[tuple[AgentDefinition, str | None]],
    ) -> None:
        """Raises `InvalidRequest` when money is limited and an agent's model has no price (spec 4.8). Those whom the
        session names are looked at as well; a model that only an agent of the catalog has is refused at its handoff."""
        limits = [
            limits for limits in (session.budget, *budgets) if limits is not None and limits.cost_micros is not None
        ]
        if not limits:
            return
        named = [self._roster.find(session, name) for name in session.agents or ()]
        for definition, model in (*agents, *((d, d.model) for d in named if d is not None and d.model is not None)):
            if definition.runner is None:
                resolved = self._models.resolve(model)
                check_prices({limit.currency for limit in limits}, resolved.name, resolved.prices)

    def steps(self, wanted: int | None) -> int | None:
        """A caller's `max_steps`, checked. Raises `InvalidRequest`."""
        if wanted is not None and not 1 <= wanted <= self._defaults.max_steps:
            raise InvalidRequest(
                f"max_steps is {wanted}: it must be from 1 to {self._defaults.max_steps} (limits.max_steps)",
                errors=[{"at": "max_steps", "message": f"1 to {self._defaults.max_steps}"}],
            )
        return wanted


def _given(given: RunInput) -> Mapping[str, Any] | None:
    """What of a turn's input stands nowhere else in the log."""
    kept = {"output_schema": given.output_schema, "budget": given.budget}
    return {key: dict(value) for key, value in kept.items() if value is not None} or None
