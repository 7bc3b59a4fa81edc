"""A loopback model that says nothing by itself: every request waits until the test answers it.

    await stage.arrived("job-1")
    stage.say("job-1", text("done"))

An agent is known by its job: the newest user message that begins with one.
"""

import asyncio
import re
from dataclasses import dataclass

from tests.stubs.openai_stub import Answer, OpenAIStub, Request

WAIT_S = 20.0
_JOB = re.compile(r"job-\d+\b")
_TASK_ID = re.compile(r"task_id: (ho_[0-9a-z]{26})")


@dataclass(frozen=True, kw_only=True)
class _Held(Answer):
    """In place of an answer that is not known yet."""

    request: Request


class Stage(OpenAIStub):
    """The model server of one test process; it outlives the servers that ask it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, tuple[Request, asyncio.Future[Answer]]] = {}

    async def arrived(self, job: str) -> None:
        """Wait until the model of this job is asked."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: job in self._waiting)

    def asked(self, job: str) -> bool:
        """Whether it is asked now."""
        return job in self._waiting

    def say(self, job: str, answer: Answer) -> None:
        """Answer it."""
        self._waiting.pop(job)[1].set_result(answer)

    def last_task(self, job: str) -> str:
        """The id of the background task that the newest result of its calls names."""
        results = [str(each["content"]) for each in self._waiting[job][0].messages if each["role"] == "tool"]
        found = _TASK_ID.search(results[-1])
        assert found is not None, results[-1]
        return found[1]

    def _answer(self, request: Request) -> Answer:
        self.requests.clear()
        answer = super()._answer(request)
        return _Held(request=request) if answer.status == 500 else answer  # nobody has said anything: it is held

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not isinstance(answer, _Held):
            return await super()._play(answer, reader, writer)
        job = job_of(answer.request)
        mine: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        async with self._changed:
            self._waiting[job] = answer.request, mine
            self._changed.notify_all()
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({mine, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            if self._waiting.get(job, (None, None))[1] is mine:
                del self._waiting[job]
        return await super()._play(mine.result(), reader, writer) if mine.done() else False


def job_of(request: Request) -> str:
    """Whose request it is."""
    for message in reversed(request.messages):
        found = _JOB.match(str(message["content"])) if message["role"] == "user" else None
        if found is not None:
            return found[0]
    raise AssertionError(f"a request of nobody: {request.messages}")
