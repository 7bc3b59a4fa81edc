"""Artifacts: the whole of an output that was cut, a model call as it was."""

from starlette.responses import Response

from app.api.deps import Reading
from app.api.docs import new_router, problems

router = new_router("artifacts")


@router.get(
    "/v1/artifacts/{artifact_id}",
    response_class=Response,
    responses={
        200: {
            "description": "The whole output, or what a model was asked or said (JSON), as a file to keep.",
            "content": {"text/plain": {"schema": {"type": "string"}}, "application/json": {"schema": {}}},
        },
        **problems(404, 503),
    },
)
async def get_artifact(asked: Reading, artifact_id: str) -> Response:
    """The whole output of a tool call whose result was cut (`tool.result` has its id), or a request to a model or its
    reply (`model.recorded`)."""
    found = await asked.services.artifacts.get(asked.tenant, artifact_id)
    ending = "json" if found.media_type.startswith("application/json") else "txt"
    headers = {
        # an output may be anybody's text: no browser is to take it for a page of ours
        "Content-Disposition": f'attachment; filename="{found.artifact_id}.{ending}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(found.content, headers=headers, media_type=found.media_type)
