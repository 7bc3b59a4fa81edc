"""Words of shell command lines: what a program gets of them, and what is known only when they run.

Knows the nodes that a word is made of; what runs inside a word is somebody else's business.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator

import tree_sitter

from app.agent.rule_patterns import ANY_NAME, UNKNOWN

MAX_NESTING = 100  # levels of a tree
PIPE = "\2"  # a word, or a piece of one, that names a pipe between commands; no command can hold it
EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"}
)
WORDS = frozenset(
    {"word", "number", "raw_string", "ansi_c_string", "string", "translated_string", "concatenation", "regex",
     "simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion",
     "brace_expression", "extglob_pattern", "variable_name"}
)  # fmt: skip
_EXPANSION = re.compile(
    r"\$\{#?(?:[A-Za-z_]\w*|[0-9@*#?$!-])(?:\[(?:[0-9]+|@|\*)\])?(?:\}|:?[-+?]|%|#|/|\^|,|:[0-9]+(?::[0-9]+)?\})"
)
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_HIDDEN = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[({\[A-Za-z_0-9@*#?$!-])")
_BRACKET, _BRACE, _BRACE_END = "\3", "\4", "\5"  # unquoted ones, while a word is read
_EXPANDED = {"*": ANY_NAME, "?": ANY_NAME, "[": _BRACKET, "{": _BRACE, "}": _BRACE_END}
_REST_OF_NAME = re.compile(f"{_BRACKET}[^/]*")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{0,2}|u[0-9a-fA-F]{0,4}|U[0-9a-fA-F]{0,8}|.|$)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "?": "?"}
_QUOTED = re.compile(r"""[\s'"\\;&|<>()$`]""")


class Unclear(Exception):
    """A command line cannot be judged; the message says why."""


class WordReader:
    """Reads the words of one script. `inside` looks after the commands in a substitution. `splits`: whether a word that
    was read may turn out to be several ones, or other files than it names."""

    def __init__(self, source: bytes, inside: Callable[[tree_sitter.Node, int], None]) -> None:
        self._source = source
        self._inside = inside
        self._quoted = False
        self.splits = False

    def _text(self, node: tree_sitter.Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()

    def word(self, node: tree_sitter.Node, level: int) -> str:
        """The word as a program gets it, with `UNKNOWN`, `ANY_NAME` and `PIPE` for what is known only when it runs.
        Adds what runs inside."""
        return _settled(self._piece(node, level))

    def _piece(self, node: tree_sitter.Node, level: int) -> str:
        if level > MAX_NESTING:
            raise Unclear("the command is nested too deeply")
        kind, text = node.type, self._text(node)
        if kind in EXPANSIONS:
            return self._expansion(node, level)
        if kind in ("string", "translated_string"):
            inner = self.pieces(node, level)
            return inner if kind == "string" else UNKNOWN
        if kind == "raw_string":
            return text[1:-1]
        if kind == "ansi_c_string":
            return _ansi_c(text[2:-1])
        if kind == "concatenation":
            return self._concatenation(node, level)
        if kind in ("word", "number", "variable_name") and not node.children:
            _check_hidden(text)
            return _unescaped(text)
        self.pieces(node, level)
        self.splits = self.splits or kind != "brace_expression"
        return UNKNOWN

    def _expansion(self, node: tree_sitter.Node, level: int) -> str:
        kind, text, quoted = node.type, self._text(node), self._quoted
        self.splits = self.splits or (kind != "process_substitution" and not (quoted and "@" not in text))
        if kind in ("command_substitution", "process_substitution"):
            self._quoted = False
            self._inside(node, level)
            self._quoted = quoted
            return PIPE if kind == "process_substitution" else UNKNOWN
        if kind == "arithmetic_expansion":
            check_arithmetic(node)
        elif kind == "simple_expansion":
            if _VARIABLE.fullmatch(text) is None:
                raise Unclear("it is not clear which variable is meant")
        else:
            if _EXPANSION.match(text) is None:
                raise Unclear(f"the expansion {text[:40]} can run commands")
            self.pieces(node, level)
        return UNKNOWN

    def _concatenation(self, node: tree_sitter.Node, level: int) -> str:
        parts: list[str] = []
        before = node.start_byte
        for child in node.children:
            if child.start_byte != before:
                raise Unclear("it is not clear where a word ends")
            before = child.end_byte
            piece = self._piece(child, level + 1) if child.is_named else _unescaped(self._text(child))
            if child.type == "string" and parts and parts[-1].endswith("$"):
                parts[-1], piece = parts[-1][:-1], UNKNOWN  # `$"…"`, which a shell may translate
            parts.append(piece)
        return "".join(parts)

    def pieces(self, node: tree_sitter.Node, level: int) -> str:
        """The text of quoted or here-document text, or of an expansion, with what is put into it."""
        quoted = node.type in ("string", "translated_string")
        outside, self._quoted = self._quoted, self._quoted or quoted
        try:
            return self._pieces(node, level, quoted)
        finally:
            self._quoted = outside

    def _pieces(self, node: tree_sitter.Node, level: int, quoted: bool) -> str:
        parts: list[str] = []
        before, end = node.start_byte, node.end_byte
        if node.type == "translated_string":
            return "".join(self.word(child, level + 1) for child in node.children if child.type == "string")
        if quoted or node.type == "expansion":
            before, end = before + 1 + (not quoted), end - 1
        for child in node.children:
            if child.type in WORDS and child.type not in ("word", "regex", "extglob_pattern", "number"):
                parts.append(self._literal(before, child.start_byte, node))
                parts.append(self.word(child, level + 1))
                before = child.end_byte
        parts.append(self._literal(before, end, node))
        return "".join(parts)

    def _literal(self, start: int, end: int, node: tree_sitter.Node) -> str:
        text = self._source[start:end].decode()
        _check_hidden(text)
        if node.type == "expansion" and ("<(" in text or ">(" in text):
            raise Unclear("a text holds a substitution that was not understood")
        return re.sub(r"\\([$`\"\\]|\n)", lambda found: found[1].strip("\n"), text) if node.type == "string" else text


def check_arithmetic(node: tree_sitter.Node) -> None:
    """Raises `Unclear` unless all operands are numbers."""
    if any(part.is_named and not part.children and part.type != "number" for part in below(node)):
        raise Unclear("arithmetic with variables can run commands")


def below(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All nodes below one."""
    waiting = list(node.children)
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(found.children)


def rendered(words: Iterable[str]) -> str:
    """The words as one text, quoted where they would not be one word otherwise."""
    return " ".join(shlex.quote(word) if not word or _QUOTED.search(word) else word for word in words)


def _check_hidden(text: str) -> None:
    if _HIDDEN.search(text):
        raise Unclear("a text holds a substitution that was not understood")


def _unescaped(text: str) -> str:
    """An unquoted text without its backslashes, with signs of its own for what a shell may expand."""
    parts: list[str] = []
    escaped = False
    for char in text:
        if escaped:
            parts.append(char.strip("\n"))
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            if char.isspace():
                raise Unclear("it is not clear where a word ends")
            parts.append(_EXPANDED.get(char, char))
    return "".join(parts)


def _settled(text: str) -> str:
    """A word with braces and brackets expanded: what differs between those that it may become is unknown."""
    if _BRACE in text:
        first, last = text.index(_BRACE), text.rfind(_BRACE_END)
        if "," in text[first:] or ".." in text[first:]:
            inside, behind = text[first:last], text[last + 1 :]
            if last < first or _BRACKET in text[:last]:  # a bracket inside may go on behind the braces
                inside, behind = UNKNOWN, ""
            around = text[:first].rpartition("/")[2] + behind.partition("/")[0]
            unclear = UNKNOWN in inside or "/" in inside or _may_be_dots(inside, around)
            piece = UNKNOWN if unclear else ANY_NAME
            text = text[:first] + piece + behind
    text = text.replace(_BRACE, "{").replace(_BRACE_END, "}")
    return _REST_OF_NAME.sub(lambda found: UNKNOWN if UNKNOWN in found[0] else ANY_NAME, text)


def _may_be_dots(inside: str, around: str) -> bool:
    """Whether braces may stand for `.` or `..`, with what is around them in the name."""
    pieces = re.split(f"[,{_BRACE}{_BRACE_END}]", inside)
    return not around.strip(".") and any(not piece.strip(".") and piece + around for piece in pieces)


def _ansi_c(text: str) -> str:
    """What stands between the quotes of `$'…'`; unknown where shells could differ on it."""
    found = _ESCAPE.sub(_escape, text)
    return UNKNOWN if not found.isascii() or any(char < " " and char not in "\t\n" for char in found) else found


def _escape(found: re.Match[str]) -> str:
    code = found[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    if len(code) < 2 and not code.isdecimal():
        return UNKNOWN
    number = int(code, 8) if code.isdecimal() else int(code[1:], 16)
    return chr(number) if number < 128 else UNKNOWN
