"""Who can be asked: the agents of the shipped library, of directories and of tenants, by name.

`reload` reads files and belongs into a thread; everything else is a look-up in memory. Knows no store: who keeps
the agents of tenants tells this catalog of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.agent.definition import AgentDefinition, OwnServer, Source
from app.definitions.fields import TOOLS_KEYS
from app.definitions.files import File, files, problem
from app.definitions.importpaths import is_import_path, missing
from app.definitions.markdown import Parsed, Problem, Severity, parse
from app.definitions.reading import NO_CHECKS, Checks
from app.definitions.skills import FILE as SKILL
from app.definitions.skills import Skills
from app.definitions.toolnames import BUILT_IN, squeezed

LIBRARY = Path(__file__).parent / "library"
_PAGES = frozenset(  # Markdown that lies beside agents and is none
    {"README", "CHANGELOG", "CONTRIBUTING", "LICENSE", "NOTICE", "SECURITY", "CODE_OF_CONDUCT", "AUTHORS", "INDEX"}
    | {"AGENTS", "CLAUDE"}
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
    by_path: Mapping[str, AgentDefinition] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    tool_names: frozenset[str] = frozenset()


class Catalog:
    """Finds agents by name for a tenant: the tenant's own, then directories (later ones first), then the library.

    Empty until `reload` was called. `known_tools` are the ordinary tools of this service. `trusted`: the directories
    whose agents may name code of the server and allow what would be asked otherwise; True: all. `skills` are reloaded
    with the agents. `checks` look at what agents bring along.
    """

    def __init__(
        self,
        directories: Iterable[Path | str] = (),
        *,
        known_tools: frozenset[str] = BUILT_IN,
        library: Path | None = LIBRARY,
        trusted: bool | Iterable[Path | str] = (),
        skills: Skills | None = None,
        checks: Checks = NO_CHECKS,
    ) -> None:
        vouched = trusted if isinstance(trusted, bool) else [Path(each).resolve() for each in trusted]
        self._places = [_Place(path=library, kind="library", trusted=True)] if library is not None else []
        for path in map(Path, directories):
            self._places.append(_Place(path=path, kind="directory", trusted=_is_vouched(path, vouched)))
        self._known_tools = known_tools
        self._checks = checks
        self.skills = skills or Skills()
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

    def of_files(self, name: str) -> AgentDefinition | None:
        """The agent of a file, whatever tenants have in its place."""
        return self._files.agents.get(name)

    @property
    def own_servers(self) -> tuple[OwnServer, ...]:
        """The MCP servers that agents in force bring along, each once."""
        return tuple({own.name: own for agent in self._files.agents.values() for own in agent.own_servers}.values())

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

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where files are read that may change, skills included."""
        return (*(place.path for place in self._places if place.kind == "directory"), *self.skills.directories)

    def reload(self) -> None:
        """Read all files anew and put the result in force at once. An agent whose file cannot be used any more stays as
        it was; the report says so. Blocks on the disk; never raises for a bad file."""
        self.skills.reload()
        problems: list[Problem] = []
        places = [(place, self._parsed(place, problems)) for place in self._places]
        found = [result.definition for _, read in places for _, result in read if result.definition is not None]
        tool_names = _tool_names(found)
        agents: dict[str, AgentDefinition] = {}
        losers: list[AgentDefinition] = []
        for place, read in places:
            own = _in_force([self._settled(file, place, result, tool_names) for file, result in read], problems)
            losers.extend(agents.pop(name) for name in own if name in agents)
            agents.update(own)
        problems.extend(self._unknown_skills(agents))
        by_path = {agent.source.path: agent for agent in (*losers, *agents.values())}
        agents = dict(zip(agents, _one_of_each(agents.values(), problems), strict=True))
        self._files = _Files(
            agents=agents,
            losers=tuple(losers),
            problems=tuple(problems),
            by_path=by_path,
            names=tuple(sorted(agents)),
            tool_names=_tool_names(agents.values()),
        )

    def _unknown_skills(self, agents: Mapping[str, AgentDefinition]) -> Iterator[Problem]:
        for agent in agents.values():
            unknown = [name for name in agent.skills if self.skills.get(name) is None]
            if unknown:
                text = f"unknown skills: {', '.join(unknown)[:200]}; they are left out"
                yield problem(agent.source.path, text, Severity.WARNING, "skills")

    def _parsed(self, place: "_Place", problems: list[Problem]) -> list[tuple[File, Parsed]]:
        found = files(place.path, "agent", _is_agent_file, problems)
        return [(file, self._parse(file, place, frozenset())) for file in found]

    def _settled(self, file: File, place: "_Place", result: Parsed, tool_names: frozenset[str]) -> tuple[File, Parsed]:
        """The file as it is once it is known which tools the agents of all files are."""
        if tool_names and any(found.key is not None and squeezed(found.key) in TOOLS_KEYS for found in result.problems):
            result = self._parse(file, place, tool_names)
        former = self._files.by_path.get(file.shown)
        if result.definition is None and former is not None and not result.disabled:
            kept = problem(file.shown, "the agent stays as it was before", Severity.WARNING)
            result = replace(result, definition=former, problems=(*result.problems, kept))
        return file, result

    def _parse(self, file: File, place: "_Place", agent_tools: frozenset[str]) -> Parsed:
        return parse(
            file.data,
            path=file.shown,
            source=place.kind,
            known_tools=self._known_tools,
            agent_tools=agent_tools,
            default_name=file.id,
            trusted=place.trusted,
            checks=self._checks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A directory of agents. `trusted`: an operator vouches for what stands in it."""

    path: Path
    kind: str
    trusted: bool


def _is_vouched(path: Path, trusted: bool | Iterable[Path]) -> bool:
    return trusted if isinstance(trusted, bool) else any(path.resolve().is_relative_to(each) for each in trusted)


def _is_agent_file(name: str) -> bool:
    return name.lower().endswith(".md") and name != SKILL


def _tool_names(agents: Iterable[AgentDefinition]) -> frozenset[str]:
    return frozenset(agent.tool_name for agent in agents if agent.tool_name)


def _in_force(results: Sequence[tuple[File, Parsed]], problems: list[Problem]) -> dict[str, AgentDefinition]:
    """The agents of one directory, in the order of their paths; the first of a name holds."""
    agents: dict[str, AgentDefinition] = {}
    for file, result in results:
        if not result.has_front_matter and _is_page(file.id) and result.definition is None:
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


def _one_of_each(agents: Iterable[AgentDefinition], problems: list[Problem]) -> Iterator[AgentDefinition]:
    """The agents, of which those that bring another server of a name than one before them go without it."""
    first: dict[str, tuple[OwnServer, str]] = {}  # with whose it is
    for agent in agents:
        refused: set[str] = set()
        for own in agent.own_servers:
            begun, by = first.setdefault(own.name, (own, agent.name))
            if begun != own:
                refused.add(own.name)
                text = f"agent {by!r} brings another MCP server {own.name!r} along; this one is left out: rename it"
                place, key = agent.source.path, "mcp_servers"
                problems.append(Problem(severity=Severity.WARNING, path=place, line=own.line, message=text, key=key))
        yield (
            agent
            if not refused
            else replace(
                agent,
                mcp_servers=tuple(name for name in agent.mcp_servers if name not in refused),
                own_servers=tuple(own for own in agent.own_servers if own.name not in refused),
            )
        )


def _without_code(file: File, definition: AgentDefinition) -> Iterator[Problem]:
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
        problem(first, f"agent {name!r} is also defined in {second}; this file holds", Severity.WARNING, "name"),
        problem(second, f"agent {name!r} is already defined in {first}; rename one", Severity.ERROR, "name"),
    )
