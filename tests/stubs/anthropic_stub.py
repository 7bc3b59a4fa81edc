"""A loopback server that speaks Anthropic's Messages as bytes: it plays what a test scripts, write by write.

Knows nothing of the service. It refuses what the strict provider refuses, and remembers the signed blocks that it sent,
so that every request a test makes is also a check of pairing and of the echo. Use:

    async with AnthropicStub() as stub:
        stub.script(message(thinking("Hm."), tool("read_file", '{"path": "a.txt"}')), message(words("done")))
        …  # point a model at stub.base_url
        assert stub.requests[1].messages[-1]["content"][0]["type"] == "tool_result"
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.stubs.openai_stub import Answer, OpenAIStub, Request
from tests.stubs.openai_stub import refusal as openai_refusal

PING = {"type": "ping"}
STOP = {"type": "message_stop"}
USAGE = {"input_tokens": 20, "output_tokens": 1}
SIGNED = ("thinking", "redacted_thinking")
_numbers = itertools.count(1)

Block = Mapping[str, Any]

# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def words(text: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": text}


def thinking(text: str, signature: str = "") -> dict[str, Any]:
    """A block of reasoning with a signature of its own."""
    return {"type": "thinking", "thinking": text, "signature": signature or f"c2ln/+{next(_numbers)}=="}


def redacted(data: str) -> dict[str, Any]:
    """A block of reasoning that nobody can read."""
    return {"type": "redacted_thinking", "data": data}


def tool(name: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    """A call; `arguments` is the text of its input, in pieces when it is streamed."""
    return {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": name, "input": arguments, **fields}


def start(**usage: int) -> dict[str, Any]:
    """The first event."""
    return {"type": "message_start", "message": {"id": "msg_1", "model": "stub-1", "usage": {**USAGE, **usage}}}


def opened(index: int, block: Block) -> dict[str, Any]:
    """A block begins."""
    return {"type": "content_block_start", "index": index, "content_block": dict(block)}


def delta(index: int, kind: str, **fields: str) -> dict[str, Any]:
    """A piece of a block."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def closed(index: int) -> dict[str, Any]:
    """A block ends."""
    return {"type": "content_block_stop", "index": index}


def ending(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    """The event before the last one; its counts are those of the whole message."""
    stop = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5, **usage}}


def block_events(index: int, block: Block, pieces: int = 2) -> list[dict[str, Any]]:
    """The events of one whole block."""
    match block["type"]:
        case "text":
            parts = [delta(index, "text_delta", text=piece) for piece in _pieces(block["text"], pieces)]
            first: dict[str, Any] = {**block, "text": ""}
        case "thinking":
            parts = [delta(index, "thinking_delta", thinking=piece) for piece in _pieces(block["thinking"], pieces)]
            parts.append(delta(index, "signature_delta", signature=block["signature"]))
            first = {**block, "thinking": "", "signature": ""}
        case "tool_use":
            parts = [delta(index, "input_json_delta", partial_json=piece) for piece in _pieces(block["input"], pieces)]
            first = {**block, "input": {}}
        case _:
            parts, first = [], dict(block)
    return [opened(index, first), *parts, closed(index)]


def _pieces(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def events(*blocks: Block, reason: str = "", **usage: int) -> list[dict[str, Any]]:
    """All events of a message of these blocks; without a reason the one that fits them."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    parts = [event for index, block in enumerate(blocks) for event in block_events(index, block)]
    return [start(**usage), PING, *parts, ending(reason or ("tool_use" if calls else "end_turn")), STOP]


def sse(*payloads: Mapping[str, Any] | bytes) -> tuple[bytes, ...]:
    """Each event in one write; bytes are taken as they are."""
    return tuple(
        payload if isinstance(payload, bytes) else f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()
        for payload in payloads
    )


def stream(*payloads: Mapping[str, Any] | bytes, **answer: Any) -> Answer:
    """An answer of these events."""
    return Answer(writes=sse(*payloads), **answer)


def message(*blocks: Block, reason: str = "", **usage: int) -> Answer:
    """A complete streamed message of these blocks."""
    return stream(*events(*blocks, reason=reason, **usage))


def error_event(kind: str, text: str) -> dict[str, Any]:
    """An error inside a stream."""
    return {"type": "error", "error": {"type": kind, "message": text}}


def refusal(status: int, kind: str, text: str, **headers: str) -> Answer:
    """An HTTP error in this dialect."""
    return openai_refusal(status, {"type": kind, "message": text}, **headers)


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────


class AnthropicStub(OpenAIStub):
    """The server. Answers are played in the order in which requests come; without one left, a request gets a 500."""

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__(strict=strict)
        self.issued: list[list[dict[str, Any]]] = []  # the blocks of each message that was played

    @property
    def base_url(self) -> str:
        """What a profile takes as its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def _answer(self, request: Request) -> Answer:
        problem = self._problem(request) if self._strict else None
        if problem is not None:
            return refusal(400, "invalid_request_error", problem)
        if self._answers:
            answer = self._answers.popleft()
        elif self._decide is not None:
            answer = self._decide(request)
        else:
            return refusal(500, "api_error", "the stub has no answer left")
        self.issued.append(_sent(answer))
        return answer

    def _problem(self, request: Request) -> str | None:
        if request.path != "/v1/messages" or request.headers.get("anthropic-version") != "2023-06-01":
            return f"no such endpoint or version: {request.path}"
        return request_problem(request.body, self.issued)


def _sent(answer: Answer) -> list[dict[str, Any]]:
    """The signed blocks and the calls of an answer, if it was one of whole events."""
    blocks: dict[int, dict[str, Any]] = {}
    raw = b"".join(item for item in answer.writes if isinstance(item, bytes))
    for line in raw.decode("utf-8", "replace").split("\n"):
        try:
            event = json.loads(line.removeprefix("data: "))
            kind, index = event["type"], event["index"]
        except (ValueError, KeyError, TypeError):
            continue
        if kind == "content_block_start":
            blocks[index] = event["content_block"]
        elif kind == "content_block_delta" and event["delta"]["type"] in ("thinking_delta", "signature_delta"):
            key = event["delta"]["type"].removesuffix("_delta")
            blocks[index][key] += event["delta"][key]
    return [block for block in blocks.values() if block["type"] in (*SIGNED, "tool_use")]


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────

_TOP = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "temperature",
    "stream",
}  # fmt: skip
_KEYS = {
    "text": {"text"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "caller"},
    "tool_result": {"tool_use_id", "content", "is_error"},
}


def request_problem(body: Mapping[str, Any], issued: Sequence[Sequence[Block]] = ()) -> str | None:
    """Why the strict provider refuses this request, or None. `issued`: the blocks of the messages that it sent."""
    return next(itertools.chain(_parameters(body), _tools(body), _history(body), _signed(body, issued)), None)


def _parameters(body: Mapping[str, Any]) -> Iterator[str]:
    if extra := set(body) - _TOP:
        yield f"{', '.join(sorted(extra))}: extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens: field required"
    kind = body.get("thinking", {}).get("type")
    thinks = kind in ("enabled", "adaptive")
    if kind == "enabled" and not 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]:
        yield "thinking.budget_tokens: at least 1024 and less than max_tokens"
    if not 0 <= body.get("temperature", 1) <= 1 or (thinks and body.get("temperature", 1) != 1):
        yield "temperature: not in the range, or not 1 while thinking"
    if thinks and body.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "thinking may not be enabled when tool_choice forces tool use"
    system = body.get("system", [words("x")])
    if not system or any(block["type"] != "text" or not block["text"].strip() for block in system):
        yield "system: text content blocks must be non-empty"
    blocks = [*body.get("tools", ()), *body.get("system", ()), *(b for m in body["messages"] for b in m["content"])]
    if sum("cache_control" in block for block in blocks) > 4:
        yield "a maximum of 4 blocks with cache_control may be provided"


def _tools(body: Mapping[str, Any]) -> Iterator[str]:
    tools, choice = body.get("tools", []), body.get("tool_choice", {})
    names = [entry["name"] for entry in tools]
    used = {block["type"] for entry in body["messages"] for block in entry["content"]}
    if not tools and used & {"tool_use", "tool_result"}:
        yield "tools: required while messages hold tool_use or tool_result blocks"
    if len(set(names)) < len(names):
        yield "tools: tool names must be unique"
    if any(entry["input_schema"].get("type") != "object" for entry in tools):
        yield "tools: input_schema.type must be object"
    if choice and (not tools or choice.get("name", names[0]) not in names):
        yield "tool_choice: no such tool"
    if choice.get("type") == "none" and "disable_parallel_tool_use" in choice:
        yield "tool_choice.none: extra inputs are not permitted"


def _history(body: Mapping[str, Any]) -> Iterator[str]:
    used: set[str] = set()
    asked: list[str] = []
    messages = body["messages"]
    for at, entry in enumerate(messages):
        if entry["role"] != ("user", "assistant")[at % 2]:
            yield f"messages[{at}]: roles must alternate, beginning with user; this is {entry['role']}"
        if not entry["content"]:
            yield f"messages[{at}]: content must not be empty"
        for block in entry["content"]:
            if problem := _block_problem(block, entry["role"]):
                yield f"messages[{at}]: {problem}"
        kinds = [block["type"] for block in entry["content"]]
        if (results := kinds.count("tool_result")) and kinds[:results] != ["tool_result"] * results:
            yield f"messages[{at}]: tool_result blocks must come first"
        answered = [block["tool_use_id"] for block in entry["content"] if block["type"] == "tool_result"]
        if sorted(answered) != sorted(asked):
            yield f"messages[{at}]: calls {asked} must be answered directly after, and nothing else: {answered}"
        asked = [block["id"] for block in entry["content"] if block["type"] == "tool_use"]
        if len({*asked} - used) < len(asked):
            yield f"messages[{at}]: tool_use ids must be unique"
        used.update(asked)
        if asked and kinds[-len(asked) :] != ["tool_use"] * len(asked):
            yield f"messages[{at}]: only tool_use may follow a tool_use"
    if not messages or messages[-1]["role"] != "user":
        yield "messages: the last message must be the user's"


def _block_problem(block: Block, role: str) -> str | None:
    kind = block["type"]
    allowed = ("text", "tool_result") if role == "user" else ("text", "tool_use", *SIGNED)
    if kind not in allowed or set(block) - _KEYS[kind] - {"type", "cache_control"}:
        return f"unexpected block or field for {role}: {dict(block)}"
    if kind in SIGNED and ("cache_control" in block or len(block) != 1 + len(_KEYS[kind])):
        return f"a {kind} block must hold exactly what was sent"
    if kind == "text" and not block["text"].strip():
        return "text content blocks must be non-empty"
    if kind == "tool_result" and not (isinstance(block["content"], str) and block["content"].strip()):
        return "tool_result: content must be non-empty"
    if kind == "tool_use":
        good = re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) and re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"])
        if not good or not isinstance(block["input"], dict):
            return f"bad tool_use {dict(block)}"
    return None


def _signed(body: Mapping[str, Any], issued: Sequence[Sequence[Block]]) -> Iterator[str]:
    """Signed blocks: all of a message or none of it, unchanged, in order."""
    known = [[block for block in blocks if block["type"] in SIGNED] for blocks in issued]
    of_call = {b["id"]: known[at] for at, blocks in enumerate(issued) for b in blocks if b["type"] == "tool_use"}
    for at, entry in enumerate(body["messages"]):
        found = [block for block in entry["content"] if block["type"] in SIGNED]
        wanted = [of_call[block["id"]] for block in entry["content"] if block.get("id") in of_call]
        if found and found not in (wanted[:1] or known):
            yield f"messages[{at}]: thinking blocks cannot be modified; they must remain as they were sent"
    kinds = [entry["content"][0]["type"] for entry in body["messages"][-2:]]
    if body.get("thinking", {}).get("type") == "enabled" and kinds[1:] == ["tool_result"] and kinds[0] not in SIGNED:
        yield "a final assistant message must start with a thinking block while thinking is enabled"
