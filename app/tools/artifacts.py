"""`read_artifact`: the parts of an output that were left out. Knows neither where artifacts lie nor who made them."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from app.agent.artifacts import READER, Artifact
from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolResult, ToolSpec

DEFAULT_CHARS = 12_000
_HEAD_CHARS = 200  # what stands before the text
_AT_ONCE = 64 << 10  # bytes that are decoded on the loop
_KEPT_BYTES = 16 << 20  # of the artifacts that are being read, so that a page does not cost what the whole does


class ArtifactFinder(Protocol):
    """Finds the artifacts of a session."""

    async def of_session(self, tenant: str, session_id: str, artifact_id: str) -> Artifact | None:
        """One artifact; None for an unknown one and for one of another session."""


class ReadArtifact:
    """The tool `read_artifact`. It counts characters, so that every part of an output can be reached, however long its
    lines are."""

    def __init__(self, artifacts: ArtifactFinder, *, max_output_chars: int = 16_000) -> None:
        """`max_output_chars`: over it a result is cut, and would leave one more artifact."""
        self._texts = _Texts(artifacts)
        most = max(1, max_output_chars - _HEAD_CHARS)
        self._limit = min(DEFAULT_CHARS, most)
        self.spec = ToolSpec(
            name=READER,
            built_in=True,
            description=(
                "Read on in a tool's output that was too long to be shown as a whole. A first line in brackets says "
                "which characters follow and how to go on."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "The artifact that the cut output names."},
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "default": 0,
                        "description": "First character, from 0.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": most,
                        "default": self._limit,
                        "description": "Characters at most.",
                    },
                },
                "required": ["id"],
                "additionalProperties": False,
            },
            read_only=True,
            concurrency_safe=True,
            aliases={"artifact_id": "id"},
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Read the part. Raises `ToolError` for an artifact that this session does not have."""
        wanted = arguments["id"]
        offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", self._limit))
        text = await self._texts.get(context.session.tenant, context.session.id, wanted)
        if text is None:
            raise ToolError(f"there is no artifact {wanted[:80]!r} in this session")
        if offset >= len(text) > 0:
            raise ToolError(f"artifact {wanted} has {len(text):,} characters; offset {offset:,} is beyond its end")
        part = text[offset : offset + limit]
        end = offset + len(part)
        more = f"; continue with offset={end}" if end < len(text) else ""
        return ToolResult(content=f"[characters {offset}-{end} of {len(text)}{more}]\n{part}")


class _Texts:
    """Artifacts as text; those that were read last are kept, since one is read in parts and never changes."""

    def __init__(self, artifacts: ArtifactFinder) -> None:
        self._artifacts = artifacts
        self._kept: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._bytes = 0

    async def get(self, tenant: str, session_id: str, artifact_id: str) -> str | None:
        """One as text; None where the session has none of that id."""
        key = (tenant, session_id, artifact_id)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        found = await self._artifacts.of_session(*key)
        if found is None:
            return None
        content = found.content
        text = _text(content) if len(content) <= _AT_ONCE else await asyncio.to_thread(_text, content)
        self._keep(key, text, len(content))
        return text

    def _keep(self, key: tuple[str, str, str], text: str, size: int) -> None:
        if size > _KEPT_BYTES or key in self._kept:
            return
        self._kept[key] = (text, size)
        self._bytes += size
        while self._bytes > _KEPT_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1][1]


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
