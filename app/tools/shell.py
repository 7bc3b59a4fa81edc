"""`run_command`: a shell command line in the workspace, in a box, its output shown as it comes.

Knows what a model and an onlooker see of a command, not how it is held (`boxes/sandbox.py`).
"""

import asyncio
import codecs
import logging
from collections.abc import Callable, Mapping
from typing import Any

from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.boxes.box import BoxRefused, End, Ended
from app.boxes.covers import Veil
from app.boxes.directory import shown
from app.boxes.ownership import Identity
from app.boxes.sandbox import Sandbox

log = logging.getLogger(__name__)

_SHOW_S = 0.1  # output that comes faster is shown in fewer, larger pieces
_SHOW_CHARS = 4_000  # of one piece; with the above at most 40,000 characters a second
_MAX_NAMES = 5  # of hidden places that a model is told of
_AROUND_S = 60.0  # for a box to be made and taken away, beyond the command's own time
_DESCRIPTION = (
    "Run a command line with bash in the workspace. Its standard output and error come back as one text, in the order "
    "in which they were written, and the exit code if it is not 0. The command has no network and no input; it sees "
    "the workspace under its own path and the system's programs, and can write only the workspace and a temporary "
    "directory ($TMPDIR), which is gone afterwards, as is every process that is left in the background: what must run "
    "together goes into one call. Use read_file, glob and grep to look at files."
)


class RunCommand:
    """The tool. `timeout_ms` is the longest time of a command and the default; of its output the first and last half
    of `output_bytes` are kept."""

    def __init__(self, sandbox: Sandbox, *, timeout_ms: int, output_bytes: int) -> None:
        self.sandbox = sandbox
        self._timeout_ms = timeout_ms
        self._output_bytes = output_bytes
        self.spec = ToolSpec(
            name="run_command",
            built_in=True,
            description=_DESCRIPTION,
            parameters={
                "type": "object",
                "properties": {
                    "command": {"type": "string", "minLength": 1, "description": "The command line."},
                    "timeout_ms": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": timeout_ms,
                        "default": timeout_ms,
                        "description": "The command is ended after this time.",
                    },
                    "description": {"type": "string", "description": "What it is for, in a few words."},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
            timeout_ms=timeout_ms + int(_AROUND_S * 1000),
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run it. An exit code other than 0 is an answer like any other; a command that was not run or had to be ended
        is an error."""
        timeout_ms = int(arguments.get("timeout_ms", self._timeout_ms))  # JSON Schema counts 2.0 as an integer
        output = Output(self._output_bytes, context.progress)
        try:
            ended, identity = await self.sandbox.run(
                arguments["command"],
                context.workspace,
                timeout_s=timeout_ms / 1000,
                output=output.take,
                veil=Veil(conceals=context.conceals, protects=context.protects),
            )
        except BoxRefused as refused:
            log.warning("run_command of run %s: %s", context.run.id, refused)
            return ToolResult(content=f"[{refused}]", is_error=True, status="error")
        finally:
            output.close()
        notes = [*_ending(ended, timeout_ms, self.sandbox), *_hidden(ended), *_standing(identity)]
        content = "\n".join([*([output.text()] if output.text() else []), *(f"[{note}]" for note in notes)])
        status = {End.EXITED: "ok", End.TIMED_OUT: "timed_out"}.get(ended.end, "error")
        return ToolResult(content=content or "(no output)", is_error=status != "ok", status=status)


def _ending(ended: Ended, timeout_ms: int, sandbox: Sandbox) -> list[str]:
    mega, limits = 1 << 20, sandbox.limits
    match ended.end:
        case End.TIMED_OUT:
            return [f"timed out: ended after {timeout_ms} ms, with everything that it had started"]
        case End.MEMORY:
            return [f"ended: it took more than {limits.memory_bytes // mega} MB of memory"]
        case End.DISK:
            most = f"{limits.disk_bytes // mega} MB or {limits.files:,} files"
            return [f"ended: the disk filled by more than {most} while it ran"]
        case _:
            return [f"exit code {ended.code}"] if ended.code else []


def _hidden(ended: Ended) -> list[str]:
    """Why something could not be read, for a command that has failed."""
    if ended.code == 0 or not ended.hidden:
        return []
    names = ", ".join(shown(path) for path in ended.hidden[:_MAX_NAMES])
    more = f" and {len(ended.hidden) - _MAX_NAMES} more" if len(ended.hidden) > _MAX_NAMES else ""
    return [f"hidden from commands, since it may not be read: {names}{more}"]


def _standing(identity: Identity) -> list[str]:
    if identity.writes:
        return []
    return [
        f"this workspace belongs to root and commands run as user {identity.user}, so it is read only for them; the "
        "operator can give it to another user"
    ]


class Output:
    """What a command writes: the first and last half of `most` bytes are kept, and the beginning is shown in pieces."""

    def __init__(self, most: int, show: Callable[[str], None]) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._count = 0
        self._shown = _Shown(show, most)

    def take(self, data: bytes) -> None:
        """The next bytes."""
        self._count += len(data)
        self._shown.take(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(0, room) :]
        if len(self._tail) > 2 * self._half:  # cut now and then, not for every piece
            del self._tail[: -self._half]

    def close(self) -> None:
        """Show what waits to be shown; the last call."""
        self._shown.close()

    def text(self) -> str:
        """What was kept; what is no UTF-8 is replaced."""
        tail = bytes(self._tail[-self._half :])
        left_out = self._count - len(self._head) - len(tail)
        if left_out <= 0:
            return _plain(bytes(self._head) + tail)
        return f"{_plain(bytes(self._head))}\n[… {left_out:,} bytes left out of {self._count:,} …]\n{_plain(tail)}"


def _plain(data: bytes) -> str:
    return data.decode("utf-8", "replace").rstrip("\n")


class _Shown:
    """Text on its way to whoever watches: in whole characters, at a bounded rate, and not for ever."""

    def __init__(self, show: Callable[[str], None], most: int) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left = most
        self._waiting = ""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        if self._left <= 0:
            return
        self._waiting += self._decoder.decode(data[: self._left])
        self._left -= len(data)
        if self._left <= 0:
            self._waiting += "\n[… further output is not shown as it comes …]\n"
        if self._timer is None:
            self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        rest = self._waiting + self._decoder.decode(b"", final=True)
        self._waiting = ""
        if rest:
            self._show(rest)

    def _flush(self) -> None:
        piece, self._waiting = self._waiting[:_SHOW_CHARS], self._waiting[_SHOW_CHARS:]
        self._timer = None
        if piece:
            self._show(piece)
            self._timer = asyncio.get_running_loop().call_later(_SHOW_S, self._flush)
