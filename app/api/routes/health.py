"""For operators: does the process answer, can it take work, what did it do."""

from collections import Counter
from typing import Any

from fastapi import Request
from starlette.responses import Response

from app.api.deps import Administering
from app.api.docs import new_router, problems
from app.api.pages import JSON, answer
from app.api.schemas import things
from app.sessions.services import Services

router = new_router("health")

_NOT_NOW = {"model": things.Readiness, "description": "Not now; `checks` say why."}
_OK = b'{"status":"ok"}'


@router.get("/healthz", response_model=things.Health)
async def health() -> Response:
    """The process answers; needs no key."""
    return Response(_OK, media_type=JSON)


@router.get(
    "/readyz",
    response_model=things.Readiness,
    responses={503: {"model": things.Readiness, "description": "Not now."}},
)
async def readiness(request: Request) -> Response:
    """Whether the service can take work, with the reasons if not; needs no key."""
    services: Services = request.app.state.services
    checks = await services.readiness()
    ready = not any(checks.values())
    told: dict[str, Any] = {"ready": ready, "checks": {name: why or "ok" for name, why in checks.items()}}
    if services.commands is not None:
        standing = await services.commands.standing()
        told["sandbox"] = {"level": standing.level, "missing": dict(standing.missing)}
    if services.indexing is not None:  # searches are slower without it, and right all the same
        told["search"] = services.indexing.problem or "ok"
    servers = services.mcp.states() if services.mcp is not None else {}
    if servers:  # their names are for whoever has a key
        told["mcp"] = dict(Counter(servers.values()))
    return answer(told) if ready else answer(told, 503, {"Retry-After": "1"})


@router.get(
    "/metrics",
    responses={
        200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(),
    },
)
async def metrics(asked: Administering) -> Response:
    """Counts for Prometheus."""
    services = asked.services
    return Response(services.metrics.text(services.gauges()), media_type=services.metrics.content_type)
