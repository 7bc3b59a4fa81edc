"""The hooks that an agent file brings along, in the form of Claude Code: an event, what it is about, whom to ask.

Nothing is left out and nothing guessed: an agent that goes on without one of its guards is not the one that was
written. Knows how hooks are written; whether one can be asked is told by whoever asks them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.agent.definition import OwnHook
from app.definitions.importpaths import TRUST
from app.definitions.reading import Reading, as_real, as_text, is_unset, shown, too_many
from app.definitions.toolnames import squeezed

MAX_HOOKS = 50  # of one definition; each call of a tool may ask all of them
MAX_SECONDS = 600.0
TIMEOUT_S = 30.0
_UNREAD = "the hook is not asked"
_START, _STOP = "OnSubagentStart", "OnSubagentStop"
_POINTS: Mapping[str, str] = {
    "pretooluse": "PreToolUse",
    "posttooluse": "PostToolUse",
    "subagentstart": _START,
    "onsubagentstart": _START,
    "subagentstop": _STOP,
    "onsubagentstop": _STOP,
    "stop": _STOP,  # an agent's own end, where it is a subagent
}
_EVENTS = "PreToolUse, PostToolUse, SubagentStart, SubagentStop and Stop"
_GROUP = frozenset({"matcher", "hooks"})
_KINDS: Mapping[str, frozenset[str]] = {"command": frozenset({"command"}), "http": frozenset({"url", "secretenv"})}
_SHARED = frozenset({"type", "timeout", "onfailure", "statusmessage"})  # the last is a text for people: not shown here
_SPELLED = {"secretenv": "secret_env"}
_FAILURES = frozenset({"block", "allow"})


def read_hooks(reading: Reading, key: str, value: Any) -> tuple[OwnHook, ...] | None:
    """All hooks of a `hooks` map, in its order; none after an error was stated, and none of a file that is not
    trusted, which is said."""
    if reading.strict:
        if value:
            reading.error(
                key,
                f"{key} are asked for agent files of the operator only: leave them out, or ask the operator for an "
                "agent file that has them",
            )
        return None
    if not reading.trusted:
        text = f"{key} are asked for agent files in a trusted directory only: {TRUST}"
        reading.warn(key, text, "until then none of them is")
        return None
    if not isinstance(value, dict):
        reading.error(key, f"{key} must be a map of events, not {shown(value)}")
        return None
    found: list[OwnHook] = []
    counted: dict[str, int] = {}
    with reading.limiting():
        for event, groups in value.items():
            point = _POINTS.get(squeezed(str(event)))
            if point is None:
                reading.error(f"{key}.{event}", f"{key}.{event}: no such hooks are asked here; there are {_EVENTS}")
                continue
            for place, matcher, handler in _handlers(reading, f"{key}.{event}", groups):
                counted[point] = counted.get(point, 0) + 1
                hook = _hook(reading, place, f"{point}/{counted[point]}", point, matcher, handler)
                found += [] if hook is None else [hook]
    if reading.failed or too_many(reading, key, len(found), MAX_HOOKS, "hooks"):
        return None
    return tuple(found)


def _handlers(reading: Reading, place: str, groups: Any) -> Iterator[tuple[str, str | None, Mapping[Any, Any]]]:
    """What is asked for an event: the place, which tools it is about, the entry."""
    if not isinstance(groups, list):
        reading.error(place, f"{place} must be a list of maps with hooks, not {shown(groups)}")
        return
    for index, group in enumerate(groups):
        at = f"{place}[{index}]"
        given = _known(reading, at, group, _GROUP, "matcher and hooks") if isinstance(group, dict) else {}
        handlers = given.get("hooks")
        if not isinstance(handlers, list) or not handlers:
            reading.error(at, f"{at} must be a map with a list of hooks, and a matcher if it is about some tools only")
            continue
        matcher = given.get("matcher")
        text = None if matcher is None else as_text(reading, f"{at}.matcher", matcher)
        for number, handler in enumerate(handlers):
            inner = f"{at}.hooks[{number}]"
            if isinstance(handler, dict):
                yield inner, text, handler
            else:
                reading.error(inner, f"{inner} must be a map with a type, not {shown(handler)}")


def _hook(
    reading: Reading, place: str, label: str, point: str, matcher: str | None, handler: Mapping[Any, Any]
) -> OwnHook | None:
    kind = str(handler.get("type", "")).strip().lower()
    own = _KINDS.get(kind)
    if own is None:
        reading.error(f"{place}.type", f"{place}.type must be command or http, not {shown(handler.get('type'))}")
        return None
    before = len(reading.found)
    told = f"type, timeout, on_failure, {' and '.join(_SPELLED.get(name, name) for name in sorted(own))}"
    given = _known(reading, place, handler, _SHARED | own, told)
    hook = OwnHook(
        label=label,
        point=point,
        matcher=matcher,
        timeout_s=_timeout(reading, f"{place}.timeout", given.get("timeout")),
        on_failure=_on_failure(reading, f"{place}.on_failure", given.get("onfailure")),
        command=_text(reading, f"{place}.command", given.get("command"), needed=kind == "command"),
        url=_text(reading, f"{place}.url", given.get("url"), needed=kind == "http"),
        secret_env=_text(reading, f"{place}.secret_env", given.get("secretenv"), needed=False),
    )
    if len(reading.found) > before:
        return None
    problem = reading.checks.hook(hook)
    if problem is None:
        return hook
    reading.error(place, f"{place}: {problem}")
    return None


def _known(reading: Reading, place: str, given: Mapping[Any, Any], known: frozenset[str], told: str) -> dict[str, Any]:
    """What is set, by squeezed names. Whoever leaves out what he does not know may ask where nothing was to be asked,
    or not ask at all."""
    found: dict[str, Any] = {}
    for key, item in given.items():
        name = squeezed(str(key))
        if name not in known:
            reading.error(f"{place}.{key}", f"{place}.{key} is not known here; there are {told}")
        elif name in found:
            reading.error(f"{place}.{key}", f"{place}.{key} is given twice, keep one of them")
        elif not is_unset(item):
            found[name] = item
    return found


def _text(reading: Reading, place: str, value: Any, *, needed: bool) -> str | None:
    text = None if value is None else as_text(reading, place, value)
    if text is None and needed:
        reading.error(place, f"{place} is missing")
    return text


def _timeout(reading: Reading, place: str, value: Any) -> float:
    seconds = None if value is None else as_real(reading, place, value, 0.001, MAX_SECONDS, _UNREAD)
    return TIMEOUT_S if seconds is None else seconds


def _on_failure(reading: Reading, place: str, value: Any) -> str | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    if value is None or word in _FAILURES:
        return word or None
    reading.error(place, f"{place} must be block or allow, not {shown(value)}")
    return None
