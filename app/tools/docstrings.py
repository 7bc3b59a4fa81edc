"""Docstrings of functions: what they do, and what each parameter means. Reads an `Args:` section and `:param x:` lines.

Knows nothing of tools.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HEADING = re.compile(
    r"(args|arguments|parameters|params|returns?|raises|yields?|examples?|notes?|attributes|see also)\s*:",
    re.IGNORECASE,
)
_ARGUMENT_HEADINGS = frozenset({"args", "arguments", "parameters", "params"})
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_FIELD = re.compile(r":(\w+)\b([^:]*):\s*(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Documentation:
    """The text before the first section, and one text for each parameter that is described."""

    summary: str
    parameters: Mapping[str, str]


def documentation_of(documented: Any) -> Documentation:
    """Read the docstring of a function or class; one without says nothing."""
    reader = _Reader()
    for line in (inspect.getdoc(documented) or "").splitlines():
        reader.read(line)
    return Documentation(summary="\n".join(reader.summary).strip(), parameters=reader.parameters)


@dataclass(slots=True)
class _Reader:
    """Where in a docstring the reading stands; `section` None: still before the first one."""

    summary: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    section: str | None = None
    parameter: str | None = None
    indent: int | None = None  # of the arguments in their section; what is deeper goes on with one

    def read(self, line: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if indent == 0 and (heading := _HEADING.fullmatch(text)):
            self.section, self.parameter, self.indent = heading[1].lower(), None, None
        elif indent == 0 and (found := _FIELD.fullmatch(text)):
            self.section, self.parameter = "fields", None
            names = found[2].split()
            if found[1] == "param" and names:  # `:param int x:` says the type before the name
                self._begin(names[-1], found[3])
        elif self.section is None:
            self.summary.append(line)
        elif text:
            self._read_in_section(text, indent)

    def _read_in_section(self, text: str, indent: int) -> None:
        begins = self.indent is None or indent <= self.indent
        if self.section in _ARGUMENT_HEADINGS and begins:
            self.indent = indent
            found = _ARGUMENT.fullmatch(text)
            if found:
                self._begin(found[1], found[2])
            else:
                self.parameter = None
        elif self.parameter is not None:
            self.parameters[self.parameter] = f"{self.parameters[self.parameter]} {text}".strip()

    def _begin(self, name: str, text: str) -> None:
        self.parameter = name
        self.parameters[name] = text
