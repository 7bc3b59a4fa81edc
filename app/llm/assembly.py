"""The one tolerant reader of OpenAI-dialect chunks: from payloads to deltas, and to a reply once it is complete.

Knows no connection. What was received decides what a turn was, not the finish word; a turn without a positive end
signal is no answer.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from app.agent.chat import Delta, DeltaKind, Emit, Finish, Reply
from app.agent.errors import IncompleteReply, ModelError
from app.agent.messages import Usage
from app.llm import failures
from app.llm.call_pieces import CallPieces
from app.llm.surrogates import PairJoiner
from app.llm.thinking import ThinkSplitter
from app.wire import parse_arguments


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    extra_content: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode

_FINISHES = {
    **dict.fromkeys(("stop", "end_turn", "eos", "stop_sequence", "complete"), Finish.STOP),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), Finish.TOOL_CALLS),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), Finish.LENGTH),
    **dict.fromkeys(("content_filter", "safety", "refusal"), Finish.FILTERED),
}
_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "network_error"})

# How models of several families write a call when nobody parses it for them; only at the start of a line.
_CALL_MARKUP = re.compile(
    r"^[ \t]*(?:<tool_call>|<function_call>|<function=|<invoke name=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]"
    r"|<｜tool▁call)",
    re.MULTILINE,
)
_FENCED = re.compile(r"^```.*?(?:^```|\Z)", re.MULTILINE | re.DOTALL)


class ReplyAssembler:
    """Takes the payloads of one reply, read by read. `offered` are the names of the tools that the model was shown;
    `provider` is who alone may get the opaque parts back; `think_tags`: reasoning may be inside the content."""

    __slots__ = (
        "_calls", "_choices", "_extra", "_finish", "_model", "_new_reasoning", "_new_text", "_offered", "_pairs",
        "_provider", "_reasoning", "_splitter", "_usage", "done", "finished",
    )  # fmt: skip

    def __init__(self, *, provider: str, offered: Collection[str] = (), think_tags: bool = True) -> None:
        self._provider = provider
        self._offered = frozenset(offered)
        self._calls = CallPieces(self._offered)
        self._splitter = ThinkSplitter(think_tags)
        self._new_text: list[str] = []
        self._new_reasoning: list[str] = []
        self._reasoning: list[str] = []
        self._pairs: tuple[PairJoiner, PairJoiner] | None = None
        self._usage: Usage | None = None
        self._finish = ""
        self._model = ""
        self._extra: Any = None
        self._choices = False
        self.finished = False
        self.done = False

    def feed(self, payloads: Sequence[bytes]) -> bool:
        """Take the payloads of one read; says whether there was content in them (a keep-alive is none).

        `finished` is set by a finish reason, `done` by the end marker. Raises `ModelError` for an error object and for
        a chunk that cannot be read, since text would be missing.
        """
        moved = False
        for payload in payloads:
            try:
                chunk = _decode(payload)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                if payload == b"[DONE]":
                    self.done = moved = True
                    continue
                if payload[:1] != b"{":
                    continue  # "ping" and the like
                chunk = self._tolerant(payload)
            if chunk.error:
                raise failures.refusal({"error": chunk.error})
            if chunk.choices:
                moved = True
                for choice in chunk.choices:
                    if not choice.index:  # further choices were not asked for
                        self._take(choice)
            if chunk.usage is not None:
                self._usage = _usage(chunk.usage) or self._usage
                moved = True
            if not self._model and isinstance(chunk.model, str):
                self._model = chunk.model
        return moved

    def flush(self, emit: Emit) -> None:
        """Hand out what came since the last flush: at most one delta of each kind, one of each call's arguments."""
        if self._new_reasoning:
            piece = "".join(self._new_reasoning)
            self._new_reasoning.clear()
            self._say_reasoning(self._pairs[0].feed(piece) if self._pairs else piece, emit)
        if self._new_text:
            piece = "".join(self._new_text)
            self._new_text.clear()
            text, reasoning = self._splitter.feed(self._pairs[1].feed(piece) if self._pairs else piece)
            _say(emit, text, reasoning)
        self._calls.flush(emit, join_pairs=self._pairs is not None)

    def end(self, emit: Emit) -> Reply:
        """The reply, after a last flush. Raises `IncompleteReply` without a positive end signal."""
        self.flush(emit)
        if not (self.finished or (self.done and self._choices)):
            raise IncompleteReply(
                "the model's stream ended without a finish reason or end marker; what came is no answer",
                retryable=True,
            )
        if self._pairs:
            self._say_reasoning(self._pairs[0].end(), emit)
            _say(emit, *self._splitter.feed(self._pairs[1].end()))
        finish = _FINISHES.get(self._finish, Finish.STOP if not self._finish else Finish.UNKNOWN)
        # A turn cut by length or by a filter runs nothing: its last call may lack its end, the others their reason.
        cut = finish in (Finish.LENGTH, Finish.FILTERED)
        calls = () if cut else self._calls.calls()
        _say(emit, *self._splitter.end(is_answer=not calls and not cut))
        if calls:
            finish = Finish.TOOL_CALLS
        elif finish is Finish.TOOL_CALLS:
            finish = Finish.STOP
        text = "".join(self._splitter.text)
        return Reply(
            text=text,
            tool_calls=calls,
            reasoning="".join((*self._reasoning, *self._splitter.reasoning)),
            usage=self._usage,
            finish=finish,
            model=self._model,
            provider=self._provider,
            opaque={"extra_content": self._extra} if self._extra else None,
            malformed_call=not calls and self._looks_like_call(text),
        )

    def _take(self, choice: _Choice) -> None:
        self._choices = True
        delta = choice.delta or choice.message
        if delta is not None:
            if delta.content:
                self._content(delta.content)
            reasoning = delta.reasoning_content or delta.reasoning or delta.reasoning_text
            if reasoning:
                self._splitter.disable()
                self._new_reasoning += _texts(reasoning)
            if delta.tool_calls or delta.function_call:
                self._take_calls(delta)
            if delta.refusal and isinstance(delta.refusal, str):
                self._new_text.append(delta.refusal)
            if delta.extra_content:
                self._extra = delta.extra_content
        if choice.finish_reason and isinstance(choice.finish_reason, str):
            self._finish = choice.finish_reason.lower()
            self.finished = True
            if self._finish in _BROKEN:
                raise IncompleteReply(f"the model stopped with finish reason {self._finish!r}", retryable=True)

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self._new_text.append(content)
        elif isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                thinks = kind in ("thinking", "reasoning")
                (self._new_reasoning if thinks else self._new_text).extend(_texts(part))

    def _take_calls(self, delta: _Delta) -> None:
        entries = delta.tool_calls if isinstance(delta.tool_calls, list) else [delta.tool_calls]
        if delta.function_call:
            entries = [*entries, {"index": 0, "function": delta.function_call}]
        for entry in entries:
            self._calls.take(entry)

    def _say_reasoning(self, text: str, emit: Emit) -> None:
        if text:
            self._reasoning.append(text)
            emit(Delta(DeltaKind.REASONING, text))

    def _tolerant(self, payload: bytes) -> _Chunk:
        """Read what strict decoding refuses but real servers send: halves of characters, broken UTF-8, NaN."""
        if self._pairs is None:
            self._pairs = (PairJoiner(), PairJoiner())
        return _tolerant(payload)

    def _looks_like_call(self, text: str) -> bool:
        """Whether the text is a tool call that the server did not parse. Quoted ones, in code blocks, are not."""
        if _CALL_MARKUP.search(text) and _CALL_MARKUP.search(_FENCED.sub("", text)):
            return True
        body = text.strip().removeprefix("```json").strip("`\n ")
        if not body.startswith("{") or not body.endswith("}"):
            return False
        value, _ = parse_arguments(body)
        if value is None or value.get("name") not in self._offered:
            return False
        return "arguments" in value or "parameters" in value


def _say(emit: Emit, text: str, reasoning: str) -> None:
    if reasoning:
        emit(Delta(DeltaKind.REASONING, reasoning))
    if text:
        emit(Delta(DeltaKind.TEXT, text))


def _texts(value: Any) -> list[str]:
    """The texts inside a content part, a list of them, or a plain text."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    if isinstance(value, dict):
        return next((_texts(value[key]) for key in ("text", "thinking", "content") if value.get(key)), [])
    return []


def _usage(value: Any) -> Usage | None:
    """Tokens from a `usage` object; None when it holds no count. `model_calls` stays 0: who calls counts calls."""
    if not isinstance(value, dict):
        return None
    read = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
    if not any(read):
        return None
    return Usage(
        input_tokens=read[0],
        output_tokens=read[1],
        cached_tokens=_count(value.get("prompt_tokens_details"), "cached_tokens")
        or _count(value, "prompt_cache_hit_tokens"),
        reasoning_tokens=_count(value.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(value: Any, key: str) -> int:
    number = value.get(key) if isinstance(value, dict) else None
    return int(number) if isinstance(number, (int, float)) and number > 0 else 0


def _tolerant(payload: bytes) -> _Chunk:
    try:
        value = json.loads(payload.decode("utf-8", "replace"), strict=False)
        return msgspec.convert(value, _Chunk, strict=False)
    except (ValueError, RecursionError) as error:
        preview = payload[:80].decode("utf-8", "replace")
        raise ModelError(
            f"the model endpoint sent a chunk that is no JSON of the expected shape: {preview}",
            code="model_malformed",
            retryable=True,
        ) from error
