"""One agent file: Markdown with YAML front matter becomes a definition and a list of problems with their lines.

Never raises for what a file holds, reads no disk and knows no directory. Trouble is an error only where nothing
usable is left or where guessing could widen what the agent may do.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.agent.definition import AgentDefinition, Source
from app.definitions import frontmatter
from app.definitions.fields import HOOKS_KEYS, TOOLS_KEYS, assemble, build, is_known
from app.definitions.frontmatter import Entry, Head, HeadError
from app.definitions.reading import NO_CHECKS, Checks, Finding, Level, Reading, clean
from app.definitions.toolnames import BUILT_IN, squeezed

MAX_FILE_BYTES = 262_144  # the largest prompt among 1,174 public agent files has 35 KB

_OUTER_BLANKS = re.compile(r"\A(?:[ \t]*\n)+")
_INNER_KEY = re.compile(r"\W{0,20}([A-Za-z][\w-]{0,30})[*\"'` ]{0,6}[:：]", re.ASCII)


class Severity(StrEnum):
    """`error`: the file gives no agent. `warning`: it does, but something in it does not hold."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a file; `line` is 1-based, `key` is the front-matter key if it is about one."""

    severity: Severity
    path: str
    line: int
    message: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.severity}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one file came to. `definition` None: the problems hold at least one error. `has_front_matter` tells
    other Markdown, a README say, from an agent file. `disabled`: the file says that the agent is not to be used."""

    definition: AgentDefinition | None
    problems: tuple[Problem, ...] = ()
    has_front_matter: bool = True
    disabled: bool = False


def parse(
    text: str | bytes,
    *,
    path: str,
    source: str = "directory",
    known_tools: frozenset[str] = BUILT_IN,
    agent_tools: frozenset[str] = frozenset(),
    default_name: str | None = None,
    trusted: bool = True,
    checks: Checks = NO_CHECKS,
) -> Parsed:
    """Read one agent file.

    `path` appears in problems and, with the kind `source`, in the definition. `known_tools` are the ordinary tools
    of this service, `agent_tools` those that agents are by their `tool_name`. `default_name` is used where the file
    gives none; None: the file's name without its suffix. `trusted`: an operator vouches for what it may name and allow.
    `checks` look at what it brings along.
    """
    reading = Reading(strict=False, known_tools=known_tools, agent_tools=agent_tools, trusted=trusted, checks=checks)
    try:
        whole = decoded(text)
        head = frontmatter.split(whole)
        if head is None:
            reading.line = 1
            reading.error("", "no front matter: an agent file begins with a line of three dashes")
            return Parsed(definition=None, problems=problems_of(path, reading.found, 1), has_front_matter=False)
        entries = _entries(reading, head)
    except HeadError as error:
        reading.line = error.line
        reading.error("", error.message)
        return Parsed(definition=None, problems=problems_of(path, reading.found, error.line))
    values = assemble(((entry.key, entry.value, entry.line) for entry in entries), reading)
    if values.pop("disable", False):
        reading.line = head.line
        reading.remark("disable", "the agent is disabled")
        return Parsed(definition=None, problems=problems_of(path, reading.found, head.line), disabled=True)
    _complete(reading, values, head, default_name or _stem(path))
    definition = build(values, reading, Source(kind=source, path=path, vouched=trusted))
    return Parsed(definition=definition, problems=problems_of(path, reading.found, whole.count("\n") + 1))


def _stem(path: str) -> str:
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[0] or name


def decoded(text: str | bytes) -> str:
    """Text with LF line ends and without a byte order mark. Raises `HeadError` for what is no UTF-8 text."""
    if len(text) > MAX_FILE_BYTES:
        raise HeadError(f"the file is larger than {MAX_FILE_BYTES} bytes", 1)
    try:
        if isinstance(text, bytes):
            if text.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise HeadError("the file is UTF-16; save it as UTF-8", 1)
            text = text.decode("utf-8")
        else:
            text.encode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise HeadError(f"not UTF-8: byte 0x{byte:02x}", error.object.count(b"\n", 0, error.start) + 1) from None
    except UnicodeEncodeError as error:
        raise HeadError("not Unicode: a lone surrogate", error.object.count("\n", 0, error.start) + 1) from None
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


# ── head ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_head(reading: Reading, head: Head, known: Callable[[str], bool]) -> tuple[Sequence[Entry], bool]:
    """The keys of a head, and whether it is no YAML, so that they were read line by line. `known`: as in
    `frontmatter.tolerant`. Raises `HeadError` where nothing can be read."""
    by_lines = False
    try:
        entries = frontmatter.strict(head.text, head.line)
    except HeadError as error:
        by_lines, entries = True, frontmatter.tolerant(head.text, head.line, known)
        if not any(entry.key for entry in entries):
            raise
        reading.line = error.line
        reading.remark("", f"not valid YAML ({error.message}); the front matter was read line by line")
    if not entries:
        raise HeadError("the front matter is empty: at least a description is needed", head.line)
    return entries, by_lines


def _entries(reading: Reading, head: Head) -> Sequence[Entry]:
    entries, by_lines = read_head(reading, head, is_known)
    if by_lines:
        _state_hidden(reading, entries)
    for entry in entries:
        if entry.cut and entry.key in ("name", "description"):
            reading.line = entry.line
            reading.remark(entry.key, f"what follows ' #' is a comment; quote the {entry.key} to keep it")
    return [entry for entry in entries if entry.key]


def _state_hidden(reading: Reading, entries: Sequence[Entry]) -> None:
    """In a head that is no YAML, a line of `tools` or `hooks` may have ended up inside another value. An agent without
    its whitelist would have more tools than its author wrote, and one without its hooks no guard: it does not load."""
    needed = TOOLS_KEYS | HOOKS_KEYS if reading.trusted else TOOLS_KEYS
    given = {squeezed(entry.key) for entry in entries}
    for entry in entries:
        if not entry.key:
            reading.line = entry.line
            reading.remark("", "these lines belong to no key and are left out")
        if not entry.raw:
            continue
        first = 0 if not entry.key else 1
        for offset, line in enumerate(entry.value.split("\n")[first:], first):
            match = _INNER_KEY.match(line)
            if match is not None and squeezed(match.group(1)) in needed - given:
                reading.line = entry.line + offset
                reading.error(match.group(1), f"{match.group(1)} must begin at column 0 to be a key of its own")
                given.add(squeezed(match.group(1)))


def _complete(reading: Reading, values: dict[str, Any], head: Head, default_name: str) -> None:
    """Name, description and prompt: what a file may leave to others, and what it may not."""
    reading.line = head.line
    if "name" not in values:
        reading.remark("name", f"no name is given, the file's is used: {default_name}")
        values["name"] = clean(reading, "name", default_name)[:128] or "agent"
    if "description" not in values:
        reading.error("description", "description is missing: other agents choose by it")
    reading.line = head.line + head.text.count("\n") + 1
    body = _OUTER_BLANKS.sub("", clean(reading, "prompt", head.body)).rstrip()
    if body:
        if "prompt" in values:
            reading.remark("prompt", "the text below the front matter is the prompt; the key is not used")
        values["prompt"] = body
    elif "prompt" not in values:
        reading.remark("prompt", "no text below the front matter, so the agent has no prompt")


def problems_of(path: str, found: Sequence[Finding], last_line: int) -> tuple[Problem, ...]:
    """What was found in a file with so many lines, for people."""
    return tuple(
        Problem(
            severity=Severity.ERROR if finding.level is Level.ERROR else Severity.WARNING,
            path=path,
            line=max(1, min(finding.line, last_line)),  # YAML counts a few more characters as line ends than we do
            message=finding.message,
            key=finding.key or None,
        )
        for finding in found
    )
