"""One permission rule: what it is about, and whether it speaks of a call.

Knows neither what wins (`permissions.py`) nor how a rule is written (`definitions/rules.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.agent.rule_patterns import UNKNOWN, PatternKind, fits, is_known, may_fit, star_matches

__all__ = [
    "AGENT", "COMMAND", "FETCH", "READERS", "UNKNOWN", "WRITERS", "PatternKind", "PermissionRule", "PermissionRules",
    "Scope", "Verdict", "allows", "covers", "leads_to", "lies_in", "pattern_kind", "restricts", "rule_for",
    "surely_restricts",
]  # fmt: skip

AGENT = "Agent"  # in a rule: every tool that starts agents
COMMAND = "run_command"
FETCH = "web_fetch"
# As people write rules about them (spec 8.4); a suggested rule is one that a person could have written.
_WRITTEN = {
    COMMAND: "Bash",
    FETCH: "WebFetch",
    "read_file": "Read",
    "glob": "Glob",
    "grep": "Grep",
    "write_file": "Write",
    "edit_file": "Edit",
}
READERS = frozenset({"read_file", "glob", "grep"})
WRITERS = frozenset({"write_file", "edit_file"})
_MAX_SUGGESTED = 900  # characters of a suggested pattern; the whole rule must be one that can be read again
_SPECIAL = frozenset("*?[]\\(),\n\r\0")  # what a suggested rule could not say literally


class Verdict(StrEnum):
    """What holds for a call; in a rule: what it asks for. The order is that of strictness."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


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
    if name == "read_file" and tool == "grep" and rule.effect is not Verdict.ALLOW:
        return True  # it shows what files hold
    if rule.pattern is not None:
        return (name == "read_file" and tool in READERS) or (name in WRITERS and tool in WRITERS)
    if not name.startswith("mcp__"):
        return False
    return tool.startswith(f"{name}__") if name.count("__") == 1 else "*" in name and star_matches(name, tool)


# ── what follows for a call ─────────────────────────────────────────────────────────────────────────────────────


def restricts(rule: PermissionRule, kind: PatternKind | None, texts: Sequence[str]) -> bool | None:
    """Whether a rule that denies or asks is about a call that may be named by any of these texts; None: it may be."""
    if surely_restricts(rule, kind, texts):
        return True
    pattern = rule.pattern
    if pattern is None or kind is None:
        return False
    return None if any(not is_known(text) and may_fit(kind, pattern, text) for text in texts) else False


def surely_restricts(rule: PermissionRule, kind: PatternKind | None, texts: Sequence[str]) -> bool:
    """As `restricts`, without what may be: that takes longer to find out."""
    pattern = rule.pattern
    if pattern is None or kind is None:
        return True  # a pattern on a tool that takes none limits the whole tool
    return any(fits(kind, pattern, text, strict=False) for text in texts)


def allows(rule: PermissionRule, kind: PatternKind | None, texts: Sequence[str]) -> bool:
    """Whether a rule that allows is about a call that has these names, each of which means just this call."""
    if rule.pattern is None:
        return True
    return kind is not None and any(fits(kind, rule.pattern, text, strict=True) for text in texts)


def lies_in(path: str, directory: str) -> bool:
    """Whether a resolved path is this directory or file, or lies below it."""
    return directory in (".", path) or path.startswith(f"{directory}/")


def leads_to(answer: PermissionRule, tool: str, path: str) -> bool:
    """Whether a person's answer allows a search to see this, or something below it, which only a walk through it
    finds."""
    if not covers(answer, tool, False):
        return False
    pattern = answer.pattern
    return allows(answer, PatternKind.PATH, (path,)) or (pattern is not None and pattern.startswith(f"{path}/"))


def rule_for(tool: str, kind: PatternKind | None, texts: Sequence[str]) -> PermissionRule | None:
    """A rule that allows just these calls; None where none can say it."""
    if kind is None:
        return PermissionRule(effect=Verdict.ALLOW, tool=tool)
    text = texts[0] if texts else ""
    if kind is PatternKind.PATH and text.endswith(UNKNOWN):
        text = text.removesuffix(UNKNOWN)
        below = not text or (text.endswith("/") and _is_literal(text[:-1], kind))
        return _suggested(tool, f"{text}**", f"./{text}**") if below else None
    if not _is_literal(text, kind):
        return None
    shown = {PatternKind.PATH: f"./{text}", PatternKind.DOMAIN: f"domain:{text}"}
    return _suggested(AGENT if kind is PatternKind.AGENT else tool, text, shown.get(kind, text))


def _is_literal(text: str, kind: PatternKind) -> bool:
    """Whether a rule with this text means just this text, also when it was written down and read again."""
    plain = text == text.strip() and text.isprintable() and not _SPECIAL.intersection(text)
    if kind is PatternKind.PATH and ("{" in text or {"", ".", ".."}.intersection(text.split("/"))):
        return False
    if kind is PatternKind.DOMAIN and not all(_is_label(label) for label in text.split(".")):
        return False
    return plain and 0 < len(text) <= _MAX_SUGGESTED


def _is_label(text: str) -> bool:
    """Whether this may stand between the dots of a host."""
    return text.isascii() and text == text.strip("-") != "" and all(char.isalnum() or char in "-_" for char in text)


def _suggested(tool: str, pattern: str, shown: str) -> PermissionRule:
    text = f"{_WRITTEN.get(tool, tool)}({shown})"
    return PermissionRule(effect=Verdict.ALLOW, tool=tool, pattern=pattern, text=text)
