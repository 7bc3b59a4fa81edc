"""Background tasks: list, fetch with or without waiting, cancel, remove."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from app.api.deps import Reading, Running
from app.api.docs import new_router, problems
from app.api.pages import Cursor, Limit, Wanted, answer
from app.api.schemas import answers
from app.api.schemas.requests import ClearBody
from app.sessions.tasks import MOST_WAIT_MS, WAIT_MS, TaskFilter

router = new_router("tasks")
EVERYTHING = ClearBody()


@router.get("/v1/tasks", response_model=answers.TaskPage, responses=problems(404))
async def list_tasks(
    asked: Reading,
    session_id: Annotated[Wanted | None, Query(description="Of this session.")] = None,
    status: answers.TaskStatus | None = None,
    agent: Annotated[Wanted | None, Query(description="Of this agent.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Background tasks, newest first: those that go on, and those that ended within `tasks.retention_h`."""
    filters = TaskFilter(session_id=session_id, status=status, agent=agent)
    return answer(await asked.services.tasks.list(asked.tenant, filters, cursor, limit))


@router.post("/v1/tasks/clear", response_model=answers.ClearedTasks, responses=problems(400, 404, 413, 415, 503))
async def clear_tasks(asked: Running, body: ClearBody = EVERYTHING) -> Response:
    """Remove tasks that have ended from the lists; the audit log keeps them."""
    asked.services.need_store()
    count = await asked.services.tasks.clear(asked.tenant, body.session_id, body.older_than_s)
    return answer({"cleared": count})


@router.get("/v1/tasks/{task_id}", response_model=answers.Task, responses=problems(404))
async def get_task(asked: Reading, task_id: str) -> Response:
    """One task."""
    return answer(await asked.services.tasks.get(asked.tenant, task_id))


@router.delete("/v1/tasks/{task_id}", status_code=204, responses=problems(404, 409, 503))
async def remove_task(asked: Running, task_id: str) -> Response:
    """Remove a task that has ended from the lists; the audit log keeps it. One that goes on answers 409."""
    asked.services.need_store()
    await asked.services.tasks.remove(asked.tenant, task_id)
    return Response(status_code=204)


@router.get("/v1/tasks/{task_id}/output", response_model=answers.TaskOutput, responses=problems(404))
async def get_task_output(
    asked: Reading,
    task_id: str,
    block: Annotated[bool, Query(description="Wait for its end.")] = True,
    timeout_ms: Annotated[
        int, Query(description=f"How long to wait; more than {MOST_WAIT_MS} is lowered to that.", ge=0)
    ] = WAIT_MS,
) -> Response:
    """A task with its result, waiting for that; one that has not ended by then has the status `running`."""
    return answer(await asked.services.tasks.output(asked.tenant, task_id, block=block, timeout_ms=timeout_ms))


@router.post("/v1/tasks/{task_id}/cancel", response_model=answers.CancelledTask, responses=problems(404, 503))
async def cancel_task(asked: Running, task_id: str) -> Response:
    """End a task and everything below it; one that has ended stays as it is, and the answer says so."""
    return answer(await asked.services.tasks.cancel(asked.tenant, task_id))
