"""Reasoning that a server left inside the content, between think tags, told apart from the answer.

Knows no stream: it is fed text and says which part of it is what.
"""

import re

OPENERS = ("<think>", "<thinking>", "<thought>")
CLOSERS = tuple("</" + opener[1:] for opener in OPENERS)
_LONE_CLOSER = re.compile("|".join(CLOSERS))


class ThinkSplitter:
    """Splits a stream of content. Tags count only where a server puts them, so that quoted ones survive:

    - an opener counts as the first thing in the content, its closer ends the reasoning;
    - without an opener (it was in the prompt) the first closer outside code ends it: all before it was reasoning,
      though it had to be passed on as text when it came.
    """

    __slots__ = ("_closer", "_pending", "_state", "reasoning", "text")

    def __init__(self, enabled: bool) -> None:
        self._state = "start" if enabled else "plain"
        self._pending = ""
        self._closer = ""
        self.text: list[str] = []
        self.reasoning: list[str] = []

    def feed(self, piece: str) -> tuple[str, str]:
        """(text, reasoning) that are certain after this piece; a beginning of a tag is held back."""
        if self._state == "plain" or (self._state == "open" and not self._pending and "<" not in piece):
            self.text.append(piece)
            return piece, ""
        pending = self._pending + piece
        self._pending = ""
        if self._state == "start":
            pending = self._start(pending)
        text = reasoning = ""
        if self._state == "inside":
            reasoning, pending = self._inside(pending)
        if self._state == "after":
            pending = pending.lstrip()
            if pending:
                self._state = "plain"
        if self._state == "plain":
            text = pending
        elif self._state == "open":
            text, reasoning = self._watch(pending)
        return self._noted(text, reasoning)

    def end(self, *, is_answer: bool) -> tuple[str, str]:
        """What was held back, now that nothing follows. A block that was never closed is the answer when there is no
        other (`is_answer`): unclosed text is never lost."""
        pending, self._pending = self._pending, ""
        if self._state == "inside":
            if is_answer:
                self.text, self.reasoning = [*self.reasoning, pending], []
                return "", pending
            return self._noted("", pending)
        return self._noted("" if self._state == "after" else pending, "")

    def disable(self) -> None:
        """The server tells reasoning apart itself: tags in its content are content."""
        if self._state == "start" and not self._pending:
            self._state = "plain"

    def _start(self, pending: str) -> str:
        stripped = pending.lstrip()
        for opener in OPENERS:
            if stripped.startswith(opener):
                self._state = "inside"
                self._closer = "</" + opener[1:]
                return stripped[len(opener) :]
            if opener.startswith(stripped):
                self._pending = pending  # all white space, or the beginning of a tag
                return ""
        self._state = "open"
        return pending

    def _inside(self, pending: str) -> tuple[str, str]:
        before, closer, after = pending.partition(self._closer)
        if closer:
            self._state = "after"
            return before, after
        keep = _tail(pending, self._closer)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], ""

    def _watch(self, pending: str) -> tuple[str, str]:
        """(text, reasoning): pass text on, but look for a closer whose opener was never sent."""
        for found in _LONE_CLOSER.finditer(pending) if "</t" in pending else ():
            before = pending[: found.start()]
            if not _in_code("".join(self.text) + before):
                self.reasoning, self.text = self.text, []
                rest = pending[found.end() :].lstrip()
                self._state = "plain" if rest else "after"
                return rest, before
        keep = max(_tail(pending, closer) for closer in CLOSERS)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], ""

    def _noted(self, text: str, reasoning: str) -> tuple[str, str]:
        if text:
            self.text.append(text)
        if reasoning:
            self.reasoning.append(reasoning)
        return text, reasoning


def _tail(text: str, tag: str) -> int:
    """How many characters at the end of the text are a beginning of the tag."""
    if "<" not in text[-len(tag) :]:
        return 0
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def _in_code(before: str) -> bool:
    """Whether this text ends inside a fenced block or an inline code span."""
    if before.count("```") % 2:
        return True
    line = before[before.rfind("\n") + 1 :]
    return line.replace("```", "").count("`") % 2 == 1
