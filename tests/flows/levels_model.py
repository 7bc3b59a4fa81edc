"""Who answers in the cases at several depths: a strict model server that finds the part of each by its prompt.

Knows no service. A history that a strict provider refuses is remembered, so that each request is also a check of it.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text

DEPTHS = (0, 1, 2)
AGAIN = "Again."
ABOVE = ("lead", "middle")
Play = Callable[[Request], Answer]


def said(request: Request) -> list[str]:
    """The tool results since the last message of a user."""
    found: list[str] = []
    for message in request.messages:
        if message["role"] == "user":
            found = []
        elif message["role"] == "tool":
            found.append(message["content"])
    return found


def every_result(request: Request) -> list[str]:
    """All tool results of a history."""
    return [message["content"] for message in request.messages if message["role"] == "tool"]


def turns(*answers: Answer) -> Play:
    """One answer for each step, by the number of calls' results that are there."""

    def play(request: Request) -> Answer:
        step = [message["role"] for message in request.messages].count("assistant")
        return answers[min(step, len(answers) - 1)]

    return play


def call(tool: str, **arguments: Any) -> tuple[str, str]:
    """One call for `calls`."""
    return tool, json.dumps(arguments)


def delegate(to: str, task: str) -> tuple[str, str]:
    """A call that starts a subagent."""
    return call("dispatch_subagent", agent_type=to, task=task)


class StrictStub(OpenAIStub):
    """The model server: finds the case and the part of a request by its system prompt, `You are <part> <case>.`"""

    def __init__(self) -> None:
        super().__init__(strict=True)
        self.plays: dict[str, Play] = {}
        self.refused: list[bytes] = []
        self.playing = 0
        self.summary: Play = lambda _request: text("Done: what was asked. Open: nothing.", usage=None)
        self.summaries: list[Request] = []
        self.decide(self._routed)

    def _routed(self, request: Request) -> Answer:
        prompt = str(request.messages[0]["content"]).split("\n")[0]
        if request.messages[0]["role"] != "system":
            self.summaries.append(request)
            return self.summary(request)
        play: Play = self.plays[prompt]
        last = request.messages[-1]
        if last["role"] == "user" and last["content"].startswith(AGAIN) and prompt.split()[2] not in ABOVE:
            return text("Said again.", usage=None)  # a made-up count would teach the counter of the model
        return play(request)

    def _answer(self, request: Request) -> Answer:
        answer: Answer = super()._answer(request)
        if b'"bad_history"' in b"".join(write for write in answer.writes if isinstance(write, bytes)):
            self.refused.append(request.raw)
        return answer

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.playing += 1
        try:
            return await super()._play(answer, reader, writer)
        finally:
            self.playing -= 1


def passing_on(to: str) -> Play:
    """An ancestor: hands each task on as it is, then says what it was told."""

    def play(request: Request) -> Answer:
        told = said(request)
        if told:
            return text(f"Heard: {told[0]}")
        task = next(m["content"] for m in reversed(request.messages) if m["role"] == "user")
        return calls(delegate(to, task))

    return play
