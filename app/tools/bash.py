"""Takes shell command lines apart for permission rules: `CommandParser` on tree-sitter's grammar of bash.

Every kind of node is known here or the line cannot be judged. Nothing is run and nothing looked up. What the grammar
and a real shell could read differently cannot be judged either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import tree_sitter
import tree_sitter_bash

from app.agent.permission_rules import UNKNOWN
from app.agent.permission_subjects import CommandPart, ParsedCommand, WriteTarget
from app.tools.commands import HARMLESS, effects_of, part_of, straight
from app.tools.shell_words import MAX_NESTING, WORDS, Unclear, WordReader, below, check_arithmetic, rendered

MAX_CHARS = 20_000
_MAX_PARTS, _MAX_WORDS = 300, 500
_MOST = {"<<": 20, "|": 500, "&": 500}  # the grammar's time grows with the square of these, and of signs in a row
_MAX_SCRIPTS, _MAX_BASES = 8, 8  # scripts inside scripts; directories that relative paths may start from

_STRUCTURE = frozenset(
    {"program", "list", "pipeline", "subshell", "negated_command", "if_statement", "elif_clause", "else_clause",
     "while_statement", "for_statement", "do_group", "case_statement", "case_item", "function_definition",
     "command_substitution", "process_substitution", "variable_assignments", "array", "binary_expression",
     "unary_expression", "parenthesized_expression", "herestring_redirect", "file_redirect"}
)  # fmt: skip
_LEAVES = WORDS | {"special_variable_name", "test_operator", "file_descriptor"}
_TOKENS = frozenset(
    {"(", ")", "{", "}", ";", "&", "&&", "||", "|", "|&", "\n", "!", "if", "then", "elif", "else", "fi", "for",
     "select", "in", "while", "until", "do", "done", "case", "esac", ";;", ";&", ";;&", "function", "$(", "`", "<(",
     ">(", "[[", "]]", "[", "]", "<<<", "=", "==", "!=", "=~", "<", ">"}
)  # fmt: skip
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do",
                       "done", "in", "function", "{", "}", "!", "[[", "]]"})  # fmt: skip
_ARITHMETIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_JOINED_LINE = re.compile(r"[^\s;&|()]\\\n\S")
_ODD = re.compile(r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
_SIGNS = re.compile(r"(?:[|&;<>(){}$`!\[\]][ \t\n]?){30}")
_BLANKS = re.compile(r"(?:[ \t\n]|\\\n)*")
_BLANKS_OF_A_LINE = re.compile(r"(?:[ \t]|\\\n)*")


class BashParser:
    """`CommandParser` for bash and the shells like it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        self._lock = Lock()

    def parse(self, command: str) -> ParsedCommand:
        """All that the line may run or write. What cannot be judged to its end says so in `problem`."""
        found = _Found()
        try:
            self.read(command, found, 0)
        except (Unclear, RecursionError) as error:
            found.problem = str(error) or "the command is nested too deeply"
        return ParsedCommand(
            parts=tuple(dict.fromkeys(found.parts)),
            writes=tuple(dict.fromkeys(found.writes)),
            words=tuple(dict.fromkeys(found.words)),
            bases=tuple(found.bases),
            problem=found.problem,
        )

    def read(self, script: str, found: "_Found", depth: int) -> None:
        """Add what a script does. Raises `Unclear`."""
        if len(script) > MAX_CHARS:
            raise Unclear(f"the command is longer than {MAX_CHARS:,} characters")
        if depth > _MAX_SCRIPTS:
            raise Unclear("scripts are nested too deeply in the command")
        if UNKNOWN in script:
            raise Unclear("the command runs a script that is not known before")
        if any(script.count(sign) > most for sign, most in _MOST.items()) or _SIGNS.search(script):
            raise Unclear("the command holds more signs than any real one")
        odd = _ODD.search(script)
        if odd is not None:
            raise Unclear(f"the command contains the unusual character {odd.group()!r}")
        if _JOINED_LINE.search(script):
            raise Unclear("a word goes on in the next line")
        source = script.encode()
        with self._lock:
            tree = self._parser.parse(source)
        if tree.root_node.has_error:
            raise Unclear("the command is no shell syntax that can be understood here")
        _Reader(self, source, found, depth).read(tree.root_node)


@dataclass(slots=True)
class _Found:
    parts: list[CommandPart] = field(default_factory=list)
    writes: list[WriteTarget] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=lambda: ["."])
    problem: str | None = None


class _Reader:
    """Walks over the tree of one script."""

    def __init__(self, parser: BashParser, source: bytes, found: _Found, depth: int) -> None:
        self._parser = parser
        self._source = source
        self._found = found
        self._depth = depth
        self._words = WordReader(source, self._children)

    def read(self, root: tree_sitter.Node) -> None:
        """Add what the whole script does. Raises `Unclear`."""
        self._blank(0, root.start_byte, _BLANKS)
        self._blank(root.end_byte, len(self._source), _BLANKS)
        self.visit(root, 0)

    def visit(self, node: tree_sitter.Node, level: int) -> None:
        """Add what a node does. Raises `Unclear` for one that is not known."""
        if level > MAX_NESTING:
            raise Unclear("the command is nested too deeply")
        kind = node.type
        if kind in ("command", "declaration_command", "unset_command"):
            self._command(node, level)
        elif kind == "redirected_statement":
            self._redirected(node, level)
        elif kind == "file_redirect":
            if self._redirect(node, level):
                raise Unclear("words stand behind a redirection that belongs to no command")
        elif kind == "variable_assignment":
            self._assigned(self._assignment(node, level))
        elif kind == "test_command":
            self._test(node, level)
        elif kind == "compound_statement" and node.children[0].type == "((":
            check_arithmetic(node)
        elif kind == "comment":
            self._comment(node)
        elif kind in WORDS and kind not in ("command_substitution", "process_substitution"):
            self._note(self._words.word(node, level))
        elif kind in _STRUCTURE or kind == "compound_statement":
            self._children(node, level)
        elif kind not in (_LEAVES if node.is_named else _TOKENS):
            raise Unclear(f"the command holds a {kind.replace('_', ' ')}, which is not judged here")

    def _children(self, node: tree_sitter.Node, level: int) -> None:
        if node.type == "compound_statement" and not node.named_children:
            raise Unclear("braces with nothing between them are a word for a shell")
        blanks = _BLANKS_OF_A_LINE if node.type == "herestring_redirect" else _BLANKS
        before = node.start_byte
        for child in node.children:
            self._blank(before, child.start_byte, blanks)
            self.visit(child, level + 1)
            before = child.end_byte
        if node.type == "command_substitution" and self._text(node).startswith("`") and "\\" in self._text(node):
            raise Unclear("a backslash inside backticks is read differently by shells")

    def _blank(self, start: int, end: int, blanks: re.Pattern[str] = _BLANKS_OF_A_LINE) -> None:
        if end > start and blanks.fullmatch(self._source[start:end].decode()) is None:
            raise Unclear("a piece of the command was not understood")

    def _text(self, node: tree_sitter.Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()

    def _comment(self, node: tree_sitter.Node) -> None:
        if node.start_byte and self._source[node.start_byte - 1 : node.start_byte] not in b" \t\n;&|()":
            raise Unclear("it is not clear where a comment begins")

    # ── simple commands ─────────────────────────────────────────────────────────────────────────────────────────

    def _command(self, node: tree_sitter.Node, level: int, more: Sequence[str] = ()) -> None:
        """A simple command; `more`: arguments that stand behind a redirection."""
        words: list[str] = [] if node.type == "command" else [node.children[0].type]
        assigned: list[str] = []
        plain, before, was_word = not more, node.start_byte, bool(words)
        for child in node.children:
            self._blank(before, child.start_byte)
            is_word = child.type == "command_name" or child.type in WORDS
            if is_word and was_word and before == child.start_byte:
                raise Unclear("it is not clear where a word ends")
            before, was_word = child.end_byte, is_word
            if child.type == "command_name":
                words.append(self._words.word(child.children[0], level + 1))
            elif child.type == "variable_assignment":
                (assigned if node.type == "command" else words).append(self._assignment(child, level + 1))
            elif is_word:
                words.append(self._words.word(child, level + 1))
            elif child.type == "file_redirect":
                words += self._redirect(child, level + 1)
                plain = False
            elif child.is_named or node.type == "command":
                self.visit(child, level + 1)
                plain = False
        self._run([*words, *more], assigned, self._text(node) if plain else None)

    def _run(self, words: list[str], assigned: Sequence[str] = (), source: str | None = None) -> None:
        """State a command by its words, and what it runs in turn."""
        if len(self._found.parts) > _MAX_PARTS:
            raise Unclear(f"the command has more than {_MAX_PARTS} parts")
        for text in (*assigned, *words[1:]):
            self._note(text)
        for text in assigned:
            self._check_value(text)
        if not words:
            return
        if UNKNOWN in words[0] or not words[0] or words[0] in _KEYWORDS:
            self._found.parts.append(CommandPart(exact=(), loose=(rendered(words), UNKNOWN)))
            return
        if ".." in words[0].split("/"):
            source, words[0] = None, straight(words[0])
        effects = effects_of(words)
        harmless = all(HARMLESS.match(text) for text in (*assigned, *effects.assigned))
        self._found.parts.append(part_of(words, assigned, source, harmless, effects))
        self._found.writes += [WriteTarget(path=path, redirected=False) for path in effects.writes]
        if words[0] in ("cd", "pushd", "popd"):
            self._move(words)
        for inner in effects.inner:
            self._run(inner, effects.assigned)
        for script in effects.scripts:
            self._parser.read(script, self._found, self._depth + 1)

    def _move(self, words: Sequence[str]) -> None:
        """Remember from where relative paths may start after a change of directory."""
        targets = [word for word in words[1:] if word not in ("-P", "-L", "--")]
        known = words[0] == "cd" and len(targets) == 1 and targets[0] and UNKNOWN not in targets[0]
        bases = self._found.bases
        if not known or targets[0].startswith("-") or len(bases) > _MAX_BASES:
            more = [UNKNOWN]
        elif targets[0].startswith(("/", "~")):
            more = [targets[0]]
        else:
            more = [targets[0] if base == "." else f"{base}/{targets[0]}" for base in bases]
        self._found.bases = list(dict.fromkeys([*bases, *more]))

    def _note(self, text: str) -> None:
        """Remember what may be the name of a file."""
        if len(self._found.words) > _MAX_WORDS:
            raise Unclear(f"the command has more than {_MAX_WORDS} words")
        value = text.partition("=")[2].lstrip("@") if "=" in text else text.lstrip("@")
        self._found.words += [word for word in (text, value) if word.strip(UNKNOWN)]

    # ── variables, redirections, tests ──────────────────────────────────────────────────────────────────────────

    def _assignment(self, node: tree_sitter.Node, level: int) -> str:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            raise Unclear("a variable with an index is set, and an index can run commands")
        sign = "+=" if any(child.type == "+=" for child in node.children) else "="
        if value is None:
            return f"{self._text(name)}{sign}"
        if value.type == "array":
            self._children(value, level + 1)
            return f"{self._text(name)}{sign}{UNKNOWN}"
        return f"{self._text(name)}{sign}{self._words.word(value, level + 1)}"

    def _assigned(self, text: str) -> None:
        """A variable that is set for all that follows."""
        self._note(text)
        self._check_value(text)
        if not HARMLESS.match(text):
            self._found.parts.append(CommandPart(exact=(text,), loose=(text,)))

    def _check_value(self, text: str) -> None:
        if "$(" in text or "`" in text:
            raise Unclear("a variable holds the text of a command")

    def _redirected(self, node: tree_sitter.Node, level: int) -> None:
        body = node.child_by_field_name("body")
        more: list[str] = []
        before = node.start_byte
        for child in node.children:
            self._blank(before, child.start_byte)
            before = child.end_byte
            if child.type == "file_redirect":
                more += self._redirect(child, level + 1)
            elif child.type == "heredoc_redirect":
                more += self._heredoc(child, level + 1)
            elif child != body:
                self.visit(child, level + 1)
        if body is not None and body.type in ("command", "declaration_command", "unset_command"):
            self._command(body, level + 1, more)
        elif more:
            raise Unclear("it is not clear to which command the words behind a redirection belong")
        elif body is not None:
            self.visit(body, level + 1)

    def _redirect(self, node: tree_sitter.Node, level: int) -> list[str]:
        """State the file; the words behind it, which the grammar takes for further files."""
        self._check_line(node)
        if any(child.type == "file_descriptor" and not self._text(child).isdecimal() for child in node.children):
            raise Unclear("it is not clear what is redirected")
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
        texts = [self._words.word(target, level + 1) for target in targets]
        if not texts:
            return []
        target = texts[0]
        if target.startswith(("/dev/tcp/", "/dev/udp/")) or (target.startswith("/dev/") and UNKNOWN in target):
            raise Unclear("a redirection opens a connection")
        if operator.endswith("-") or (operator.endswith("&") and target[:1] == "-" and target != "-"):
            raise Unclear("it is not clear what is redirected")
        if operator.endswith("&") and re.fullmatch(r"[0-9]*-?", target):
            return texts[1:]
        if operator.startswith("<") and operator != "<>":
            self._note(target)
        elif re.fullmatch(r"/dev/(?:null|stdout|stderr|tty|fd/[0-9]+)", target) is None:
            self._found.writes.append(WriteTarget(path=target, redirected=True))
        return texts[1:]

    def _check_line(self, node: tree_sitter.Node) -> None:
        before = node.start_byte
        for child in node.children:
            self._blank(before, child.start_byte)
            before = child.end_byte

    def _heredoc(self, node: tree_sitter.Node, level: int) -> list[str]:
        more: list[str] = []
        start = end = mark = ""
        for child in node.children:
            if child.type == "heredoc_start":
                start = self._text(child)
            elif child.type == "heredoc_end":
                end = self._text(child)
            elif child.type in ("<<", "<<-"):
                mark = child.type
            elif child.type == "file_redirect":
                more += self._redirect(child, level + 1)
            elif child.type == "heredoc_body":
                self._heredoc_body(child, start, mark, level)
            elif child.type in WORDS:
                more.append(self._words.word(child, level + 1))
            else:
                self.visit(child, level + 1)
        if end.strip() != re.sub(r"[\\\"']", "", start):
            raise Unclear("it is not clear where a here-document ends")
        return more

    def _heredoc_body(self, node: tree_sitter.Node, start: str, mark: str, level: int) -> None:
        delimiter = re.sub(r"[\\\"']", "", start)
        lines = self._text(node).splitlines()
        if any((line.lstrip("\t") if mark == "<<-" else line) == delimiter for line in lines):
            raise Unclear("it is not clear where a here-document ends")
        if delimiter == start:
            self._words.pieces(node, level)

    def _test(self, node: tree_sitter.Node, level: int) -> None:
        for operator in below(node):
            text = self._text(operator) if operator.type == "test_operator" else ""
            if text in ("-v", "-R") or (text in _ARITHMETIC_TESTS and node.children[0].type == "[["):
                raise Unclear(f"the test {text} evaluates its operands, and that can run commands")
        self._children(node, level)
