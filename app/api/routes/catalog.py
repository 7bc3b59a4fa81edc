"""What there is: tools, models, event types."""

from starlette.responses import Response

from app.api import event_schemas
from app.api.deps import Reading
from app.api.docs import new_router, problems
from app.api.pages import JSON, Cursor, Limit, answer, part_of
from app.api.schemas import things

router = new_router("catalog")


@router.get("/v1/tools", response_model=things.ToolPage, responses=problems())
async def list_tools(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """The ordinary tools of this service; an agent gets those of its whitelist."""
    items = [
        {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
            "read_only": spec.read_only,
            "concurrency_safe": spec.concurrency_safe,
            "timeout_ms": spec.timeout_ms,
        }
        for spec in asked.services.tools.specs
    ]
    return answer(part_of(items, cursor, limit))


@router.get("/v1/models", response_model=things.ModelPage, responses=problems())
async def list_models(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """What can be named as a model."""
    return answer(part_of(list(asked.services.models.listing()), cursor, limit))


@router.get("/v1/events/schema", response_model=things.EventSchemas, responses=problems())
async def get_event_schemas(asked: Reading) -> Response:
    """The JSON Schema of every event type: `data` for durable ones, the whole frame for transient ones."""
    return Response(event_schemas.encoded(), media_type=JSON)
