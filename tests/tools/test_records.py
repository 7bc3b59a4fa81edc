"""`read_artifact` and `note` over a real store: parts, bounds, and whose they are."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.artifacts import TEXT, Artifact, new_artifact
from app.agent.errors import InvalidArguments, ToolError
from app.agent.runs import Run
from app.agent.tools import Tool, ToolContext
from app.sessions import notes as notes_module
from app.sessions.artifacts import Artifacts
from app.sessions.notes import Notes
from app.store.artifacts import SqlArtifactStore
from app.store.notes import SqlNoteStore
from app.tools.artifacts import ReadArtifact
from app.tools.notes import Note
from tests.plan import task
from tests.world import World, world

LIMIT = 1_000


def folder(tmp_path: Path) -> Path:
    """Beside the workspace of the context."""
    (tmp_path / "world").mkdir()
    return tmp_path / "world"


def artifact(artifact_id: str, content: bytes) -> Artifact:
    return Artifact(
        artifact_id=artifact_id,
        session_id="ses_1",
        run_id=None,
        call_id=None,
        media_type=TEXT,
        content=content,
        created_at=0,
    )


def context_of(run: Run, w: World, session: Any) -> ToolContext:
    return ToolContext(
        session=session,
        run=run,
        step=1,
        call_id="call_1",
        workspace=w.folder,
        deadline=None,
        progress=lambda text: None,
    )


async def used(tool: Tool, context: ToolContext, **arguments: Any) -> str:
    return (await tool.call(arguments, context)).content


async def ended_run(w: World, context: ToolContext) -> tuple[Run, ToolContext]:
    """A run of a real session, and a context in it."""
    run = await w.run(task("done"))
    await w.finished(run)
    return run, context_of(run, w, _session(context, run))


def _session(context: ToolContext, run: Run) -> Any:
    return replace(context.session, id=run.session_id, tenant=run.tenant)


@pytest.mark.spec("7.5")
async def test_an_artifact_is_read_in_parts_that_are_never_cut_again(tmp_path: Path, context: ToolContext) -> None:
    text = "".join(f"{n:07}🍸" for n in range(300))
    async with world(folder(tmp_path)) as w:
        tool = ReadArtifact(Artifacts(SqlArtifactStore(w.database.reader), w.journal), max_output_chars=LIMIT)
        run, own = await ended_run(w, context)
        artifact_id, row = new_artifact(run, "call_1", text)
        await w.journal.write(row)
        collected, offset = "", 0
        while offset < len(text):
            said = await used(tool, own, id=artifact_id, offset=offset)
            assert len(said) <= LIMIT
            head, _, part = said.partition("\n")
            assert head.startswith(f"[characters {offset}-{offset + len(part)} of 2400")
            assert ("continue with offset=" in head) is (offset + len(part) < len(text))
            collected += part
            offset += len(part)
        assert collected == text
        assert await used(tool, own, id=artifact_id, offset=7, limit=1) == (
            "[characters 7-8 of 2400; continue with offset=8]\n🍸"
        )
        with pytest.raises(ToolError, match="has 2,400 characters; offset 2,400 is beyond its end"):
            await used(tool, own, id=artifact_id, offset=2400)


async def test_an_artifact_that_is_read_page_by_page_is_loaded_once_and_little_is_kept(context: ToolContext) -> None:
    asked: list[str] = []

    class Large:
        async def of_session(self, tenant: str, session_id: str, artifact_id: str) -> Artifact | None:
            asked.append(artifact_id)
            return None if artifact_id == "none" else artifact(artifact_id, artifact_id[-1:].encode() * (6 << 20))

    tool = ReadArtifact(Large())
    for offset in range(0, 6 << 20, 1 << 20):
        assert (await used(tool, context, id="art_a", offset=offset, limit=3)).endswith("]\naaa")
    assert asked == ["art_a"]
    for wanted in ("art_b", "art_a", "art_c", "art_a", "art_b"):  # three of them are more than is kept
        assert (await used(tool, context, id=wanted, limit=1)).endswith(f"]\n{wanted[-1]}")
    assert asked == ["art_a", "art_b", "art_c", "art_b"]
    stranger = replace(context, session=replace(context.session, id="ses_2"))
    await used(tool, stranger, id="art_b", limit=1)
    assert asked[-2:] == ["art_b", "art_b"], "what is kept is kept for its session"
    for _ in range(2):
        with pytest.raises(ToolError, match="there is no artifact"):
            await used(tool, context, id="none")


@pytest.mark.spec("7.5", "17.1")
@pytest.mark.case("B126")
async def test_an_artifact_of_another_session_or_tenant_is_an_unknown_one(tmp_path: Path, context: ToolContext) -> None:
    async with world(folder(tmp_path)) as w:
        tool = ReadArtifact(Artifacts(SqlArtifactStore(w.database.reader), w.journal))
        run, own = await ended_run(w, context)
        _, other = await ended_run(w, context)
        artifact_id, row = new_artifact(run, "call_1", "text")
        await w.journal.write(row)
        strangers = [other, replace(own, session=replace(own.session, tenant="other"))]
        for who, wanted in [
            *((stranger, artifact_id) for stranger in strangers),
            *((own, odd) for odd in ("../../x", "/etc/passwd", "\0", "\ud800", "x" * 5000, "")),
        ]:
            with pytest.raises(ToolError, match=r"there is no artifact .* in this session"):
                await used(tool, who, id=wanted)
        assert await used(tool, own, id=artifact_id) == "[characters 0-4 of 4]\ntext"


@pytest.mark.spec("7.3", "12.6")
@pytest.mark.case("B052")
async def test_notes_of_agents_side_by_side_are_all_kept_masked_and_within_bounds(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes_module, "MAX_NOTES", 10)
    async with world(folder(tmp_path), secrets=["sk-0123456789"]) as w:
        kept = Notes(SqlNoteStore(w.database.reader), w.journal)
        tool = Note(kept, max_chars=100, max_title_chars=20)
        _, own = await ended_run(w, context)
        _, other = await ended_run(w, context)
        assert await used(tool, own) == "There are no notes yet."
        said = await asyncio.gather(
            *(used(tool, own, text=f"note {n} sk-0123456789", title=" a\n b ") for n in range(12)),
            return_exceptions=True,
        )
        full = [text for text in said if isinstance(text, ToolError)]
        numbers = [int(text.split()[1]) for text in said if isinstance(text, str)]
        assert sorted(numbers) == list(range(1, 11))
        assert len(full) == 2
        assert "there is no room for this note: the session has 10 notes" in str(full[0])
        listed = await used(tool, own)
        assert listed.count("[masked]") == 10
        assert listed.startswith("[1] a b (by node)\nnote 0 [masked]\n\n[2] a b (by node)")
        assert await used(tool, own, title="a b") == listed
        assert await used(tool, own, title="b") == "There is no note titled 'b'; there are 10 notes."
        assert await used(tool, other) == "There are no notes yet."
        with pytest.raises(InvalidArguments, match="text is empty"):
            await used(tool, own, text=" \n")
