"""A working context made shorter: its parts, what of it is kept, and how what is removed is told to a summariser.

One function builds every such context, of a live run and of a stored memory, so that the two cannot differ. Knows
neither why a context is shortened nor how many tokens anything has.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.agent.messages import Message, Role
from app.agent.runs import Shortened
from app.agent.texts import filled
from app.agent.transcript import acceptable

PIECE_CHARS = (16_000, 8_000, 4_000, 2_000, 1_000, 500, 250)  # of one message in a rendering: the first that fits
SLACK_CHARS = 100  # a cut that saves less than its note has is none
LEFT_OUT = " [… {left_out} characters …] "


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a working context consists of. An exchange is a message with the results of its calls: nothing cuts it.
    `task`: pinned in front of the rest; `summary`: of what is not there any more."""

    system: Message | None
    task: Message | None
    summary: Message | None
    exchanges: tuple[tuple[Message, ...], ...]


def parted(messages: Sequence[Message], how: Shortened | None) -> Parts:
    """The parts of a context that was shortened like this."""
    rest = list(messages)
    system = rest.pop(0) if rest and rest[0].role is Role.SYSTEM else None
    task = summary = None
    if how is not None and how.task is not None and how.task < how.kept_from and rest and rest[0].seq == how.task:
        task = rest.pop(0)
    if how is not None and how.summary and rest and rest[0].seq is None:
        summary = rest.pop(0)
    return Parts(system=system, task=task, summary=summary, exchanges=_exchanges(rest))


def _exchanges(messages: Iterable[Message]) -> tuple[tuple[Message, ...], ...]:
    found: list[list[Message]] = []
    for message in messages:
        if found and message.role is Role.TOOL:
            found[-1].append(message)
        else:
            found.append([message])
    return tuple(map(tuple, found))


def rebuilt(messages: Sequence[Message], how: Shortened) -> list[Message]:
    """The context, from what was said in order (of what comes before `kept_from` the system prompt and the task are
    enough) or from an earlier context of the same memory that lacks nothing of this one."""
    context = [message for message in messages[:1] if message.role is Role.SYSTEM]
    said = [message for message in messages[len(context) :] if message.seq is not None]
    if how.task is not None and how.task < how.kept_from:
        context += [message for message in said if message.seq == how.task]
    if how.summary:
        context.append(Message(role=Role.USER, content=how.summary))
    context += [_cut(m, how) for m in said if m.seq is not None and m.seq >= how.kept_from]
    return context


def _cut(message: Message, how: Shortened) -> Message:
    """A tool message as the context has it; cutting what was cut already gives the same."""
    cut = how.cuts.get(message.seq) if message.seq is not None else None
    if cut is None:
        return message
    kept, left_out = cut
    content = message.content[:kept] + filled(how.note, left_out=left_out)
    return message if content == message.content else replace(message, content=content)


def shown_chars(message: Message, how: Shortened) -> int:
    """How many characters of what a tool gave stand in the context."""
    return how.cuts.get(message.seq or 0, (len(message.content), 0))[0]


def with_cuts(how: Shortened, messages: Iterable[Message], most: int, note: str) -> Shortened:
    """The same, with at most `most` characters of each of these tool messages; what is shorter stays as it is."""
    cuts = dict(how.cuts)
    for message in messages:
        kept, left_out = cuts.get(message.seq or 0, (len(message.content), 0))
        if message.role is Role.TOOL and message.seq is not None and kept > most + SLACK_CHARS:
            cuts[message.seq] = (most, kept - most + left_out)
    return replace(how, cuts=cuts, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A context that is to be shortened."""

    messages: Sequence[Message]
    parts: Parts
    how: Shortened
    task: Message
    before: int

    def seq(self, at: int) -> int | None:
        """The number of the first message of an exchange."""
        return self.parts.exchanges[at][0].seq if at < len(self.parts.exchanges) else None

    def before_exchange(self, at: int) -> list[Message]:
        """What stands before an exchange, without the task."""
        return [m for exchange in self.parts.exchanges[:at] for m in exchange if m is not self.task]

    def told(self, old: Sequence[Message]) -> list[Message]:
        """What goes when this does: the summary so far first, the task of an earlier run."""
        pinned = self.parts.task if self.parts.task is not self.task else None
        return [m for m in (self.parts.summary, pinned) if m is not None] + list(old)

    def pinned(self, at: int) -> int | None:
        """The number of the task, when it stands before that exchange."""
        kept = any(self.holds_task(index) for index in range(at, len(self.parts.exchanges)))
        return None if kept else self.task.seq

    def holds_task(self, at: int) -> bool:
        """Whether an exchange is the task."""
        return any(message is self.task for message in self.parts.exchanges[at])


def as_cut(exchange: Sequence[Message], how: Shortened) -> list[Message]:
    """An exchange as the context has it."""
    return rebuilt(exchange, replace(how, kept_from=0, task=None, summary=""))


def rendered(messages: Sequence[Message], *, whole: int, fits: Callable[[str], bool]) -> str:
    """Messages as one text for a summariser that fits. The first `whole` ones (an earlier summary) are not shortened;
    of the others each is cut in its middle as far as needed, then the oldest are left out."""
    blocks = _blocks(messages[:whole]), _blocks(acceptable(messages[whole:]))
    cut, text = blocks[1], ""
    for most in PIECE_CHARS:
        cut = [_middle_out(block, most) for block in blocks[1]]
        text = "\n\n".join((*blocks[0], *cut))
        if fits(text):
            return text
    while cut:
        cut = cut[len(cut) // 4 + 1 :]
        text = "\n\n".join((*blocks[0], *cut))
        if fits(text):
            return text
    while text and not fits(text):
        text = text[: len(text) // 2]
    return text


def _blocks(messages: Iterable[Message]) -> list[str]:
    names: dict[str | None, str] = {}
    blocks: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            blocks.append(f"result of {names.get(message.tool_call_id, 'a call')}: {message.content}")
            continue
        if message.content.strip():
            blocks.append(f"{message.role.value}: {message.content}")
        for call in message.tool_calls:
            names[call.call_id] = call.name
            blocks.append(f"{message.role.value} calls {call.name}: {call.raw}")
    return blocks


def _middle_out(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return text[:head] + filled(LEFT_OUT, left_out=len(text) - most) + text[len(text) - (most - head) :]
