"""What a skill is, the port that finds skills, and how they stand in a system prompt (spec 7.9).

Knows neither files nor the tool that loads one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.agent.texts import Texts, filled

LOADER = "load_skill"  # who has this tool is told which skills there are
MAX_LISTED = 12_000  # characters of the list, some 3,000 tokens in every request
MAX_PRELOADED = 60_000  # characters of the skills that a definition puts into its prompt
_DESCRIPTIONS = (1024, 300, 100, 0)  # characters of each, the first that lets all names in


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Instructions for one kind of work. `folder`: where its files lie, on the server."""

    name: str
    description: str
    body: str
    folder: str


class SkillCatalog(Protocol):
    """Which skills there are. What it answers may change while a run goes on; a run's prompt does not."""

    def get(self, name: str) -> Skill | None:
        """The skill of this name, or None."""

    def skills(self) -> Sequence[Skill]:
        """All of them, by name."""


class NoSkills:
    """A service without skills."""

    def get(self, name: str) -> Skill | None:
        """None."""
        return None

    def skills(self) -> Sequence[Skill]:
        """None."""
        return ()


NO_SKILLS = NoSkills()


def system_prompt(prompt: str, catalog: SkillCatalog, preloaded: Sequence[str], texts: Texts, *, listed: bool) -> str:
    """The system prompt of a run: its definition's, the skills `preloaded` in full, and, if `listed`, which others can
    be loaded. The same text for the same skills, so that providers may cache it."""
    found = [skill for skill in map(catalog.get, dict.fromkeys(preloaded)) if skill is not None]
    parts = [prompt, *_in_full(found, texts)]
    others = [skill for skill in catalog.skills() if skill not in found] if listed else []
    if others:
        parts.append(filled(texts.skills, skills=listing(others)))
    return "\n\n".join(part for part in parts if part)


def listing(skills: Sequence[Skill], room: int = MAX_LISTED) -> str:
    """One line for each skill; descriptions are shortened until all names fit into `room`, then the last are left
    out."""
    lines: list[str] = []
    for length in _DESCRIPTIONS:
        lines = [_line(skill, length) for skill in skills]
        if sum(map(len, lines)) + len(lines) <= room:
            return "\n".join(lines)
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, f"… {len(lines) - len(kept)} more"])


def _line(skill: Skill, length: int) -> str:
    text = " ".join(skill.description.split())
    text = text if len(text) <= length else f"{text[:length]}…"
    return f"- {skill.name}: {text}" if length else f"- {skill.name}"


def _in_full(skills: Sequence[Skill], texts: Texts) -> list[str]:
    room, parts = MAX_PRELOADED, []
    for skill in skills:
        body = skill.body if len(skill.body) <= room else f"{skill.body[:room]}\n[… cut]"
        room = max(0, room - len(skill.body))
        parts.append(filled(texts.skill, name=skill.name, body=body))
    return parts
