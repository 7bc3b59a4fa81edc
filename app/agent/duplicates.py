"""Is this run going in circles: the same calls again and again, alone or in a cycle (spec 5.3).

Counts calls in the order in which they were asked for, those that were blocked included. Knows no tool.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_CYCLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateLimits:
    """`repeats`: the how manieth equal call (or round of a cycle) is not carried out; `blocks`: after how many of these
    the run has to answer."""

    repeats: int = 3
    blocks: int = 2


@dataclass(slots=True)
class _Seen:
    """One call: what it asks for, and the digest of its result once there is one."""

    key: str
    poller: bool
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Circle:
    """Why a call is blocked: it would complete the `repeats`th round of a cycle of `length` calls."""

    length: int
    repeats: int


class Duplicates:
    """The calls of one run."""

    __slots__ = ("_calls", "_limits", "_order", "blocked")

    def __init__(self, limits: DuplicateLimits) -> None:
        self._limits = limits
        self._order: list[_Seen] = []
        self._calls: dict[str, _Seen] = {}
        self.blocked = 0

    @property
    def exhausted(self) -> bool:
        """Whether the run has to answer now."""
        return self.blocked >= self._limits.blocks

    def check(self, call_id: str, tool: str, arguments: Any, *, poller: bool = False) -> Circle | None:
        """Take a call in; why it must not be carried out, or None.

        `poller`: a tool that is asked again and again on purpose. It counts only as far as the earlier equal calls
        gave equal results.
        """
        seen = _Seen(call_key(tool, arguments), poller)
        self._order.append(seen)
        self._calls[call_id] = seen
        keep = LONGEST_CYCLE * self._limits.repeats
        del self._order[:-keep]
        for length in range(1, LONGEST_CYCLE + 1):
            if self._goes_round(length):
                self.blocked += 1
                del self._calls[call_id]
                seen.result = self._order[-1 - length].result  # what it is told in place of a result is no news
                return Circle(length, self._limits.repeats)
        return None

    def result(self, call_id: str, content: str) -> None:
        """What a call gave."""
        seen = self._calls.pop(call_id, None)
        if seen is not None and seen.poller:
            seen.result = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()

    def _goes_round(self, length: int) -> bool:
        """Whether the newest calls are `repeats` rounds of the same `length` different calls."""
        rounds = self._order[-length * self._limits.repeats :]
        if len(rounds) < length * self._limits.repeats:
            return False
        first = rounds[:length]
        if length > 1 and len({seen.key for seen in first}) == 1:
            return False  # that is a shorter cycle, which was looked at before
        return all(self._same(rounds[at::length]) for at in range(length))

    @staticmethod
    def _same(calls: list[_Seen]) -> bool:
        if len({seen.key for seen in calls}) > 1:
            return False
        if not calls[0].poller:
            return True
        earlier = [seen.result for seen in calls[:-1]] if calls[-1].result is None else [seen.result for seen in calls]
        return None not in earlier and len(set(earlier)) == 1


def call_key(tool: str, arguments: Any) -> str:
    """One key for all spellings of the same call: the order of keys and white space do not matter."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"{tool}\0{' '.join(arguments.split())}"
    if not isinstance(arguments, Mapping | list):
        return f"{tool}\0{arguments!r}"
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    return f"{tool}\0{text}"
