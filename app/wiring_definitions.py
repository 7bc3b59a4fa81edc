"""The part of the composition root that is about agent files and skills."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from app.agent.tools import Tool
from app.boxes.directory import Directories
from app.definitions.catalog import Catalog
from app.definitions.markdown import Problem
from app.definitions.reading import Checks
from app.definitions.skills import Skills
from app.definitions.watching import Watcher
from app.settings import Settings
from app.tools.skills import LoadSkill
from app.tools.threads import DaemonThreads

log = logging.getLogger(__name__)

_THREADS = 4


def skills_of(settings: Settings) -> Skills:
    """The skills of the operator, not read yet."""
    return Skills(settings.skills)


def skill_tools(settings: Settings, skills: Skills) -> list[Tool]:
    """`load_skill` where there are directories of skills: a tool that can do nothing is not offered."""
    if not settings.skills:
        return []
    threads = DaemonThreads(_THREADS, "skill")
    return [LoadSkill(skills, Directories(), threads, commands=settings.tools.run_command)]


def command_paths(settings: Settings) -> dict[str, list[Path]]:
    """What commands may read besides: what they are told of skills, they find there."""
    return {"command_paths": [*settings.tools.command_paths, *(path.resolve() for path in settings.skills)]}


def catalog_of(settings: Settings, known: frozenset[str], skills: Skills, checks: Checks) -> Catalog:
    """Who can be asked; empty until it is reloaded."""
    return Catalog(settings.agents, known_tools=known, trusted=settings.trusted_agents, skills=skills, checks=checks)


def watcher_of(settings: Settings, catalog: Catalog, reread: Callable[[], Awaitable[None]]) -> Watcher:
    """Has changed files read anew by `reread`, and logs what is newly wrong with them; ready to be started."""
    said = Said()

    async def read() -> None:
        await reread()
        said.log(catalog)

    said.log(catalog)
    directories = catalog.directories if settings.watch != "off" else ()
    return Watcher(directories, read, poll=settings.watch == "poll")


class Said:
    """Logs each problem once, until it is gone."""

    def __init__(self) -> None:
        self._problems: frozenset[Problem] = frozenset()

    def log(self, catalog: Catalog) -> None:
        """What was not wrong before."""
        now: Sequence[Problem] = (*catalog.report("").problems, *catalog.skills.report().problems)
        for problem in dict.fromkeys(now):
            if problem not in self._problems:
                log.warning("agent file %s", problem)
        self._problems = frozenset(now)
