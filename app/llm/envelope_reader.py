"""Reads the JSON envelope of a turn while it comes: shows the text of an answer, turns calls into tool calls.

Knows no request. A text that is no envelope is an answer, marked when it looks like one that went wrong.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from app.agent.chat import Delta, DeltaKind, Emit, Finish, Reply
from app.agent.ids import new_id
from app.agent.messages import ToolCall
from app.llm.surrogates import scrubbed
from app.wire import parse_arguments

_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_STRING_PIECE = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class EnvelopeReader:
    """Stands between the assembler and `emit`.

    States: `start`, then `plain` (no JSON), `answer` until its string is `closed`, or `other` (calls, anything else).
    """

    __slots__ = ("_at", "_buffer", "_emit", "_shown", "_state")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._buffer = ""
        self._state = "start"
        self._at = 0
        self._shown: list[str] = []

    def take(self, delta: Delta) -> None:
        """One delta of the envelope's own text; reasoning is passed on."""
        if delta.kind is not DeltaKind.TEXT:
            self._emit(delta)
            return
        self._buffer += delta.text
        if self._state == "start":
            self._begin()
        if self._state == "plain":
            self._say(self._buffer[self._at :])
            self._at = len(self._buffer)
        elif self._state == "answer":
            self._go_on()

    def reply(self, reply: Reply) -> Reply:
        """The reply that the envelope stands for; `reply` is the one that carried it."""
        shown = "".join(self._shown)
        if reply.finish in (Finish.LENGTH, Finish.FILTERED):
            return self._answer(reply, shown)  # cut: of calls nothing is run
        value, _ = parse_arguments(_unfenced(self._buffer))
        if value is None:
            if self._state in ("answer", "other"):
                return self._answer(reply, shown or self._buffer, malformed=True)
            return self._answer(reply, shown)
        if isinstance(value.get("answer"), str):
            return self._answer(reply, value["answer"])
        calls = _calls(value)
        if calls is None:
            return self._answer(reply, self._buffer, malformed=bool({"tool", "calls"} & set(value)))
        for call in calls:
            self._emit(Delta(DeltaKind.ARGUMENTS, call.raw, call.call_id))
        return replace(reply, text="", tool_calls=calls, finish=Finish.TOOL_CALLS, malformed_call=False)

    def _answer(self, reply: Reply, text: str, *, malformed: bool = False) -> Reply:
        if not self._shown:
            self._say(text)
        return replace(reply, text=text, malformed_call=malformed)

    def _begin(self) -> None:
        found = _ANSWER.match(self._buffer)
        start = self._buffer.lstrip()
        if found is not None:
            self._state, self._at = "answer", found.end()
        elif start and start[0] not in "{`":
            self._state = "plain"
        elif len(start) > 40:  # the beginning of an answer would have been recognised by now
            self._state = "other"

    def _go_on(self) -> None:
        found = _STRING_PIECE.match(self._buffer, self._at)
        end = found.end() if found else self._at
        piece = self._buffer[self._at : end]
        half = _HIGH_HALF.search(piece)
        if half is not None:  # its other half is still to come
            piece = piece[: half.start()]
        self._at += len(piece)
        self._say(_unescaped(piece))
        if self._buffer[end : end + 1] == '"':
            self._state = "closed"

    def _say(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self._emit(Delta(DeltaKind.TEXT, text))


def _calls(value: Mapping[str, Any]) -> tuple[ToolCall, ...] | None:
    entries = value["calls"] if isinstance(value.get("calls"), list) else [value]
    if not entries or not all(isinstance(entry, dict) and isinstance(entry.get("tool"), str) for entry in entries):
        return None
    return tuple(_call(entry["tool"], entry.get("arguments")) for entry in entries)


def _call(name: str, value: Any) -> ToolCall:
    raw = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    arguments, problem = parse_arguments(raw)
    return ToolCall(call_id=new_id("call"), name=name, raw=raw, arguments=arguments, problem=problem)


def _unescaped(piece: str) -> str:
    try:
        return scrubbed(str(json.loads(f'"{piece}"', strict=False)))
    except ValueError:
        return piece


def _unfenced(text: str) -> str:
    """The JSON in a text, without the code fence that some models put around it."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3].strip()
    return text
