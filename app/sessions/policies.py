"""What runs that nobody above them limits may do: the rules of the server, the agent and the session put together.

Knows neither how rules are written nor what wins; children take over by `PermissionPolicy.inherit`.
"""

from collections.abc import Sequence

from app.agent.definition import AgentDefinition
from app.agent.permissions import PermissionPolicy, PermissionRules
from app.agent.runs import Session

CALLER = "caller"  # in the record: whoever delegates over HTTP


class Policies:
    """Builds policies over the rules of the server; None: it has none."""

    def __init__(self, server: PermissionRules | None = None) -> None:
        self._server = [] if server is None else [server]

    def lead(self, session: Session, definition: AgentDefinition) -> PermissionPolicy | None:
        """The policy of a session's turn; None where nobody has set a rule."""
        given = [definition.permissions] if definition.permissions is not None else []
        own = given if definition.source.trusted else []
        over_api = [rules for rules in (*given, session.permissions) if rules is not None and rules not in own]
        return _policy(definition.name, [*self._server, *own], over_api)

    def caller(self, session: Session, call: PermissionRules | None) -> PermissionPolicy | None:
        """What a delegation without a parent run hands on to its subagent, whose own rules come below it."""
        over_api = [rules for rules in (session.permissions, call) if rules is not None]
        return _policy(CALLER, self._server, over_api)


def _policy(
    owner: str, trusted: Sequence[PermissionRules], over_api: Sequence[PermissionRules]
) -> PermissionPolicy | None:
    """What came over the API may forbid and ask; what it allows must be allowed without it as well (spec 10.5)."""
    if not trusted and not over_api:
        return None
    widens = any(rules.allows_anything for rules in over_api)
    return PermissionPolicy(owner, [*trusted, *over_api], under=trusted if widens else ())
