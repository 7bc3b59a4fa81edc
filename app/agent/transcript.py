"""A history that every provider accepts: each call answered directly after it, once; nothing orphaned, nothing empty.

Asked before every model call. Knows no provider.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.agent.definition import MAX_TOOL_NAME
from app.agent.messages import Message, Role, ToolCall

NO_RESULT = "(no result: the call was interrupted)"
EMPTY_TASK = "(empty task)"
EMPTY_OUTPUT = "(no output)"
CUT_MARK = "\n\n[this reply was cut off here]"
_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def acceptable(messages: Iterable[Message]) -> tuple[Message, ...]:
    """A snapshot of the history in which calls and results pair.

    A call without a result gets a stand-in; a result without a call, or a second one, is left out; results stand
    in the order of the calls; an id that was used before is made unique, for the call and its result; assistant
    messages with neither text nor calls are left out; a text that was cut and an empty result say so; arguments that
    are no JSON object are replaced by an empty one, since providers refuse broken ones (the audit log keeps the text).
    """
    return tuple(_paired(list(messages)))


def _paired(messages: list[Message]) -> Iterator[Message]:
    index = 0
    used: set[str] = set()
    while index < len(messages):
        message = messages[index]
        index += 1
        if message.role is Role.TOOL:
            continue  # results are taken up with their call; one that is left here has none
        if message.role is not Role.ASSISTANT or not message.tool_calls:
            if message.content.strip():
                yield message if not message.partial else _marked(message)
            elif message.role is Role.USER:
                yield replace(message, content=EMPTY_TASK)
            continue
        results: dict[str | None, list[Message]] = {}
        while index < len(messages) and messages[index].role is Role.TOOL:
            results.setdefault(messages[index].tool_call_id, []).append(messages[index])
            index += 1
        calls = tuple([_sendable(call, used) for call in message.tool_calls])
        yield message if calls == message.tool_calls else replace(message, tool_calls=calls)
        for asked, sent in zip(message.tool_calls, calls, strict=True):
            found = results.get(asked.call_id)
            yield _result(found.pop(0), sent) if found else stand_in(sent)


def _sendable(call: ToolCall, used: set[str]) -> ToolCall:
    name = call.name if call.name and not _NAME.search(call.name) else _NAME.sub("_", call.name) or "unknown"
    name = name[:MAX_TOOL_NAME]
    call_id, number = call.call_id, 1
    while not call_id or call_id in used:
        number += 1
        call_id = f"{call.call_id or 'call'}_{number}"
    used.add(call_id)
    raw, arguments = (call.raw, call.arguments) if call.arguments is not None else ("{}", {})
    if name == call.name and call_id == call.call_id and raw is call.raw and raw.strip():
        return call
    return replace(call, call_id=call_id, name=name, raw=raw.strip() or "{}", arguments=arguments)


def _result(found: Message, call: ToolCall) -> Message:
    if found.tool_call_id == call.call_id and found.content.strip():
        return found
    return replace(found, tool_call_id=call.call_id, content=found.content if found.content.strip() else EMPTY_OUTPUT)


def _marked(message: Message) -> Message:
    return replace(message, content=message.content + CUT_MARK, partial=False)


def stand_in(call: ToolCall, text: str = NO_RESULT) -> Message:
    """The tool message of a call that has no result."""
    return Message(role=Role.TOOL, content=text, tool_call_id=call.call_id, is_error=True)
