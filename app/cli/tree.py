"""The tree of a session as it works: agents, steps, tools, tokens, time. Fed with events, drawn with rich.

Knows the event contract only.
"""

import re
import time
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from app.client import Received

# Spec 11.7: depth and name make the labels, the wire carries none.
TOOL_LABEL = "[sub]"
RUN_LABEL = "[子代理]"
# A line is cut where the terminal ends; what is longer than any terminal need not be laid out.
LONGEST_LINE = 500
_MARKS = {"completed": ("✓", "green"), "failed": ("✗", "red"), "cancelled": ("■", "yellow"), "timed_out": ("⧗", "red")}
_WAITS = {"run.waiting", "run.started", "run.resumed"}
# Models and files may say anything: sequences that move the cursor or turn the text around do not reach a terminal.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class _Call:
    """One tool call; its result stands directly below it, whatever finishes first."""

    def __init__(self, label: str, tool: str, arguments: str) -> None:
        self._head = f"{label}{tool} {arguments}".rstrip()
        self._result: str | None = None
        self._is_error = False

    def end(self, result: str, *, is_error: bool) -> None:
        self._result, self._is_error = result, is_error

    def text(self) -> Text:
        text = _cut_line()
        text.append(self._head, style="blue")
        if self._result is not None:
            text.append("\n→ " + self._result, style="red" if self._is_error else "dim")
        return text


class _Node:
    """One run as far as it is known."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.run: int = event["run"]
        self.depth: int = event["depth"]
        self.agent: str = event["agent"]
        self.name: str | None = event.get("name")
        self.path: list[int] = event["path"]
        self.parent_call: str | None = event["data"].get("parent_call_id")
        self.status = "queued"
        self.step = 0
        self.tokens = 0
        self.text = ""
        self.calls: dict[str, _Call] = {}
        self.began = time.monotonic()
        self.seconds: float | None = None

    def line(self) -> Text:
        """The run in one line; in a second one what its model is saying."""
        mark, color = _MARKS.get(self.status, ("●", "cyan"))
        text = _cut_line()
        text.append(f"{mark} ", style=color)
        if self.depth:
            text.append(f"{RUN_LABEL} ", style="dim")
        text.append(self.agent, style="bold")
        if self.name:
            text.append(f" {self.name}", style="dim")
        seconds = self.seconds if self.seconds is not None else time.monotonic() - self.began
        text.append(f" {self.status}, step {self.step}, {self.tokens} tokens, {seconds:.1f} s", style="dim")
        if self.text and self.seconds is None:
            text.append("\n" + one_line(self.text)[-60:], style="italic dim")
        return text


class TreeView:
    """Collects events and draws the tree."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}

    def feed(self, frame: Received) -> None:
        """Take one frame in."""
        if frame.id is None:
            self._transient(frame)
            return
        event = frame.data
        if "run" not in event:
            return
        node = self._nodes.get(event["run"])
        if node is None:
            node = self._nodes[event["run"]] = _Node(event)
        if frame.type.startswith("tool."):
            _tool(node, frame.type, event["data"])
        else:
            _progress(node, frame.type, event)

    def _transient(self, frame: Received) -> None:
        node = self._nodes.get(frame.data.get("run", 0))
        if node is None:
            return
        if frame.type == "text.delta":
            node.text += frame.data["text"]
        elif frame.type == "text.snapshot" and frame.data["of"] == "text.delta":
            node.text = frame.data["text"]

    def __rich__(self) -> RenderableType:
        """The whole tree: a subagent stands below the call that it answers."""
        root = Tree("", hide_root=True)
        runs: dict[int, Tree] = {}
        calls: dict[str, Tree] = {}
        for number in sorted(self._nodes):
            node = self._nodes[number]
            above = runs.get(node.path[-2]) if len(node.path) > 1 else None
            above = calls.get(node.parent_call or "") or above or root
            branch = runs[number] = above.add(node.line())
            for call_id, call in node.calls.items():
                calls[call_id] = branch.add(call.text())
        return root


def _progress(node: _Node, kind: str, event: dict[str, Any]) -> None:
    data = event["data"]
    if kind in _WAITS:
        node.status = f"waits for {data['reason']}" if kind == "run.waiting" else "running"
    elif kind == "step.started":
        node.step, node.text = event["step"], ""
    elif kind == "step.retried":
        node.text = ""
    elif kind == "step.completed":
        node.tokens += data["usage"]["input_tokens"] + data["usage"]["output_tokens"]
    elif kind.startswith("run.") and "duration_ms" in data:
        node.status = data["status"]
        node.seconds = data["duration_ms"] / 1000


def _tool(node: _Node, kind: str, data: dict[str, Any]) -> None:
    call = node.calls.get(data["call_id"])
    if call is None:  # a call that could not be taken up has a result only
        label = f"{TOOL_LABEL} " if node.depth else ""
        call = node.calls[data["call_id"]] = _Call(label, data["tool"], _arguments(data.get("arguments")))
    if kind == "tool.result":
        call.end(one_line(data["content"]) or "(no output)", is_error=data["is_error"])


def _cut_line() -> Text:
    """A text whose lines are cut where the terminal's end."""
    return Text(no_wrap=True, overflow="ellipsis")


def _arguments(value: Any) -> str:
    if isinstance(value, dict):
        return one_line(", ".join(f"{key}={item!r}" for key, item in value.items()))
    return one_line(str(value or ""))


def printable(text: str) -> str:
    """A text that does nothing to a terminal but be shown; line breaks and tabs stay."""
    return _UNPRINTABLE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The beginning of a text as one printable line."""
    return printable(" ".join(text[: 2 * LONGEST_LINE].split())[:LONGEST_LINE])
