"""Words of shell command lines: what a program gets of them, and what is known only when they run.

Knows the nodes that a word is made of; what runs inside a word is somebody else's business.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator

import tree_sitter

from app.agent.permission_rules import UNKNOWN

MAX_NESTING = 100  # levels of a tree
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
_QUOTED = re.compile(r"""[\s'"\\;&|<>()$`]""")


class Unclear(Exception):
    """A command line cannot be judged; the message says why."""


class WordReader:
    """Reads the words of one script. `inside` looks after the commands in a substitution."""

    def __init__(self, source: bytes, inside: Callable[[tree_sitter.Node, int], None]) -> None:
        self._source = source
        self._inside = inside

    def _text(self, node: tree_sitter.Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()

    def word(self, node: tree_sitter.Node, level: int) -> str:
        """The word as a program gets it, with `UNKNOWN` for what is known only when it runs; adds what runs inside."""
        if level > MAX_NESTING:
            raise Unclear("the command is nested too deeply")
        kind, text = node.type, self._text(node)
        if kind in ("command_substitution", "process_substitution"):
            self._inside(node, level)
            return UNKNOWN
        if kind == "arithmetic_expansion":
            check_arithmetic(node)
            return UNKNOWN
        if kind == "simple_expansion":
            if _VARIABLE.fullmatch(text) is None:
                raise Unclear("it is not clear which variable is meant")
            return UNKNOWN
        if kind == "expansion":
            if _EXPANSION.match(text) is None:
                raise Unclear(f"the expansion {text[:40]} can run commands")
            self.pieces(node, level)
            return UNKNOWN
        if kind in ("string", "translated_string"):
            inner = self.pieces(node, level)
            return inner if kind == "string" else UNKNOWN
        if kind == "raw_string":
            return text[1:-1]
        if kind == "ansi_c_string":
            return UNKNOWN if "\\" in text else text[2:-1]
        if kind == "concatenation":
            return self._concatenation(node, level)
        if kind in ("word", "number", "variable_name") and not node.children:
            _check_hidden(text)
            return UNKNOWN if _is_brace(text) else _unescaped(text)
        self.pieces(node, level)
        return UNKNOWN

    def _concatenation(self, node: tree_sitter.Node, level: int) -> str:
        parts: list[str] = []
        before = node.start_byte
        for child in node.children:
            if child.start_byte != before:
                raise Unclear("it is not clear where a word ends")
            before = child.end_byte
            parts.append(self.word(child, level + 1) if child.is_named else _unescaped(self._text(child)))
        return UNKNOWN if _is_brace(self._text(node)) else "".join(parts)

    def pieces(self, node: tree_sitter.Node, level: int) -> str:
        """The text of quoted or here-document text, or of an expansion, with what is put into it."""
        quoted = node.type in ("string", "translated_string")
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


def _is_brace(text: str) -> bool:
    return "{" in text and ("," in text or ".." in text)


def _unescaped(text: str) -> str:
    """An unquoted text without its backslashes; what a shell would fill in with the names of files is unknown."""
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
            parts.append(UNKNOWN if char in "*?[" else char)
    return "".join(parts)
