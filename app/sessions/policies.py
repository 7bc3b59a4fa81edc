"""What runs that nobody above them limits may do: the rules of the server, the tenant, the agent and the session.

Knows neither how rules are written nor what wins; children take over by `PermissionPolicy.inherit`.
"""

from collections.abc import Mapping, Sequence

from app.agent.definition import AgentDefinition
from app.agent.permissions import PermissionPolicy, PermissionRules
from app.agent.runs import Session

CALLER = "caller"  # in the record: whoever delegates over HTTP


class Policies:
    """Builds policies over the rules of the server (None: it has none) and those that hold for one tenant besides."""

    def __init__(
        self, server: PermissionRules | None = None, tenants: Mapping[str, PermissionRules] | None = None
    ) -> None:
        self._server = [] if server is None else [server]
        self._tenants = {name: [rules] for name, rules in (tenants or {}).items()}

    def lead(self, session: Session, definition: AgentDefinition) -> PermissionPolicy | None:
        """The policy of a session's turn; None where nobody has set a rule."""
        given = [definition.permissions] if definition.permissions is not None else []
        own = given if definition.source.trusted else []
        over_api = [rules for rules in (*given, session.permissions) if rules is not None and rules not in own]
        return self._policy(definition.name, session.tenant, own, over_api)

    def caller(self, session: Session, call: PermissionRules | None) -> PermissionPolicy | None:
        """What a delegation without a parent run hands on to its subagent, whose own rules come below it."""
        over_api = [rules for rules in (session.permissions, call) if rules is not None]
        return self._policy(CALLER, session.tenant, [], over_api)

    def _policy(
        self, owner: str, tenant: str, own: Sequence[PermissionRules], over_api: Sequence[PermissionRules]
    ) -> PermissionPolicy | None:
        """What holds for a tenant may forbid and ask; what it allows must be allowed by the server as well. Likewise
        what came over the API, and all that it did not bring (spec 10.5)."""
        of_tenant = self._tenants.get(tenant, [])
        trusted = [*self._server, *of_tenant, *own]
        if not trusted and not over_api:
            return None
        under = [self._server] if _widens(of_tenant) else []
        return PermissionPolicy(owner, [*trusted, *over_api], under=[*under, *([trusted] if _widens(over_api) else [])])


def _widens(scopes: Sequence[PermissionRules]) -> bool:
    return any(rules.allows_anything for rules in scopes)
