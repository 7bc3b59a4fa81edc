"""What a person approved is what is read: searches of what was approved, links that change while somebody is asked."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind
from tests.agent.guarded import give, questions, results, ruled
from tests.plan import call, task
from tests.world import World, world

DRAFTS = ruled(ask=["Read(./drafts/**)"], deny=["Read(./secrets/**)", "Read(**/key)"])
YES = pytest.mark.parametrize("kind", [AnswerKind.ALLOW_ONCE, AnswerKind.ALLOW_SESSION])


def files(folder: Path) -> Path:
    """A workspace with a draft, a published page and two secrets."""
    root = folder / "workspace"
    for name in ("drafts/plan.md", "drafts/key", "docs/plan.md", "secrets/plan.md"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"the plan of {name}\n")
    return root


async def asked(w: World, *calls: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A turn whose first call waits for a person."""
    run = await w.run(task(*({"calls": [each]} for each in calls), "end"))
    (question,) = await questions(w, run.session_id, 1)
    return run, question


@YES
@pytest.mark.spec("8.2")
@pytest.mark.parametrize(
    "found", [call("grep", pattern="plan", path="drafts"), call("glob", pattern="*", path="drafts")]
)
async def test_an_approved_search_finds_what_was_approved_and_nothing_that_is_denied(
    tmp_path: Path, kind: AnswerKind, found: dict[str, Any]
) -> None:
    async with world(tmp_path, permissions=DRAFTS) as w:
        files(tmp_path)
        run, question = await asked(w, found)
        await give(w, question["approval_id"], kind)
        await w.finished(run)
        ((status, text),) = await results(w, run.session_id)
        assert status == "ok"
        assert "drafts/plan.md" in text
        assert "key" not in text


@pytest.mark.spec("8.2", "8.3")
@pytest.mark.parametrize(("kind", "seen"), [(AnswerKind.ALLOW_ONCE, False), (AnswerKind.ALLOW_SESSION, True)])
async def test_a_search_of_everything_finds_what_was_approved_for_the_session_and_no_more(
    tmp_path: Path, kind: AnswerKind, seen: bool
) -> None:
    async with world(tmp_path, permissions=DRAFTS) as w:
        (files(tmp_path) / "drafts" / "other.md").write_text("another plan\n")
        read = call("read_file", path="drafts/plan.md")
        run, question = await asked(w, read, call("grep", pattern="plan"), call("glob", pattern="**/*"))
        await give(w, question["approval_id"], kind)
        await w.finished(run)
        for status, text in (await results(w, run.session_id))[1:]:
            assert status == "ok"
            assert "docs/plan.md" in text
            assert ("drafts/plan.md" in text) is seen, "an answer for one call is used once"
            assert not any(word in text for word in ("other", "key", "secrets"))


@YES
@pytest.mark.spec("8.1", "8.3")
@pytest.mark.parametrize("target", ["../secrets/plan.md", "key", "../private.md"])
async def test_a_link_that_came_in_the_place_of_an_approved_file_is_not_followed(
    tmp_path: Path, kind: AnswerKind, target: str
) -> None:
    rules = ruled(ask=["Read(./drafts/plan.md)", "Read(./private.md)"], deny=["Read(./secrets/**)", "Read(**/key)"])
    async with world(tmp_path, permissions=rules) as w:
        root = files(tmp_path)
        (root / "private.md").write_text("the plan that nobody approved\n")
        run, question = await asked(w, call("read_file", path="drafts/plan.md"))
        (root / "drafts" / "plan.md").unlink()
        (root / "drafts" / "plan.md").symlink_to(target)
        await give(w, question["approval_id"], kind)
        await w.finished(run)
        ((_, text),) = await results(w, run.session_id)
        assert "the plan" not in text
        assert "ermission denied" in text


@YES
@pytest.mark.spec("8.1", "8.3")
@pytest.mark.parametrize("tool", ["grep", "glob"])
async def test_a_directory_that_was_swapped_after_its_approval_is_not_searched(
    tmp_path: Path, kind: AnswerKind, tool: str
) -> None:
    async with world(tmp_path, permissions=DRAFTS) as w:
        root = files(tmp_path)
        run, question = await asked(w, call(tool, pattern="plan*", path="drafts"))
        (root / "drafts").rename(root / "before")
        (root / "drafts").symlink_to("secrets")
        await give(w, question["approval_id"], kind)
        await w.finished(run)
        ((status, text),) = await results(w, run.session_id)
        assert status in ("denied", "error")
        assert "ermission denied" in text


@pytest.mark.spec("8.2")
async def test_what_a_person_edits_is_judged_by_the_file_that_it_names(tmp_path: Path) -> None:
    async with world(tmp_path, permissions=DRAFTS) as w:
        root = files(tmp_path)
        (root / "drafts" / "other.md").write_text("another plan\n")
        run, question = await asked(w, call("read_file", path="drafts/plan.md"))
        await give(w, question["approval_id"], arguments={"path": "drafts/other.md"})
        await w.finished(run)
        assert await results(w, run.session_id) == [("ok", "another plan")]
