"""Permission rules as people write them: `Bash(git *)`, `Read(./docs/**)`, `mcp__server`, in our tool names or those of
Claude Code (spec 8.4).

What cannot be read never allows more: over the API it is refused; in a file a restriction then takes its whole tool,
and an allowance asks for it. Knows how rules are written, not what follows from them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.agent.permission_rules import AGENT, PatternKind, PermissionRule, Verdict, pattern_kind
from app.agent.permissions import PermissionRules, Scope
from app.definitions.reading import Reading, is_unset, shown, split_at_commas
from app.definitions.toolnames import (
    BUILT_IN,
    OPTIONAL,
    Denial,
    Grant,
    is_delegation,
    mapped,
    read_denied,
    read_tools,
)

MAX_RULES = 500  # of one scope: each call is judged by all of them
MAX_RULE_CHARS = 1_000
MAX_CHARS = 50_000  # of all patterns of one scope
_TOOL = re.compile(r"[A-Za-z0-9_.*-]{1,128}")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_EFFECTS = {verdict.value: verdict for verdict in Verdict}
_FORMS = "a map of allow, ask and deny with lists of rules, and default"


class _Unusable(Exception):
    """A rule cannot be used; the message says why, `tool` what it is about if that is known."""

    def __init__(self, message: str, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


def read_rules(reading: Reading, key: str, value: Any, scope: Scope) -> PermissionRules | None:
    """A `permissions` map: `allow`, `ask`, `deny` with rules, and `default`. In files also opencode's form, a map of
    tools to a verdict or to a map of patterns to verdicts."""
    if not isinstance(value, dict):
        reading.error(key, f"{key} must be {_FORMS}, not {shown(value)}")
        return None
    rules: list[PermissionRule] = []
    default: Verdict | None = None
    for name, item in value.items():
        place, word = f"{key}.{name}", str(name).strip().lower()
        if word == "default":
            default = None if is_unset(item) else _verdict(reading, place, item)
        elif word in _EFFECTS:
            rules += _listed(reading, place, item, _EFFECTS[word])
        elif reading.strict:
            reading.error(place, f"{place} is no field of permissions; it must be {_FORMS}")
        else:
            rules += _by_tool(reading, place, str(name), item)
    if len(rules) > MAX_RULES:
        reading.error(key, f"{key} has {len(rules)} rules; at most {MAX_RULES} are accepted")
        return None
    if (chars := sum(len(rule.pattern or "") for rule in rules)) > MAX_CHARS:
        reading.error(key, f"{key} has patterns of {chars:,} characters; at most {MAX_CHARS:,} are accepted")
        return None
    return PermissionRules(scope=scope, rules=tuple(dict.fromkeys(rules)), default=default)


def read_definition_rules(reading: Reading, key: str, value: Any) -> PermissionRules | None:
    """Those of a definition; None where they say nothing."""
    found = read_rules(reading, key, value, Scope.DEFINITION)
    return found if found is not None and (found.rules or found.default is not None) else None


def read_grant(reading: Reading, key: str, value: Any) -> Grant | None:
    """The whitelist of a definition, with the rules that its patterns come to."""
    grant = read_tools(reading, key, value)
    if grant is None or not grant.patterns:
        return grant
    limits = [rule for text in grant.patterns for rule in read_entry(reading, key, text, Verdict.ALLOW)]
    return replace(grant, limits=tuple(dict.fromkeys(limits)))


def read_denial(reading: Reading, key: str, value: Any) -> Denial:
    """What a definition takes away, with the rules that its patterns come to."""
    denial = read_denied(reading, key, value)
    limits = [rule for text in denial.patterns for rule in read_entry(reading, key, text, Verdict.DENY)]
    return replace(denial, limits=tuple(dict.fromkeys(limits)))


def rules_mapping(rules: PermissionRules) -> dict[str, Any]:
    """The JSON form; `read_rules` reads it back."""
    fields: dict[str, Any] = {}
    for verdict in Verdict:
        texts = dict.fromkeys(str(rule) for rule in rules.rules if rule.effect is verdict)
        if texts:
            fields[verdict.value] = list(texts)
    return fields | ({} if rules.default is None else {"default": rules.default.value})


def read_rule(text: str, effect: Verdict, known: Iterable[str] | None = None) -> list[PermissionRule]:
    """The rules that a text stands for: one, or one for each agent in `Agent(a, b)`. `known`: names of tools here.

    Raises ValueError, saying what is wrong and how it is written.
    """
    try:
        return _rules_of(text, effect, known)
    except _Unusable as error:
        raise ValueError(str(error)) from None


def read_call(text: str, known: Iterable[str] | None = None) -> tuple[str, dict[str, Any]]:
    """A tool of ours and its arguments from a call that is written like a rule: `Bash(git push)`, `Read(docs/a.md)`.

    Raises ValueError for what is no call.
    """
    name, bracket, inner = text.strip().partition("(")
    name = name.strip()
    if _TOOL.fullmatch(name) is None or "*" in name or (bracket and not inner.endswith(")")):
        raise ValueError(f"{shown(text)} is no call: it is a tool, or a tool with its argument, as in Bash(git push)")
    tool = mapped(name, known)
    kind, given = pattern_kind(tool, is_delegation(tool)), inner[:-1] if bracket else None
    if given is None:
        return tool, {}
    if kind is None:
        raise ValueError(f"{shown(text)}: rules look at no argument of {tool}; write {tool} alone")
    if kind is PatternKind.DOMAIN:
        host = given.removeprefix("domain:")
        return tool, {"url": host if "://" in host else f"https://{host}/"}
    names = {PatternKind.COMMAND: ("command",), PatternKind.PATH: ("path",), PatternKind.AGENT: ("name", "agent_type")}
    return tool, dict.fromkeys(names[kind], given)


# ── lists and maps ──────────────────────────────────────────────────────────────────────────────────────────────


def _listed(reading: Reading, place: str, value: Any, effect: Verdict) -> list[PermissionRule]:
    if is_unset(value):
        return []
    if not reading.strict and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)  # a flow list cuts `Agent(a, b)` in two
    if not reading.strict and isinstance(value, str):
        value = split_at_commas(value)
    if not isinstance(value, list):
        reading.error(place, f"{place} must be a list of rules such as Bash(git *), not {shown(value)}")
        return []
    found: list[PermissionRule] = []
    for index, item in enumerate(value):
        at = f"{place}[{index}]"
        if not isinstance(item, str):
            reading.error(at, f"{at} must be a rule such as Bash(git *), not {shown(item)}")
        elif item.strip() or reading.strict:
            found += read_entry(reading, at, str(item), effect)
    return found


def read_entry(reading: Reading, place: str, text: str, effect: Verdict) -> list[PermissionRule]:
    """The rules of one entry of a list, or what holds in place of one that cannot be used."""
    try:
        found = _rules_of(text, effect, reading.known_tools)
    except _Unusable as error:
        stricter = _instead(error.tool, effect, text)
        if reading.strict or stricter is None:
            reading.error(place, f"{place}: {error}")
            return []
        then = f"the whole tool {stricter.tool} is {'denied' if stricter.effect is Verdict.DENY else 'asked for'}"
        reading.warn(place, f"{place}: {error}", then)
        return [stricter]
    for rule in found:
        if not _is_known(rule.tool, reading):
            reading.remark(place, f"{place}: there is no tool {rule.tool} here; the rule is kept")
    return found


def _instead(tool: str, effect: Verdict, text: str) -> PermissionRule | None:
    """What holds in place of a rule that cannot be used. An allowance that went missing would leave its tool to the
    default, which may be to allow everything."""
    if not tool:
        return None
    stricter = Verdict.ASK if effect is Verdict.ALLOW else effect
    return PermissionRule(effect=stricter, tool=tool, text=f"{tool} (for {shown(text)})")


def _by_tool(reading: Reading, place: str, name: str, item: Any) -> list[PermissionRule]:
    patterns: Mapping[Any, Any] = item if isinstance(item, dict) else {"*": item}
    found: list[PermissionRule] = []
    for pattern, word in patterns.items():
        at = f"{place}.{pattern}" if isinstance(item, dict) else place
        verdict = _verdict(reading, at, word)
        if verdict is not None:
            found += read_entry(
                reading, at, name if str(pattern) == "*" else f"{name}({_spelled(name, pattern)})", verdict
            )
    if len({rule.effect for rule in found}) > 1:
        reading.remark(place, f"{place}: deny wins over ask and ask over allow here, whatever the order")
    return found


def _spelled(name: str, pattern: Any) -> str:
    return f"domain:{pattern}" if mapped(name) == "web_fetch" and ":" not in str(pattern) else str(pattern)


def _verdict(reading: Reading, place: str, value: Any) -> Verdict | None:
    found = _EFFECTS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        reading.error(place, f"{place} must be allow, ask or deny, not {shown(value)}")
    return found


def _is_known(tool: str, reading: Reading) -> bool:
    known = reading.known_tools
    if known is None or "*" in tool or tool.startswith("mcp__") or is_delegation(tool):
        return True
    return tool in known or tool in BUILT_IN | OPTIONAL or tool in reading.agent_tools


# ── one rule ────────────────────────────────────────────────────────────────────────────────────────────────────


def _rules_of(text: str, effect: Verdict, known: Iterable[str] | None) -> list[PermissionRule]:
    written = text.strip()
    name, bracket, inner = written.partition("(")
    name = name.strip()
    if _TOOL.fullmatch(name) is None or ("*" in name and not name.startswith("mcp__") and name != "*"):
        raise _Unusable(f"{shown(text)} is no rule: it begins with a tool name, as in Bash(git *) or mcp__server")
    tool = mapped(name, known)
    if len(written) > MAX_RULE_CHARS:
        raise _Unusable(f"a rule is longer than {MAX_RULE_CHARS:,} characters", tool)
    if not bracket:
        return [PermissionRule(effect=effect, tool=tool, text=written)]
    if not inner.endswith(")"):
        raise _Unusable(f"{shown(text)} has no closing bracket at its end", tool)
    inner = inner[:-1].strip()
    if not inner or not inner.isprintable():
        raise _Unusable(f"{shown(text)} has no pattern in its brackets that can be used", tool)
    kind = pattern_kind(tool, is_delegation(tool))
    if kind is None:
        raise _Unusable(f"{shown(text)}: {tool} takes no pattern; write {tool} alone", tool)
    if inner == "*" and kind is not PatternKind.PATH:
        return [PermissionRule(effect=effect, tool=tool, text=written)]
    parts = [part.strip() for part in split_at_commas(inner)] if tool == AGENT else [inner]
    if not all(parts):
        raise _Unusable(f"{shown(text)} names no agent between two commas", tool)
    return [
        PermissionRule(effect=effect, tool=tool, pattern=_pattern(kind, part, text, tool), text=written)
        for part in parts
    ]


def _pattern(kind: PatternKind, inner: str, text: str, tool: str) -> str:
    """The pattern as the kernel has it."""
    if kind is PatternKind.COMMAND:
        return f"{inner[:-2].rstrip()} *" if inner.endswith(":*") and inner != ":*" else inner
    if kind is PatternKind.PATH:
        return _path(inner, text, tool)
    if kind is PatternKind.DOMAIN:
        word, colon, host = inner.partition(":")
        host = host.strip().lower().rstrip(".")
        if not colon or word.strip().lower() != "domain" or not _HOST.fullmatch(_ascii(host)):
            raise _Unusable(f"{shown(text)}: {tool} takes domain:host, as in WebFetch(domain:example.org)", tool)
        return _ascii(host)
    return inner


def _ascii(host: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _path(inner: str, text: str, tool: str) -> str:
    """A pattern of gitignore, relative to the workspace: without a slash it holds at any depth."""
    if inner.startswith(("//", "~", "!")) or "\\" in inner or "{" in inner:
        raise _Unusable(
            f"{shown(text)}: paths are relative to the workspace, as in Read(./docs/**), and without ~, !, \\ or {{}}",
            tool,
        )
    anchored = "/" in inner.rstrip("/")
    names = [name for name in inner.split("/") if name not in ("", ".")]
    if ".." in names:
        raise _Unusable(f"{shown(text)}: '..' leads out of the workspace, where no tool reaches", tool)
    if not names or inner.endswith("/"):
        names.append("**")
    if any("**" in name and name != "**" for name in names):
        raise _Unusable(f"{shown(text)}: ** stands for whole directories, as in Read(./docs/**/*.md)", tool)
    return "/".join(names if anchored or names[0] == "**" else ["**", *names])
