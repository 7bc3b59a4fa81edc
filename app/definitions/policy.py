"""The `handoff` of a definition, the `policy` of a session or call: what may be delegated (spec 4.1).

What cannot be read here is an error and not a default, since each of these fields limits something.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.policy import FAIL, REPORT, TO_PRIMARY, BudgetLimits, OnProblem, PolicyFields, Reaction, ToolInherit
from app.definitions.filters import filter_mapping, read_filters
from app.definitions.limits import MAX_MS, Reader, budget_mapping, read_budget, read_entries
from app.definitions.reading import Reading, as_flag, as_integer, as_names, as_text, is_unset, shown
from app.definitions.toolnames import squeezed

MAX_DEPTH = 100
MAX_RETRIES = 100  # each attempt is a whole run; the total deadline ends them sooner
_UNREAD = "the policy is not used"
_WORDS: Mapping[str, OnProblem] = {
    Reaction.FAIL.value: FAIL,
    Reaction.REPORT.value: REPORT,
    Reaction.FALLBACK_TO_PRIMARY.value: TO_PRIMARY,
}
_FALLBACKS: Mapping[str, Reaction] = {
    reaction.value: reaction for reaction in (Reaction.AGENT, Reaction.MODEL, Reaction.ANSWER)
}
_FORMS = "fail, report, fallback_to_primary, {agent: name}, {model: name} or {answer: text}"


def read_policy(reading: Reading, key: str, value: Any) -> PolicyFields | None:
    """The fields of a policy map that are set."""
    found = read_entries(reading, key, value, _POLICY, "policy")
    if found is None:
        return None
    filters = found.pop("input_filter", None)
    return PolicyFields(**found, input_filters=filters)


def policy_mapping(policy: PolicyFields) -> dict[str, Any]:
    """The JSON map of the policy fields that are set; a null in it is a value (unlimited, no list, no filter)."""
    fields: dict[str, Any] = {}
    for name in ("enabled", "max_retries", "timeout_ms", "deadline_ms"):
        if getattr(policy, name) is not None:
            fields[name] = getattr(policy, name)
    for name, wanted in (("on_denied", policy.on_denied), ("on_error", policy.on_error)):
        if wanted is not None:
            fields[name] = _reaction_mapping(wanted)
    if policy.max_depth is not None:
        fields["max_depth"] = policy.max_depth[0]
    for name, boxed in (("allowed_tools", policy.allowed_tools), ("denied_tools", policy.denied_tools)):
        if boxed is not None:
            fields[name] = None if boxed[0] is None else list(boxed[0])
    if policy.inherit_tools is not None:
        fields["inherit_tools"] = policy.inherit_tools.value
    if policy.input_filters is not None:
        fields["input_filter"] = [filter_mapping(ref) for ref in policy.input_filters] or None
    if policy.budget is not None:
        fields["budget"] = budget_mapping(policy.budget)
    return fields


def _reaction_mapping(wanted: OnProblem) -> str | dict[str, str]:
    word = wanted.reaction.value
    return {word: wanted.target} if word in _FALLBACKS else word


# ── fields of a policy ──────────────────────────────────────────────────────────────────────────────────────────


def _enabled(reading: Reading, key: str, value: Any) -> bool | None:
    return None if is_unset(value) else as_flag(reading, key, value, _UNREAD)


def _time(reading: Reading, key: str, value: Any) -> int | None:
    return None if is_unset(value) else as_integer(reading, key, value, 0, MAX_MS, _UNREAD)


def _retries(reading: Reading, key: str, value: Any) -> int | None:
    return None if is_unset(value) else as_integer(reading, key, value, 0, MAX_RETRIES, _UNREAD)


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


def _on_error(reading: Reading, key: str, value: Any) -> OnProblem | None:
    if is_unset(value):
        return None
    if isinstance(value, dict):
        return _fallback(reading, key, value)
    found = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        reading.error(key, f"{key} must be {_FORMS}, not {shown(value)}")
    return found


def _fallback(reading: Reading, key: str, value: dict[Any, Any]) -> OnProblem | None:
    name, target = next(iter(value.items())) if len(value) == 1 else ("", None)
    reaction = _FALLBACKS.get(str(name).strip().lower())
    if reaction is None:
        reading.error(key, f"{key} must be {_FORMS}, with one of these names")
        return None
    place = f"{key}.{name}"
    if is_unset(target) or (isinstance(target, str) and not target.strip()):
        what = "the text of the answer" if reaction is Reaction.ANSWER else f"the name of the {reaction.value}"
        reading.error(place, f"{place} is empty: it must be {what}")
        return None
    text = as_text(reading, place, target, strip=reaction is not Reaction.ANSWER)
    return None if text is None else OnProblem(reaction=reaction, target=text)


def _on_denied(reading: Reading, key: str, value: Any) -> OnProblem | None:
    found = _on_error(reading, key, value)
    if found is not None and found.reaction is Reaction.MODEL:
        reading.error(
            f"{key}.model",
            f"{key}: another model would run what was denied; use fail, report, {{agent: name}} or {{answer: text}}",
        )
        return None
    return found


def _inherit_tools(reading: Reading, key: str, value: Any) -> ToolInherit | None:
    if is_unset(value):
        return None
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in {each.value for each in ToolInherit}:
        reading.error(key, f"{key} must be own or intersect, not {shown(value)}")
        return None
    return ToolInherit(word)


def _budget(reading: Reading, key: str, value: Any) -> BudgetLimits | None:
    return None if is_unset(value) else read_budget(reading, key, value)


_READERS: tuple[tuple[str, Reader], ...] = (
    ("enabled", _enabled),
    ("max_depth", _depth),
    ("max_retries", _retries),
    ("timeout_ms", _time),
    ("deadline_ms", _time),
    ("allowed_tools", _names),
    ("denied_tools", _names),
    ("on_denied", _on_denied),
    ("on_error", _on_error),
    ("input_filter", read_filters),
    ("inherit_tools", _inherit_tools),
    ("budget", _budget),
)
_POLICY: Mapping[str, tuple[str, Reader]] = {
    **{squeezed(name): (name, read) for name, read in _READERS},
    "inputfilters": ("input_filter", read_filters),
    "limits": ("budget", _budget),
}
