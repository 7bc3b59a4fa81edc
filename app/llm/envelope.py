"""Tool calls for models that cannot make them: each turn is one JSON object, enforced by a response schema.

    {"tool": name, "arguments": {…}}     a call (`tool_mode: json_envelope`)
    {"calls": [{"tool": …, "arguments": …}, …]}     several, where the profile allows more than one
    {"answer": text}     the final answer

This module writes requests; `envelope_reader.py` reads answers. Knows no connection; works with every endpoint that
carries out `response_format: json_schema`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.agent.chat import ChatRequest
from app.agent.messages import Message, Role
from app.agent.tools import ToolSpec
from app.llm import chat_wire
from app.llm.envelope_schema import arguments_schema, envelope_schema
from app.llm.profile import Profile

BRIEF_DESCRIPTION_CHARS = 100
BRIEF_RESULT_CHARS = 600

_INTRO = 'Answer with one JSON object and nothing else.\nWhen you have the answer: {"answer": text}'
_ANSWER_NOW = "\n\nAnswer now."  # a very small model calls the same tool again without it
_ONE = '\nTo call a tool: {"tool": name, "arguments": {...}}'
_MANY = '\nTo call tools: {"calls": [{"tool": name, "arguments": {...}}, ...]}, at most %d'


def render(request: ChatRequest, profile: Profile) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, response schema) of a request: plain system, user and assistant texts only."""
    tools = () if request.tool_choice == "none" else request.tools
    most = 1 if request.parallel_tool_calls is False else profile.envelope_calls
    schema = envelope_schema(
        tools,
        choice="none" if profile.envelope_brief and _after_several(request.messages) else request.tool_choice,
        most=most,
        string_chars=profile.envelope_string_chars,
        brief=profile.envelope_brief,
    )
    return _texts(request.messages, _instructions(tools, most, profile.envelope_brief), profile.envelope_brief), schema


def _after_several(messages: Sequence[Message]) -> bool:
    """Whether the last turn made several calls: a very small model would make the same ones again, and again."""
    asked = next((message for message in reversed(messages) if message.role is not Role.TOOL), None)
    return asked is not None and len(asked.tool_calls) > 1


def _instructions(tools: tuple[ToolSpec, ...], most: int, brief: bool) -> str:
    if not tools:
        return _INTRO
    lines = [_INTRO + (_ONE if most == 1 else _MANY % most), "Tools:"]
    for spec in tools:
        if brief:
            description = spec.description.partition("\n")[0][:BRIEF_DESCRIPTION_CHARS]
            shape = ", ".join(arguments_schema(spec.parameters, 0, brief=True).get("properties", {}))
            lines.append(f"- {spec.name}({shape}): {description}")
        else:
            schema = msgspec.json.encode(spec.parameters, enc_hook=chat_wire.plain).decode()
            lines.append(f"- {spec.name}: {spec.description}\n  arguments: {schema}")
    return "\n".join(lines)


def _texts(messages: Sequence[Message], instructions: str, brief: bool) -> list[dict[str, Any]]:
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    wire: list[dict[str, Any]] = [{"role": "system", "content": instructions}]
    for message in messages:
        if message.role is Role.SYSTEM and len(wire) == 1:
            wire[0]["content"] = f"{message.content}\n\n{instructions}" if message.content.strip() else instructions
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        text = _text(message, names, brief)
        if not text.strip():
            continue
        if wire[-1]["role"] == role:  # many templates insist on speakers taking turns
            wire[-1]["content"] += "\n\n" + text
        else:
            wire.append({"role": role, "content": text})
    if brief and messages and messages[-1].role is Role.TOOL:
        wire[-1]["content"] += _ANSWER_NOW
    return wire


def _text(message: Message, names: Mapping[str, str], brief: bool) -> str:
    if message.role is Role.TOOL:
        content = message.content if message.content.strip() else chat_wire.EMPTY_OUTPUT
        if brief and len(content) > BRIEF_RESULT_CHARS:
            content = f"{content[:BRIEF_RESULT_CHARS]}\n(cut: {len(content) - BRIEF_RESULT_CHARS} characters more)"
        kind = "Error" if message.is_error else "Result"
        return f"{kind} of {names.get(message.tool_call_id or '', 'a tool')}:\n{content}"
    if message.role is not Role.ASSISTANT:
        return message.content
    if not message.tool_calls:
        return _json({"answer": message.content}) if message.content.strip() else ""
    calls = [
        {"tool": call.name, "arguments": msgspec.Raw(chat_wire.wire_arguments(call).encode())}
        for call in message.tool_calls
    ]
    envelope = _json(calls[0] if len(calls) == 1 else {"calls": calls})
    return f"{message.content}\n{envelope}" if message.content.strip() else envelope


def _json(value: Any) -> str:
    return chat_wire.encode(value).decode()
