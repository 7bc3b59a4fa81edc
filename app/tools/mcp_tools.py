"""A tool of an MCP server as a `Tool`: what the server says of it, read with care; a call; its answer as text.

Knows neither how the server is reached nor when it is begun again (`mcp_servers.py`).
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.tools.mcp_config import McpServer
from app.tools.mcp_connection import CallFailed, Connection
from app.tools.mcp_names import cleaned, tool_name
from app.tools.results import NO_OUTPUT, as_text, without_surrogates
from app.tools.schema import check_schema

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as Listed

MAX_DESCRIPTION = 4_000
MAX_SCHEMAS = 512 << 10  # characters of all schemas of one server
_MAX_ERROR = 1_000
_MAX_RESULT = 2_000_000  # characters; the rest is left out before masking and cutting
_PROGRESS_S = 0.1  # what comes faster is left out, the newest is shown
_PROGRESS_CHARS = 500


class Host(Protocol):
    """The server behind a tool, as it is at the moment."""

    server: McpServer

    async def connection(self) -> Connection:
        """The present conversation, awaited for a while if it is about to begin. Raises `ToolError` that says how the
        server is."""

    def suspect(self) -> None:
        """The server may be gone without having said so."""

    def current(self, tool: str) -> str | None:
        """The digest of a tool as the server describes it now; None when it has no such tool any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A tool that can be offered. `title`: the server's own name for it; `digest`: of all that a model is shown of it;
    `spec`: before anybody is asked about it."""

    title: str
    digest: str
    spec: ToolSpec


class Masker(Protocol):
    """Takes secrets out of what a server says of its tools: it may know those that it was begun with."""

    def text(self, value: str) -> str:
        """The text with every secret replaced."""

    def value(self, value: Any) -> Any:
        """A value as JSON has it, with every secret in its texts and keys replaced."""


class McpTool:
    """The tool that was `offered`. `ask`: why a person is asked before its calls."""

    def __init__(self, host: Host, offered: Offered, *, ask: str = "") -> None:
        self.title = offered.title
        self.digest = offered.digest
        self.spec = replace(offered.spec, ask=ask)
        self._host = host

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call it at the server. A failure is a `ToolError` that says what is known of it."""
        host, name = self._host, self._host.server.name
        connection = await host.connection()
        if not host.server.trusted and host.current(self.title) != self.digest:
            raise ToolError(
                f"The MCP server {name} has changed or removed this tool since the run began, so it was not called. "
                "Go on without it."
            )
        progress = _Progress(context.progress)
        try:
            result = await connection.call(self.title, arguments, progress.take)
        except CallFailed as failed:
            if failed.gone:
                host.suspect()
            raise ToolError(_failure(name, failed, ended=connection.ended.is_set())) from None
        finally:
            progress.close()
        status = "error" if result.is_error else "ok"
        return ToolResult(content=content_of(result), is_error=bool(result.is_error), status=status)


def _failure(name: str, failed: CallFailed, *, ended: bool) -> str:
    if failed.refused:
        return f"The MCP server {name} did not carry this call out: {failed}. It is connected anew; call again."
    if ended:
        return (
            f"The MCP server {name} stopped during this call and is being restarted. Whether the call took effect is "
            "not known; look before you call it again."
        )
    return f"The MCP server {name} gave no result: {cleaned(str(failed), _MAX_ERROR)}"


def digest_of(listed: "Listed") -> str:
    """A digest of name, description and schema, as a model is shown them."""
    told = json.dumps([listed.name, _said(listed), listed.input_schema], sort_keys=True)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _said(listed: "Listed") -> str:
    return cleaned(listed.description or listed.title or "", MAX_DESCRIPTION).strip()


def _spec(server: McpServer, listed: "Listed") -> ToolSpec:
    hints = listed.annotations if server.trusted else None
    reads = hints is not None and hints.read_only_hint is True
    name = tool_name(server.name, listed.name)
    return ToolSpec(
        name=name,
        description=_said(listed) or f"A tool of the MCP server {server.name}; it does not say what it is for.",
        parameters=schema_of(listed),
        read_only=reads,
        concurrency_safe=reads,
        timeout_ms=server.timeout_ms,
        poller=listed.name in server.pollers,
        open_world=hints is None or hints.open_world_hint is not False,
        private=server.private,
    )


def schema_of(listed: "Listed") -> Mapping[str, Any]:
    """Its schema; one that leaves out that arguments are an object says so."""
    schema = listed.input_schema
    return schema if "type" in schema else {"type": "object", **schema}


def state_of(found: Sequence["Listed"]) -> str:
    """A digest of all that a server says of its tools. For a thread."""
    told = hashlib.sha256()
    for listed in found:
        told.update(listed.model_dump_json().encode("utf-8", "surrogatepass") + b"\n")
    return told.hexdigest()


def _masked(listed: "Listed", masker: Masker) -> "Listed":
    # Cleaned first: invisible characters may stand in the middle of a secret. With room behind what is shown, so that
    # no half of one is left at the cut.
    said = masker.text(cleaned(listed.description or listed.title or "", 2 * MAX_DESCRIPTION))
    return listed.model_copy(update={"description": said, "input_schema": masker.value(listed.input_schema)})


def usable(server: McpServer, found: Sequence["Listed"], masker: Masker) -> tuple[list[Offered], list[str]]:
    """The tools that can be offered, and why the others are left out. For a thread: schemas are compiled, which can
    take most of a second for each 100,000 characters."""
    kept: dict[str, Offered] = {}
    problems: list[str] = []
    room = MAX_SCHEMAS
    for listed in found:
        if server.tools is not None and listed.name not in server.tools:
            continue
        shown = masker.text(listed.name)  # a name cannot be masked: the server is called by it
        name = tool_name(server.name, shown)
        room -= len(json.dumps(listed.input_schema))
        if room < 0:  # before it is compiled, which is what costs
            problem: str | None = f"the schemas of all tools are larger than {MAX_SCHEMAS:,} characters"
        elif shown != listed.name:
            problem = "its name holds a secret"
        else:
            listed = _masked(listed, masker)  # nothing below may see it as it was
            problem = "another tool has its name" if name in kept else check_schema(schema_of(listed))
        if problem is None:
            kept[name] = Offered(title=listed.name, digest=digest_of(listed), spec=_spec(server, listed))
        else:
            problems.append(f"{name}: {problem}")
    return list(kept.values()), problems


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def content_of(result: "CallToolResult") -> str:
    """An answer as text; what is no text is named with its type and size."""
    parts = [_block(block) for block in result.content]
    if result.structured_content is not None and not any(block.type == "text" for block in result.content):
        parts.append(as_text(result.structured_content))
    text = without_surrogates("\n".join(part for part in parts if part))
    if len(text) > _MAX_RESULT:
        text = f"{text[:_MAX_RESULT]}\n[… {len(text) - _MAX_RESULT:,} characters left out …]"
    return text or NO_OUTPUT


def _block(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {_plain(block.mime_type)}, {_size(block.data):,} bytes, not shown]"
        case "resource_link":
            return f"[resource: {_plain(block.uri)}, {_plain(block.mime_type or 'unknown type')}]"
        case "resource":
            inner = block.resource
            place = f"{_plain(inner.uri)}, {_plain(inner.mime_type or 'unknown type')}"
            text = getattr(inner, "text", None)
            if isinstance(text, str):
                return f"[resource: {place}]\n{text}"
            return f"[resource: {place}, {_size(getattr(inner, 'blob', '')):,} bytes, not shown]"


def _plain(value: object) -> str:
    return cleaned(str(value), 200).replace("\n", " ")


def _size(encoded: str) -> int:
    return max(0, len(encoded) * 3 // 4 - encoded[-2:].count("="))


class _Progress:
    """Progress on its way to whoever watches, at a bounded rate."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._next = 0.0
        self._held = ""

    async def take(self, progress: float, total: float | None, message: str | None) -> None:
        """As the server reports it."""
        of = "" if total is None else f"/{total:g}"
        self._held = f"{progress:g}{of}{' ' + cleaned(message, _PROGRESS_CHARS) if message else ''}\n"
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            self._next = now + _PROGRESS_S
            self.close()

    def close(self) -> None:
        """Show what waits to be shown."""
        if self._held:
            self._show(self._held)
        self._held = ""
