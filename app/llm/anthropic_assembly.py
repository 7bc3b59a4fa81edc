"""The reader of Anthropic's stream events: from payloads to deltas, and to a reply once it is complete.

Knows no connection. Only `message_stop` ends a turn; event and block types that it does not know are passed over.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from app.agent.chat import Delta, DeltaKind, Emit, Finish, Reply
from app.agent.errors import IncompleteReply, ModelError
from app.agent.messages import Usage
from app.llm import failures
from app.llm.anthropic_wire import Block, sealed
from app.llm.call_pieces import CallPieces
from app.llm.surrogates import PairJoiner


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    index: Any = None
    delta: Any = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    error: Any = None
    content: Any = None
    stop_reason: Any = None
    model: Any = None


_decode = msgspec.json.Decoder(_Event).decode

_FINISHES = {
    **dict.fromkeys(("end_turn", "stop_sequence"), Finish.STOP),
    "tool_use": Finish.TOOL_CALLS,
    **dict.fromkeys(("max_tokens", "model_context_window_exceeded"), Finish.LENGTH),
    "refusal": Finish.FILTERED,
}
_TEXT_KEYS = {"text": "text", "thinking": "thinking"}  # kind of a block → where its text is
_PIECES = {"text_delta": "text", "thinking_delta": "thinking"}  # kind of a delta → the block and the key that it has
_CALL_KEYS = frozenset({"type", "id", "name", "input", "index", "function"})
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


Cost = Callable[[int, int, int, int], Mapping[str, int]]


class _Block:
    """One content block under construction. `whole`: the input of a call that came in one piece, until it is said."""

    __slots__ = ("joiner", "kind", "number", "pieces", "signature", "start", "whole")

    def __init__(self, number: int, kind: str, start: Mapping[str, Any]) -> None:
        self.number = number
        self.kind = kind
        self.start = start
        self.pieces: list[str] = []
        self.signature: list[str] = []
        self.whole: Any = None
        self.joiner: PairJoiner | None = None

    def signed(self) -> Block | None:
        """The block as its provider wants it back; None for one that nobody signed."""
        if self.kind == "redacted_thinking":
            return dict(self.start)
        signature = "".join(self.signature)
        if not signature:
            return None
        return {**self.start, "thinking": "".join(self.pieces), "signature": signature}


class MessageAssembler:
    """Takes the payloads of one reply, read by read. `offered` are the names of the tools that the model was shown;
    `provider` is who alone may get the signed blocks back. `cost`: what tokens come to, by currency (fresh ones, those
    that a cache took in, those that came from one, those of the answer)."""

    __slots__ = (
        "_blocks", "_by_index", "_calls", "_cost", "_counts", "_finish", "_fresh", "_joining", "_model", "_provider",
        "_started", "done",
    )  # fmt: skip

    def __init__(self, *, provider: str, offered: Collection[str] = (), cost: Cost = lambda *counts: {}) -> None:
        self._provider = provider
        self._cost = cost
        self._calls = CallPieces(offered)
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._fresh: dict[DeltaKind, list[str]] = {DeltaKind.REASONING: [], DeltaKind.TEXT: []}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._finish = ""
        self._model = ""
        self._joining = False
        self._started = False
        self.done = False

    def feed(self, payloads: Sequence[bytes]) -> bool:
        """Take the payloads of one read; says whether there was content in them (a ping is none).

        `done` is set by the end of the message. Raises `ModelError` for an error event and for an event that cannot
        be read, since text would be missing.
        """
        moved = False
        for payload in payloads:
            try:
                event = _decode(payload)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                if payload[:1] != b"{":
                    continue  # "[DONE]" of a gateway, and the like
                self._joining = True
                event = _tolerant(payload)
            if event.error or event.type == "error":
                raise failures.refusal({"error": event.error or "no reason given"})
            moved |= self._take(event)
        return moved

    def flush(self, emit: Emit) -> None:
        """Hand out what came since the last flush: at most one delta of each kind, one of each call's arguments."""
        for kind, pieces in self._fresh.items():
            if pieces:
                emit(Delta(kind, "".join(pieces)))
                pieces.clear()
        self._calls.flush(emit, join_pairs=self._joining)

    def end(self, emit: Emit) -> Reply:
        """The reply, after a last flush. Raises `IncompleteReply` without the end of the message."""
        if self.done and self._started:
            for block in self._blocks:
                self._close(block)
        self.flush(emit)
        if not (self.done and self._started):
            raise IncompleteReply(
                "the model's stream ended without message_stop; what came is no answer", retryable=True
            )
        finish = _FINISHES.get(self._finish, Finish.UNKNOWN if self._finish else Finish.STOP)
        # A turn cut by length or by a refusal runs nothing: its last call may lack its end, the others their reason.
        cut = finish in (Finish.LENGTH, Finish.FILTERED)
        calls = () if cut else self._calls.calls()
        if calls:
            finish = Finish.TOOL_CALLS
        elif finish is Finish.TOOL_CALLS:
            finish = Finish.STOP
        text = self._said("text")
        return Reply(
            text=text,
            tool_calls=calls,
            reasoning=self._said("thinking"),
            usage=self._usage(),
            finish=finish,
            model=self._model,
            provider=self._provider,
            opaque=None if cut else sealed(self._signed(), text, len(calls)),
        )

    def _take(self, event: _Event) -> bool:
        match event.type:
            case "content_block_delta":
                if isinstance(event.delta, dict):
                    self._piece(event.index, event.delta)
            case "content_block_start":
                if isinstance(event.content_block, dict):
                    self._open(event.index, event.content_block)
            case "content_block_stop":
                if (block := self._block(event.index)) is not None:
                    self._close(block)
            case "message_start":
                self._head(event.message if isinstance(event.message, dict) else {})
            case "message_delta":
                delta = event.delta if isinstance(event.delta, dict) else {}
                self._finish = _text(delta.get("stop_reason")) or self._finish
                self._count(event.usage)
            case "message_stop":
                self.done = True
            case "message":  # from a server that answers in one piece
                self._head({"model": event.model, "usage": event.usage})
                for block in event.content if isinstance(event.content, list) else ():
                    if isinstance(block, dict):
                        self._open(None, block)
                self._finish = _text(event.stop_reason)
                self.done = True
            case _:
                return False
        return True

    def _head(self, message: Mapping[str, Any]) -> None:
        self._started = True
        self._model = _text(message.get("model"))
        self._count(message.get("usage"))

    def _count(self, usage: Any) -> None:
        """Counts are cumulative, and some servers leave zeros where they said a number before."""
        for key in _COUNTS if isinstance(usage, dict) else ():
            number = usage.get(key)
            if isinstance(number, (int, float)):
                self._counts[key] = max(self._counts[key], int(number))

    def _usage(self) -> Usage | None:
        """None when no count came. `model_calls` stays 0: who calls counts calls."""
        fresh, written, read, output = (self._counts[key] for key in _COUNTS)
        if not (fresh or written or read or output):
            return None
        return Usage(
            input_tokens=fresh + written + read,
            output_tokens=output,
            cached_tokens=read,
            cost=self._cost(fresh, written, read, output),
        )

    def _open(self, index: Any, start: Mapping[str, Any]) -> _Block:
        self._started = True
        kind = _text(start.get("type"))
        block = _Block(len(self._blocks), kind, start)
        self._blocks.append(block)
        if isinstance(index, int):
            self._by_index[index] = block
        if kind == "tool_use":
            extra = {key: value for key, value in start.items() if key not in _CALL_KEYS}
            head = {"index": block.number, "id": start.get("id"), "function": {"name": start.get("name")}}
            self._calls.take({**extra, **head})
            block.whole = start.get("input") or None
        elif kind in _TEXT_KEYS:
            self._say(block, _text(start.get(_TEXT_KEYS[kind])))
            block.signature.append(_text(start.get("signature")))
        return block

    def _piece(self, index: Any, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        block = self._block(index)
        if kind in _PIECES:
            if block is None:  # from a server that leaves the start out
                block = self._open(index, {"type": _PIECES[kind]})
            if block.kind == _PIECES[kind]:
                self._say(block, _text(delta.get(_PIECES[kind])))
        elif block is None:
            return
        elif kind == "input_json_delta" and block.kind == "tool_use":
            if piece := _text(delta.get("partial_json")):
                block.whole = None
                self._calls.take({"index": block.number, "function": {"arguments": piece}})
        elif kind == "signature_delta":
            block.signature.append(_text(delta.get("signature")))

    def _block(self, index: Any) -> _Block | None:
        if isinstance(index, int):
            return self._by_index.get(index)
        return self._blocks[-1] if self._blocks else None

    def _say(self, block: _Block, piece: str) -> None:
        if self._joining and block.joiner is None:
            block.joiner = PairJoiner()
        if block.joiner is not None:
            piece = block.joiner.feed(piece)
        if piece:
            block.pieces.append(piece)
            self._fresh[DeltaKind.TEXT if block.kind == "text" else DeltaKind.REASONING].append(piece)

    def _close(self, block: _Block) -> None:
        """No more of this block comes. A second time changes nothing."""
        if block.whole is not None:
            self._calls.take({"index": block.number, "function": {"arguments": block.whole}})
            block.whole = None
        if block.joiner is not None:
            joiner, block.joiner = block.joiner, None
            if half := joiner.end():
                self._say(block, half)

    def _said(self, kind: str) -> str:
        return "".join(piece for block in self._blocks if block.kind == kind for piece in block.pieces)

    def _signed(self) -> list[tuple[int, Block]]:
        """The blocks that go back as they came, with the length of the text before each; all of them or none."""
        found: list[tuple[int, Block]] = []
        at = 0
        for block in self._blocks:
            if block.kind == "text":
                at += sum(map(len, block.pieces))
            elif block.kind in ("thinking", "redacted_thinking"):
                signed = block.signed()
                if signed is None:
                    return []
                found.append((at, signed))
        return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tolerant(payload: bytes) -> _Event:
    """Read what strict decoding refuses but real servers send: halves of characters, broken UTF-8, NaN."""
    try:
        return msgspec.convert(json.loads(payload.decode("utf-8", "replace"), strict=False), _Event)
    except (ValueError, RecursionError) as error:
        preview = payload[:80].decode("utf-8", "replace")
        raise ModelError(
            f"the model endpoint sent an event that is no JSON of the expected shape: {preview}",
            code="model_malformed",
            retryable=True,
        ) from error
