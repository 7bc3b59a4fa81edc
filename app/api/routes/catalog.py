"""What there is: tools, skills, models, event types."""

from typing import Any

from starlette.responses import Response

from app.agent.tools import ToolSpec
from app.api import event_schemas
from app.api.deps import Reading
from app.api.docs import new_router, problems
from app.api.pages import JSON, Cursor, Limit, answer, part_of
from app.api.schemas import things
from app.sessions.services import McpStates

router = new_router("catalog")


@router.get("/v1/tools", response_model=things.ToolPage, responses=problems())
async def list_tools(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """The ordinary tools of this service; an agent gets those of its whitelist. `mcp`: how each MCP server is."""
    servers = asked.services.mcp
    items = [
        {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
            "read_only": spec.read_only,
            "concurrency_safe": spec.concurrency_safe,
            "timeout_ms": spec.timeout_ms,
            **_origin(spec, servers),
        }
        for spec in asked.services.tools.specs
    ]
    states = {} if servers is None else dict(servers.states())
    return answer({**part_of(items, cursor, limit), **({"mcp": states} if states else {})})


@router.get("/v1/skills", response_model=things.SkillList, responses=problems())
async def list_skills(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Skills in force, by name; those that others hide, and everything wrong with their files."""
    found = asked.services.skills.list()
    return answer({**found, **part_of(found["items"], cursor, limit)})


def _origin(spec: ToolSpec, servers: McpStates | None) -> dict[str, Any]:
    """What is told of a tool of an MCP server besides."""
    server = None if servers is None else servers.server_of(spec.name)
    if servers is None or server is None:
        return {}
    return {"server": server, "state": servers.states()[server], "asks": spec.ask or None}


@router.get("/v1/models", response_model=things.ModelPage, responses=problems())
async def list_models(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """What can be named as a model."""
    return answer(part_of(list(asked.services.models.listing()), cursor, limit))


@router.get("/v1/events/schema", response_model=things.EventSchemas, responses=problems())
async def get_event_schemas(asked: Reading) -> Response:
    """The JSON Schema of every event type: `data` for durable ones, the whole frame for transient ones."""
    return Response(event_schemas.encoded(), media_type=JSON)
