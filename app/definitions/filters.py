"""The `input_filter` of a policy: which filters a handoff's input goes through, in which order (spec 4.2).

Knows their names and arguments; the kernel carries them out.
"""

from typing import Any

from app.agent.filters import BUILT_IN
from app.agent.policy import FilterRef
from app.definitions.importpaths import read_import_path
from app.definitions.reading import Reading, as_integer, is_unset, shown, split_at_commas, unique

MAX_FILTERS = 20  # each is run for every handoff, and those of all levels above with it
MAX_CONTEXT = 10_000_000
_FORMS = "mask_secrets, cut_context, {cut_context: characters}, {inject: {field: value}}"
_FORMS_OF_FILES = f"{_FORMS} or an import path such as package.module:function"


def read_filters(reading: Reading, key: str, value: Any) -> tuple[FilterRef, ...] | None:
    """One filter or a list; null and [] are none."""
    if is_unset(value):
        return ()
    if isinstance(value, str) and not reading.strict:
        value = list(unique(split_at_commas(value)))
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_FILTERS:
        reading.error(key, f"{key} has {len(items)} filters; at most {MAX_FILTERS} are accepted")
        return None
    found = [
        _filter(reading, f"{key}[{index}]" if isinstance(value, list) else key, item)
        for index, item in enumerate(items)
    ]
    return tuple(ref for ref in found if ref is not None)


def filter_mapping(ref: FilterRef) -> str | dict[str, Any]:
    """The JSON form of a filter; `read_filters` reads it back."""
    return ref.name if ref.argument is None else {ref.name: ref.argument}


def _filter(reading: Reading, place: str, item: Any) -> FilterRef | None:
    if isinstance(item, dict):
        return _with_argument(reading, place, item)
    text = item.strip() if isinstance(item, str) else ""
    if text in BUILT_IN and text != "inject":
        return FilterRef(name=text)
    if ":" in text:
        path = read_import_path(reading, place, text)
        return None if path is None else FilterRef(name=path)
    _refuse(reading, place, item)
    return None


def _with_argument(reading: Reading, place: str, item: dict[Any, Any]) -> FilterRef | None:
    name, argument = next(iter(item.items())) if len(item) == 1 else ("", None)
    if name == "path":
        path = read_import_path(reading, f"{place}.path", argument)
        return None if path is None else FilterRef(name=path)
    if name == "cut_context":
        most = as_integer(reading, f"{place}.cut_context", argument, 1, MAX_CONTEXT, "the filter is not used")
        return None if most is None else FilterRef(name="cut_context", argument=most)
    if name == "inject":
        fields = reading.plain(argument)
        if isinstance(fields, dict) and fields:
            return FilterRef(name="inject", argument=dict(fields))
        reading.error(f"{place}.inject", f"{place}.inject must be a map of fields and values, not {shown(argument)}")
        return None
    _refuse(reading, place, item)
    return None


def _refuse(reading: Reading, place: str, item: Any) -> None:
    reading.error(place, f"{place} must be {_FORMS if reading.strict else _FORMS_OF_FILES}, not {shown(item)}")
