"""Agents: who can be asked, and the tenant's own."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Header, Query
from starlette.responses import Response

from app.api.deps import Administering, Reading
from app.api.docs import new_router, problems
from app.api.pages import Cursor, Limit, answer, part_of
from app.api.schemas import things
from app.api.schemas.requests import Definition

router = new_router("agents")

IfMatch = Annotated[str | None, Header(description="The `ETag` of the version that is to be changed.")]
Parents = Annotated[
    list[str] | None,
    Query(description="Below whom: its effective tools are those that it has then; repeated: from the root down."),
]


@router.get("/v1/agents", response_model=things.AgentList, responses=problems())
async def list_agents(asked: Reading, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Agents in force, by name; those that others hide, and everything wrong with agent files."""
    found = asked.services.agents.list(asked.tenant)
    return answer({**found, **part_of(found["items"], cursor, limit)})


@router.post("/v1/agents/reload", response_model=things.AgentList, responses=problems())
async def reload_agents(asked: Administering) -> Response:
    """Read the agent files anew, and list what there is."""
    return answer(await asked.services.agents.reload(asked.tenant))


@router.get("/v1/agents/{name:path}", response_model=things.Agent, responses=problems(404))
async def get_agent(asked: Reading, name: str, parent: Parents = None) -> Response:
    """One agent."""
    return _tagged(asked.services.agents.get(asked.tenant, name, parent or ()))


@router.put(
    "/v1/agents/{name:path}",
    response_model=things.Agent,
    responses={
        201: {"model": things.Agent, "description": "The tenant had no agent of that name."},
        **problems(400, 412, 413, 415, 503),
    },
)
async def put_agent(
    asked: Administering,
    name: str,
    body: Annotated[Definition, Body(description="The definition.")],
    if_match: IfMatch = None,
) -> Response:
    """Put an agent of the tenant in force, in place of any other of that name."""
    asked.services.need_store()
    shown, made = await asked.services.agents.put(asked.tenant, name, body, _versions(if_match))
    return _tagged(shown, 201 if made else 200)


@router.delete("/v1/agents/{name:path}", status_code=204, responses=problems(404, 409, 412, 503))
async def delete_agent(asked: Administering, name: str, if_match: IfMatch = None) -> Response:
    """Take an agent of the tenant away; a file's agent of that name is in force again."""
    asked.services.need_store()
    await asked.services.agents.delete(asked.tenant, name, _versions(if_match))
    return Response(status_code=204)


def _tagged(shown: Mapping[str, Any], status: int = 200) -> Response:
    """An agent with its version as `ETag`; those of files have none."""
    version = shown["version"]
    return answer(shown, status, None if version is None else {"ETag": f'"{version}"'})


def _versions(if_match: str | None) -> tuple[str, ...]:
    """The versions in an `If-Match`. What is none of ours stays in it, and no agent has it."""
    return () if if_match is None else tuple(part.strip().strip('"') for part in if_match.split(","))
