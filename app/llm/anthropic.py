"""A model behind an endpoint that speaks Anthropic's Messages: Anthropic itself, and the servers that took it over.

Knows no run. Whether a failed request is tried again is the loop's decision; here errors only say whether it may be.
"""

from app.agent.chat import ChatRequest, Emit, Prices, Reply
from app.llm.anthropic_assembly import MessageAssembler
from app.llm.anthropic_wire import request_body
from app.llm.chat_wire import encode
from app.llm.http import ResponseStream, Transport
from app.llm.profile import Profile
from app.llm.sse import EventPayloads

ANTHROPIC_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"


class AnthropicChat:
    """One model of an endpoint of Anthropic's Messages (`ChatModel`)."""

    def __init__(self, profile: Profile, transport: Transport) -> None:
        self._profile = profile
        self._transport = transport
        self._cache = profile.cache if profile.cache is not None else is_anthropic(profile.base_url)
        # Tools of this dialect take an address without `/v1`, those of others one with it.
        self._url = profile.base_url.rstrip("/").removesuffix("/v1") + "/v1/messages"
        self._headers = {"Accept": "text/event-stream", "anthropic-version": VERSION}
        if profile.api_key:
            self._headers["x-api-key"] = profile.api_key
        self._headers.update(profile.headers)

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
        """How many tokens a request and its reply may have together."""
        return self._profile.context_window

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """One message, streamed; see `ChatModel`. A server that answers in one piece is accepted."""
        profile = self._profile
        body = encode(request_body(request, profile, cache=self._cache))
        names = [spec.name for spec in request.tools]
        assembler = MessageAssembler(provider=profile.name, offered=names, cost=profile.cost)
        response = await self._transport.post_stream(
            self._url,
            self._headers,
            body,
            connect_s=profile.connect_s,
            idle_s=profile.idle_s,
            total_s=profile.total_s,
        )
        try:
            reply = await _read(response, assembler, emit)
        except BaseException:  # also when cancelled: a request that nobody waits for is given up at once
            response.close()
            raise
        response.finish()
        return reply


def is_anthropic(url: str) -> bool:
    """Whether the address is that of the provider itself."""
    return url == ANTHROPIC_URL or url.startswith(f"{ANTHROPIC_URL}/")


async def _read(response: ResponseStream, assembler: MessageAssembler, emit: Emit) -> Reply:
    """Read the answer to its end signal. All that one read completed is taken before anything is handed out."""
    if response.content_type == "application/json":
        return await _read_whole(response, assembler, emit)
    events = EventPayloads()
    while not assembler.done:
        data = await response.read()
        try:
            if assembler.feed(events.feed(data) if data else events.end()):
                response.progress()
        finally:
            assembler.flush(emit)  # what came before an error in the same read was said
        if not data:
            break
    return assembler.end(emit)


async def _read_whole(response: ResponseStream, assembler: MessageAssembler, emit: Emit) -> Reply:
    pieces: list[bytes] = []
    while data := await response.read():
        response.progress()
        pieces.append(data)
    assembler.feed([b"".join(pieces).strip()])
    return assembler.end(emit)
