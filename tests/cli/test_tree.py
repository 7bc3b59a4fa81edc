"""The tree that a terminal shows: fed with events, drawn to a width."""

import io
from typing import Any

import pytest
from rich.console import Console

from app.cli.tree import TreeView
from app.client import Received


class Session:
    """A session's events, one after another, shown by a tree."""

    def __init__(self) -> None:
        self.view = TreeView()
        self._next = 1

    def say(self, kind: str, run: int = 1, path: tuple[int, ...] = (1,), step: int = 1, **data: Any) -> None:
        """One durable event of a run; a run of depth 1 is called `finder` and has a name."""
        event: dict[str, Any] = {"id": self._next, "type": kind, "run": run, "path": list(path), "step": step}
        event |= {"depth": len(path) - 1, "agent": "lead" if len(path) == 1 else "finder", "data": data}
        if len(path) > 1:
            event["name"] = f"sub_{run}"
        self.view.feed(Received(self._next, kind, event))
        self._next += 1

    def calls(self, call: str, run: int = 1, path: tuple[int, ...] = (1,), **arguments: Any) -> None:
        """`tool.call` of the tool `look`."""
        self.say("tool.call", run, path, call_id=call, tool="look", arguments=arguments)

    def gets(self, call: str, content: str, run: int = 1, path: tuple[int, ...] = (1,), is_error: bool = False) -> None:
        """`tool.result`."""
        self.say("tool.result", run, path, call_id=call, tool="look", content=content, is_error=is_error)

    def shown(self, width: int = 100) -> list[str]:
        """The lines on a terminal of that width."""
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(self.view)
        return console.export_text().rstrip("\n").split("\n")


def delegating() -> Session:
    """A lead that has called twice; the second call's subagent runs."""
    session = Session()
    session.say("run.queued")
    session.say("run.started")
    session.say("step.started", model="m")
    session.calls("c1", what="first")
    session.calls("c2", what="second")
    session.say("run.queued", run=2, path=(1, 2), parent_call_id="c2")
    session.say("run.started", run=2, path=(1, 2))
    return session


@pytest.mark.spec("11.7")
def test_a_result_stands_below_its_call_whatever_finishes_first_and_a_subagent_below_the_call_it_answers() -> None:
    session = delegating()
    session.calls("c3", run=2, path=(1, 2), what="third")
    session.gets("c2", "two")
    session.gets("c1", "one")
    session.gets("c3", "three", run=2, path=(1, 2))
    lines = [line.strip("│├└─ ") for line in session.shown()]
    assert lines[0].startswith("● lead running")
    assert lines[1:5] == ["look what='first'", "→ one", "look what='second'", "→ two"]
    assert lines[5].startswith("● [子代理] finder sub_2 running")
    assert lines[6:] == ["[sub] look what='third'", "→ three"]


def test_every_line_is_cut_at_the_end_of_the_terminals() -> None:
    session = delegating()
    session.calls("c3", run=2, path=(1, 2), what="x" * 3000)
    session.gets("c3", "line one\n" + "y" * 3000, run=2, path=(1, 2))
    lines = session.shown(width=60)
    assert len(lines) == 6
    assert [line[-1] for line in lines[-2:]] == ["…", "…"]
    assert "→ line one yyy" in lines[-1]


def test_what_a_model_or_a_file_says_cannot_steer_the_terminal() -> None:
    session = delegating()
    session.calls("c3", what="\x1b]0;title\x07 \u202eback")
    session.gets("c3", "\x1b[2J\x1b[31mred\x9b1m\r over")
    session.view.feed(Received(None, "text.delta", {"run": 1, "step": 1, "at": 0, "text": "\x1b[?25l[bold]so[/bold]"}))
    text = "\n".join(session.shown())
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    assert "[bold]so[/bold]" in text


def test_the_text_of_a_step_is_shown_while_it_comes_and_goes_when_the_step_is_tried_again_or_the_run_ends() -> None:
    session = delegating()
    for frame in (
        Received(None, "text.snapshot", {"run": 1, "step": 1, "of": "text.delta", "at": 3, "text": "Let"}),
        Received(None, "text.snapshot", {"run": 1, "step": 1, "of": "reasoning.delta", "at": 3, "text": "Hmm"}),
        Received(None, "text.delta", {"run": 1, "step": 1, "at": 3, "text": " me"}),
        Received(None, "text.delta", {"run": 9, "step": 1, "at": 0, "text": "of nobody"}),
    ):
        session.view.feed(frame)
    assert session.shown()[1].strip("│ ") == "Let me"
    session.say("step.retried", length=6)
    assert "Let me" not in "\n".join(session.shown())
    session.view.feed(Received(None, "text.delta", {"run": 1, "step": 1, "at": 0, "text": "Again"}))
    session.say("run.failed", status="failed", duration_ms=1500)
    assert session.shown()[0].endswith("failed, step 1, 0 tokens, 1.5 s")
    assert "Again" not in "\n".join(session.shown())


def test_tokens_add_up_and_a_waiting_run_says_for_what() -> None:
    session = delegating()
    for step in (1, 2):
        session.say("step.completed", step=step, usage={"input_tokens": 10, "output_tokens": 1})
    session.say("run.waiting", reason="child")
    assert "● lead waits for child, step 1, 22 tokens" in session.shown()[0]
