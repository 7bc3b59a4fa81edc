"""What of a caller's conversation goes into a child's task message: quoted data, without tool traffic (spec 2.5).

Knows no model: a summary is made by whoever has one.
"""

from collections.abc import Iterable, Sequence

from app.agent.messages import Message, Role
from app.agent.returned import neutralised

LAST_TEXTS = 4  # stand in for a summary that could not be made
INHERITED_CHARS = 16_000  # of quoted texts; the newest are kept


def texts_of(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Who said what: texts of users and assistants, in order."""
    said = (Role.USER, Role.ASSISTANT)
    return [(m.role.value, m.content) for m in messages if m.role in said and m.content.strip()]


def quoted(heading: str, said: Sequence[tuple[str, str]]) -> str:
    """The texts under a heading, every line marked as a quotation; the newest when they are too long together."""
    blocks: list[str] = []
    left = INHERITED_CHARS
    for role, text in reversed(said):
        lines = f"{role}: {text}".splitlines() or [f"{role}:"]
        block = "\n".join(f"> {line}" for line in lines)
        if len(block) > left:
            block = f"{block[: max(0, left)]} […]"
        blocks.append(block)
        left -= len(block)
        if left <= 0:
            break
    # last: the mark of a quoted line would close a tag that the line before it leaves open
    return "\n".join([heading, neutralised("\n".join(reversed(blocks)))])
