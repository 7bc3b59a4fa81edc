"""Random command lines that read, write or run what is denied, in the spellings of a real shell, and a place where
they can be carried out without harm."""

import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.tools.shell_cases import lines
from tests.tools.shell_templates import READING, RUNNING, WRITING

KEY, VARIABLES, HARMLESS, MARK = "TOP-SECRET KEY", "TOP-SECRET VARIABLES", "nothing of interest", "ZAPPED"
# What is denied, by what must not come of a line then. One at a time: a question for one reason hides no other hole.
DENIED = {
    "run": ["Bash(zap *)"],
    "key.pem": ["Read(./conf/key.pem)"],
    ".env": ["Read(.env)"],
    "written": ["Write(./conf/out.txt)"],
}
PROGRAMS = ("cat", "head", "tail", "tee", "cp", "mv", "ln", "sed", "sort", "dd", "grep", "find", "xargs", "env", "tr",
            "timeout", "nohup", "nice", "setsid", "stdbuf", "bash", "sh", "touch", "wc", "mkdir", "setpriv", "prlimit",
            "setarch", "cut", "awk", "install", "truncate")  # fmt: skip


class Workshop:
    """A directory with files that may not be touched, in which lines are run. `bash` finds nothing but `PROGRAMS`
    there, and `zap`, which leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "ws"
        self._programs, self._marks = folder / "bin", folder / "marks"
        self._programs.mkdir()
        for name in PROGRAMS:
            found = shutil.which(name)
            if found is not None:
                (self._programs / name).symlink_to(found)
        (self._programs / "zap").write_text(f'#!/bin/sh\necho {MARK} >> "{self._marks}"\n')
        (self._programs / "zap").chmod(0o755)
        self.renew()

    def renew(self) -> None:
        """Everything as it was."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        self._marks.unlink(missing_ok=True)
        for name, text in (("conf/key.pem", KEY), (".env", VARIABLES), ("docs/a.txt", HARMLESS), ("conf/x", HARMLESS),
                           ("conf/out.txt", HARMLESS), ("docs/link.txt", HARMLESS)):  # fmt: skip
            (self.workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (self.workspace / name).write_text(f"{text}\n")
        (self.workspace / "way").symlink_to("conf")

    def harm(self, line: str) -> set[str]:
        """What came of a line that is now run, of the keys of `DENIED`. Raises TimeoutExpired."""
        self.renew()
        variables = {"PATH": str(self._programs), "HOME": str(self.workspace.parent), "LC_ALL": "C"}
        done = subprocess.run(
            [shutil.which("bash") or "bash", "-c", line], cwd=self.workspace, env=variables, timeout=20, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        found = {name for name, text in (("key.pem", KEY), (".env", VARIABLES)) if text.encode() in done.stdout}
        out = self.workspace / "conf" / "out.txt"
        if not out.is_file() or out.read_text() != f"{HARMLESS}\n":
            found.add("written")
        if self._marks.exists():
            found.add("run")
        return found


class Spelling:
    """Writes lines at random, the same for the same seed."""

    def __init__(self, seed: int, workspace: str = "/nowhere") -> None:
        self._random = random.Random(seed)
        self._workspace = workspace
        self._before: list[str] = []

    def line(self) -> str:
        """One line that means to read, to write or to run what is denied."""
        self._before = []
        choose = self._random.choice
        path, template = choose(
            [(choose(["conf/key.pem", ".env"]), READING), ("conf/out.txt", WRITING), ("../bin/zap", RUNNING)]
        )
        folder, _, name = path.rpartition("/")
        line = choose(lines(template)).replace("«plain»", path)
        for mark, text, is_path in (("path", path, True), ("folder", folder or ".", True), ("name", name, True),
                                    ("whole", path, True), ("word", name, False)):  # fmt: skip
            if f"«{mark}»" in line:
                line = line.replace(f"«{mark}»", self.word(text, is_path))
        if "«PATH»" in line:
            line = line.replace("«PATH»", self.word(path).upper())
        line = re.sub("⟪(.*)⟫", lambda found: shlex.quote(found[1]), line, flags=re.DOTALL)
        return "; ".join([*self._before, line])

    # ── words ───────────────────────────────────────────────────────────────────────────────────────────────────

    def word(self, text: str, is_path: bool = True) -> str:
        """A spelling of a word: pieces of it quoted, globbed, in braces, in variables."""
        if is_path and self._random.random() < 0.25:
            text = self._detour(text)
        pieces: list[str] = []
        while text:
            length = self._random.randint(1, max(1, min(len(text), 6)))
            pieces.append(self._piece(text[:length], is_path))
            text = text[length:]
        return "".join(pieces)

    def _piece(self, text: str, is_path: bool) -> str:
        ways: list[Callable[[str], str]] = [lambda t: t] * 6
        ways += [self._quoted] * 4 + [self._braced, self._variable, self._substituted, self._defaulted]
        if is_path and "/" not in text:
            ways += [self._globbed] * 3
        return self._random.choice(ways)(text)

    def _detour(self, path: str) -> str:
        ways = [f"./{path}", f"docs/../{path}", f".//{path}", f"{self._workspace}/{path}", f"~+/{path}",
                f"/proc/self/cwd/{path}", f"{self._workspace}/docs/../{path}", f"/{self._workspace}/{path}",
                f"~/ws/{path}", path.replace("conf/", "way/"), f"/tmp/..{self._workspace}/{path}"]  # fmt: skip
        return self._random.choice(ways)

    def _quoted(self, text: str) -> str:
        octal = "".join(f"\\{ord(char):03o}" for char in text)
        hexes = "".join(f"\\x{ord(char):02x}" for char in text)
        wide = "".join(f"\\u{ord(char):04x}" for char in text)
        ways = [f"'{text}'", f'"{text}"', f"$'{text}'", f"$'{hexes}'", f"$'{octal}'", f"$'{wide}'", f'$"{text}"',
                "".join(f"\\{char}" for char in text), f"''{text}", f'{text}""', f"\\\n{text}"]  # fmt: skip
        return self._random.choice(ways)

    def _globbed(self, text: str) -> str:
        at = self._random.randrange(len(text))
        char = text[at]
        sign = self._random.choice([f"[{char}]", "?", "*", f"[!{'_' if char != '_' else 'b'}]", f"['{char}']",
                                    f"[{char}_]", "[[:graph:]]", f"[\\{char}]"])  # fmt: skip
        return text[:at] + sign + text[at + 1 :]

    def _braced(self, text: str) -> str:
        return self._random.choice([f"{{{text},}}", f"{{,{text}}}", f"{{{text},zz}}", f"{{zz,{text}}}",
                                    f"{{{{{text},y}},z}}"])  # fmt: skip

    def _variable(self, text: str) -> str:
        name = self._random.choice("uvw")
        quoted = shlex.quote(text)
        ways = [f"{name}={quoted}", f"{name}='{text[:1]}'; {name}+='{text[1:]}'", f"read {name} <<< {quoted}"]
        self._before.append(self._random.choice([*ways, f"printf -v {name} %s {quoted}"]))
        return self._random.choice([f"${{{name}}}", f'"${{{name}}}"', f"${{{name}%}}", f'"${{{name}:-y}}"'])

    def _substituted(self, text: str) -> str:
        inner = self._random.choice([f"echo '{text}'", f"printf %s '{text}'", f"cat <<< '{text}'"])
        return self._random.choice([f"$({inner})", f'"$({inner})"', f"`{inner}`"])

    def _defaulted(self, text: str) -> str:
        return self._random.choice([f"${{nn:-{text}}}", f'"${{nn:-{text}}}"', f"${{nn-'{text}'}}", f"${{nn:={text}}}"])
