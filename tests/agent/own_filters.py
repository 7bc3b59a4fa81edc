"""Input filters that an operator may have, good ones and bad ones: named by import path in the tests."""

import asyncio
from dataclasses import replace

from app.agent.errors import ToolError
from app.agent.policy import HandoffInput

SECRET = "sk-a-secret-of-the-caller"


def shout(given: HandoffInput) -> HandoffInput:
    return replace(given, task=given.task.upper())


async def whisper(given: HandoffInput) -> HandoffInput:
    await asyncio.sleep(0)
    return replace(given, task=given.task.lower())


def tagged(given: HandoffInput) -> HandoffInput:
    return replace(given, task=f"{given.task} for {given.agent} by {given.tool} in {given.session_id[:4]}")


def nothing(given: HandoffInput) -> None:
    return None


async def nothing_later(given: HandoffInput) -> None:
    await asyncio.sleep(0)


def diverting(given: HandoffInput) -> HandoffInput:
    return replace(given, tool="other_tool", agent="boss", session_id="ses_of_another", task="diverted")


def no_input(given: HandoffInput) -> str:
    return "a text"


def no_text(given: HandoffInput) -> HandoffInput:
    return replace(given, task=7)  # type: ignore[arg-type]


def no_context(given: HandoffInput) -> HandoffInput:
    return replace(given, context=None)  # type: ignore[arg-type]


def no_map(given: HandoffInput) -> HandoffInput:
    return replace(given, fields=[1])  # type: ignore[arg-type]


def no_json(given: HandoffInput) -> HandoffInput:
    return replace(given, fields={"a": object()})


def raising(given: HandoffInput) -> HandoffInput:
    raise LookupError(f"no such row: {SECRET}")


async def raising_later(given: HandoffInput) -> HandoffInput:
    await asyncio.sleep(0)
    raise LookupError("no such row")


def leaving(given: HandoffInput) -> HandoffInput:
    raise SystemExit(1)


async def torn_down(given: HandoffInput) -> HandoffInput:
    raise asyncio.CancelledError


def refusing(given: HandoffInput) -> HandoffInput:
    raise ToolError("tasks about customers stay here")


async def stuck(given: HandoffInput) -> HandoffInput:
    await asyncio.Event().wait()
    return given


async def hasty(given: HandoffInput) -> HandoffInput:
    raise TimeoutError("the policy server did not answer")
