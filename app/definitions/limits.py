"""Maps of limits: what policies and budgets share, and budgets themselves (spec 4.8).

What cannot be read here is an error and not a default: a limit that was misspelt must not be no limit.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from app.agent.policy import BudgetLimits
from app.definitions.reading import Reading, as_integer, as_real, is_unset, shown
from app.definitions.toolnames import squeezed

MAX_COUNT = 2**53 - 1  # the largest whole number that JSON carries unchanged everywhere
MAX_MS = 7 * 24 * 3_600_000
_MICROS = 1_000_000
_UNREAD = "the limit is not used"
_CURRENCY = re.compile(r"[A-Za-z]{3}", re.ASCII)

Reader = Callable[[Reading, str, Any], Any]


def read_entries(
    reading: Reading, key: str, value: Any, readers: Mapping[str, tuple[str, Reader]], kind: str
) -> dict[str, Any] | None:
    """The entries of a map that are set, by attribute. `readers`: by squeezed key; `kind` names the map in errors."""
    if not isinstance(value, dict):
        reading.error(key, f"{key} must be a map of {kind} fields, not {shown(value)}")
        return None
    found: dict[str, Any] = {}
    seen: dict[str, str] = {}
    with reading.limiting():
        for name, item in value.items():
            place = f"{key}.{name}"
            attribute, read = readers.get(squeezed(str(name)), ("", None))
            if read is None:
                names = ", ".join(dict.fromkeys(known for known, _ in readers.values()))
                reading.error(place, f"{place} is no field of a {kind}; there are {names}")
            elif attribute in seen:
                reading.error(place, f"{place} is given twice (first as {seen[attribute]}), keep one of them")
            else:
                seen[attribute] = str(name)
                entry = read(reading, place, item)
                if entry is not None:
                    found[attribute] = entry
    return found


def read_budget(reading: Reading, key: str, value: Any) -> BudgetLimits | None:
    """A `budget` map: each limit a whole number from 1, null for none."""
    found = read_entries(reading, key, value, _BUDGET, "budget")
    if found is None:
        return None
    if "currency" in found and "cost_micros" not in found:
        reading.error(f"{key}.currency", f"{key}.currency says nothing alone: set {key}.cost_micros, or leave it out")
    return BudgetLimits(**found)


def read_dollars(reading: Reading, key: str, value: Any) -> BudgetLimits | None:
    """The money limit of other services: US dollars, with a fraction."""
    with reading.limiting():
        dollars = as_real(reading, key, value, 1 / _MICROS, MAX_COUNT / _MICROS, _UNREAD)
    return None if dollars is None else BudgetLimits(cost_micros=max(1, round(dollars * _MICROS)))


def budget_mapping(budget: BudgetLimits) -> dict[str, Any]:
    """The JSON map of the limits that are set."""
    names = ("model_calls", "tokens", "cost_micros", "tool_calls", "delegations", "max_concurrent", "wall_ms")
    fields = {name: getattr(budget, name) for name in names if getattr(budget, name) is not None}
    return fields | ({"currency": budget.currency} if budget.cost_micros is not None else {})


def _count(reading: Reading, key: str, value: Any) -> int | None:
    return None if is_unset(value) else as_integer(reading, key, value, 1, MAX_COUNT, _UNREAD)


def _wall(reading: Reading, key: str, value: Any) -> int | None:
    return None if is_unset(value) else as_integer(reading, key, value, 1, MAX_MS, _UNREAD)


def _currency(reading: Reading, key: str, value: Any) -> str | None:
    if is_unset(value):
        return None
    if isinstance(value, str) and _CURRENCY.fullmatch(value.strip()):
        return value.strip().upper()
    reading.error(key, f"{key} must be a code of three letters, such as USD, not {shown(value)}")
    return None


_BUDGET: Mapping[str, tuple[str, Reader]] = {
    squeezed(name): (name, read)
    for name, read in (
        ("model_calls", _count),
        ("tokens", _count),
        ("cost_micros", _count),
        ("currency", _currency),
        ("tool_calls", _count),
        ("delegations", _count),
        ("max_concurrent", _count),
        ("wall_ms", _wall),
    )
}
