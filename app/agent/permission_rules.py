"""One permission rule: what it is about, and which texts its pattern means, also where pieces of them are not known.

Knows neither what wins (`permissions.py`) nor how a rule is written (`definitions/rules.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

UNKNOWN = "\0"  # in a text: a piece, of any length, that is not known before the call runs; no command can hold it
AGENT = "Agent"  # in a rule: every tool that starts agents
COMMAND = "run_command"
FETCH = "web_fetch"
READERS = frozenset({"read_file", "glob", "grep"})
WRITERS = frozenset({"write_file", "edit_file"})
_MAX_DOUBTFUL = 2_000  # characters of a text with unknown pieces that are compared; a longer one may mean anything
_SPECIAL = frozenset("*?[]\\(),\n\r\0")  # what a suggested rule could not say literally


class Verdict(StrEnum):
    """What holds for a call; in a rule: what it asks for. The order is that of strictness."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class PatternKind(StrEnum):
    """What the pattern of a rule is about."""

    COMMAND = "command"
    PATH = "path"
    DOMAIN = "domain"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRule:
    """`text` is the rule as its author wrote it. `tool`: our name, `Agent`, `*`, `mcp__server` or a name with stars.

    `pattern` None: every call of the tool. Commands and agents: a text in which `*` is anything; a command's ` *` at
    the end also means none. Paths: relative to the workspace, names between slashes, `**` any directories. Domains: a
    host with all below it, or `*.host` for those below alone.
    """

    effect: Verdict
    tool: str
    pattern: str | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text or (self.tool if self.pattern is None else f"{self.tool}({self.pattern})")


class Scope(StrEnum):
    """Who set a rule. It only names the rule in the record: no scope beats another (spec 8.1)."""

    SERVER = "server"
    TENANT = "tenant"
    DEFINITION = "definition"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRules:
    """What one scope says. `default` holds where no rule speaks; of several the strictest; None: nothing said."""

    scope: Scope
    rules: tuple[PermissionRule, ...] = ()
    default: Verdict | None = None

    @property
    def allows_anything(self) -> bool:
        """Whether it holds rules that allow."""
        return any(rule.effect is Verdict.ALLOW for rule in self.rules)


def pattern_kind(tool: str, delegation: bool) -> PatternKind | None:
    """What a pattern on this tool is about; None: the tool takes none."""
    if tool == COMMAND:
        return PatternKind.COMMAND
    if tool in READERS or tool in WRITERS:
        return PatternKind.PATH
    if tool == FETCH:
        return PatternKind.DOMAIN
    return PatternKind.AGENT if delegation else None


def covers(rule: PermissionRule, tool: str, delegation: bool) -> bool:
    """Whether a rule is about a tool. One on reading or writing certain files is about every tool that does so."""
    name = rule.tool
    if name in (tool, "*") or (name == AGENT and delegation):
        return True
    if rule.pattern is not None:
        return (name == "read_file" and tool in READERS) or (name in WRITERS and tool in WRITERS)
    if not name.startswith("mcp__"):
        return False
    return tool.startswith(f"{name}__") if name.count("__") == 1 else "*" in name and _matches(name, tool)


def _matches(pattern: str, text: str, unknown_fits: bool = False) -> bool:
    """Whether a text is one that the pattern means. An unknown piece goes into a star only, or is all it could be."""
    if unknown_fits and UNKNOWN in text:
        return _may_match(pattern, text)
    first, *between = pattern.split("*")
    if not between:
        return pattern == text
    last = between.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in between:  # the first place of each leaves the most to the next
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _may_match(pattern: str, text: str) -> bool:
    """Whether something in the unknown places makes the text one that the pattern means.

    Linear in the text: the places in the pattern that a reading may have reached are the bits of one number.
    """
    if len(text) > _MAX_DOUBTFUL:
        return True
    stars, chars, end = _compiled(pattern)

    def skipped(places: int) -> int:
        while (more := places | (places & stars) << 1) != places:
            places = more
        return places

    places = skipped(1)
    for char in text:
        if char == UNKNOWN:
            places = (end << 1) - (places & -places)
        else:
            places = skipped((places & chars.get(char, 0)) << 1 | places & stars)
        if not places:
            return False
    return bool(places & end)


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> tuple[int, dict[str, int], int]:
    """Where a pattern has stars, where each other character, and its end, as bits."""
    stars, chars = 0, dict[str, int]()
    for at, char in enumerate(pattern):
        if char == "*":
            stars |= 1 << at
        else:
            chars[char] = chars.get(char, 0) | 1 << at
    return stars, chars, 1 << len(pattern)


def _path_matches(pattern: str, path: str, below: bool, unknown_fits: bool = False) -> bool:
    """As `_matches`, name by name. `below`: what lies below a match belongs to it."""
    wanted, literal = _names_of(pattern)
    names = [] if path == "." else path.split("/")
    if UNKNOWN not in path and not literal.issubset(names):
        return False
    end = len(wanted)

    def skipped(places: set[int]) -> set[int]:
        for at in range(end):
            if at in places and wanted[at] == "**":
                places.add(at + 1)
        return places

    places = skipped({0})
    for name in names:
        if name == UNKNOWN and unknown_fits:  # any number of names
            places = set(range(min(places, default=end), end + 1))
            if below and end in places and wanted[-1] == "**":
                return True
            continue
        held = {at for at in places if at < end and wanted[at] == "**"}
        ahead = {at + 1 for at in places if at < end and _name_matches(wanted[at], name, unknown_fits)}
        places = skipped(held | ahead)
        if below and end in places:
            return True
    return end in places


@lru_cache(maxsize=4_096)
def _names_of(pattern: str) -> tuple[list[str], frozenset[str]]:
    """The names of a path pattern, and those of them that stand for themselves."""
    names = pattern.split("/")
    return names, frozenset(name for name in names if not any(char in name for char in "*?["))


def _name_matches(pattern: str, name: str, unknown_fits: bool) -> bool:
    if pattern == "**":
        return False
    if UNKNOWN not in name:
        return fnmatchcase(name, pattern)
    if not unknown_fits:
        return False
    return _matches("".join("*" if char in "?[]*" else char for char in pattern), name, True) or "[" in pattern


def _fits(kind: PatternKind | None, pattern: str, text: str, strict: bool, unknown_fits: bool = False) -> bool:
    """Whether a pattern means a text. `strict`: to allow it; else to restrict it, and then rather more than less."""
    if kind is PatternKind.PATH:
        return _path_matches(pattern, text, not strict, unknown_fits)
    if kind is PatternKind.DOMAIN:
        below = pattern if pattern.startswith("*.") else f"*.{pattern}"
        return any(_matches(host, text, unknown_fits) for host in {pattern, below})
    if kind is PatternKind.AGENT and not strict:  # a name that is nearly right starts the agent, too
        pattern, text = _bare(pattern), _bare(text)
    if _matches(pattern, text, unknown_fits):
        return True
    return kind is PatternKind.COMMAND and pattern.endswith(" *") and _matches(pattern[:-2], text, unknown_fits)


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum() or char in "*\0")


# ── what follows for a call ─────────────────────────────────────────────────────────────────────────────────────


def restricts(rule: PermissionRule, kind: PatternKind | None, texts: Sequence[str]) -> bool | None:
    """Whether a rule that denies or asks is about a call that may be named by any of these texts; None: it may be."""
    pattern = rule.pattern
    if pattern is None or kind is None:
        return True  # a pattern on a tool that takes none limits the whole tool
    if any(_fits(kind, pattern, text, strict=False) for text in texts):
        return True
    doubtful = any(UNKNOWN in text and _fits(kind, pattern, text, strict=False, unknown_fits=True) for text in texts)
    return None if doubtful else False


def allows(rule: PermissionRule, kind: PatternKind | None, texts: Sequence[str]) -> bool:
    """Whether a rule that allows is about a call that has these names, each of which means just this call."""
    if rule.pattern is None:
        return True
    return kind is not None and any(_fits(kind, rule.pattern, text, strict=True) for text in texts)


def rule_for(tool: str, kind: PatternKind | None, texts: Sequence[str]) -> PermissionRule | None:
    """A rule that allows just these calls; None where none can say it."""
    if kind is None:
        return PermissionRule(effect=Verdict.ALLOW, tool=tool)
    text = texts[0] if texts else ""
    if kind is PatternKind.PATH and text.endswith(UNKNOWN):
        text = text.removesuffix(UNKNOWN)
        return None if _SPECIAL.intersection(text) else _suggested(tool, f"{text}**", f"./{text}**")
    if not text or text != text.strip() or _SPECIAL.intersection(text):
        return None
    shown = {PatternKind.PATH: f"./{text}", PatternKind.DOMAIN: f"domain:{text}"}
    return _suggested(tool, text, shown.get(kind, text))


def _suggested(tool: str, pattern: str, shown: str) -> PermissionRule:
    return PermissionRule(effect=Verdict.ALLOW, tool=tool, pattern=pattern, text=f"{tool}({shown})")
