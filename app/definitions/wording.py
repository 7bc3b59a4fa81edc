"""The `texts` of a request: what the service says to models, in another language or in other words (spec 5.9)."""

from collections.abc import Mapping
from typing import Any

from app.agent.texts import LANGUAGES, TEXT_NAMES, Texts
from app.definitions.reading import Reading, clean, shown

_LANGUAGE = "language"


def read_texts(reading: Reading, key: str, value: Any, base: Texts) -> Texts:
    """A language, or a map of `language` and texts by name; `base` is what they take the place of."""
    if not isinstance(value, Mapping):
        return _language(reading, key, value, base)
    texts = _language(reading, f"{key}.{_LANGUAGE}", value[_LANGUAGE], base) if _LANGUAGE in value else base
    replaced: dict[str, str] = {}
    for name, text in value.items():
        place = f"{key}.{name}"
        if name == _LANGUAGE:
            continue
        if name not in TEXT_NAMES:
            names = ", ".join((_LANGUAGE, *sorted(TEXT_NAMES)))
            reading.error(place, f"{place} is no text of this service; there are {names}")
        elif not isinstance(text, str):
            reading.error(place, f"{place} must be text, not {shown(text)}")
        else:
            replaced[name] = clean(reading, place, text)
    return texts.replaced(replaced)


def _language(reading: Reading, key: str, value: Any, base: Texts) -> Texts:
    texts = LANGUAGES.get(value) if isinstance(value, str) else None
    if texts is None:
        reading.error(key, f"{key} must be one of {', '.join(sorted(LANGUAGES))}, not {shown(value)}")
    return texts or base
