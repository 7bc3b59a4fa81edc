"""Import paths: how a definition of an operator's file names a Python function.

Only reads the text; nothing is imported here.
"""

from typing import Any

from app.definitions.reading import Reading, shown

MAX_PATH = 200


def read_import_path(reading: Reading, key: str, value: Any) -> str | None:
    """`package.module:function`. Refused over the API: it would let a client choose what code the server runs."""
    if reading.strict:
        reading.error(
            key,
            f"{key} names code of the server, which only agent files of its operator may do: leave it out here, or ask "
            "the operator for an agent file that has it",
        )
        return None
    text = value.strip() if isinstance(value, str) else ""
    if is_import_path(text):
        return text
    reading.error(key, f"{key} must be an import path such as package.module:function, not {shown(value)}")
    return None


def is_import_path(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    module, colon, function = text.partition(":")
    parts = [*module.split("."), *function.split(".")]
    return bool(colon) and len(text) <= MAX_PATH and all(part.isidentifier() for part in parts)
