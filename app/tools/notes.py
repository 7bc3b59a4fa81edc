"""`note`: what the agents of a session leave for each other. Knows neither where they lie nor how many there may be."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from app.agent.errors import InvalidArguments
from app.agent.runs import Run
from app.agent.tools import Interrupt, ToolContext, ToolResult, ToolSpec

NAME = "note"


class NoteBook(Protocol):
    """The notes of sessions."""

    async def all(self, run: Run) -> Sequence[Mapping[str, Any]]:
        """All of a run's session, the oldest first: `name`, `content`, `agent`."""

    async def add(self, run: Run, text: str, title: str) -> int:
        """Keep one; its number, from 1. Raises `ToolError` when there is no room."""


class Note:
    """The tool `note`."""

    def __init__(self, notes: NoteBook, *, max_chars: int, max_title_chars: int) -> None:
        """The bounds are those of one note."""
        self._notes = notes
        self.spec = ToolSpec(
            name=NAME,
            built_in=True,
            description=(
                "Keep a note that all agents of this session can read, now and in later turns: findings, decisions, "
                "what is left to do. Without text it lists the notes there are, the oldest first; with title alone, "
                "those of that title."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "text": {"type": "string", "maxLength": max_chars, "description": "What to keep."},
                    "title": {"type": "string", "maxLength": max_title_chars, "description": "What it is about."},
                },
                "additionalProperties": False,
            },
            concurrency_safe=True,
            interrupt=Interrupt.BLOCK,
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Keep a note, or list them. Raises `ToolError` when there is no room."""
        title = " ".join(str(arguments.get("title", "")).split())
        if "text" not in arguments:
            return ToolResult(content=_listed(await self._notes.all(context.run), title))
        text = str(arguments["text"]).strip()
        if not text:
            raise InvalidArguments("text is empty: give what to keep, or leave text out to list the notes")
        number = await self._notes.add(context.run, text, title)
        return ToolResult(content=f"Note {number} is kept.")


def _listed(notes: Sequence[Mapping[str, Any]], title: str) -> str:
    shown = [
        f"[{number}] {note['name'] or 'note'}{_by(note)}\n{note['content']}"
        for number, note in enumerate(notes, 1)
        if not title or note["name"] == title
    ]
    if shown:
        return "\n\n".join(shown)
    return f"There is no note titled {title!r}; there are {len(notes)} notes." if title else "There are no notes yet."


def _by(note: Mapping[str, Any]) -> str:
    return f" (by {note['agent']})" if note["agent"] else ""
