"""What tools of MCP servers are called: `mcp__<server>__<tool>`, safe for every provider, the same after a restart.

A name depends on its own tool alone: what else a server offers, or comes to offer, never changes what a rule means.
Knows no server.
"""

import hashlib
import re
import unicodedata

from app.agent.definition import MAX_TOOL_NAME
from app.agent.tools import GROUPED

MAX_SERVER_NAME = 32
# Without `__`, and with no `_` at its ends: where a server's name ends can then be told from every tool's name.
SERVER_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8  # of a digest, behind a name that had to be changed


def group_of(server: str) -> str:
    """What stands for all tools of a server in whitelists and rules."""
    return f"{GROUPED}{server}"


def tool_name(server: str, tool: str) -> str:
    """The name of a server's tool. One that is short and plain stays as it is; any other gets a digest of itself, so
    that `a.b` is never taken for `a_b`."""
    prefix = f"{group_of(server)}__"
    plain = _UNSAFE.sub("_", tool)
    if plain == tool and tool and len(prefix) + len(tool) <= MAX_TOOL_NAME:
        return prefix + tool
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{prefix}{plain[: MAX_TOOL_NAME - len(prefix) - _DIGITS - 1]}_{digest}"


def cleaned(text: str, most: int) -> str:
    """A stranger's text without control and invisible characters, bounded."""
    kept = "".join(c for c in text[: 2 * most] if c in "\n\t" or unicodedata.category(c)[0] != "C")
    return kept if len(kept) <= most else f"{kept[:most]}…"
