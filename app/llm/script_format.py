"""What a script of the scripted model may say: checked when it is loaded, so that a mistake names its place.

Knows no request; `scripted.py` plays what is read here. The format is described there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.agent.chat import Finish
from app.agent.errors import InvalidRequest

DEFAULT_CHUNKS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call. `arguments` as an object, or as a text that is sent as it is (a broken one, say)."""

    tool: str
    arguments: Any = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply. `chunks` is a number of pieces, or the pieces themselves (then they are the text). `error`, `cut`:
    it fails, the first `times` times that it is asked for (0: always)."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    chunks: int | tuple[str, ...] = DEFAULT_CHUNKS
    delay_ms: int = 0
    usage: Mapping[str, int] | None = None
    no_usage: bool = False
    finish: Finish | None = None
    error: Mapping[str, Any] | None = None
    cut: bool = False
    times: int = 0
    repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The turns of one agent, and which requests are his. `final` is used when no tools are offered, `name` is for
    messages only."""

    name: str = ""
    system_contains: tuple[str, ...] = ()
    task_contains: tuple[str, ...] = ()
    tools_include: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    final: Turn | None = None


_TURN_KEYS = frozenset(
    {"text", "reasoning", "calls", "chunks", "delay_ms", "usage", "finish", "error", "cut", "times", "repeat"}
)
_WHEN_KEYS = ("system_contains", "task_contains", "tools_include")
_ERROR_KEYS = frozenset({"code", "message", "retryable", "status", "retry_after_ms"})
_USAGE_KEYS = frozenset({"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"})


def read_script(value: Any, source: str) -> tuple[Part, ...]:
    """The parts of a script. Raises `InvalidRequest` with code `invalid_script` that names the place."""
    at = f"script {source}"
    whole = _mapping(value, at, {"agents", "defaults"})
    defaults = _mapping(whole.get("defaults") or {}, f"{at}: defaults", {"chunks", "delay_ms"})
    entries = _list(whole.get("agents"), f"{at}: agents")
    if not entries:
        raise _wrong(f"{at}: agents is empty; give at least one entry with turns")
    return tuple(_part(entry, f"{at}: agents[{index}]", defaults) for index, entry in enumerate(entries))


def read_turn(value: Any, at: str, defaults: Mapping[str, Any] | None = None) -> Turn:
    """One turn, as written in a script or returned by one. Raises `InvalidRequest` that names the place."""
    turn = {**(defaults or {}), **_mapping(value, at, _TURN_KEYS)}
    calls = [_call(entry, f"{at}: calls[{index}]") for index, entry in enumerate(_list(turn.get("calls"), at))]
    usage = turn.get("usage")
    if usage is not None:
        _mapping(usage, f"{at}: usage", _USAGE_KEYS)
    if turn.get("error") is not None:
        _mapping(turn["error"], f"{at}: error", _ERROR_KEYS)
    chunks = turn.get("chunks", DEFAULT_CHUNKS)
    if not (isinstance(chunks, list) or (isinstance(chunks, int) and chunks > 0)):
        raise _wrong(f"{at}: chunks must be a number above 0 or a list of texts, not {chunks!r}")
    return Turn(
        text=_text(turn, "text", at),
        reasoning=_text(turn, "reasoning", at),
        calls=tuple(calls),
        chunks=tuple(str(piece) for piece in chunks) if isinstance(chunks, list) else chunks,
        delay_ms=_number(turn, "delay_ms", at),
        usage=usage,
        no_usage="usage" in turn and usage is None,
        finish=_finish(turn.get("finish"), at),
        error=turn.get("error"),
        cut=bool(turn.get("cut")),
        times=_number(turn, "times", at),
        repeat=bool(turn.get("repeat")),
    )


def _part(value: Any, at: str, defaults: Mapping[str, Any]) -> Part:
    entry = _mapping(value, at, {"when", "turns", "final", "name"})
    when = _mapping(entry.get("when") or {}, f"{at}: when", set(_WHEN_KEYS))
    turns = _list(entry.get("turns"), f"{at}: turns")
    final = entry.get("final")
    return Part(
        name=_text(entry, "name", at),
        **{key: _strings(when.get(key), f"{at}: when.{key}") for key in _WHEN_KEYS},
        turns=tuple(read_turn(turn, f"{at}: turns[{index}]", defaults) for index, turn in enumerate(turns)),
        final=read_turn(final, f"{at}: final", defaults) if final is not None else None,
    )


def _call(value: Any, at: str) -> Call:
    entry = _mapping(value, at, {"tool", "arguments", "id"})
    tool, arguments = entry.get("tool"), entry.get("arguments", {})
    if not isinstance(tool, str) or not tool:
        raise _wrong(f"{at}: tool must be the name of a tool, not {tool!r}")
    if not isinstance(arguments, (str, Mapping)):
        raise _wrong(f"{at}: arguments must be an object, or a text to be sent as it is, not {arguments!r}")
    return Call(tool=tool, arguments=arguments, id=_text(entry, "id", at))


def _mapping(value: Any, at: str, known: set[str] | frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(f"{at}: an object is needed here, not {value!r}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise _wrong(f"{at}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return value


def _list(value: Any, at: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong(f"{at}: a list is needed here, not {value!r}")
    return value


def _strings(value: Any, at: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else _list(value, at)
    if not all(isinstance(item, str) for item in values):
        raise _wrong(f"{at}: texts are needed here, not {value!r}")
    return tuple(values)


def _text(entry: Mapping[str, Any], key: str, at: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(f"{at}: {key} must be a text, not {value!r}; put it into quotes")
    return value


def _number(entry: Mapping[str, Any], key: str, at: str) -> int:
    value = entry.get(key, 0)
    if not isinstance(value, int) or value < 0:
        raise _wrong(f"{at}: {key} must be a whole number of at least 0, not {value!r}")
    return value


def _finish(value: Any, at: str) -> Finish | None:
    if value is None:
        return None
    try:
        return Finish(value)
    except ValueError:
        raise _wrong(f"{at}: unknown finish {value!r}; known: {', '.join(Finish)}") from None


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_script")
