"""The keys of a definition that say what it may delegate: `handoff` and `surfaces`.

What cannot be read here is an error and not a default, since each of these keys limits something.
"""

from collections.abc import Callable
from typing import Any

from app.agent.definition import OnProblem, PolicyFields, Surface, SurfaceKind
from app.definitions.reading import Reading, as_flag, as_integer, as_names, is_scalar, is_unset, shown, unique
from app.definitions.toolnames import squeezed

MAX_TIMEOUT_MS = 7 * 24 * 3_600_000
MAX_DEPTH = 100
SURFACES = frozenset({SurfaceKind.PER_AGENT, SurfaceKind.DISPATCH})  # what this version shows
_UNREAD = "the policy is not used"


def read_policy(reading: Reading, key: str, value: Any) -> PolicyFields | None:
    """The fields of a `handoff` map that are set (spec 4.1)."""
    if not isinstance(value, dict):
        reading.error(key, f"{key} must be a map of policy fields, not {shown(value)}")
        return None
    reading.guarded = True
    fields: dict[str, Any] = {}
    for name, item in value.items():
        place = f"{key}.{name}"
        entry = _POLICY.get(squeezed(name))
        if entry is not None:
            attribute, read = entry
            found = read(reading, place, item)
            if found is not None:
                fields[attribute] = found
        elif squeezed(name) in _POLICY_LATER:
            if not _is_nothing(reading.plain(item)):
                reading.later(place, f"{place} is not supported yet")
        else:
            reading.error(place, f"{place} is no field of a policy; there are {', '.join(_NAMES)}")
    reading.guarded = False
    return PolicyFields(**fields)


def read_surfaces(reading: Reading, key: str, value: Any) -> tuple[Surface, ...] | None:
    """The surfaces that a definition asks for: kinds, or maps of `kind` and `agents`. One that this version does not
    have is left out, which shows less, not more."""
    if isinstance(value, str):
        value = list(unique(value.strip("[] ").split(",")))
    if not isinstance(value, list):
        reading.error(key, f"{key} must be a list of {_kinds()}, not {shown(value)}")
        return None
    surfaces: list[Surface] = []
    for index, item in enumerate(value):
        surface = _surface(reading, f"{key}[{index}]", item)
        if surface is not None and surface not in surfaces:
            surfaces.append(surface)
    return tuple(surfaces)


def _surface(reading: Reading, place: str, item: Any) -> Surface | None:
    parts = item if isinstance(item, dict) else {"kind": item}
    kind = parts.get("kind")
    agents = None if is_unset(parts.get("agents")) else as_names(reading, f"{place}.agents", parts["agents"])
    for name in parts:
        if name in ("templates", "heading"):
            reading.later(f"{place}.{name}", f"{place}.{name} is not supported yet")
        elif name not in ("kind", "agents"):
            reading.error(f"{place}.{name}", f"{place}.{name} is no field of a surface; there are kind and agents")
    text = kind.strip().lower().replace("-", "_") if isinstance(kind, str) else ""
    if text not in SurfaceKind.__members__.values():
        reading.error(place, f"{place} must be one of {_kinds()}, not {shown(kind)}")
        return None
    if text not in SURFACES:
        reading.later(place, f"surface {text!r} comes in a later version")
        return None
    return Surface(kind=SurfaceKind(text), agents=agents)


def _kinds() -> str:
    return ", ".join(sorted(SURFACES))


# ── fields of a policy ──────────────────────────────────────────────────────────────────────────────────────────


def _enabled(reading: Reading, key: str, value: Any) -> bool | None:
    return None if is_unset(value) else as_flag(reading, key, value, _UNREAD)


def _timeout(reading: Reading, key: str, value: Any) -> int | None:
    return None if is_unset(value) else as_integer(reading, key, value, 0, MAX_TIMEOUT_MS, _UNREAD)


def _depth(reading: Reading, key: str, value: Any) -> tuple[int | None] | None:
    if is_unset(value):
        return (None,)
    depth = as_integer(reading, key, value, 0, MAX_DEPTH, _UNREAD)
    return None if depth is None else (depth,)


def _names(reading: Reading, key: str, value: Any) -> tuple[tuple[str, ...] | None] | None:
    if is_unset(value):
        return (None,)
    names = as_names(reading, key, value)
    return None if names is None else (names,)


def _on_problem(reading: Reading, key: str, value: Any) -> OnProblem | None:
    if is_unset(value):
        return None
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in OnProblem.__members__.values():
        return OnProblem(text)
    if text == "fallback_to_primary" or (isinstance(value, dict) and len(value) == 1 and set(value) <= _FALLBACKS):
        reading.later(key, f"{key}: a fallback is not supported yet; fail and report are")
    else:
        reading.error(key, f"{key} must be fail or report, not {shown(value)}")
    return None


def _is_nothing(value: Any) -> bool:
    return value in (None, 0, "") if is_scalar(value) else not value


_FALLBACKS = frozenset({"agent", "model", "answer"})
_NAMES = ("enabled", "max_depth", "timeout_ms", "allowed_tools", "denied_tools", "on_denied", "on_error")
_READERS: tuple[Callable[[Reading, str, Any], Any], ...] = (
    _enabled,
    _depth,
    _timeout,
    _names,
    _names,
    _on_problem,
    _on_problem,
)
_POLICY = {squeezed(name): (name, read) for name, read in zip(_NAMES, _READERS, strict=True)}
_POLICY_LATER = frozenset({"maxretries", "inputfilter", "retry", "budget", "limits", "deadlinems"})
