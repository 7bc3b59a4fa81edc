"""Reads artifacts back (`ArtifactStore`)."""

from sqlalchemy import bindparam, select

from app.agent.artifacts import Artifact
from app.store.reader import Reader
from app.store.tables import artifacts

_one = select(artifacts).where(artifacts.c.tenant_id == bindparam("tenant"), artifacts.c.id == bindparam("id"))


class SqlArtifactStore:
    """`ArtifactStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def artifact(self, tenant: str, artifact_id: str) -> Artifact | None:
        """One artifact."""
        row = await self._reader.row(_one, {"tenant": tenant, "id": artifact_id})
        if row is None:
            return None
        return Artifact(
            artifact_id=row["id"],
            session_id=row["session_id"],
            run_id=row["run_id"],
            call_id=row["call_id"],
            media_type=row["media_type"],
            content=bytes(row["content"]),
            created_at=row["created_at"],
        )
