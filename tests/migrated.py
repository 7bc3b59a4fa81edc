"""A database file with the newest schema, to be copied: making one takes longer than most tests."""

import functools
import shutil
import tempfile
from pathlib import Path

from app.store.migrate import upgrade


@functools.cache
def _made() -> Path:
    path = Path(tempfile.mkdtemp(prefix="schema-")) / "migrated.db"
    upgrade(path)
    return path


def migrated(path: Path) -> None:
    """Put one there, unless there is a file."""
    if not path.exists():
        shutil.copy(_made(), path)
