"""What was found in a command line: its parts, the files that it may name, and the directories that it moves to.

Knows no syntax: it is told of commands by their words, and keeps the whole small enough to be judged.
"""

from collections.abc import Sequence

from app.agent.permission_subjects import CommandPart, ParsedCommand, WriteTarget
from app.agent.rule_patterns import UNKNOWN, is_known
from app.tools.command_files import NAMES_ONLY, PROGRAMMED, directories, inside, pieces
from app.tools.commands import Effects
from app.tools.shell_words import PIPE, Unclear

_MAX_PARTS, _MAX_WORDS = 300, 500
_MAX_BASES = 8  # directories that relative paths may start from
_MAX_PLACES = 1_000  # names times directories: each is looked up on the disk
_MAX_DOUBTFUL = 100  # of these, such as are held against every rule piece by piece
_MOVING = frozenset({"cd", "pushd", "popd"})
# What they have moved, or copied as a whole, has other names in the rest of the line.
_RENAMING, _COPYING = frozenset({"ln", "mv", "mount", "bindfs"}), frozenset({"cp", "rsync"})

_STORES = frozenset({"git", "hg", "svn", "jj", "bzr", "fossil"})  # keep what files held, beside the files


class Findings:
    """Collects what one command line does."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._parts: dict[CommandPart, None] = {}
        self._writes: dict[WriteTarget, None] = {}
        self._words: dict[str, None] = {}
        self._perhaps: dict[str, None] = {}
        self._walks: dict[str, None] = {}
        self._stored: set[str] = set()
        self._opaque = self._from_store = False
        self._bases: dict[str, None] = {".": None}
        self._renames = False
        self._runs = 0

    def parsed(self) -> ParsedCommand:
        """All of it."""
        if self._renames and self._runs > 1:
            self._anywhere()
        words, perhaps, bases = tuple(self._words), tuple(self._perhaps.keys() - self._words.keys()), tuple(self._bases)
        doubtful = sum(not is_known(word) for word in words) + len(perhaps) + len(self._walks)
        places = len(bases) * (len(words) + len(perhaps) + len(self._walks) + len(self._writes))
        if places > _MAX_PLACES or len(bases) * doubtful > _MAX_DOUBTFUL:
            self.problem, bases = self.problem or "the command names too many files", (".",)
        if self.problem is not None:  # then anything may be read, and only what is known says more
            words, perhaps = tuple(filter(is_known, words)), ()
            self._walks.clear()
        return ParsedCommand(
            parts=tuple(self._parts),
            writes=tuple(self._writes),
            words=words,
            perhaps=tuple(sorted(perhaps)),
            walks=tuple(self._walks),
            stored=frozenset(self._stored),
            opaque=self._opaque,
            bases=bases,
            problem=self.problem,
        )

    def part(self, part: CommandPart) -> None:
        """A simple command. Raises `Unclear` when there are too many."""
        if self._runs > _MAX_PARTS:
            raise Unclear(f"the command has more than {_MAX_PARTS} parts")
        self._runs += not part.granted
        self._parts[part] = None

    def files(self, words: Sequence[str], effects: Effects, splits: bool) -> None:
        """The files that a command names. `splits`: a word may turn out to be several."""
        name = words[0].rpartition("/")[2]
        passes_on = bool(effects.inner) or name in NAMES_ONLY
        self._from_store = not passes_on and any(word.rpartition("/")[2] in _STORES for word in words)
        for word in words[1:]:
            self.name(word)
            if not passes_on:
                self._doubtful(word)
        for path in effects.writes:
            self.write(path, redirected=False)
        for path in effects.changes:
            self.write(path, redirected=False, whole=True)
        for path in effects.reads:
            self.read(path)
        for path in effects.walks:
            self._keep(self._walks, path.replace(PIPE, UNKNOWN))
        texts = [piece for piece in inside(name, words[1:]) if piece and is_known(piece)]
        for path in texts:
            self._keep(self._perhaps, path)
        for path in texts if name in PROGRAMMED else effects.touches:
            self.write(path, redirected=False, sure=False)
        if splits and not passes_on:
            self._word(UNKNOWN)
        if splits and effects.writes:
            self.write(UNKNOWN, redirected=False)
        if effects.opaque or effects.redefines:
            self._unknown()
        self._renames = self._renames or name in _RENAMING or (name in _COPYING and bool(effects.walks))
        if name in _MOVING:
            self._move(name, words)
        else:
            for directory in directories(words[1:]):
                self._go(directory)
        self._from_store = False

    def anything(self, words: Sequence[str]) -> None:
        """A command of which the name is not known."""
        for word in words:
            self.name(word)
        self._unknown()

    def name(self, word: str) -> None:
        """A word that may be the name of a file, if all of it is known."""
        if is_known(word) and PIPE not in word:
            self._word(word)
            if "=" in word or word.startswith("@"):
                self._word(word.partition("=")[2].lstrip("@") if "=" in word else word.lstrip("@"))
            for piece in (*pieces(word), *(word.split() if "=" in word else ())):
                self._keep(self._perhaps, piece)

    def read(self, path: str) -> None:
        """A file that is read."""
        if path != PIPE:
            self._word(path.replace(PIPE, UNKNOWN))

    def write(self, path: str, *, redirected: bool, whole: bool = False, sure: bool = True) -> None:
        """A file that is written; `redirected`: by the shell; `whole`: with all that lies below."""
        if path and path != PIPE:
            target = WriteTarget(path=path.replace(PIPE, UNKNOWN), redirected=redirected, whole=whole, sure=sure)
            self._writes[target] = None

    def _doubtful(self, word: str) -> None:
        if not is_known(word):
            self.read(word)
            for piece in pieces(word):
                self._keep(self._perhaps, piece.replace(PIPE, UNKNOWN))

    def _word(self, word: str) -> None:
        if len(self._words) > _MAX_WORDS:
            raise Unclear(f"the command has more than {_MAX_WORDS} words")
        if word:
            self._keep(self._words, word)

    def _keep(self, names: dict[str, None], name: str) -> None:
        names[name] = None
        if self._from_store:
            self._stored.add(name)

    def _unknown(self) -> None:
        self._opaque = True
        self._anywhere()

    def _anywhere(self) -> None:
        self._words[UNKNOWN] = None
        self.write(UNKNOWN, redirected=False)

    # ── directories ─────────────────────────────────────────────────────────────────────────────────────────────

    def _move(self, name: str, words: Sequence[str]) -> None:
        """Remember from where relative paths may start after a change of directory."""
        targets = [word for word in words[1:] if word not in ("-P", "-L", "--")]
        if name != "cd" or len(targets) != 1 or targets[0].startswith("-"):
            self._bases[UNKNOWN] = None
        else:
            self._go(targets[0])

    def _go(self, target: str) -> None:
        if not target or not is_known(target) or PIPE in target or len(self._bases) > _MAX_BASES // 2:
            self._bases[UNKNOWN] = None
        elif target.startswith(("/", "~")):
            self._bases[target] = None
        else:
            for base in list(self._bases):
                self._bases[target if base == "." else f"{base}/{target}"] = None
