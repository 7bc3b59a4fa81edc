"""The part of the composition root that is about the upkeep of the log: its text index, and how long it is kept."""

from dataclasses import dataclass

from app.sessions.indexing import Indexing
from app.sessions.journal import Journal
from app.sessions.retaining import Retaining
from app.settings import Settings
from app.store.reader import Reader
from app.store.retention import SqlRetentionStore
from app.store.search import TextIndex

WEBHOOKS_H = 24.0  # for so long their events are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What is done beside the writing. `retaining` None: everything is kept."""

    indexing: Indexing
    retaining: Retaining | None

    async def start(self) -> None:
        """Begin with what an earlier process has left."""
        await self.indexing.start()
        if self.retaining is not None:
            self.retaining.start()

    async def close(self) -> None:
        """What is left is left to the next process."""
        await self.indexing.close()
        if self.retaining is not None:
            await self.retaining.close()


def upkeep_of(settings: Settings, journal: Journal, reader: Reader) -> Upkeep:
    """The upkeep that the settings want. Raises ValueError for a log that is kept for less than others read it: the
    first answer of a request that is sent again, and events that webhooks tell of."""
    indexing = Indexing(journal, TextIndex(reader), lag_s=settings.audit.index_lag_s)
    hours = settings.audit.retention_h
    if not hours:
        return Upkeep(indexing=indexing, retaining=None)
    least = max(WEBHOOKS_H, settings.http.idempotency_h)
    if hours < least:
        raise ValueError(
            f"audit.retention_h is {hours:g}: at least {least:g}, since webhooks are tried for 24 h and keys of "
            f"requests kept for http.idempotency_h = {settings.http.idempotency_h:g}; 0 keeps everything"
        )
    store = SqlRetentionStore(reader)
    retaining = Retaining(journal, store, hours=hours, task_hours=settings.tasks.retention_h)
    return Upkeep(indexing=indexing, retaining=retaining)
