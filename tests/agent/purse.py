"""What tests of budgets and of places share: a budget in one line, and tasks that wait."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from app.agent.budget import Budget
from app.agent.policy import BudgetLimits

T = TypeVar("T")


def limited(**limits: Any) -> Budget:
    """A budget that nothing is above."""
    return Budget(BudgetLimits(**limits))


async def turns(count: int = 5) -> None:
    """Let everything that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def waiting(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that does not get on."""
    task = asyncio.create_task(work)
    await turns()
    assert not task.done()
    return task
