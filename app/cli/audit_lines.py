"""Messages and decisions of the audit log as lines for people. Depth and name make the labels (spec 11.7).

Knows the form of these and nothing of where it comes from.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.tree import RUN_LABEL, TOOL_LABEL, one_line

WIDEST = 160  # characters of what was said
_NOTHING = "(nothing)"


def lines_of(shown: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a message or of a decision."""
    return _decided(shown) if "decision" in shown else _said(shown)


def _decided(decision: Mapping[str, Any]) -> Iterator[str]:
    """What was decided about what, by what or whom, and why."""
    about = f"{_label(decision)}{one_line(decision['tool'])} " if decision["tool"] else ""
    names = ("kind", "hook", "rule", "scope", "owner", "decided_by")
    by = " ".join(one_line(decision[name]) for name in names if decision[name])
    edited = ", arguments edited" if decision["edited_digest"] else ""
    why = f": {_text(decision['reason'])}" if decision["reason"] else ""
    yield f"{decision['ts']}  {_who(decision)}  {about}{one_line(decision['decision'])} ({by}{edited}){why}"


def _said(message: Mapping[str, Any]) -> Iterator[str]:
    """One line for what was said, and one for each call that it makes."""
    begin = f"{message['ts']}  {_who(message)}"
    if message["role"] == "tool":
        mark = "✗" if message["is_error"] else "→"
        yield f"{begin}  {_label(message)}{one_line(message['tool'] or '')} {mark} {_text(message['content'])}"
        return
    calls = message["tool_calls"] or ()
    if message["content"] or not calls:
        yield f"{begin}  {message['role']}: {_text(message['content'])}"
    for call in calls:
        yield f"{begin}  {_label(message)}{one_line(call.get('name') or '')} {_text(_arguments(call))}"


def _who(message: Mapping[str, Any]) -> str:
    agent, name = one_line(message["agent"] or "-"), one_line(message["name"] or "")
    who = f"{agent} {name}".rstrip()
    return f"{RUN_LABEL} {who}" if message["depth"] else who


def _label(message: Mapping[str, Any]) -> str:
    return f"{TOOL_LABEL} " if message["depth"] else ""


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments")
    return arguments if isinstance(arguments, str) else str(arguments or "")


def _text(text: str) -> str:
    line = one_line(text)
    return f"{line[:WIDEST]}…" if len(line) > WIDEST else line or _NOTHING
