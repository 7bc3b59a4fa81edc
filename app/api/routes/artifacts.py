"""Artifacts: the whole of an output that was cut."""

from starlette.responses import Response

from app.api.deps import Reading
from app.api.docs import new_router, problems

router = new_router("artifacts")


@router.get(
    "/v1/artifacts/{artifact_id}",
    response_class=Response,
    responses={
        200: {
            "description": "The whole output, as a file to keep.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems(404, 503),
    },
)
async def get_artifact(asked: Reading, artifact_id: str) -> Response:
    """The whole output of a tool call whose result was cut; `tool.result` has its id."""
    found = await asked.services.artifacts.get(asked.tenant, artifact_id)
    headers = {
        # an output may be anybody's text: no browser is to take it for a page of ours
        "Content-Disposition": f'attachment; filename="{found.artifact_id}.txt"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(found.content, headers=headers, media_type=found.media_type)
