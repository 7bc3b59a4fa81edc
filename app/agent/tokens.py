"""How many tokens a text may have, where nobody has counted: an estimate that is rather too high than too low.

Knows no vocabulary; what a provider reports replaces it as soon as there is a report.
"""

import json
from collections.abc import Iterable

from app.agent.messages import Message
from app.agent.tools import ToolSpec

BYTES_PER_TOKEN = 3  # English text has 4 to 5, code about 3; a Chinese character is 3 bytes and about one token
PER_MESSAGE = 6  # role and separators
PER_TOOL = 12


def rough_tokens(text: str) -> int:
    """An estimate for one text."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def rough_messages(messages: Iterable[Message]) -> int:
    """An estimate for messages with their calls."""
    total = 0
    for message in messages:
        total += PER_MESSAGE + rough_tokens(message.content) + rough_tokens(message.reasoning)
        total += sum(PER_MESSAGE + rough_tokens(call.name) + rough_tokens(call.raw) for call in message.tool_calls)
    return total


def rough_tools(specs: Iterable[ToolSpec]) -> int:
    """An estimate for tools as a request declares them."""
    return sum(
        PER_TOOL + rough_tokens(f"{s.name}{s.description}{json.dumps(s.parameters, ensure_ascii=False, default=str)}")
        for s in specs
    )
