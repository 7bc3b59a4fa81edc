"""The `surfaces` of a definition or session: in which shapes delegation is shown, to whom, in which words (spec 3).

Knows which texts each shape has; how they are used is the kernel's business.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.definition import Surface, SurfaceKind
from app.definitions.reading import Plain, Reading, as_names, as_text, is_flag, is_unset, shown, too_many, unique

TEMPLATES: Mapping[SurfaceKind, tuple[str, ...]] = {
    SurfaceKind.PER_AGENT: ("per_agent",),
    SurfaceKind.TASK: ("execute_task", "get_task_output", "cancel_task", "list_tasks"),
    SurfaceKind.DISPATCH: ("dispatch",),
    SurfaceKind.SUBAGENT: ("subagent", "heading", "activity", "conclusion"),
}
_MAY_BE_OFF = frozenset({"heading", "activity", "conclusion"})
MAX_SURFACES = 64  # of one list: the four kinds in many words; each is compared with the others, in every run
_PARTS = ("kind", "agents", "templates", "heading")


def read_surfaces(reading: Reading, key: str, value: Any) -> tuple[Surface, ...] | None:
    """Kinds, or maps of `kind`, `agents`, `templates` and `heading`, which stands for `templates.heading`.

    What cannot be read is an error and not a default, since a surface limits who may be asked.
    """
    if isinstance(value, str):
        value = list(unique(value.strip("[] ").split(",")))
    if not isinstance(value, list):
        reading.error(key, f"{key} must be a list of {_kinds()}, not {shown(value)}")
        return None
    if too_many(reading, key, len(value), MAX_SURFACES, "surfaces"):
        return None
    surfaces: list[Surface] = []
    with reading.limiting():
        for index, item in enumerate(value):
            surface = _surface(reading, f"{key}[{index}]", item)
            if surface is not None and surface not in surfaces:
                surfaces.append(surface)
    return tuple(surfaces)


def surface_mapping(surface: Surface) -> dict[str, Any]:
    """The JSON form of a surface; `read_surfaces` reads it back."""
    fields: dict[str, Any] = {"kind": surface.kind.value}
    if surface.agents is not None:
        fields["agents"] = list(surface.agents)
    if surface.templates:
        fields["templates"] = dict(surface.templates)
    return fields


def _surface(reading: Reading, place: str, item: Any) -> Surface | None:
    parts = item if isinstance(item, dict) else {"kind": item}
    kind = parts.get("kind")
    text = kind.strip().lower().replace("-", "_") if isinstance(kind, str) else ""
    for name in parts:
        if name not in _PARTS:
            reading.error(f"{place}.{name}", f"{place}.{name} is no field of a surface; there are {', '.join(_PARTS)}")
    agents = None if is_unset(parts.get("agents")) else as_names(reading, f"{place}.agents", parts["agents"])
    if text not in SurfaceKind.__members__.values():
        reading.error(place, f"{place} must be one of {_kinds()}, not {shown(kind)}")
        return None
    found = SurfaceKind(text)
    return Surface(kind=found, agents=agents, templates=_templates(reading, place, found, parts))


def _templates(reading: Reading, place: str, kind: SurfaceKind, parts: Mapping[str, Any]) -> dict[str, str | None]:
    given = parts.get("templates")
    if is_unset(given):
        given = {}
    if not isinstance(given, dict):
        reading.error(f"{place}.templates", f"{place}.templates must be a map of texts, not {shown(given)}")
        return {}
    texts = {str(name): (f"{place}.templates.{name}", value) for name, value in given.items()}
    if "heading" in parts:
        if "heading" in texts:
            reading.error(f"{place}.heading", f"{place}.heading and templates.heading are the same; keep one of them")
        texts["heading"] = (f"{place}.heading", parts["heading"])
    found: dict[str, str | None] = {}
    for name, (at, value) in texts.items():
        if name not in TEMPLATES[kind]:
            names = ", ".join(TEMPLATES[kind])
            reading.error(at, f"{at} is no text of the surface {kind.value}; there are {names}")
        elif name in _MAY_BE_OFF and _is_off(value):
            found[name] = None
        elif not is_unset(value):
            text = _text(reading, at, value)
            if text is not None:
                found[name] = text
    return found


def _is_off(value: Any) -> bool:
    """Null, false or an empty text; in a file also the other words for no, unless they stand in quotes."""
    if value is None or value is False or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, Plain) and (is_unset(value) or is_flag(value) is False)


def _text(reading: Reading, at: str, value: Any) -> str | None:
    if isinstance(value, str) and not value.strip():
        reading.error(at, f"{at} is empty: a tool needs a description; leave it out to keep the usual one")
        return None
    return as_text(reading, at, value, strip=False)


def _kinds() -> str:
    return ", ".join(sorted(SurfaceKind))
