"""The part of the composition root about tools: built-in ones, those of operators, what commands and fetches may do."""

import logging
from collections.abc import Callable

from app.agent.tools import Tool, ToolRegistry
from app.boxes.directory import Directories
from app.boxes.workspaces import Workspaces
from app.definitions.skills import Skills
from app.definitions.toolnames import BUILT_IN, OPTIONAL
from app.net.addresses import read_openings
from app.net.fetching import Bounds
from app.sessions.artifacts import Artifacts
from app.sessions.journal import Journal
from app.sessions.notes import MAX_NOTE_CHARS, MAX_TITLE_CHARS, Notes
from app.sessions.services import CommandBox
from app.settings import Settings
from app.settings import Tools as ToolSettings
from app.store.database import Database
from app.store.notes import SqlNoteStore
from app.tools.builtin import RECORD_TOOLS, Web, builtin_tools, command_tool, record_tools
from app.tools.function import load_entry_points, load_tool
from app.tools.shell import RunCommand
from app.wiring_definitions import command_paths, skill_tools, skills_of
from app.wiring_mcp import mcp_groups

log = logging.getLogger(__name__)

_COMMANDS = {name for name in ToolSettings.model_fields if name.startswith(("command_", "sandbox"))}


def tool_names(settings: Settings) -> frozenset[str]:
    """The ordinary tools of a service with these settings. Raises ValueError for own tools that cannot be used."""
    own = (tool.spec.name for tool in tools_of(settings, skills_of(settings)))
    return record_names(settings).union(own, mcp_groups(settings))


def tools_of(
    settings: Settings,
    skills: Skills,
    directories: Directories | None = None,
    workspaces: Workspaces | None = None,
) -> list[Tool]:
    """Built-in tools and those of operators. Two of one name are refused: a silent winner would change what every
    whitelist means. `tools.without` takes built-in ones away, also for one of the operator's own. Without `directories`
    and `workspaces` they are to be looked at, not to be used."""
    tools: dict[str, Tool] = {tool.spec.name: tool for tool in _builtin(settings, directories)}
    tools.update((tool.spec.name, tool) for tool in skill_tools(settings, skills))
    if settings.tools.run_command:
        given = settings.tools.model_dump(include=_COMMANDS) | command_paths(settings)
        tools["run_command"] = command_tool(workspaces=workspaces, **given)
    unknown = sorted(set(settings.tools.without) - BUILT_IN - OPTIONAL)
    if unknown:
        raise ValueError(f"tools.without: there are no built-in tools named {', '.join(unknown)}")
    for name in settings.tools.without:
        tools.pop(name, None)
    own = [*load_entry_points(), *(tool for path in settings.tools.functions for tool in load_tool(path))]
    for tool in own:
        if tool.spec.name in tools or tool.spec.name in record_names(settings):
            raise ValueError(
                f"two tools are named {tool.spec.name!r}: rename the one from tools.functions or its package, or put "
                f"the name into tools.without if that one is to take the place of a built-in tool"
            )
        tools[tool.spec.name] = tool
    return list(tools.values())


def record_names(settings: Settings) -> frozenset[str]:
    """Those of the tools that keep notes and artifacts."""
    return RECORD_TOOLS.difference(settings.tools.without)


def _builtin(settings: Settings, directories: Directories | None) -> tuple[Tool, ...]:
    cache = settings.tools.file_cache_mb << 20
    return builtin_tools(_web(settings), directories=directories, file_cache_bytes=cache)


def record_tools_of(settings: Settings, database: Database, journal: Journal, artifacts: Artifacts) -> tuple[Tool, ...]:
    """The tools that keep notes and artifacts."""
    made = record_tools(
        artifacts,
        Notes(SqlNoteStore(database.reader), journal),
        max_output_chars=settings.tools.max_output_chars,
        max_note_chars=MAX_NOTE_CHARS,
        max_title_chars=MAX_TITLE_CHARS,
    )
    return tuple(tool for tool in made if tool.spec.name in record_names(settings))


async def commands_of(tools: ToolRegistry) -> CommandBox | None:
    """The box of `run_command`, tried out; None without this tool. Whether it holds is said before it is needed."""
    tool = tools.get("run_command")
    if not isinstance(tool, RunCommand):
        return None
    refusal = await tool.sandbox.refusal()
    if refusal is not None:
        log.error("%s; docs/sandbox.md says what to do", refusal)
    elif (standing := await tool.sandbox.standing()).missing:
        log.warning("commands run at level %s, %s: %s", standing.level, standing.level.risk, standing.why())
    return tool.sandbox


def hiding_of(tools: ToolRegistry) -> Callable[[], bool]:
    """Whether commands run where what they may not read is hidden from them. An own tool of this name hides nothing."""
    tool = tools.get("run_command")
    return tool.sandbox.hides if isinstance(tool, RunCommand) else bool


def _web(settings: Settings) -> Web | None:
    """What `web_fetch` may do; None when it is switched off. Raises ValueError for hosts that cannot be read."""
    given = settings.tools
    if not given.web_fetch:
        return None
    bounds = Bounds(body_bytes=given.fetch_bytes, total_s=given.fetch_timeout_ms / 1000)
    return Web(openings=read_openings(given.fetch_allow), bounds=bounds)
