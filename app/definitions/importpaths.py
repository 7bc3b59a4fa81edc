"""Import paths: how a definition of an operator's file names a Python function.

Nothing is imported here: that would run an operator's code while agents are read.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.definitions.reading import Reading, shown

MAX_PATH = 200
TRUST = "name the directory in the setting trusted_agents"
_MAKERS = frozenset({"globals", "vars", "exec", "setattr"})  # may give names that the text does not show


def read_import_path(reading: Reading, key: str, value: Any) -> str | None:
    """`package.module:function`. Refused over the API: it would let a client choose what code the server runs."""
    if reading.strict:
        reading.error(
            key,
            f"{key} names code of the server, which only agent files of its operator may do: leave it out here, or ask "
            "the operator for an agent file that has it",
        )
        return None
    if not reading.trusted:
        reading.error(
            key,
            f"{key} names code of the server, which only agent files in a trusted directory may do: {TRUST}, or leave "
            "it out",
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


# ── is it there? ────────────────────────────────────────────────────────────────────────────────────────────────


def missing(path: str) -> str | None:
    """What of an import path is not there, as far as that is seen without importing anything; None: nothing."""
    module, _, function = path.partition(":")
    name = function.partition(".")[0]
    if module in sys.modules:
        names: Collection[str] | None = _told(set(vars(sys.modules[module])))
    else:
        spec = _spec(module)
        if spec is None:
            return f"there is no module {module} on the Python path of this service"
        names = _names(spec)
    return None if names is None or name in names else f"there is no {name} in the module {module}"


def _spec(module: str) -> ModuleSpec | None:
    """Where a module lies, asked in the usual way for its outermost package only: for a module in a package, that would
    import the package."""
    outermost, *parts = module.split(".")
    try:
        spec = find_spec(outermost)
        for at in range(len(parts)):
            if spec is None:
                break
            places = list(spec.submodule_search_locations or ())
            spec = PathFinder.find_spec(".".join([outermost, *parts[: at + 1]]), places)
    except (ImportError, OSError, ValueError):
        return None
    return spec


def _names(spec: ModuleSpec) -> set[str] | None:
    """The names that a module's source gives something to; None where its text alone does not tell."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        body = ast.parse(Path(spec.origin).read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return _told(set(_given(body)))


def _told(names: set[str]) -> set[str] | None:
    return None if "*" in names or "__getattr__" in names else names


def _given(body: Sequence[ast.AST]) -> Iterator[str]:
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name  # what stands inside belongs to it
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKERS:
            yield "*"
        waiting.extend(ast.iter_child_nodes(node))
