"""What a reader was shown, held against what the service has: every durable event once, in order, the same bytes, and
texts that are those of the messages."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from app.frames import DELTA_TYPES, Received, Texts
from tests.readers.followers import Shown


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]


async def stored(http: aiohttp.ClientSession, url: str) -> list[str]:
    """All durable events of a view, byte for byte, from its JSON pages."""
    found: list[str] = []
    while True:
        async with http.get(
            url, params={"after": len(found), "limit": 500}, headers={"Accept": "application/json"}
        ) as a:
            a.raise_for_status()
            items = msgspec.json.decode(await a.read(), type=_Page).items
        if not items:
            return found
        found += [bytes(item).decode() for item in items]


@dataclass
class Verdict:
    """Counts of what one reader was shown. Only `events`, `deltas`, `whole` and `withdrawn` may be above 0: `whole`:
    texts that deltas and snapshots had given in full before the message came; `withdrawn`: those taken back whose
    digest was the one of what was shown."""

    events: int = 0
    deltas: int = 0
    whole: int = 0
    withdrawn: int = 0
    doubles: int = 0
    gaps: int = 0
    changed: int = 0
    wrong_texts: int = 0
    problems: list[str] = field(default_factory=list)

    def look(self, shown: Sequence[Shown], log: Sequence[str]) -> None:
        """Take in what a reader was shown of a session that has ended."""
        texts, last = Texts(), 0
        for each in shown:
            if each.type.startswith("stream.") and each.type not in ("stream.closing", "stream.skipped"):
                self.problems.append(f"{each.type} {each.text}")
            number = each.data.get("id")
            if number is None:
                self.deltas += each.type in DELTA_TYPES
            else:
                self.doubles += number <= last
                self.gaps += number > last + 1
                self.changed += number > len(log) or log[number - 1] != each.text
                last = max(last, number)
                self.events += 1
            self._texts(texts, Received(number, each.type, each.data, each.text))
        self.gaps += last != len(log)

    def _texts(self, texts: Texts, frame: Received) -> None:
        data = frame.data
        if frame.type == "message" and data["data"]["role"] == "assistant":
            text = texts.text(data["run"], data["step"]) or ""
            self.whole += text == data["data"]["content"]
            self._expect(data["data"]["content"].startswith(text), frame)  # the end may have come while it was away
        elif frame.type == "step.retried":
            self._withdraw(texts, data["run"], data["step"], data["data"]["withdrawn"], frame)
        texts.feed(frame)
        if frame.type == "message" and data["data"]["role"] == "assistant" and data["data"]["content"]:
            self._expect(texts.text(data["run"], data["step"]) == data["data"]["content"], frame)

    def _withdraw(
        self, texts: Texts, run: int, step: int, withdrawn: Iterable[Mapping[str, Any]], frame: Received
    ) -> None:
        for one in withdrawn:
            text = texts.text(run, step, one["of"], one.get("call"))
            if text is not None and len(text) == one["length"]:
                same = hashlib.sha256(text.encode()).hexdigest() == one["digest"]
                self.withdrawn += same
                self._expect(same, frame)

    def _expect(self, right: bool, frame: Received) -> None:
        if not right:
            self.wrong_texts += 1
            self.problems.append(f"a text that does not fit: {frame.text[:300]}")

    @property
    def right(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.doubles or self.gaps or self.changed or self.wrong_texts or self.problems)
