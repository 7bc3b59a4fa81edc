"""Helpers of the tests of `app/llm`: a request in one line, a reply with the deltas that led to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.chat import ChatModel, ChatRequest, Delta, DeltaKind, Reply
from app.agent.messages import Message, Role, ToolCall
from app.agent.tools import ToolSpec
from app.llm.http import Transport
from app.llm.openai import OpenAIChat
from app.llm.profile import Profile
from tests.stubs.openai_stub import Answer, OpenAIStub

KEY = "sk-test-0123456789"


def spec(name: str, *required: str, delegation: bool = False, **properties: Mapping[str, Any]) -> ToolSpec:
    """A tool whose parameters are texts unless their schema is given."""
    schema = {name: {"type": "string"} for name in required} | dict(properties)
    return ToolSpec(
        name=name,
        description=f"Does {name}.",
        parameters={"type": "object", "properties": schema, "required": list(required)},
        delegation=delegation,
    )


READ = spec("read_file", "path")
GLOB = spec("glob", "pattern")


def system(content: str) -> Message:
    """A system message."""
    return Message(role=Role.SYSTEM, content=content)


def user(content: str) -> Message:
    """A user message."""
    return Message(role=Role.USER, content=content)


def assistant(content: str = "", *calls: ToolCall, **fields: Any) -> Message:
    """An assistant message."""
    return Message(role=Role.ASSISTANT, content=content, tool_calls=calls, **fields)


def result(call: ToolCall, content: str, **fields: Any) -> Message:
    """The result of a call."""
    return Message(role=Role.TOOL, content=content, tool_call_id=call.call_id, **fields)


TASK = (system("You are a helper."), user("Do it."))


@dataclass
class Asked:
    """A reply and its deltas."""

    reply: Reply
    deltas: list[Delta]

    def said(self, kind: DeltaKind, call_id: str | None = None) -> str:
        """The deltas of a kind, joined."""
        return "".join(delta.text for delta in self.deltas if delta.kind is kind and delta.call_id == call_id)


async def ask(
    model: ChatModel, messages: Sequence[Message] = TASK, tools: tuple[ToolSpec, ...] = (), **fields: Any
) -> Asked:
    """One request."""
    deltas: list[Delta] = []
    request = ChatRequest(messages=tuple(messages), tools=tools, **fields)
    return Asked(await model.stream(request, deltas.append), deltas)


class World:
    """A stub, a transport and the model between them."""

    def __init__(self, stub: OpenAIStub, transport: Transport) -> None:
        self.stub = stub
        self.transport = transport

    def model(self, **fields: Any) -> OpenAIChat:
        """A model of the stub; fields are those of its profile."""
        defaults = {"name": "openai:stub-1", "provider": "openai", "model": "stub-1", "api_key": KEY}
        defaults |= {"base_url": self.stub.base_url}
        return OpenAIChat(Profile(**{**defaults, **fields}), self.transport)

    async def answered(self, answer: Answer, tools: tuple[ToolSpec, ...] = (READ, GLOB), **profile: Any) -> Asked:
        """What the model makes of one answer."""
        self.stub.script(answer)
        return await ask(self.model(**profile), tools=tools)
