"""Keys with which other services loosen or tighten an agent as a whole: `permissionMode`, `readonly`, `disable`.

None of them ever widens: what would, is said to grant nothing. Knows no rule of how calls are judged.
"""

from enum import StrEnum
from typing import Any

from app.agent.permission_rules import PermissionRule, PermissionRules, Scope, Verdict
from app.definitions.reading import Reading, as_flag, shown
from app.definitions.toolnames import squeezed

READING = frozenset({"read_file", "glob", "grep", "web_fetch", "load_skill", "read_artifact"})
_CHANGING = frozenset({"write_file", "edit_file", "run_command", "note", "mcp__*"})
_ASKED = ("run_command", "write_file", "edit_file")


class Mode(StrEnum):
    """What such a key comes to."""

    READ_ONLY = "read_only"
    ASK_ALL = "ask_all"
    ASK_RISKY = "ask_risky"


_MODES = {"plan": Mode.READ_ONLY, "alwaysconfirm": Mode.ASK_ALL, "confirmrisky": Mode.ASK_RISKY}
_GRANTING = {  # of other services, and what holds here instead
    "acceptedits": "whoever has edit_file may use it unless a rule asks or denies",
    "auto": "rules say what is asked",
    "bypasspermissions": "rules hold for every agent",
    "dontask": "what a rule asks, a person is asked; without an answer it is not done",
    "neverconfirm": "rules say what is asked",
}


def read_permission_mode(reading: Reading, key: str, value: Any) -> Mode | None:
    """Modes of Claude Code and OpenHands."""
    name = squeezed(value) if isinstance(value, str) else ""
    if name in ("", "default"):
        return None
    if name in _MODES:
        return _MODES[name]
    if name in _GRANTING:
        reading.later(key, f"{key} {value} grants nothing here: {_GRANTING[name]}")
    else:
        reading.warn(key, f"{key} {shown(value)} is no mode that is known", "it changes nothing")
    return None


def read_read_only(reading: Reading, key: str, value: Any) -> Mode | None:
    """true: only tools that change nothing."""
    return Mode.READ_ONLY if as_flag(reading, key, value, "it changes nothing") else None


def read_disable(reading: Reading, key: str, value: Any) -> bool | None:
    """true: the file's agent is not to be used."""
    flag = as_flag(reading, key, value, "the agent is used")
    if flag and reading.strict:
        reading.error(key, f"{key}: an agent that is sent is one to be used; to be without it, delete it")
    return flag or None


def denied_by(mode: Mode | None, known: frozenset[str] | None) -> tuple[str, ...]:
    """The tools that a mode takes away: all but those that are known to only read."""
    return tuple(sorted(((known or frozenset()) | _CHANGING) - READING)) if mode is Mode.READ_ONLY else ()


def under_mode(rules: PermissionRules | None, mode: Mode | None) -> PermissionRules | None:
    """The rules of a definition, with those that a mode comes to. Whoever set a default asks or denies by it already,
    or said that nothing is to be asked, which the mode contradicts: then it is asked."""
    if mode is None or mode is Mode.READ_ONLY:
        return rules
    own = () if rules is None else rules.rules
    default = None if rules is None else rules.default
    if mode is Mode.ASK_ALL:
        default = Verdict.DENY if default is Verdict.DENY else Verdict.ASK
    else:
        own = (*own, *(PermissionRule(effect=Verdict.ASK, tool=tool) for tool in _ASKED))
    return PermissionRules(scope=Scope.DEFINITION, rules=own, default=default)
