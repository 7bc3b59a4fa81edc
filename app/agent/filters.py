"""Input filters of handoffs: what is taken out of, cut from or added to a task before a subagent gets it (spec 4.2).

The built-in ones live here; others are functions of operators, found by import path. Knows no policy and no run.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.agent.policy import FilterRef, HandoffInput
from app.agent.ports import Masker

CONTEXT_CHARS = 8_000  # of a context that `cut_context` leaves when no number is given
FILTERS_S = 60.0  # for all filters of a handoff: as long as a tool may take
CUT_NOTE = "\n[… the rest of the context was cut …]"

InputFilter = Callable[[HandoffInput], HandoffInput | Awaitable[HandoffInput | None] | None]
Find = Callable[[str], Callable[..., Any]]  # of an import path; raises ValueError


class InputFilters:
    """Carries out the filters of a policy, in order; each sees what the one before it left. Those that are no
    coroutine functions run on the event loop and must not block."""

    def __init__(self, masker: Masker, find: Find, limit_s: float = FILTERS_S) -> None:
        self._masker = masker
        self._find = find
        self._limit_s = limit_s

    async def apply(self, refs: Sequence[FilterRef], given: HandoffInput) -> HandoffInput:
        """The input after all filters. One that returns nothing keeps what it was given. Raises what a filter raises,
        ValueError or TypeError for one that cannot be found or returns something else, TimeoutError when they do not
        come to an end."""
        async with asyncio.timeout(self._limit_s):
            return await self._applied(refs, given)

    async def _applied(self, refs: Sequence[FilterRef], given: HandoffInput) -> HandoffInput:
        for ref in refs:
            found = self._filter(ref)(given)
            if inspect.isawaitable(found):
                found = await found
            if found is None:
                continue
            _check(ref, found)
            # where the input belongs to is not a filter's to change: admission was asked for this tool and agent
            given = replace(found, tool=given.tool, agent=given.agent, session_id=given.session_id)
        return given

    def _filter(self, ref: FilterRef) -> InputFilter:
        if ref.name == "mask_secrets":
            return self._mask
        if ref.name == "cut_context":
            return lambda given: cut_context(given, ref.argument or CONTEXT_CHARS)
        if ref.name == "inject":
            return lambda given: inject(given, ref.argument or {})
        return self._find(ref.name)

    def _mask(self, given: HandoffInput) -> HandoffInput:
        return replace(
            given,
            task=self._masker.text(given.task),
            context=self._masker.text(given.context),
            fields=None if given.fields is None else masked(given.fields, self._masker),
            inherited=self._masker.text(given.inherited),
        )


BUILT_IN = frozenset({"mask_secrets", "cut_context", "inject"})


def _check(ref: FilterRef, found: Any) -> None:
    """Raises TypeError: what a filter returns becomes a message, and nothing but texts can."""
    if not isinstance(found, HandoffInput):
        raise TypeError(f"input filter {ref.name} returned {type(found).__name__}, not the input or None")
    for name in ("task", "context", "inherited"):
        if not isinstance(getattr(found, name), str):
            raise TypeError(f"input filter {ref.name}: {name} is {type(getattr(found, name)).__name__}, not a text")
    if not (found.fields is None or isinstance(found.fields, Mapping)):
        raise TypeError(f"input filter {ref.name}: fields is {type(found.fields).__name__}, not a map or None")


def cut_context(given: HandoffInput, most: int) -> HandoffInput:
    """The input with at most `most` characters of context, and as many of the caller's conversation."""
    return replace(given, context=_cut(given.context, most), inherited=_cut(given.inherited, most))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + CUT_NOTE


def inject(given: HandoffInput, fields: Mapping[str, Any]) -> HandoffInput:
    """The input with further fields: in the arguments of an agent that takes fields, else as lines of the context."""
    if given.fields is not None:
        return replace(given, fields={**given.fields, **fields})
    lines = "\n".join(f"{name}: {value}" for name, value in fields.items())
    return replace(given, context=f"{given.context}\n\n{lines}" if given.context else lines)


def masked(value: Any, masker: Masker) -> Any:
    """A value as JSON has it, with the secrets taken out of its texts and keys."""
    if isinstance(value, str):
        return masker.text(value)
    if isinstance(value, Mapping):
        return {masked(key, masker): masked(item, masker) for key, item in value.items()}
    return [masked(item, masker) for item in value] if isinstance(value, list) else value
