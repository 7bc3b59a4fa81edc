"""Takes shell command lines apart for permission rules: `CommandParser` on tree-sitter's grammar of bash.

Every kind of node is known here or the line cannot be judged. Nothing is run and nothing looked up. What the grammar
and a real shell could read differently cannot be judged either.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock

import tree_sitter
import tree_sitter_bash

from app.agent.permission_subjects import CommandPart, ParsedCommand
from app.agent.rule_patterns import UNKNOWN, is_known
from app.tools.commands import HARMLESS, commands_in, effects_of, part_of, straight
from app.tools.shell_findings import Findings
from app.tools.shell_words import MAX_NESTING, WORDS, Unclear, WordReader, below, check_arithmetic, rendered

MAX_CHARS = 20_000
_MOST = {"<<": 20, "|": 500, "&": 500}  # the grammar's time grows with the square of these, and of signs in a row
_MAX_SCRIPTS = 8  # inside scripts

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
_PLACES = re.compile(r"(?<![\w$\{])(?:HOME|PWD|OLDPWD|CDPATH|GLOBIGNORE|BASHOPTS|SHELLOPTS|BASH_ENV)\b")
_SIGNS = re.compile(r"(?:[|&;<>(){}$`!\[\]][ \t\n]?){30}")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_BLANKS = re.compile(r"(?:[ \t\n]|\\\n)*")
_BLANKS_OF_A_LINE = re.compile(r"(?:[ \t]|\\\n)*")


class BashParser:
    """`CommandParser` for bash and the shells like it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        self._lock = Lock()

    def parse(self, command: str) -> ParsedCommand:
        """All that the line may run or write. What cannot be judged to its end says so in `problem`."""
        found = Findings()
        try:
            self.read(command, found, 0)
        except (Unclear, RecursionError) as error:
            found.problem = str(error) or "the command is nested too deeply"
        return found.parsed()

    def read(self, script: str, found: Findings, depth: int) -> None:
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
        if _PLACES.search(script):
            raise Unclear("the command changes where names of files lead")
        if _JOINED_LINE.search(script):
            raise Unclear("a word goes on in the next line")
        source = script.encode()
        with self._lock:
            tree = self._parser.parse(_NOT_ASCII.sub(_letters, script).encode())
        if tree.root_node.has_error:
            raise Unclear("the command is no shell syntax that can be understood here")
        _Reader(self, source, found, depth).read(tree.root_node)


def _letters(found: re.Match[str]) -> str:
    """In place of a character, as many letters as it has bytes: it is one of a word for a shell, and the grammar's
    scanner looks it up in a table of 256, which has ended the process."""
    return "x" * len(found.group().encode())


class _Reader:
    """Walks over the tree of one script."""

    def __init__(self, parser: BashParser, source: bytes, found: Findings, depth: int) -> None:
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
            self._found.name(self._words.word(node, level))
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
        plain, before = not more, node.start_byte
        outside, self._words.splits = self._words.splits, not all(map(is_known, more))
        for child in node.children:
            self._blank(before, child.start_byte)
            is_word = child.type in ("command_name", "variable_assignment") or child.type in WORDS
            if is_word and node.start_byte < before == child.start_byte:
                raise Unclear("it is not clear where a word ends")
            before = child.end_byte
            if child.type == "command_name":
                words.append(self._words.word(child.children[0], level + 1))
            elif child.type == "variable_assignment":
                (assigned if node.type == "command" else words).append(self._assignment(child, level + 1))
            elif child.type in WORDS:
                words.append(self._words.word(child, level + 1))
            elif child.type == "file_redirect":
                words += self._redirect(child, level + 1)
                plain = False
            elif child.is_named or node.type == "command":
                self.visit(child, level + 1)
                plain = False
        splits, self._words.splits = self._words.splits, outside
        self._run([*words, *more], assigned, self._text(node) if plain else None, splits)

    def _run(
        self, words: list[str], assigned: Sequence[str] = (), source: str | None = None, splits: bool = False
    ) -> None:
        """State a command by its words, and what it runs in turn. `splits`: a word may turn out to be several."""
        for text in assigned:
            self._check_value(text)
            self._found.name(text)
        if not words:
            return
        if not is_known(words[0]) or not words[0] or words[0] in _KEYWORDS:
            self._found.part(CommandPart(exact=(), loose=(rendered(words), UNKNOWN)))
            self._found.anything(words)
            return
        if ".." in words[0].split("/"):
            source, words[0] = None, straight(words[0])
        effects = effects_of(words)
        harmless = all(HARMLESS.match(text) for text in (*assigned, *effects.assigned))
        self._found.part(part_of(words, assigned, source, harmless, effects))
        self._found.files(words, effects, splits)
        for inner in effects.inner:
            self._run(inner, effects.assigned, splits=splits)
        for script in effects.scripts:
            self._parser.read(script, self._found, self._depth + 1)

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
        self._found.name(text)
        self._check_value(text)
        if not HARMLESS.match(text):
            exact = (text,) if is_known(text) else ()
            self._found.part(CommandPart(exact=exact, loose=(text,), perhaps=tuple(commands_in([text]))))

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
        if any(one.end_byte == other.start_byte for one, other in pairwise(targets)):
            raise Unclear("it is not clear where a word ends")
        texts = [self._words.word(target, level + 1) for target in targets]
        if not texts:
            return []
        target = texts[0]
        if target.startswith(("/dev/tcp/", "/dev/udp/")) or (target.startswith("/dev/") and not is_known(target)):
            raise Unclear("a redirection opens a connection")
        if operator.endswith("-") or (operator.endswith("&") and target[:1] == "-" and target != "-"):
            raise Unclear("it is not clear what is redirected")
        if operator.endswith("&") and re.fullmatch(r"[0-9]*-?", target):
            return texts[1:]
        if operator.startswith("<") and operator != "<>":
            self._found.read(target)
        elif re.fullmatch(r"/dev/(?:null|stdout|stderr|tty|fd/[0-9]+)", target) is None:
            self._found.write(target, redirected=True)
        return texts[1:]

    def _check_line(self, node: tree_sitter.Node) -> None:
        before = node.start_byte
        for child in node.children:
            self._blank(before, child.start_byte)
            before = child.end_byte

    def _heredoc(self, node: tree_sitter.Node, level: int) -> list[str]:
        more: list[str] = []
        start = end = mark = ""
        if any(one.end_byte == other.start_byte and other.type in WORDS for one, other in pairwise(node.children)):
            raise Unclear("it is not clear where a word ends")
        for child in node.children:
            known = self._source[node.start_byte : child.start_byte]
            if child.type not in ("heredoc_body", "heredoc_end") and b"\n" in known:
                raise Unclear("it is not clear where a here-document begins")
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
