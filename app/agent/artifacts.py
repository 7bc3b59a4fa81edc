"""What was too large for a model to see: the whole of a tool's output, kept beside its result (spec 7.5).

Knows neither how an output is cut nor where rows lie.
"""

from dataclasses import dataclass
from typing import Protocol

from app.agent.events import Write
from app.agent.ids import new_id, now_us
from app.agent.runs import Run

MAX_BYTES = 16 << 20  # of one artifact: what an agent may leave in the database with one call
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
READER = "read_artifact"  # the tool that reads them
_CUT = b"\n[cut here: the output was larger than an artifact may be]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A stored output. `content` is the whole, masked."""

    artifact_id: str
    session_id: str
    run_id: str | None
    call_id: str | None
    media_type: str
    content: bytes
    created_at: int  # microseconds since 1970


class ArtifactStore(Protocol):
    """Reads artifacts back; every function takes the tenant."""

    async def artifact(self, tenant: str, artifact_id: str) -> Artifact | None:
        """One artifact; None for an unknown one."""


def new_artifact(run: Run, call_id: str | None, text: str, media_type: str = TEXT) -> tuple[str, Write]:
    """The id of an artifact with this text, and the row that keeps it. A text over `MAX_BYTES` is cut, and says so."""
    content = text.encode("utf-8", "replace")
    if len(content) > MAX_BYTES:
        content = content[: MAX_BYTES - len(_CUT)].decode("utf-8", "ignore").encode() + _CUT
    artifact_id = new_id("art")
    values = {
        "tenant_id": run.tenant,
        "id": artifact_id,
        "session_id": run.session_id,
        "run_id": run.id,
        "call_id": call_id,
        "media_type": media_type,
        "content": content,
        "size_bytes": len(content),
        "created_at": now_us(),
    }
    return artifact_id, Write(table="artifacts", values=values)
