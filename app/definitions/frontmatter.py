"""The head of a Markdown file: where it begins and ends, and which keys with which values stand in it.

Two stages: strict YAML without anchors, tags or executed code; where that fails, a reader that takes the head key by
key, so that one bad value costs only itself. Knows no field of an agent.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from app.definitions.reading import Plain

MAX_HEAD = 65_536  # characters; the largest head of 1,174 public agent files is a tenth of that
MAX_DEPTH = 40  # deeper nesting than any JSON Schema that a model could fill in
MAX_NODES = 10_000
MAX_KEYS = 200

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its parser is used: nothing is ever constructed
_OPENING = re.compile(r"(?:[ \t]*\n)*---[ \t]*\n")
_CLOSING = re.compile(r"^---[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"""(["']?)([A-Za-z_][\w-]{0,63})\1[ \t]*([:：])(.*)""", re.ASCII)
_BLOCK = re.compile(r"[|>][-+0-9]{0,2}")
_ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\"}
_ESCAPE = re.compile(r'\\[nt"\\]')
_TEXT_TAG = "tag:yaml.org,2002:str"
_PROSE = frozenset({"description", "prompt"})  # what follows such a key may look like keys: `user: "…"` in an example


class HeadError(Exception):
    """The head cannot be read; `line` is 1-based in the text that was given."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key of the head. `value` is text (`Plain` when unquoted), a list or a dict of such.

    `raw`: the value was no YAML and is the text as it stands. `cut`: a comment was taken off its end.
    """

    key: str
    value: Any
    line: int
    raw: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The text between the two lines of dashes, the line of the file at which it begins, and what comes after."""

    text: str
    line: int
    body: str


def split(text: str) -> Head | None:
    """Cut a file, with LF line ends, into head and body; None when it has no head.

    Only the first closing line ends the head, so that rules in the body stay where they are. Raises `HeadError` when
    no line closes it, or when it is too large.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return None
    first = text.count("\n", 0, opening.end()) + 1
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise HeadError("the front matter is not closed: a line of three dashes must end it", first - 1)
    head = text[opening.end() : closing.start()]
    if len(head) > MAX_HEAD:
        raise HeadError(f"the front matter has {len(head)} characters, at most {MAX_HEAD} are read", first)
    return Head(text=head, line=first, body=text[closing.end() + 1 :])


# ── strict ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Open:
    """A list or map that is being filled; `key` waits for its value."""

    __slots__ = ("key", "line", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key: str | None = None
        self.line = 0


def strict(text: str, first_line: int) -> list[Entry]:
    """The entries of a YAML map, in order, a key of the map itself possibly twice. Nothing is constructed or executed.

    Raises `HeadError` for anything else: anchors, aliases, tags, a key twice in a nested map, too deep or too much.
    """
    entries: list[Entry] = []
    stack: list[_Open] = []
    lines: list[str] = []
    for event in _events(text, first_line):
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else Plain(event.value)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            stack.append(_opened(event, stack, first_line))
            continue
        else:  # the end of a list or map
            value = stack.pop().value
            if not stack:
                return entries
        top = stack[-1] if stack else None
        if top is not None and len(stack) == 1 and top.key is not None:
            lines = lines or text.split("\n")
            cut = isinstance(value, Plain) and _comment_after(event, lines)
            entries.append(Entry(key=top.key, value=value, line=top.line, cut=cut))
            top.key = None
        else:
            _put(top, value, event.start_mark.line + first_line)
    return entries


def _opened(event: Any, stack: list[_Open], first_line: int) -> _Open:
    line = event.start_mark.line + first_line
    is_map = isinstance(event, yaml.MappingStartEvent)
    if not stack and not is_map:
        raise HeadError("the front matter is a list, not a map of keys", line)
    if len(stack) >= MAX_DEPTH:
        raise HeadError(f"values are nested deeper than {MAX_DEPTH} levels", line)
    if stack and isinstance(stack[-1].value, dict) and stack[-1].key is None:
        raise HeadError("a list or map cannot be a key", line)
    return _Open({} if is_map else [])


def _put(top: _Open | None, value: Any, line: int) -> None:
    if top is None:
        raise HeadError("the front matter is no map of keys", line)
    if isinstance(top.value, list):
        top.value.append(value)
    elif top.key is None:
        top.key, top.line = str(value), line
        if top.key in top.value:
            raise HeadError(f"key {top.key!r} is given twice", line)
    else:
        top.value[top.key] = value
        top.key = None


def _events(text: str, first_line: int) -> Iterator[Any]:
    """The events that carry content. Everything that could make a small text large is refused here."""
    count = documents = 0
    event: Any  # each kind of event has attributes of its own
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = event.start_mark.line + first_line
            count += 1
            if count > MAX_NODES:
                raise HeadError(f"the front matter has more than {MAX_NODES} values", line)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise HeadError("the front matter holds more than one YAML document", line)
            elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise HeadError("anchors and aliases (& and *) are not supported", line)
            elif getattr(event, "tag", None) not in (None, _TEXT_TAG):
                raise HeadError(f"YAML tags are not supported: {event.tag[:60]}", line)
            elif not isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = (mark.line if mark else 0) + first_line
        raise HeadError(error.problem or error.context or "not valid YAML", line) from None
    except yaml.YAMLError:  # the reader's: characters that YAML does not allow
        raise HeadError("control characters are not allowed", first_line) from None


def _comment_after(event: Any, lines: list[str]) -> bool:
    line: int = event.end_mark.line
    column: int = event.end_mark.column
    return line < len(lines) and lines[line][column:].lstrip().startswith("#")


# ── tolerant ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """A key at the beginning of a line and all lines up to the next one."""

    key: str
    rest: str
    line: int
    lines: list[str]


def tolerant(text: str, first_line: int, known: Callable[[str], bool]) -> list[Entry]:
    """The entries of a head that is no YAML: each key at the beginning of a line, up to the next one, read alone.

    `known` says which keys end a text in prose; in other values each line that looks like a key does. Lines before the
    first key become an entry without a key. Raises `HeadError` when there are too many keys.
    """
    segments = _segments(text.split("\n"), first_line, known)
    if len(segments) > MAX_KEYS:
        raise HeadError(f"the front matter has more than {MAX_KEYS} keys", first_line)
    return [_entry(segment) for segment in segments]


def _segments(lines: list[str], first_line: int, known: Callable[[str], bool]) -> list[_Segment]:
    segments: list[_Segment] = []
    for number, line in enumerate(lines, first_line):
        match = _KEY.fullmatch(line)
        if match is not None:
            key, colon, rest = match.group(2), match.group(3), match.group(4)
            prose = bool(segments) and segments[-1].key.lower() in _PROSE
            unknown_key = colon == ":" and rest[:1] in ("", " ", "\t") and not prose
            if known(key) or unknown_key:
                segments.append(_Segment(key=key, rest=rest, line=number, lines=[line]))
                continue
        if not segments:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            segments.append(_Segment(key="", rest="", line=number, lines=[]))
        segments[-1].lines.append(line)
    return segments


def _entry(segment: _Segment) -> Entry:
    if not segment.key:
        return Entry(key="", value="\n".join(segment.lines), line=segment.line, raw=True)
    try:
        entries = strict("\n".join(segment.lines), segment.line)
    except HeadError:
        entries = []
    if len(entries) == 1 and entries[0].key == segment.key:
        return entries[0]
    return Entry(key=segment.key, value=_raw(segment), line=segment.line, raw=True)


def _raw(segment: _Segment) -> str:
    first = segment.rest.strip()
    more = [line.strip() for line in segment.lines[1:]]
    if _BLOCK.fullmatch(first):
        return "\n".join(more).strip()
    text = "\n".join([first, *more]).strip()
    quote = text[:1]
    if quote not in ("'", '"') or len(text) < 2:
        return text
    inner = text[1:-1] if text.endswith(quote) else text[1:]
    if quote == "'":
        return inner.replace("''", "'")
    return _ESCAPE.sub(lambda match: _ESCAPES[match.group()], inner)
