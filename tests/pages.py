"""The pages of the documentation and the examples in them, for the tests that carry these out."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.service import ROOT

DELEGATION = "docs/delegation.md"
GOVERNANCE = "docs/governance.md"
TASKS = "docs/tasks.md"
AUDIT = "docs/audit.md"
PAGES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", DELEGATION, GOVERNANCE, TASKS, AUDIT)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGING = re.compile(r"\b(?:([a-z]+)_[0-9a-z]{26}|(sub)_[0-9a-f]{8})\b")  # ids and made-up names
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    kind: str
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.splitlines()[0]


def blocks() -> list[Block]:
    """All fenced blocks of the pages."""
    found = []
    for page in PAGES:
        found += [Block(page, m[1], m[2]) for m in FENCED.finditer((ROOT / page).read_text())]
    return found


def of(kind: str, having: str = "", page: str = "") -> list[Block]:
    """The blocks of one language that hold a text, of one page or of all."""
    return [b for b in blocks() if b.kind == kind and having in b.text and b.page.startswith(page)]


def requests(block: Block) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Path, body and headers of each curl command in a block."""
    for command in block.text.replace("\\\n", " ").split("curl ")[1:]:
        words = shlex.split(command, comments=True)
        url = next(word for word in words if word.startswith("http"))
        data = words[words.index("-d") + 1] if "-d" in words else None
        headers = dict(word.split(": ", 1) for word in words if ": " in word and word != data)
        yield url.removeprefix("http://127.0.0.1:8080"), data, headers


def lasting(text: str) -> str:
    """A text without what is different each time."""
    text = CHANGING.sub(lambda match: f"{match[1] or match[2]}_…", text)
    return TIME.sub("…", re.sub(r"\b\d+ ms\b", "… ms", text))
