"""Statements compiled once for a process, and not once for each of the hundreds of databases that its tests open.

That was a fifth of their CPU. What SQLAlchemy makes of a statement depends on the class of the dialect, not on which
object of it asks: all of ours are made in the same way.
"""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Compiled

MOST = 10_000  # the service has some hundreds; a test that makes up thousands begins again


class SharedStatements(dict[tuple[Any, ...], Compiled]):
    """A `compiled_cache` of SQLAlchemy for all engines of a class of dialect."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        """As of a dict."""
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Compiled) -> None:
        if len(self) >= MOST:
            self.clear()
        super().__setitem__((type(key[0]), *key[1:]), compiled)


def share() -> None:
    """From now on each new engine of this process takes what another one has compiled."""
    statements = SharedStatements()
    make = Engine.__init__

    def made(engine: Engine, *arguments: Any, **named: Any) -> None:
        make(engine, *arguments, **named)
        engine._compiled_cache = statements  # type: ignore[assignment]

    Engine.__init__ = made  # type: ignore[method-assign]
