"""What a route is given: who asks, and the services, once it is clear that the key opens the route."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi import Depends, Header, Request
from fastapi.dependencies.models import Dependant

from app.agent.errors import InvalidRequest, Unsupported
from app.api.auth import CALLER
from app.sessions.access import ADMIN, APPROVE, READ, RUN, Caller
from app.sessions.idempotency import HEADER, MAX_CHARS, KeyedRequest, Making, Once, keyed
from app.sessions.services import Services

REPLAYED = {"Idempotency-Replayed": "true"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's caller and the services that answer it. `key`: the request as it is told from others, when it
    came with an `Idempotency-Key`."""

    services: Services
    caller: Caller
    key: KeyedRequest | None = None

    @property
    def tenant(self) -> str:
        """Whose things the request is about."""
        return self.caller.tenant

    async def once(self, making: Making, work: Callable[[], Awaitable[T]]) -> Once[T]:
        """Do what was asked for, unless the key of the request has done it before (`Idempotency.once`)."""
        if self.key is None:
            return Once(made=await work())
        return await self.services.idempotency.once(self.key, making, work)


def _needs(scope: str) -> Callable[[Request], Coroutine[Any, Any, Asked]]:
    async def asked(request: Request) -> Asked:
        caller: Caller = request.scope[CALLER]
        caller.need(scope)
        if request.scope["query_string"]:
            _check_parameters(request)
        return Asked(request.app.state.services, caller)

    return asked


_running = _needs(RUN)


async def _telling(request: Request) -> Asked:
    """For what is done anew by each request: a key would promise something else."""
    if HEADER in request.headers:
        raise Unsupported(
            f"the header {HEADER} is not carried out here: leave it out",
            errors=[{"at": HEADER, "message": "not carried out here"}],
        )
    return await _running(request)


Key = Annotated[
    str | None,
    Header(
        alias=HEADER,
        description="Names this request: sent again with the same key, it is answered again and not carried out again.",
        json_schema_extra={"minLength": 1, "maxLength": MAX_CHARS},
    ),
]


async def _starting(request: Request, key: Key = None) -> Asked:
    asked = await _running(request)
    asked.services.need_store()
    if key is None:
        return asked
    if len(request.headers.getlist(HEADER)) > 1:
        raise InvalidRequest(f"the header {HEADER} came twice: send one", errors=[{"at": HEADER, "message": "one"}])
    try:
        body = await request.json()
    except ValueError:
        body = None  # the route refuses it
    route = f"{request.method} {request.scope['path']}"
    return replace(asked, key=keyed(asked.tenant, key, route, body))


def _check_parameters(request: Request) -> None:
    """Raises for a parameter that the route does not have, since a misspelt one would be silently without effect, and
    for one that comes twice where one value counts, since the other would be."""
    given = Counter(
        name for name, _ in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    )
    route = request.scope["route"]
    own = (route.openapi_extra or {}).get("parameters", ())
    known = {parameter["name"]: False for parameter in own if parameter["in"] == "query"}
    known.update(_parameters(route.dependant))
    for name in sorted(given.keys() - known.keys()):
        raise InvalidRequest(
            f"there is no parameter {name!r} here; there are {', '.join(sorted(known)) or 'none'}",
            errors=[{"at": name, "message": "unknown parameter"}],
        )
    for name, times in given.items():
        if times > 1 and not known[name]:
            raise InvalidRequest(
                f"the parameter {name} came {times} times: send one value",
                errors=[{"at": name, "message": "takes one value"}],
            )


def _parameters(dependant: Dependant) -> dict[str, bool]:
    """The query parameters of a route, each with whether it is a list."""
    names = {field.alias: _is_list(field.field_info.annotation) for field in dependant.query_params}
    for inner in dependant.dependencies:
        names |= _parameters(inner)
    return names


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


Reading = Annotated[Asked, Depends(_needs(READ))]
Running = Annotated[Asked, Depends(_running)]
Telling = Annotated[Asked, Depends(_telling)]
Starting = Annotated[Asked, Depends(_starting)]
Approving = Annotated[Asked, Depends(_needs(APPROVE))]
Administering = Annotated[Asked, Depends(_needs(ADMIN))]
