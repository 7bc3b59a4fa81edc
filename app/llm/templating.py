"""The small expression language of scripts: texts with `{{ … }}` filled from the task and the tool results.

No Python is evaluated: an expression is a name or function, followed by indexes, slices and keys.

    {{ task }}   {{ result[0] }}   {{ result['read_file'] }}   {{ lines(result[0])[3] }}
    {{ json(result[1]).files[0:2] }}
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(-?\d+)|([A-Za-z_][A-Za-z0-9_]*)|'([^']*)'|\"([^\"]*)\"|([\[\]().:,]))")
MAX_DEPTH = 20


class TemplateError(ValueError):
    """An expression is not understood, or there is nothing where it points."""


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "lines": lambda value: _as_text(value).splitlines(),
    "words": lambda value: _as_text(value).split(),
    "json": lambda value: json.loads(_as_text(value)),
    "len": len,
    "trim": lambda value: _as_text(value).strip(),
}


class Results(Sequence[str]):
    """Tool results by position, or by the name of the tool: the last result of it."""

    def __init__(self, results: Sequence[tuple[str, str]]) -> None:
        self._results = tuple(results)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return next(text for name, text in reversed(self._results) if name == key)
        if isinstance(key, slice):
            return [text for _, text in self._results[key]]
        return self._results[key][1]


def fill(value: Any, names: Mapping[str, Any]) -> Any:
    """The value with every expression in its texts filled in. A text that is one expression and nothing else becomes
    the value of it, whatever its type. Raises `TemplateError`."""
    if isinstance(value, str):
        whole = _PLACE.fullmatch(value.strip()) if value.strip().count("{{") == 1 else None
        if whole is not None:
            found = evaluate(whole.group(1), names)
            return list(found) if isinstance(found, Results) else found
        return _PLACE.sub(lambda place: _as_text(evaluate(place.group(1), names)), value)
    if isinstance(value, Mapping):
        return {key: fill(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    return value


def fill_text(value: str, names: Mapping[str, Any]) -> str:
    """Like `fill`, always a text."""
    return _as_text(fill(value, names))


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of one expression. Raises `TemplateError` naming it."""
    try:
        return _Reader(expression, names).whole()
    except (LookupError, StopIteration, ValueError, TypeError) as error:
        detail = str(error) if isinstance(error, TemplateError) else f"nothing there ({type(error).__name__}: {error})"
        raise TemplateError(f"{{{{{expression}}}}}: {detail}") from error


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (Results, list)):
        return "\n".join(_as_text(item) for item in value)
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, expression: str, names: Mapping[str, Any]) -> None:
        self._names = names
        self._tokens = _tokens(expression)
        self._at = 0
        self._depth = 0

    def whole(self) -> Any:
        value = self._value()
        if self._at < len(self._tokens):
            raise TemplateError(f"{self._tokens[self._at][1]!r} is not understood here")
        return value

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateError("nested too deeply")
        kind, token = self._next()
        if kind in ("number", "text"):
            value: Any = int(token) if kind == "number" else token
        elif kind == "name":
            value = self._function(token) if self._peek() == "(" else self._name(token)
        else:
            raise TemplateError(f"{token!r} is not understood here")
        while self._peek() in ("[", "."):
            value = self._part(value)
        self._depth -= 1
        return value

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise TemplateError(f"unknown name {name!r}; known: {', '.join(sorted(self._names))}")
        return self._names[name]

    def _function(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise TemplateError(f"unknown function {name!r}; known: {', '.join(sorted(FUNCTIONS))}")
        self._expect("(")
        argument = self._value()
        self._expect(")")
        return FUNCTIONS[name](argument)

    def _part(self, value: Any) -> Any:
        _, mark = self._next()
        if mark == ".":
            kind, key = self._next()
            if kind != "name":
                raise TemplateError(f"a key must follow the dot, not {key!r}")
            return value[key]
        start = None if self._peek() == ":" else self._value()
        if self._peek() == ":":
            self._expect(":")
            stop = None if self._peek() == "]" else self._value()
            self._expect("]")
            return value[start:stop]
        self._expect("]")
        return value[start]

    def _peek(self) -> str:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("mark", "")
        return token if kind == "mark" else ""

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise TemplateError("something is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise TemplateError(f"{mark!r} expected")
        self._at += 1


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at, text = 0, expression.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise TemplateError(f"{text[at:].strip()[:20]!r} is not understood")
        at = found.end()
        for kind, group in (("number", 1), ("name", 2), ("text", 3), ("text", 4), ("mark", 5)):
            if found.group(group) is not None:
                tokens.append((kind, found.group(group)))
    return tokens
