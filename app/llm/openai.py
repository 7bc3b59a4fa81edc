"""A model behind an endpoint that speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, DeepSeek, …

Knows no run. Whether a failed request is tried again is the loop's decision; here errors only say whether it may be.
"""

from typing import Any

from app.agent.chat import TOOL_CHOICES, ChatRequest, Emit, Prices, Reply
from app.agent.errors import ModelError
from app.llm import chat_wire, envelope
from app.llm.assembly import ReplyAssembler
from app.llm.envelope_reader import EnvelopeReader
from app.llm.http import ResponseStream, Transport
from app.llm.profile import Profile
from app.llm.sse import EventPayloads

# After the finish reason only usage and the end marker can come; a server that sends neither and keeps the connection
# open must not hold up a complete turn.
TAIL_SILENCE_S = 5.0


class OpenAIChat:
    """One model of an OpenAI-compatible endpoint (`ChatModel`)."""

    def __init__(self, profile: Profile, transport: Transport) -> None:
        self._profile = profile
        self._transport = transport
        self._tool_sets = chat_wire.ToolSets()
        self._url = profile.base_url.rstrip("/") + "/chat/completions"
        self._headers = {"Accept": "text/event-stream", **profile.headers}
        if profile.api_key:
            self._headers["Authorization"] = f"Bearer {profile.api_key}"

    @property
    def name(self) -> str:
        """The name of the profile."""
        return self._profile.name

    @property
    def prices(self) -> Prices | None:
        """Those of the profile."""
        return self._profile.prices

    @property
    def context_window(self) -> int | None:
        """That of the profile."""
        return self._profile.context_window

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """One chat completion, streamed; see `ChatModel`. A server that answers in one piece is accepted."""
        profile = self._profile
        chat_wire.check_choice(request)
        in_envelope = profile.tool_mode == "json_envelope"
        body = chat_wire.encode(self._envelope_body(request) if in_envelope else self._body(request))
        reader = EnvelopeReader(emit) if in_envelope else None
        assembler = ReplyAssembler(
            provider=profile.name,
            offered=() if in_envelope else [spec.name for spec in request.tools],
            think_tags=profile.think_tags == "auto",
        )
        response = await self._transport.post_stream(
            self._url,
            self._headers,
            body,
            connect_s=profile.connect_s,
            idle_s=profile.idle_s,
            total_s=profile.total_s,
        )
        try:
            reply = await _read(response, assembler, reader.take if reader else emit)
        except BaseException:  # also when cancelled: a request that nobody waits for is given up at once
            response.close()
            raise
        response.finish()
        return reader.reply(reply) if reader else reply

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        profile = self._profile
        body = self._common(request)
        body["messages"] = chat_wire.wire_messages(
            request.messages, provider=profile.name, reasoning_key=profile.reasoning_key
        )
        if request.tools:
            body["tools"] = self._tool_sets.encoded(request.tools)
            if request.tool_choice is not None:
                body["tool_choice"] = _tool_choice(request.tool_choice)
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        elif profile.tools_for_history and (tools := chat_wire.history_tools(request.messages)):
            body["tools"] = tools
            body["tool_choice"] = "none"
        return body

    def _envelope_body(self, request: ChatRequest) -> dict[str, Any]:
        body = self._common(request)
        body["messages"], schema = envelope.render(request, self._profile)
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "step", "strict": True, "schema": schema},
        }
        return body

    def _common(self, request: ChatRequest) -> dict[str, Any]:
        profile = self._profile
        body: dict[str, Any] = {"model": profile.model, "messages": None, "stream": True}
        if profile.include_usage:
            body["stream_options"] = {"include_usage": True}
        temperature = request.temperature if request.temperature is not None else profile.temperature
        if temperature is not None and profile.send_temperature:
            body["temperature"] = temperature
        max_tokens = request.max_tokens if request.max_tokens is not None else profile.max_tokens
        if max_tokens is not None:
            body[profile.max_tokens_key] = max_tokens
        if request.effort is not None:
            body["reasoning_effort"] = request.effort
        if request.thinking is not None:
            body.update(_thinking(profile.thinking_style, request.thinking))
        return body


async def _read(response: ResponseStream, assembler: ReplyAssembler, emit: Emit) -> Reply:
    """Read the answer to its end signal. All that one read completed is taken before anything is handed out."""
    if response.content_type == "application/json":
        return await _read_whole(response, assembler, emit)
    events = EventPayloads()
    while not assembler.done:
        try:
            data = await response.read()
        except ModelError:
            if assembler.finished:
                break  # broke or fell silent after the finish reason: the turn is complete
            raise
        try:
            if assembler.feed(events.feed(data) if data else events.end()):
                response.progress()
        finally:
            assembler.flush(emit)  # what came before an error in the same read was said
        if not data:
            break
        if assembler.finished:
            response.bound_silence(TAIL_SILENCE_S)
    return assembler.end(emit)


async def _read_whole(response: ResponseStream, assembler: ReplyAssembler, emit: Emit) -> Reply:
    pieces: list[bytes] = []
    while data := await response.read():
        response.progress()
        pieces.append(data)
    assembler.feed([b"".join(pieces).strip()])
    assembler.done = True  # a JSON document that could be read is whole
    return assembler.end(emit)


def _thinking(style: str, on: bool) -> dict[str, Any]:
    """The fields that switch reasoning on or off. No two servers agree on them, and strict ones refuse the others'."""
    match style:
        case "enable_thinking":
            return {"enable_thinking": on}
        case "chat_template_kwargs":
            return {"chat_template_kwargs": {"enable_thinking": on}}
        case "thinking_type":
            return {"thinking": {"type": "enabled" if on else "disabled"}}
        case "reasoning_effort" if not on:  # on is what such an endpoint does unasked, with the effort that was set
            return {"reasoning_effort": "none"}
    return {}


def _tool_choice(choice: str) -> Any:
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}
