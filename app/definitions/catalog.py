"""Who can be asked: the agents of the shipped library, of directories and of tenants, by name.

`reload` reads files and belongs into a thread; everything else is a look-up in memory. Knows no store: who keeps
the agents of tenants tells this catalog of them.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.agent.definition import AgentDefinition, Source
from app.definitions.fields import TOOLS_KEYS
from app.definitions.importpaths import is_import_path, missing
from app.definitions.markdown import MAX_FILE_BYTES, Parsed, Problem, Severity, parse
from app.definitions.toolnames import BUILT_IN, squeezed

LIBRARY = Path(__file__).parent / "library"
MAX_FILES = 5_000  # in one directory with all its folders
_PAGES = frozenset(  # Markdown that lies beside agents and is none
    {"README", "CHANGELOG", "CONTRIBUTING", "LICENSE", "NOTICE", "SECURITY", "CODE_OF_CONDUCT", "AUTHORS", "INDEX"}
    | {"AGENTS", "CLAUDE", "SKILL"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """A valid definition that is not in force, since another of its name, at `by`, comes before it."""

    definition: AgentDefinition
    by: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogReport:
    """What a tenant has: the agents in force by name, the shadowed ones, and everything wrong with files."""

    agents: tuple[AgentDefinition, ...]
    shadowed: tuple[Shadowed, ...]
    problems: tuple[Problem, ...]

    @property
    def broken(self) -> tuple[Problem, ...]:
        """The problems that kept a file from loading."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """One reading of all files; replaced as a whole."""

    agents: Mapping[str, AgentDefinition] = field(default_factory=dict)
    losers: tuple[AgentDefinition, ...] = ()
    problems: tuple[Problem, ...] = ()
    names: tuple[str, ...] = ()
    tool_names: frozenset[str] = frozenset()


class Catalog:
    """Finds agents by name for a tenant: the tenant's own, then directories (later ones first), then the library.

    Empty until `reload` was called. `known_tools` are the ordinary tools of this service.
    """

    def __init__(
        self,
        directories: Iterable[Path | str] = (),
        *,
        known_tools: frozenset[str] = BUILT_IN,
        library: Path | None = LIBRARY,
    ) -> None:
        self._places = [(library, "library")] if library is not None else []
        self._places += [(Path(directory), "directory") for directory in directories]
        self._known_tools = known_tools
        self._files = _Files()
        self._tenants: dict[str, dict[str, AgentDefinition]] = {}

    def get(self, tenant: str, name: str) -> AgentDefinition | None:
        """The definition that is in force for a tenant, or None."""
        own = self._tenants.get(tenant)
        if own is not None and name in own:
            return own[name]
        return self._files.agents.get(name)

    def names(self, tenant: str) -> Sequence[str]:
        """All names, sorted."""
        own = self._tenants.get(tenant)
        return sorted({*self._files.names, *own}) if own else self._files.names

    def tool_names(self, tenant: str) -> frozenset[str]:
        """The names that a tenant's agents gave themselves as tools (`tool_name`): a whitelist may hold them."""
        own = self._tenants.get(tenant)
        return _tool_names({**self._files.agents, **own}.values()) if own else self._files.tool_names

    def set_tenant(self, tenant: str, name: str, definition: AgentDefinition) -> None:
        """Put a tenant's own agent in force, in place of any other of that name."""
        self._tenants.setdefault(tenant, {})[name] = definition

    def drop_tenant(self, tenant: str, name: str) -> bool:
        """Take a tenant's own agent away; says whether there was one. A file's agent of that name is in force again."""
        own = self._tenants.get(tenant, {})
        found = own.pop(name, None) is not None
        if not own:
            self._tenants.pop(tenant, None)
        return found

    def report(self, tenant: str) -> CatalogReport:
        """Everything that there is for a tenant, for people. The files' problems are the same for all."""
        files, own = self._files, self._tenants.get(tenant, {})
        in_force = {**files.agents, **own}
        hidden = [files.agents[name] for name in own if name in files.agents]
        losers = (*hidden, *files.losers)
        return CatalogReport(
            agents=tuple(in_force[name] for name in sorted(in_force)),
            shadowed=tuple(Shadowed(definition=loser, by=in_force[loser.name].source) for loser in losers),
            problems=files.problems,
        )

    def reload(self) -> None:
        """Read all files anew and put the result in force at once. Blocks on the disk; never raises for a bad file."""
        problems: list[Problem] = []
        places = [self._parsed(directory, kind, problems) for directory, kind in self._places]
        found = [result.definition for place in places for _, result in place if result.definition is not None]
        tool_names = _tool_names(found)
        agents: dict[str, AgentDefinition] = {}
        losers: list[AgentDefinition] = []
        for (_, kind), place in zip(self._places, places, strict=True):
            own = _in_force([self._settled(file, kind, result, tool_names) for file, result in place], problems)
            losers.extend(agents[name] for name in own if name in agents)
            agents.update(own)
        self._files = _Files(
            agents=agents,
            losers=tuple(losers),
            problems=tuple(problems),
            names=tuple(sorted(agents)),
            tool_names=_tool_names(agents.values()),
        )

    def _parsed(self, directory: Path, kind: str, problems: list[Problem]) -> "list[tuple[_File, Parsed]]":
        return [(file, self._parse(file, kind, frozenset())) for file in _files(directory, problems)]

    def _settled(self, file: "_File", kind: str, result: Parsed, tool_names: frozenset[str]) -> "tuple[_File, Parsed]":
        """The file as it is once it is known which tools the agents of all files are."""
        if tool_names and any(
            problem.key is not None and squeezed(problem.key) in TOOLS_KEYS for problem in result.problems
        ):
            return file, self._parse(file, kind, tool_names)
        return file, result

    def _parse(self, file: "_File", kind: str, agent_tools: frozenset[str]) -> Parsed:
        return parse(
            file.data,
            path=file.shown,
            source=kind,
            known_tools=self._known_tools,
            agent_tools=agent_tools,
            default_name=file.id,
        )


def _tool_names(agents: Iterable[AgentDefinition]) -> frozenset[str]:
    return frozenset(agent.tool_name for agent in agents if agent.tool_name)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that was read; `shown` is its path in messages, `id` its path in the directory without the suffix."""

    shown: str
    id: str
    data: bytes


def _in_force(results: Sequence[tuple[_File, Parsed]], problems: list[Problem]) -> dict[str, AgentDefinition]:
    """The agents of one directory, in the order of their paths; the first of a name holds."""
    agents: dict[str, AgentDefinition] = {}
    for file, result in results:
        if not result.has_front_matter and _is_page(file.id):
            continue
        problems.extend(result.problems)
        definition = result.definition
        if definition is None:
            continue
        first = agents.setdefault(definition.name, definition)
        if first is not definition:
            problems.extend(_twice(definition.name, first.source.path, file.shown))
            continue
        problems.extend(_without_code(file, definition))
    return agents


def _without_code(file: _File, definition: AgentDefinition) -> Iterator[Problem]:
    """Code that an agent names and that is not there: its runs would fail, and nobody would know before."""
    filters = (ref.name for ref in definition.policy.input_filters or () if is_import_path(ref.name))
    paths = {"runner": (definition.runner,) if definition.runner else (), "handoff": tuple(filters)}
    for key, path in ((key, path) for key, named in paths.items() for path in named):
        what = missing(path)
        if what is not None:
            lines = file.data.decode("utf-8", "replace").splitlines()
            line = next((number for number, text in enumerate(lines, 1) if path in text), 1)
            message = f"{path}: {what}; until it is there, what needs it fails"
            yield Problem(severity=Severity.WARNING, path=file.shown, line=line, message=message, key=key)


def _is_page(name: str) -> bool:
    return name.rsplit("/", 1)[-1].split(".", 1)[0].upper().replace("-", "_") in _PAGES


def _twice(name: str, first: str, second: str) -> tuple[Problem, Problem]:
    return (
        _problem(first, f"agent {name!r} is also defined in {second}; this file holds", Severity.WARNING, "name"),
        _problem(second, f"agent {name!r} is already defined in {first}; rename one", Severity.ERROR, "name"),
    )


def _problem(path: str, message: str, severity: Severity = Severity.ERROR, key: str | None = None) -> Problem:
    return Problem(severity=severity, path=path, line=1, message=message, key=key)


def _files(directory: Path, problems: list[Problem]) -> Iterator[_File]:
    """The Markdown files below a directory by path; hidden ones and linked folders are not entered."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        problems.append(_problem(str(directory), f"agent directory {what}; create it or take it out of the settings"))
        return
    root = directory.resolve()
    paths = _paths(directory, problems)
    if len(paths) > MAX_FILES:
        problems.append(
            _problem(str(directory), f"{len(paths)} agent files, of which only the first {MAX_FILES} are read")
        )
    for path in paths[:MAX_FILES]:
        data = _content(path, root, problems)
        if data is not None:
            yield _File(shown=str(path), id=path.relative_to(directory).with_suffix("").as_posix(), data=data)


def _paths(directory: Path, problems: list[Problem]) -> list[Path]:
    def unreadable(error: OSError) -> None:
        problems.append(_problem(str(error.filename or directory), f"cannot be read: {error.strerror}"))

    paths: list[Path] = []
    for folder, folders, files in os.walk(directory, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths.extend(Path(folder, name) for name in files if name.lower().endswith(".md") and name[0] != ".")
    return sorted(paths, key=lambda path: path.as_posix())


def _content(path: Path, root: Path, problems: list[Problem]) -> bytes | None:
    """The bytes of a regular file inside the directory; anything else is stated and left out."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            problems.append(_problem(str(path), "links to a file outside its directory; skipped", Severity.WARNING))
            return None
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold us up
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                problems.append(_problem(str(path), "is not a regular file"))
                return None
            return file.read(MAX_FILE_BYTES + 1)  # one more: `parse` reports what is too large
    except (OSError, RuntimeError) as error:  # RuntimeError: links that point at each other
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(_problem(str(path), f"cannot be read: {reason}"))
        return None
