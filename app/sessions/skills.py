"""Skills as clients see them: those in force, shadowed ones, and what is wrong with their files (spec 14.15).

Knows no file: a report of whoever read them is all it gets.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from app.agent.skills import Skill
from app.sessions.tenant_agents import FileProblem, near, problem_view


class ShadowedSkill(Protocol):
    """A valid skill that another one of its name, in the folder `by`, hides."""

    @property
    def skill(self) -> Skill: ...
    @property
    def by(self) -> str: ...


class SkillReport(Protocol):
    """All that there is."""

    @property
    def skills(self) -> Sequence[Skill]: ...
    @property
    def shadowed(self) -> Sequence[ShadowedSkill]: ...
    @property
    def problems(self) -> Sequence[FileProblem]: ...


class ReportsSkills(Protocol):
    """Who has read the files."""

    def report(self) -> SkillReport:
        """Everything that there is, for people."""


class SkillListing:
    """Lists skills."""

    def __init__(self, skills: ReportsSkills) -> None:
        self._skills = skills

    def list(self) -> dict[str, Any]:
        """Skills in force by name, shadowed ones, broken files and remarks with file, line, reason."""
        report = self._skills.report()
        problems = [(problem.severity == "error", problem_view(problem)) for problem in report.problems]
        return {
            "items": [_view(skill) for skill in report.skills],
            "next": None,  # all of them
            "shadowed": [{**_view(item.skill), "by": near(item.by)} for item in report.shadowed],
            "broken": [shown for is_error, shown in problems if is_error],
            "warnings": [shown for is_error, shown in problems if not is_error],
        }


def _view(skill: Skill) -> dict[str, str]:
    return {"name": skill.name, "description": skill.description, "folder": near(skill.folder)}
