"""A loopback server that speaks OpenAI's chat completions as bytes: it plays what a test scripts, write by write.

Knows nothing of the service. It refuses histories that strict providers refuse, so that every request a test makes is
also a check of pairing. Use:

    async with OpenAIStub() as stub:
        stub.script(calls(("read_file", '{"path": "a.txt"}')), text("done"))
        …  # point a model at stub.base_url
        assert stub.requests[1].body["messages"][-1]["role"] == "tool"
"""

import asyncio
import functools
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

WAIT_S = 5.0  # bound of every wait here
Write = bytes | asyncio.Event  # bytes go out in one write; an event is waited for first, which makes a gate
End = Literal["complete", "close", "reset", "hang"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer. `end`: `complete` ends the body properly, `close` just closes the socket, `reset` aborts it,
    `hang` waits for the client to go. `framed` False: no chunked encoding, so that a close is a proper end."""

    writes: tuple[Write, ...] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "complete"
    framed: bool = True


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked. `connection` numbers the sockets, from 0."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    connection: int

    @functools.cached_property  # tests look through all requests again and again
    def body(self) -> dict[str, Any]:
        """The JSON of it."""
        value: dict[str, Any] = json.loads(self.raw)
        return value

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history of it."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk with one choice."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if delta is not None:
        choice["delta"] = dict(delta)
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "stub-1", "choices": [choice], **more}


def call_chunk(index: int | None = 0, *, finish: str | None = None, **call: Any) -> dict[str, Any]:
    """A chunk with one piece of one call: `id`, `name`, `arguments` and anything else that a call may carry."""
    function = {key: call.pop(key) for key in ("name", "arguments") if key in call}
    entry: dict[str, Any] = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**entry, **call, **({"function": function} if function else {})}]}, finish)


def usage_chunk(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """A last chunk that only holds usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}
    return {"object": "chat.completion.chunk", "model": "stub-1", "choices": [], "usage": usage}


def sse(*payloads: Mapping[str, Any] | str | bytes, done: bool = True) -> tuple[bytes, ...]:
    """Each payload as one event in one write; bytes are taken as they are, texts are put behind `data: `."""
    writes = [_event(payload) for payload in payloads]
    return (*writes, b"data: [DONE]\n\n") if done else tuple(writes)


def _event(payload: Mapping[str, Any] | str | bytes) -> bytes:
    if isinstance(payload, bytes):
        return payload
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def stream(*payloads: Mapping[str, Any] | str | bytes, done: bool = True, **answer: Any) -> Answer:
    """An answer of these events."""
    return Answer(writes=sse(*payloads, done=done), **answer)


def text(content: str, *, pieces: int = 3, usage: tuple[int, int] | None = (20, 5)) -> Answer:
    """A complete streamed text."""
    size = max(1, -(-len(content) // pieces))
    deltas = [chunk({"content": content[at : at + size]}) for at in range(0, len(content), size)]
    tail = [usage_chunk(*usage)] if usage else []
    return stream(chunk({"role": "assistant", "content": ""}), *deltas, chunk({}, "stop"), *tail)


def calls(*wanted: tuple[str, str], usage: tuple[int, int] | None = (20, 5)) -> Answer:
    """A complete turn of tool calls: (name, arguments) each, in two pieces."""
    chunks: list[dict[str, Any]] = []
    for index, (name, arguments) in enumerate(wanted):
        half = len(arguments) // 2
        chunks.append(call_chunk(index, id=f"call_{index}", type="function", name=name, arguments=arguments[:half]))
        chunks.append(call_chunk(index, arguments=arguments[half:]))
    tail = [usage_chunk(*usage)] if usage else []
    return stream(chunk({"role": "assistant", "content": None}), *chunks, chunk({}, "tool_calls"), *tail)


def refusal(status: int, error: Any, **headers: str) -> Answer:
    """An HTTP error with a JSON body."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"error": error}).encode()
    return Answer(writes=(body,), status=status, content_type="application/json", headers=names)


class OpenAIStub:
    """The server. Answers are played in the order in which requests come; without one left, a request gets a 500."""

    def __init__(self, *, strict: bool = True) -> None:
        self.requests: list[Request] = []
        self.clients_left = 0
        self._strict = strict
        self._answers: deque[Answer] = deque()
        self._decide: Callable[[Request], Answer] | None = None
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        self.port = 0

    @property
    def base_url(self) -> str:
        """What a profile takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *answers: Answer) -> None:
        """Play these after those already scripted."""
        self._answers.extend(answers)

    def decide(self, function: Callable[[Request], Answer]) -> None:
        """Ask a function for the answer of each request that no scripted one is left for."""
        self._decide = function

    async def start(self) -> Self:
        """Listen on a free loopback port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def seen(self, count: int) -> None:
        """Wait until this many requests have come."""
        await self._until(lambda: len(self.requests) >= count)

    async def client_left(self, count: int = 1) -> None:
        """Wait until this many clients have gone while their answer was not complete."""
        await self._until(lambda: self.clients_left >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(condition)

    async def _note(self, *, left: int = 0, request: Request | None = None) -> None:
        async with self._changed:
            self.clients_left += left
            if request is not None:
                self.requests.append(request)
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number, self._connections = self._connections, self._connections + 1
        try:
            while (request := await _read_request(reader, number)) is not None:
                await self._note(request=request)
                if not await self._play(self._answer(request), reader, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the stub stops
        finally:
            self._tasks.discard(task)
            writer.close()

    def _answer(self, request: Request) -> Answer:
        problem = history_problem(request.messages) if self._strict else None
        if problem is not None:
            return refusal(400, {"message": problem, "type": "invalid_request_error", "code": "bad_history"})
        if self._answers:
            return self._answers.popleft()
        if self._decide is not None:
            return self._decide(request)
        return refusal(500, {"message": "the stub has no answer left"})

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send one answer; says whether the connection can go on."""
        framing = "Transfer-Encoding: chunked" if answer.framed else "Connection: close"
        lines = [f"HTTP/1.1 {answer.status} X", f"Content-Type: {answer.content_type}", framing]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await writer.drain()
        for item in answer.writes:
            if isinstance(item, asyncio.Event):
                if not await self._gate(item, reader):
                    return False
            elif item:
                writer.write(b"%x\r\n%s\r\n" % (len(item), item) if answer.framed else item)
                await writer.drain()
                await asyncio.sleep(0)
        if answer.end == "hang":
            await self._left(reader)
        elif answer.end == "reset":
            writer.transport.abort()
        elif answer.end == "complete" and answer.framed:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        return False

    async def _gate(self, gate: asyncio.Event, reader: asyncio.StreamReader) -> bool:
        """Wait for the gate, unless the client goes first."""
        opened = asyncio.ensure_future(gate.wait())
        left = asyncio.ensure_future(reader.read(1))
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait({opened, left}, return_when=asyncio.FIRST_COMPLETED)
            if opened.done():
                return True
            await self._note(left=1)
            return False
        finally:
            opened.cancel()
            left.cancel()
            await asyncio.gather(opened, left, return_exceptions=True)

    async def _left(self, reader: asyncio.StreamReader) -> None:
        async with asyncio.timeout(WAIT_S):
            while await reader.read(1024):
                pass
        await self._note(left=1)


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(path=first.split(" ")[1], headers=headers, raw=raw, connection=connection)


def history_problem(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a strict provider refuses this history, or None."""
    used: set[str] = set()
    open_ids: list[str] = []
    for at, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "system" and at:
            return f"messages[{at}]: a system message must be the first"
        if role == "tool":
            if message.get("tool_call_id") not in open_ids:
                return f"messages[{at}]: result {message.get('tool_call_id')!r} answers no call directly before it"
            open_ids.remove(message["tool_call_id"])
        elif open_ids:
            return f"messages[{at}]: calls without a result: {', '.join(open_ids)}"
        wanted = message.get("tool_calls") or []
        if not (isinstance(content, str) and content.strip()) and not (content is None and wanted):
            return f"messages[{at}]: empty text"
        for call in wanted:
            problem = _call_problem(call, used)
            if problem:
                return f"messages[{at}]: {problem}"
            used.add(call["id"])
            open_ids.append(call["id"])
    return f"calls without a result at the end: {', '.join(open_ids)}" if open_ids else None


def _call_problem(call: Mapping[str, Any], used: set[str]) -> str | None:
    if not call.get("id") or call["id"] in used:
        return f"call id {call.get('id')!r} is empty or used twice"
    if call.get("type") != "function" or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
        return f"bad call {call!r}"
    try:
        arguments = json.loads(call["function"]["arguments"])
    except ValueError:
        return f"arguments of {call['id']} are no JSON"
    return None if isinstance(arguments, dict) else f"arguments of {call['id']} are no object"
