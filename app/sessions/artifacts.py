"""Artifacts as a client or an agent asks for them: whole outputs that were too large to show (spec 7.5, 14.13).

Knows neither HTTP nor SQL, nor how an output came to be cut.
"""

from app.agent.artifacts import Artifact, ArtifactStore
from app.agent.errors import NotFound
from app.sessions.journal import Journal


class Artifacts:
    """Finds artifacts, also those whose result was recorded a moment ago."""

    def __init__(self, store: ArtifactStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    async def get(self, tenant: str, artifact_id: str) -> Artifact:
        """One artifact of a tenant. Raises `NotFound`."""
        found = await self._store.artifact(tenant, artifact_id)
        if found is None:  # its row comes with the result, which may still be on its way
            await self._journal.settle()
            found = await self._store.artifact(tenant, artifact_id)
        if found is None:
            raise NotFound(f"there is no artifact {artifact_id!r}")
        return found

    async def of_session(self, tenant: str, session_id: str, artifact_id: str) -> Artifact | None:
        """One artifact of a session; None also for one of another session."""
        try:
            found = await self.get(tenant, artifact_id)
        except NotFound:
            return None
        return found if found.session_id == session_id else None
