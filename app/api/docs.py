"""What OpenAPI says beyond the routes themselves: problems, streams, and how one proves who one is."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from app.api.auth import needs_key
from app.api.errors import MEDIA_TYPE
from app.api.schemas.answers import Problem

Responses = dict[int | str, dict[str, Any]]

TITLE = "subagentd"
DESCRIPTION = """Hands tasks to AI subagents and shows their work as it happens.

Errors are problem details (RFC 9457). Lists are pages: `items`, and `next` for the next question's `cursor`.
`Accept: text/event-stream` on events, runs and delegations gives server-sent events.
What starts work takes an `Idempotency-Key`: sent again, it is answered again and not done again."""
_TEXTS = {
    400: "Not understood: no JSON, or a cursor that is none.",
    401: "No valid key.",
    403: "The key does not open this, or a policy forbids it.",
    406: "Neither of the two forms is accepted.",
    404: "Unknown, or another tenant's.",
    409: "Not possible in this state.",
    410: "Older than it is kept; `oldest`, `head` and `state` say where to go on.",
    412: "It is not the version that `If-Match` names.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Not acceptable, or not carried out by this version (code `unsupported`).",
    429: "Too many open streams.",
    503: "Not available at the moment; try again after `Retry-After` seconds.",
}
STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "Server-sent events."}}}


def problems(*statuses: int) -> Responses:
    """Documentation of the errors of a route, beside those that every route has."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": _TEXTS[status], "content": content} for status in sorted({401, 403, 422, *statuses})
    }


def new_router(tag: str) -> APIRouter:
    """A router whose routes are named after their functions."""
    return APIRouter(tags=[tag], generate_unique_id_function=_name)


def _name(route: APIRoute) -> str:
    return route.name


def openapi(app: FastAPI) -> dict[str, Any]:
    """The schema of FastAPI with what it cannot know; made once."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        shapes = components.setdefault("schemas", {})
        shapes.update(_problem_shapes())
        for name in ("HTTPValidationError", "ValidationError"):
            shapes.pop(name, None)
        refusals = {str(status): shape for status, shape in problems(413, 415).items()}
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                operation["security"] = [{"key": []}] if needs_key(path) else []
                if method in ("post", "put", "patch"):  # whether or not it takes a body: one may come
                    operation["responses"] = refusals | operation["responses"]
    assert app.openapi_schema is not None
    return app.openapi_schema


def _problem_shapes() -> dict[str, Any]:
    shape = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**shape.pop("$defs", {}), "Problem": shape}
