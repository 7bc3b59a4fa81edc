"""The scripted model: needs no key and no network, answers the same each time; for tests, demos and front-end work.

Knows no run: which agent asks is told from the request. `scripted:<file>` plays a YAML or Python file of the scripts
directory, `scripted:demo` and `scripted:echo` are built in. A script:

    defaults: {chunks: 4, delay_ms: 20}          # of every turn
    agents:                                      # the first entry whose `when` holds is played
      - when: {system_contains: "You lead", task_contains: "report", tools_include: [read_file]}
        turns:                                   # the nth since the task, counted by the replies in the history
          - text: "I will look."
            calls:
              - {tool: read_file, arguments: {path: "notes/{{ words(task)[1] }}"}}
          - text: "The first line is: {{ lines(result['read_file'])[0] }}"
            usage: {input_tokens: 120, output_tokens: 9}
        final: {text: "So far: {{ results }}"}   # when no tools are offered (a forced answer)

A turn may also have: `reasoning`; `chunks` as a list (the pieces of the text); `finish` (stop, length, …);
`error: {code, message, retryable, status, retry_after_ms}` or `cut: true` (the stream breaks off after the text), both
with `times: n` to fail only the first n times; `repeat: true` (plays again for all turns after it); `usage: null`.
`arguments` given as a text are sent as they are, broken JSON included. Expressions are those of `templating.py` over
`task`, `system`, `result` (by position or tool name) and `results` (all, joined), which are those since the task.

Without `final`, the next turn that makes no calls is played when no tools are offered. A Python script defines
`reply(request: ChatRequest) -> dict`, which returns a turn. A script without a turn left raises `ModelError` with code
`script_exhausted`.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.agent.chat import ChatRequest, Delta, DeltaKind, Emit, Finish, Prices, Reply
from app.agent.errors import IncompleteReply, ModelError, SubagentdError
from app.agent.ids import new_id
from app.agent.messages import Message, Role, ToolCall, Usage
from app.llm.script_format import Call, Part, Turn, read_turn
from app.llm.templating import Results, TemplateError, fill, fill_text
from app.wire import encode, parse_arguments

CHARS_PER_TOKEN = 4  # of the usage that a turn does not state
_REMEMBERED = 4096  # requests whose failures are counted

Decide = Callable[[ChatRequest], Mapping[str, Any]]


class ScriptedChat:
    """Plays a script (`ChatModel`): `parts` of a YAML file, or a function that returns turns. `prices`: what it claims
    to cost, `context_window`: how long a request it claims to take; None: not known."""

    def __init__(
        self,
        name: str,
        script: tuple[Part, ...] | Decide,
        prices: Prices | None = None,
        context_window: int | None = None,
    ) -> None:
        self._name = name
        self._script = script
        self._prices = prices
        self._context_window = context_window
        self._failures: OrderedDict[bytes, int] = OrderedDict()

    @property
    def name(self) -> str:
        """`scripted:…`, or the name of the profile."""
        return self._name

    @property
    def prices(self) -> Prices | None:
        """Those that it was given."""
        return self._prices

    @property
    def context_window(self) -> int | None:
        """What it was given."""
        return self._context_window

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """See `ChatModel`. Raises `ModelError`: what the script asks for, `script_exhausted`, `script_error`."""
        scene = _Scene(request.messages)
        turn = self._turn(request, scene)
        pieces, calls = self._filled(turn, scene)
        text = "".join(pieces)
        await _say(turn, pieces, calls, emit, cut=turn.cut and self._fails(turn, request))
        if turn.error is not None and self._fails(turn, request):
            raise _error(turn.error)
        finish = turn.finish or (Finish.TOOL_CALLS if calls else Finish.STOP)
        return Reply(
            text=text,
            tool_calls=() if finish in (Finish.LENGTH, Finish.FILTERED) else calls,
            reasoning=turn.reasoning,
            usage=_usage(turn, request.messages, text, calls),
            finish=finish,
            model=self._name,
            provider=self._name,
        )

    def _turn(self, request: ChatRequest, scene: "_Scene") -> Turn:
        if not isinstance(self._script, tuple):
            return self._decided(self._script, request)
        part = next((part for part in self._script if _applies(part, request, scene)), None)
        if part is None:
            raise _exhausted(f"{self._name}: no entry of the script applies to the task {scene.task[:80]!r}")
        offered = bool(request.tools) and request.tool_choice != "none"
        if not offered and part.final is not None:
            return part.final
        left = part.turns[scene.replies :]
        if not left and part.turns and part.turns[-1].repeat:
            left = part.turns[-1:]
        if not offered:
            left = tuple(turn for turn in left if not turn.calls) or left
        if not left:
            raise _exhausted(
                f"{self._name}: the script has {len(part.turns)} turns for {part.name or 'this agent'!r}, but turn "
                f"{scene.replies + 1} is asked for; add a turn, or `repeat: true` to the last one"
            )
        return left[0]

    def _decided(self, decide: Decide, request: ChatRequest) -> Turn:
        try:
            value = decide(request)
        except SubagentdError:
            raise
        except Exception as error:  # border: a script is somebody else's code
            reason = f"reply() raised {type(error).__name__}: {error}"
            raise ModelError(f"{self._name}: {reason}", code="script_error") from error
        return read_turn(value, f"script {self._name}: the value of reply()")

    def _filled(self, turn: Turn, scene: "_Scene") -> tuple[list[str], tuple[ToolCall, ...]]:
        try:
            if isinstance(turn.chunks, tuple):
                pieces = [fill_text(piece, scene.names) for piece in turn.chunks]
            else:
                pieces = _pieces(fill_text(turn.text, scene.names), turn.chunks)
            return pieces, tuple(_call(call, scene.names) for call in turn.calls)
        except TemplateError as error:
            raise ModelError(f"{self._name}: {error}", code="script_error") from error

    def _fails(self, turn: Turn, request: ChatRequest) -> bool:
        """Whether a turn that fails fails this time: equal requests are tries of the same step."""
        if not turn.times:
            return True
        said = "\0".join(f"{message.role} {message.content}" for message in request.messages)
        key = hashlib.sha256(said.encode("utf-8", "replace")).digest()
        count = self._failures.pop(key, 0) + 1
        self._failures[key] = count
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
        return count <= turn.times


class _Scene:
    """What a script may refer to, from the history of the agent that asks.

    The task is the last user message that does not follow a tool result: such a one was put in while the agent worked
    (a notice, the call for a final answer).
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        start = 0
        for at, message in enumerate(messages):
            if message.role is Role.USER and (at == 0 or messages[at - 1].role is not Role.TOOL):
                start = at
        since = messages[start + 1 :]
        tools = {call.call_id: call.name for message in since for call in message.tool_calls}
        results = [
            (tools.get(message.tool_call_id or "", ""), message.content)
            for message in since
            if message.role is Role.TOOL
        ]
        self.task = messages[start].content if messages else ""
        self.system = messages[0].content if messages and messages[0].role is Role.SYSTEM else ""
        self.replies = sum(message.role is Role.ASSISTANT for message in since)
        self.names: Mapping[str, Any] = {
            "task": self.task,
            "system": self.system,
            "result": Results(results),
            "results": "\n\n".join(text for _, text in results),
        }


def _applies(part: Part, request: ChatRequest, scene: _Scene) -> bool:
    offered = {spec.name for spec in request.tools} | {
        call.name for message in request.messages for call in message.tool_calls
    }
    return (
        all(text in scene.system for text in part.system_contains)
        and all(text in scene.task for text in part.task_contains)
        and all(name in offered for name in part.tools_include)
    )


def _call(call: Call, names: Mapping[str, Any]) -> ToolCall:
    raw = call.arguments if isinstance(call.arguments, str) else encode(fill(call.arguments, names)).decode()
    arguments, problem = parse_arguments(raw)
    return ToolCall(
        call_id=new_id("call"),
        name=call.tool,
        raw=raw,
        arguments=arguments,
        provider_call_id=call.id,
        problem=problem,
    )


async def _say(turn: Turn, pieces: Sequence[str], calls: tuple[ToolCall, ...], emit: Emit, *, cut: bool) -> None:
    if turn.reasoning:
        emit(Delta(DeltaKind.REASONING, turn.reasoning))
    for piece in pieces:
        await asyncio.sleep(turn.delay_ms / 1000)
        emit(Delta(DeltaKind.TEXT, piece))
    if cut:
        raise IncompleteReply("the script cuts this turn off", retryable=True)
    for call in calls:
        await asyncio.sleep(turn.delay_ms / 1000)
        emit(Delta(DeltaKind.ARGUMENTS, call.raw, call.call_id))


def _pieces(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _usage(turn: Turn, messages: Sequence[Message], text: str, calls: tuple[ToolCall, ...]) -> Usage | None:
    if turn.no_usage:
        return None
    if turn.usage is not None:
        return Usage.from_dict(turn.usage)
    read = sum(len(message.content) + sum(len(call.raw) for call in message.tool_calls) for message in messages)
    written = len(text) + len(turn.reasoning) + sum(len(call.raw) for call in calls)
    return Usage(input_tokens=read // CHARS_PER_TOKEN + 1, output_tokens=written // CHARS_PER_TOKEN + 1)


def _error(error: Mapping[str, Any]) -> ModelError:
    return ModelError(
        str(error.get("message", "the script says that this fails")),
        code=error.get("code"),
        retryable=bool(error.get("retryable", False)),
        retry_after_ms=error.get("retry_after_ms"),
        status=error.get("status"),
    )


def _exhausted(message: str) -> ModelError:
    return ModelError(message, code="script_exhausted")
