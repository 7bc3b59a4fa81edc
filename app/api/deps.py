"""What a route is given: who asks, and the services, once it is clear that the key opens the route."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from app.agent.errors import InvalidRequest, Unsupported
from app.api.auth import CALLER
from app.sessions.access import ADMIN, APPROVE, READ, RUN, Caller
from app.sessions.services import Services

LATER_PARAMETERS = frozenset({"text", "q", "decision"})  # of the audit trail (spec 12.4)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's caller and the services that answer it."""

    services: Services
    caller: Caller

    @property
    def tenant(self) -> str:
        """Whose things the request is about."""
        return self.caller.tenant


def _needs(scope: str) -> Callable[[Request], Coroutine[Any, Any, Asked]]:
    async def asked(request: Request) -> Asked:
        caller: Caller = request.scope[CALLER]
        caller.need(scope)
        if request.scope["query_string"]:
            _check_parameters(request)
        return Asked(request.app.state.services, caller)

    return asked


_running = _needs(RUN)


async def _starting(request: Request) -> Asked:
    asked = await _running(request)
    if "idempotency-key" in request.headers:
        raise Unsupported(
            "the header Idempotency-Key is not carried out by this version: leave it out",
            errors=[{"at": "Idempotency-Key", "message": "not carried out by this version"}],
        )
    asked.services.need_store()
    return asked


def _check_parameters(request: Request) -> None:
    """Raises for a parameter that the route does not have: a misspelt one would be silently without effect."""
    names = {name for name, _ in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)}
    route = request.scope["route"]
    known = {parameter["name"] for parameter in (route.openapi_extra or {}).get("parameters", ())}
    known.update(_parameters(route.dependant))
    for name in sorted(names - known):
        if name in LATER_PARAMETERS:
            raise Unsupported(
                f"the parameter {name} is not carried out by this version",
                errors=[{"at": name, "message": "not carried out by this version"}],
            )
        raise InvalidRequest(
            f"there is no parameter {name!r} here; there are {', '.join(sorted(known)) or 'none'}",
            errors=[{"at": name, "message": "unknown parameter"}],
        )


def _parameters(dependant: Dependant) -> list[str]:
    names = [field.alias for field in dependant.query_params]
    for inner in dependant.dependencies:
        names += _parameters(inner)
    return names


Reading = Annotated[Asked, Depends(_needs(READ))]
Running = Annotated[Asked, Depends(_running)]
Starting = Annotated[Asked, Depends(_starting)]
Approving = Annotated[Asked, Depends(_needs(APPROVE))]
Administering = Annotated[Asked, Depends(_needs(ADMIN))]
