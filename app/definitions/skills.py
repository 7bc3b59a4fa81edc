"""Which skills there are: folders with a `SKILL.md` below directories of the settings (spec 7.9, port `SkillCatalog`).

`reload` reads files and belongs into a thread; everything else is a look-up in memory. Knows neither agents nor the
tool that loads a skill: other files of a folder are read when somebody asks for them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.agent.skills import Skill
from app.definitions import frontmatter
from app.definitions.attributes import MAX_NAME, read_name
from app.definitions.files import File, files, problem
from app.definitions.frontmatter import Entry, HeadError
from app.definitions.markdown import Problem, Severity, decoded, problems_of, read_head
from app.definitions.reading import Reading, as_text, clean, is_unset
from app.definitions.toolnames import squeezed

FILE = "SKILL.md"
MAX_SKILLS = 1_000  # of one directory; their bodies are held in memory
MAX_DESCRIPTION = 1_024
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_OWN_NAME = 64
_KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowedtools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowedSkill:
    """A valid skill that is not in force, since another of its name, in the folder `by`, comes before it."""

    skill: Skill
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillReport:
    """The skills in force by name, the shadowed ones, and everything wrong with files."""

    skills: tuple[Skill, ...] = ()
    shadowed: tuple[ShadowedSkill, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One reading of all files; replaced as a whole."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    ordered: tuple[Skill, ...] = ()
    report: SkillReport = field(default_factory=SkillReport)


class Skills:
    """Finds skills by name; of two directories the later one wins. Empty until `reload` was called."""

    def __init__(self, directories: Iterable[Path | str] = ()) -> None:
        self.directories = tuple(Path(directory) for directory in directories)
        self._read = _Read()

    def get(self, name: str) -> Skill | None:
        """The skill of this name, or None."""
        return self._read.skills.get(name)

    def skills(self) -> Sequence[Skill]:
        """All of them, by name."""
        return self._read.ordered

    def report(self) -> SkillReport:
        """Everything that there is, for people."""
        return self._read.report

    def reload(self) -> None:
        """Read all files anew and put the result in force at once. A skill whose file cannot be used any more stays as
        it was; the report says so. Blocks on the disk; never raises for a bad file."""
        problems: list[Problem] = []
        former = {skill.folder: skill for skill in self._read.ordered}
        in_force: dict[str, Skill] = {}
        losers: list[Skill] = []
        for directory in self.directories:
            own: dict[str, Skill] = {}
            for file in files(directory, "skill", lambda name: name == FILE, problems, MAX_SKILLS):
                skill, found = parse_skill(file)
                problems += found
                if skill is None and (skill := former.get(str(Path(file.shown).parent))) is not None:
                    problems.append(problem(file.shown, "the skill stays as it was before", Severity.WARNING))
                if skill is None:
                    continue
                if own.setdefault(skill.name, skill) is not skill:
                    text = f"skill {skill.name!r} is already defined in {own[skill.name].folder}; rename one"
                    problems.append(problem(file.shown, text, key="name"))
            losers += [in_force[name] for name in own if name in in_force]
            in_force |= own
        ordered = tuple(in_force[name] for name in sorted(in_force))
        shadowed = tuple(ShadowedSkill(skill=loser, by=in_force[loser.name].folder) for loser in losers)
        report = SkillReport(skills=ordered, shadowed=shadowed, problems=tuple(problems))
        self._read = _Read(skills=in_force, ordered=ordered, report=report)


def parse_skill(file: File) -> tuple[Skill | None, Sequence[Problem]]:
    """One `SKILL.md`, read as tolerantly as agent files: only a skill that says nothing of itself is left out."""
    reading = Reading(strict=False, known_tools=None)
    lines = file.data.count(b"\n") + 1
    try:
        head = frontmatter.split(decoded(file.data))
        if head is None:
            raise HeadError(f"no front matter: a {FILE} begins with a line of three dashes", 1)
        entries, _ = read_head(reading, head, lambda key: squeezed(key) in _KEYS)
    except HeadError as error:
        reading.line = error.line
        reading.error("", error.message)
        return None, problems_of(file.shown, reading.found, lines)
    values = _values(reading, entries)
    reading.line = head.line
    folder = Path(file.shown).parent
    name = _named(reading, values.get("name"), folder.resolve().name)
    description = _described(reading, values.get("description"))
    body = clean(reading, "", head.body).strip()
    if not body:
        reading.remark("", "no text below the front matter, so the skill says nothing")
    found = problems_of(file.shown, reading.found, lines)
    if reading.failed:
        return None, found
    return Skill(name=name, description=description, body=body, folder=str(folder)), found


def _values(reading: Reading, entries: Sequence[Entry]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for entry in entries:
        reading.line = entry.line
        key = squeezed(entry.key)
        if key in values:
            reading.warn(entry.key, f"{entry.key} is given twice", "the first one holds")
        elif key == "allowedtools" and not is_unset(entry.value):
            reading.remark(entry.key, f"{entry.key} grants nothing here: what an agent may do stands in its own file")
        elif key in ("name", "description") and not is_unset(entry.value):
            read = read_name if key == "name" else as_text
            values[key] = read(reading, entry.key, entry.value)
    return values


def _named(reading: Reading, given: str | None, folder: str) -> str:
    name = given or folder
    if given is None:
        reading.remark("name", f"no name is given, the folder's is used: {folder}")
    elif given != folder:
        reading.remark("name", f"the name {given!r} should be that of the folder, {folder!r}; {given!r} is used")
    if _NAME.fullmatch(name) is None or len(name) > _MAX_OWN_NAME:
        rule = f"a name has at most {_MAX_OWN_NAME} lower-case letters, digits and single hyphens"
        reading.remark("name", f"{rule}, not {name[:MAX_NAME]!r}; other services may refuse it")
    return name[:MAX_NAME]


def _described(reading: Reading, given: str | None) -> str:
    if not given:
        reading.error("description", "description is missing: agents choose by it")
        return ""
    if len(given) > MAX_DESCRIPTION:
        text = f"the description has {len(given)} characters; agents are shown {MAX_DESCRIPTION} at most"
        reading.remark("description", text)
    return given[:MAX_DESCRIPTION]
