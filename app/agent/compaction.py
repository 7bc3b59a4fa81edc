"""When the context of a run is shortened, and by which means (spec 5.4): a summary; else old results cut; else the
oldest exchanges left out.

Knows no run: whoever drives one hands over the messages and a way to have a text summarised.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from app.agent.chat import TokenCounter
from app.agent.messages import Message, Role, Usage
from app.agent.runs import Shortened
from app.agent.shortening import SLACK_CHARS, Trial, as_cut, parted, rebuilt, rendered, shown_chars, with_cuts
from app.agent.texts import Texts, filled
from app.agent.tokens import PER_MESSAGE, PER_TOOL, Count, rough_tokens, rough_tools, sent_tokens, tool_text
from app.agent.tools import ToolSpec

CONTEXT_OVERFLOW = "model_context_overflow"  # code of the error of a provider that finds a request too long
OLD_CHARS = 400  # that stay of an old tool result: what was asked for can still be recognised
RESERVED_SHARE = 1.1  # of what is counted, at least
SQUEEZES = 6  # rounds of cutting, each of which counts what was cut anew
LEAST_SUMMARY = 64  # tokens: a shorter one could not say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """How contexts are kept below the windows of their models. Raises ValueError naming the field.

    Shares are of 1. `threshold`: of the window less the answer, over which a context is shortened; `keep_share`: of
    that, the newest part that stays as it is; `least_gain`: of the context, which a summary must free; `tries`:
    summaries in one run; `summary_tokens`: bound of one; `window`: where the model's is not known; `output_tokens`:
    kept for an answer whose length nobody bounds.
    """

    enabled: bool = True
    threshold: float = 0.8
    keep_share: float = 0.25
    least_gain: float = 0.2
    tries: int = 3
    summary_tokens: int = 1024
    window: int = 128_000
    output_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("threshold", "keep_share", "least_gain"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"compaction.{name} is {getattr(self, name)!r}; use a share above 0, at most 1")
        for name, least in (("tries", 0), ("summary_tokens", LEAST_SUMMARY), ("window", 256), ("output_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"compaction.{name} is {getattr(self, name)!r}; use {least} or more")


class Method(StrEnum):
    """By what a context was shortened: a summary, tool results cut, exchanges left out without a summary."""

    SUMMARY = "summary"
    CUT = "cut"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A context that was shortened. `before`, `after`: its tokens; `left_out`: how many messages have gone."""

    method: Method
    messages: list[Message]
    how: Shortened
    before: int
    after: int
    left_out: int


Summarise = Callable[[str, int], Awaitable[str]]  # of a text, in so many tokens; "" where there is none to be had


class Context:
    """How full the context of one run is, and what makes it shorter."""

    __slots__ = (
        "_again_at", "_counter", "_counting", "_counts", "_max_tokens", "_settings", "_texts", "_tool_bytes",
        "_tool_tokens", "_tools", "asked", "window",
    )  # fmt: skip

    def __init__(
        self,
        settings: Compaction,
        counter: TokenCounter,
        texts: Texts,
        *,
        window: int | None = None,
        max_tokens: int | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        self._settings = settings
        self._counter = counter
        self._texts = texts
        self._max_tokens = max_tokens
        self._tools = tuple(tools)
        self._counts: dict[int, tuple[Message, int]] = {}
        self._counting = False
        self._again_at = 0.0  # tokens at which a summary may be asked for, after one that was none
        self._tool_tokens: int | None = None
        self._tool_bytes = sum(PER_TOOL + _bytes(tool_text(spec)) for spec in tools)
        self.window = window or settings.window
        self.asked = 0

    @property
    def room(self) -> int:
        """Tokens that a request may have beside its answer."""
        if self._max_tokens is not None:
            return self.window - min(self._max_tokens, self.window // 2)
        return self.window - min(self._settings.output_tokens, self.window // 4)

    @property
    def limit(self) -> int:
        """Tokens over which the context is shortened."""
        return int(self.room * self._settings.threshold)

    def tokens(self, messages: Iterable[Message]) -> int:
        """Tokens of a request with these messages."""
        return self._corrected(self._whole(messages))

    def learn(self, messages: Sequence[Message], usage: Usage | None) -> None:
        """What the model reports for a request with these messages."""
        if self._counting and usage is not None and usage.input_tokens > 0:
            self._counter.learn(self._whole(messages), usage.input_tokens)

    def _whole(self, messages: Iterable[Message]) -> int:
        if self._tool_tokens is None:
            self._tool_tokens = rough_tools(self._tools, self._counter.count)
        return self._counted(messages) + self._tool_tokens

    def _size(self, messages: Iterable[Message]) -> int:
        return self._corrected(self._counted(messages))

    def _corrected(self, tokens: int) -> int:
        return math.ceil(tokens * self._counter.ratio)

    def _counted(self, messages: Iterable[Message]) -> int:
        total = 0
        for message in messages:
            known = self._counts.get(id(message))
            if known is None or known[0] is not message:
                known = self._counts[id(message)] = message, sent_tokens(message, self._counter.count)
            total += known[1]
        return total

    def _surely_fits(self, messages: Sequence[Message]) -> bool:
        """Whether not even one token for each byte would be too many: then nothing is counted at all."""
        most = self._tool_bytes
        for message in messages:
            most += PER_MESSAGE + _bytes(message.content)
            most += sum(PER_MESSAGE + _bytes(call.name) + _bytes(call.raw) for call in message.tool_calls)
        return most * max(1.0, self._counter.ratio) <= self.limit

    async def shortened(
        self,
        messages: Sequence[Message],
        how: Shortened | None,
        task: Message,
        summarise: Summarise,
        *,
        overflow: bool = False,
        last: bool = False,
    ) -> Compacted | None:
        """A shorter context, when this one is too long and can be made shorter; None: it stays as it is.

        `how` it was shortened before; `task` survives everything. `overflow`: the provider has refused it, so its
        window is smaller than it was said to be. `last`: for the forced answer, for which nothing is summarised.
        """
        self._counting = overflow or not self._surely_fits(messages)
        if not self._settings.enabled or not self._counting:
            return None
        present = {id(message) for message in messages}
        self._counts = {key: known for key, known in self._counts.items() if key in present}
        before = self.tokens(messages)
        if overflow:
            self.window = min(self.window, before)
        if before <= (self.room if last else self.limit):
            return None
        parts = parted(messages, how)
        if how is None:
            first = next((m.seq for exchange in parts.exchanges for m in exchange if m.seq is not None), None)
            if first is None:
                return None
            how = Shortened(kept_from=first)
        trial = Trial(messages=messages, parts=parts, how=how, task=task, before=before)
        done = None
        if not last and self.asked < self._settings.tries and (overflow or before >= self._again_at):
            done = await self._summed_up(trial, summarise)
            # not at the very next step: what failed now would fail again
            self._again_at = before * (1 + self._settings.least_gain / 2) if done is None else 0.0
        return done or self._trimmed(trial)

    # ── by a summary ────────────────────────────────────────────────────────────────────────────────────────────

    async def _summed_up(self, trial: Trial, summarise: Summarise) -> Compacted | None:
        """None: too little to sum up, no summary, or one that frees too little. Then the history stays."""
        at = self._newest(trial)
        kept_from = trial.seq(at)
        old = trial.before_exchange(at)
        told = trial.told(old)
        least = self._settings.least_gain * trial.before
        if kept_from is None or not old or self._size(told) < least:
            return None
        bound = max(LEAST_SUMMARY, min(self._settings.summary_tokens, self.limit // 4))
        wish = self._corrected(self._counter.count(self._texts.compact) + PER_MESSAGE)
        most = self.window - bound - wish - int(self.window * (1 - self._settings.threshold))
        whole = 1 if trial.parts.summary is not None else 0
        said = rendered(told, whole=whole, fits=lambda text: self._corrected(self._counter.count(text)) <= most)
        if not said:
            return None
        self.asked += 1
        text = (await summarise(said, bound)).strip()
        if not text:
            return None
        how = Shortened(
            kept_from=kept_from,
            task=trial.pinned(at),
            summary=filled(self._texts.compacted, summary=text),
            cuts={seq: cut for seq, cut in trial.how.cuts.items() if seq >= kept_from},
            note=trial.how.note,
        )
        how = self._squeezed(trial.messages, how, self.limit)
        done = self._compacted(Method.SUMMARY, trial, how)
        return done if done.after <= trial.before - least else None

    def _newest(self, trial: Trial) -> int:
        """Where the newest part begins: as many exchanges as fit, at least the last one."""
        exchanges = trial.parts.exchanges
        left = self._settings.keep_share * min(trial.before, self.limit)
        at = len(exchanges)
        while at > 0:
            left -= self._size(exchanges[at - 1])
            if left < 0 and at < len(exchanges):
                break
            at -= 1
        return at

    # ── without one ─────────────────────────────────────────────────────────────────────────────────────────────

    def _trimmed(self, trial: Trial) -> Compacted | None:
        """Old results are cut. Below the window that must free enough, or each step would change the context a little;
        over it, whatever helps is done."""
        note = self._texts.output_cut_old
        at = self._newest(trial)
        how = with_cuts(trial.how, trial.before_exchange(at), OLD_CHARS, note)
        done = self._compacted(Method.CUT, trial, how)
        if trial.before <= self.room:
            return done if done.after <= trial.before * (1 - self._settings.least_gain) else None
        if done.after > self.room:
            newest = [m for exchange in trial.parts.exchanges[at:] for m in exchange]
            how = self._moderate(newest, how)
            done = self._compacted(Method.CUT, trial, how)
        if done.after > self.room:
            how = self._without_oldest(trial, how, done.after)
            done = self._compacted(Method.DROPPED if how.kept_from != trial.how.kept_from else Method.CUT, trial, how)
        if done.after > self.room:
            done = self._compacted(done.method, trial, self._squeezed(trial.messages, how, self.limit))
        return done if done.after < trial.before else None

    def _moderate(self, newest: Sequence[Message], how: Shortened) -> Shortened:
        """No result of the newest part may be larger than that whole part should be."""
        most = int(self._settings.keep_share * self.limit)
        for message in newest:
            size = self._size([message])
            if message.role is Role.TOOL and size > most:
                chars = max(OLD_CHARS, shown_chars(message, how) * most // size)
                how = with_cuts(how, [message], chars, self._texts.output_cut_old)
        return how

    def _without_oldest(self, trial: Trial, how: Shortened, tokens: int) -> Shortened:
        """The oldest exchanges go, until the context is below the limit again; the task and the newest one stay."""
        sizes = [self._size(as_cut(exchange, how)) for exchange in trial.parts.exchanges]
        at = 0
        while tokens > self.limit and at < len(sizes) - 1:
            tokens -= sizes[at] if not trial.holds_task(at) else 0
            at += 1
        kept_from = trial.seq(at)
        gone = len(trial.told(trial.before_exchange(at))) - (trial.parts.summary is not None)
        if at == 0 or kept_from is None or gone == 0:
            return how
        marker = f"\n\n{filled(self._texts.dropped, count=how.untold)}"
        told = how.summary.removesuffix(marker) if how.summary != marker.strip() else ""
        marker = filled(self._texts.dropped, count=how.untold + gone)
        return replace(
            how,
            kept_from=kept_from,
            task=trial.pinned(at),
            summary=f"{told}\n\n{marker}" if told else marker,
            untold=how.untold + gone,
            cuts={seq: cut for seq, cut in how.cuts.items() if seq >= kept_from},
        )

    def _squeezed(self, messages: Sequence[Message], how: Shortened, most: int) -> Shortened:
        """The largest results are cut to one length, until the context fits or all are small. A few rounds are enough:
        the first ones go by the share of tokens that characters have, the last one by nothing."""
        for left in reversed(range(SQUEEZES)):
            context = rebuilt(messages, how)
            excess = self.tokens(context) - most
            large = [m for m in context if m.role is Role.TOOL and shown_chars(m, how) > OLD_CHARS + SLACK_CHARS]
            if excess <= 0 or not large:
                break
            chars = self._level(large, how, excess) if left else OLD_CHARS
            how = with_cuts(how, large, max(OLD_CHARS, chars), self._texts.output_cut_old)
        return how

    def _level(self, large: Sequence[Message], how: Shortened, excess: int) -> int:
        """The length in characters that frees so many tokens when no result is longer."""
        known = sorted(((shown_chars(m, how), self._size([m])) for m in large), reverse=True)
        tokens = per_char = 0.0
        level = known[0][0]
        for (chars, size), (below, _) in pairwise([*known, (0, 0)]):
            tokens += size
            per_char += size / chars
            level = int((tokens - excess) / per_char)
            if level >= below:
                break
        return min(level, known[0][0] * 9 // 10 - SLACK_CHARS)

    def _compacted(self, method: Method, trial: Trial, how: Shortened) -> Compacted:
        messages = rebuilt(trial.messages, how)
        left_out = sum(m.seq is not None for m in trial.messages) - sum(m.seq is not None for m in messages)
        after = self.tokens(messages)
        return Compacted(method=method, messages=messages, how=how, before=trial.before, after=after, left_out=left_out)


def reserving(counter: TokenCounter) -> Count:
    """Counts texts for a reservation: rather too much, since endpoints put words of their own around what is sent."""

    def count(text: str) -> int:
        if not counter.exact:
            return rough_tokens(text)
        return math.ceil(counter.count(text) * max(RESERVED_SHARE, counter.ratio))

    return count


def _bytes(text: str) -> int:
    """At least as many as the text has in UTF-8, without looking at it."""
    return len(text) if text.isascii() else 4 * len(text)
