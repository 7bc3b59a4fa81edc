"""Which tools a definition names: the forms of such a list, and the names of other services for our tools.

Knows which names this service has; whether a tool is really there is the registry's business.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.definition import MAX_TOOL_NAME, normalised
from app.agent.permission_rules import PermissionRule
from app.agent.tools import GROUPED
from app.definitions.reading import MAX_NAMES, Reading, is_flag, is_scalar, shown, split_at_commas, too_many, unique

AGENT = "Agent"  # stands for the delegation tools of whatever surfaces apply (spec 7.2)
BUILT_IN = frozenset({"read_file", "write_file", "edit_file", "glob", "grep", "note", "read_artifact"})
# Built in, but there only where the operator has them on.
OPTIONAL = frozenset({"run_command", "web_fetch", "load_skill"})
SURFACE_TOOLS = frozenset(
    {"dispatch_subagent", "execute_task", "get_task_output", "cancel_task", "list_tasks", "subagent"}
)
PER_AGENT_PREFIX = "subagent_"
_OURS = BUILT_IN | OPTIONAL | SURFACE_TOOLS | {AGENT}


def squeezed(name: str) -> str:
    """A name without what people spell differently: case, `-`, `_` and blanks."""
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


# Names of Claude Code and opencode; spelled in any case, since both have used several.
_ALIASES = {squeezed(name): name for name in _OURS} | {
    "read": "read_file",
    "write": "write_file",
    "edit": "edit_file",
    "multiedit": "edit_file",
    "ls": "glob",
    "list": "glob",
    "bash": "run_command",
    "webfetch": "web_fetch",
    "skill": "load_skill",
    "task": AGENT,
    "agent": AGENT,
}
_WORDS = frozenset({"null", "none", "true", "false", "yes", "no", "on", "off", "all", "any", "default", "inherit"})
_EVERYTHING = frozenset({"*", "all", "all tools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a `tools` key comes to: the whitelist, whom `Agent(…)` names (None: nobody in particular), what a map of
    flags switches off, and with which patterns tools of the whitelist were named that stand there by no other way.
    `limits` are the rules that these come to."""

    names: tuple[str, ...]
    agents: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    limits: tuple[PermissionRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """What a `disallowed_tools` key comes to: names, and patterns such as `Bash(rm *)`, with the rules of these."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    limits: tuple[PermissionRule, ...] = ()


def mapped(name: str, known: Iterable[str] | None = None) -> str:
    """Our name for a tool of another service; a name that a tool here already has stays, an unknown one too."""
    if name in _OURS or (known is not None and name in known) or name.startswith(PER_AGENT_PREFIX):
        return name
    return _ALIASES.get(squeezed(name), name)


def is_delegation(name: str) -> bool:
    """A tool of a surface, or `Agent`."""
    return name == AGENT or name in SURFACE_TOOLS or name.startswith(PER_AGENT_PREFIX)


def pieces_of(text: str) -> list[str]:
    """The names in a text with commas, blanks or lines between them: `Read, Agent(a, b)`, `[Read Grep`, `- Read`."""
    flat = " ".join(text.split()).replace(" (", "(").replace(";", ",")  # `Agent (a)` is one name
    pieces: list[str] = []
    for part in split_at_commas(flat):
        pieces.extend(_at_blanks(part) if " " in part else [part])
    return [piece for piece in (piece.strip("\"'`[]{} ") for piece in pieces) if piece not in ("", "-")]


def _at_blanks(part: str) -> list[str]:
    words: list[list[str]] = []
    depth = 0
    for word in part.split(" "):
        if depth > 0:
            words[-1].append(word)
        else:
            words.append([word])
        depth = max(0, depth + word.count("(") - word.count(")"))
    return [" ".join(together) for together in words]


def read_tools(reading: Reading, key: str, value: Any) -> Grant | None:
    """The whitelist of a definition. None after an error was stated: no list is ever guessed, so none is widened.

    A tool that is switched off is granted in a file, with a remark, so that the file stays as its author wants it; a
    program is told no. So it is with a name that an agent could have as its own tool (`tool_name`): which agents a
    session will have is not known when a file is read. What was stored under another set of tools (`known_tools`
    None) is taken as it is.

    `*` is every tool that the service has, without delegation, which must be listed (spec 7.2).
    """
    if isinstance(value, dict):
        return _from_flags(reading, key, value)
    if isinstance(value, list) and not value:
        return Grant(names=())
    pieces = _pieces(reading, key, value)
    if pieces is None:
        return None
    if not pieces and isinstance(value, str) and value.strip() == "[]":
        return Grant(names=())
    if " ".join(pieces).lower() in _EVERYTHING:
        return _everything(reading, key, ())
    return _granted(reading, key, pieces, denied=())


def read_denied(reading: Reading, key: str, value: Any) -> Denial:
    """What is taken away. Unknown names stay in it: that is at most too strict."""
    pieces = _pieces(reading, key, value) or []
    known = reading.known_tools
    if any(piece.lower() in _EVERYTHING for piece in pieces):
        return Denial(names=tuple(sorted(_OURS | (known or frozenset()))))
    names = [mapped(piece, known) for piece in pieces if "(" not in piece]
    known = None if known is None else known | reading.agent_tools
    strange = [] if known is None else [name for name in names if not _is_known(name, known) and "*" not in name]
    if strange:
        reading.remark(key, f"unknown tools: {listed(strange)}")
    return Denial(names=unique(names), patterns=tuple(piece for piece in pieces if "(" in piece))


def _pieces(reading: Reading, key: str, value: Any) -> list[str] | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)  # a flow list cuts `Agent(a, b)` in two
    if isinstance(value, str):
        pieces = pieces_of(str(value))
        return None if too_many(reading, key, len(pieces), MAX_NAMES, "names") else pieces
    what = shown(value) if is_scalar(value) else "a list of something else"
    reading.error(key, f"{key} must be a list of tool names or a text with commas, not {what}")
    return None


def _from_flags(reading: Reading, key: str, flags: dict[str, Any]) -> Grant | None:
    """opencode's form: true grants, false takes away; with nothing but false, everything else is granted."""
    granted: list[str] = []
    denied: list[str] = []
    if too_many(reading, key, len(flags), MAX_NAMES, "names"):
        return None
    for name, value in flags.items():
        flag = value if isinstance(value, bool) else is_flag(value) if isinstance(value, str) else None
        if flag is None:
            place = f"{key}.{name}"
            reading.warn(place, f"{place} must be true or false, not {shown(value)}", "it counts as false")
        (granted if flag else denied).append(name)
    gone = unique(mapped(name, reading.known_tools) for name in denied if name != "*")
    if "*" in granted or (denied and not granted and "*" not in denied):
        return _everything(reading, key, gone)
    return _granted(reading, key, granted, denied=gone)


def _everything(reading: Reading, key: str, denied: tuple[str, ...]) -> Grant | None:
    if reading.known_tools is None:
        reading.error(key, f"{key}: name the tools; which ones '*' would mean is not known here")
        return None
    return Grant(names=tuple(sorted(reading.known_tools.difference(denied))), denied=denied)


def _granted(reading: Reading, key: str, pieces: Sequence[str], denied: tuple[str, ...]) -> Grant | None:
    names: list[str] = []
    agents: list[str] = []
    limited = False
    patterns: list[tuple[str, str]] = []
    whole: set[str] = set()  # named without a pattern, which then limits nothing
    out: dict[str, list[str]] = {"off": [], "mcp": [], "perhaps": [], "unknown": []}
    for piece in pieces:
        name, bracket, inner = piece.partition("(")
        name = mapped(name.strip(), reading.known_tools)
        if is_delegation(name):
            names.append(name)
            if bracket and inner.strip(" )") != "*":
                limited = True
                agents.extend(split_at_commas(inner.strip().removesuffix(")")))
            continue
        if bracket:
            patterns.append((name, piece))
        else:
            whole.add(name)
        if reading.known_tools is not None and name.startswith(GROUPED) and not _of_a_server(name, reading.known_tools):
            out["mcp"].append(name)
        elif (
            reading.known_tools is None
            or name.startswith(GROUPED)
            or _is_known(name, reading.known_tools)
            or name in reading.agent_tools
        ):
            names.append(name)
        elif not reading.strict and may_be_an_agent(name):
            names.append(name)
            out["perhaps"].append(name)
        else:
            out["unknown"].append(name)
    if reading.known_tools is not None:
        out["off"] = [name for name in names if is_off(name, reading.known_tools)]
    _state(reading, key, out)
    if too_many(reading, key, len(agents), MAX_NAMES, "agents"):
        return None
    if not names:
        reading.error(key, f"{key} names no tool that exists here; write [] for none, or leave the key out to inherit")
        return None
    granted = set(names)
    return Grant(
        names=unique(names),
        agents=unique(agents) if limited else None,
        denied=denied,
        patterns=tuple(piece for name, piece in patterns if name in granted and name not in whole),
    )


def _state(reading: Reading, key: str, out: dict[str, list[str]]) -> None:
    if out["off"]:
        state = reading.later if reading.strict else reading.remark
        state(key, f"tools that are switched off on this server: {listed(out['off'])}")
    if out["mcp"]:
        reading.warn(key, f"no MCP server of this name is configured: {listed(out['mcp'])}", "they are left out")
    if out["perhaps"]:
        then = "it is granted if an agent has it as its tool_name"
        reading.remark(key, f"there is no tool of the name {listed(out['perhaps'])}; {then}")
    if out["unknown"]:
        reading.warn(key, f"unknown tools: {listed(out['unknown'])}", "they are left out")


def _of_a_server(name: str, known: frozenset[str]) -> bool:
    """A tool of an MCP server that is configured, whether or not it is up: its group is among the known names."""
    groups = (group for group in known if group.startswith(GROUPED))
    return name == f"{GROUPED}*" or any(name == group or name.startswith(f"{group}__") for group in groups)


def _is_known(name: str, known: frozenset[str]) -> bool:
    return (
        name in known
        or name in OPTIONAL
        or name in BUILT_IN
        or is_delegation(name)
        or (name.startswith(GROUPED) and _of_a_server(name, known))
    )


def may_be_an_agent(name: str) -> bool:
    """A name that a `tool_name` can have, words apart that people write to say something about all tools."""
    return name == normalised(name) and 1 <= len(name) <= MAX_TOOL_NAME and name not in _WORDS


def is_off(name: str, known: frozenset[str]) -> bool:
    """A built-in tool that the operator has not switched on, unless a tool of that name is here."""
    return (name in OPTIONAL or name in BUILT_IN) and name not in known


def listed(names: Sequence[str]) -> str:
    """Some names for a message."""
    few = ", ".join(name[:60] for name in names[:8])
    return few if len(names) <= 8 else f"{few} and {len(names) - 8} more"
