"""Helpers of the tests of Anthropic's dialect: a strict stub and a model of it in one line."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from app.agent.messages import Message
from app.llm.anthropic import AnthropicChat
from app.llm.http import Transport
from app.llm.profile import Profile
from tests.llm.asking import GLOB, KEY, READ, TASK, Asked, ask, assistant, result
from tests.stubs.anthropic_stub import AnthropicStub, message, words
from tests.stubs.openai_stub import Answer, Request

NAME = "anthropic:stub-1"


class AnthropicWorld:
    """A stub, a transport and the model between them."""

    def __init__(self, stub: AnthropicStub, transport: Transport) -> None:
        self.stub = stub
        self.transport = transport

    def model(self, **fields: Any) -> AnthropicChat:
        """A model of the stub; fields are those of its profile."""
        defaults = {"name": NAME, "provider": "anthropic", "model": "stub-1", "api_key": KEY}
        defaults |= {"base_url": self.stub.base_url}
        return AnthropicChat(Profile(**{**defaults, **fields}), self.transport)

    async def answered(self, answer: Answer, **profile: Any) -> Asked:
        """What the model makes of one answer."""
        self.stub.script(answer)
        return await ask(self.model(**profile), tools=(READ, GLOB))

    async def sent(
        self, messages: tuple[Message, ...] = TASK, profile: dict[str, Any] | None = None, **fields: Any
    ) -> Request:
        """The request for a history; the strict stub accepted it."""
        self.stub.script(message(words("ok")))
        await ask(self.model(**(profile or {})), messages, **fields)
        return self.stub.requests[-1]


def spoken(asked: Asked, *outputs: str) -> tuple[Message, ...]:
    """A reply as it stands in a memory, with the results of its calls."""
    reply = asked.reply
    turn = assistant(
        reply.text, *reply.tool_calls, reasoning=reply.reasoning, provider=reply.provider, opaque=reply.opaque
    )
    return (turn, *(result(call, output) for call, output in zip(reply.tool_calls, outputs, strict=True)))


@contextlib.asynccontextmanager
async def anthropic_world() -> AsyncIterator[AnthropicWorld]:
    """A strict loopback server and a transport, both closed afterwards."""
    transport = Transport()
    async with AnthropicStub() as stub:
        yield AnthropicWorld(stub, transport)
        await transport.close()
