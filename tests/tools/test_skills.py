"""`load_skill`: instructions and the files beside them, and no way out of a skill's folder."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import ToolError
from app.agent.skills import Skill
from app.agent.tools import ToolContext
from app.boxes.directory import Directories
from app.tools.skills import MAX_BYTES, LoadSkill
from app.tools.threads import DaemonThreads
from tests.agent.test_skills import Some

BODY = "# PDF\n\nRun scripts/read.py and see reference.md."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the skill `pdf`, beside something that is nobody's business."""
    made = tmp_path / "skills" / "pdf"
    (made / "scripts").mkdir(parents=True)
    (made / ".git").mkdir()
    (made / ".git" / "config").write_text("secret")
    (made / "SKILL.md").write_text("---\nname: pdf\ndescription: d\n---\n" + BODY)
    (made / "reference.md").write_text("Line one.\nLine two.\n")
    (made / "scripts" / "read.py").write_text("print('read')\n")
    (made / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "outside.txt").write_text("outside")
    return made


def loader(*skills: Skill, commands: bool = False) -> LoadSkill:
    return LoadSkill(Some(*skills), Directories(), DaemonThreads(2, "skill"), commands=commands)


def pdf(folder: Path, body: str = BODY) -> Skill:
    return Skill(name="pdf", description="d", body=body, folder=str(folder))


async def load(tool: LoadSkill, context: ToolContext, **arguments: Any) -> str:
    return (await tool.call({"name": "pdf", **arguments}, context)).content


@pytest.mark.spec("7.9")
@pytest.mark.case("B199")
async def test_the_body_comes_with_the_files_beside_it_and_each_can_be_read(folder: Path, context: ToolContext) -> None:
    tool = loader(pdf(folder))
    text = await load(tool, context)
    assert text.startswith(BODY + "\n\n[")
    assert text.splitlines()[-3:] == ["image.png", "reference.md", "scripts/read.py"]
    assert str(folder) not in text, "without commands a path of the server is of no use"
    assert str(folder) in await load(loader(pdf(folder), commands=True), context)
    assert await load(tool, context, file="scripts/read.py") == "print('read')"
    assert await load(tool, context, file="./reference.md", offset=2) == "Line two."


@pytest.mark.spec("7.9")
@pytest.mark.case("B199")
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("../../outside.txt", "outside the folder of the skill pdf"),
        ("/etc/passwd", "outside the folder"),
        ("scripts/../../../outside.txt", "outside the folder"),
        ("link.txt", "outside the folder"),
        ("up/outside.txt", "outside the folder"),
        ("nothing.md", "has no file 'nothing.md'"),
        ("a\0b", "has no file"),
        ("scripts", "directory"),
        ("pipe", "not a regular file"),
        ("image.png", "binary file"),
        ("large.txt", "larger than"),
        (".env", "has no file '.env'"),
        (".git/config", "has no file"),
        ("scripts/../.env", "has no file"),
        ("plain.txt", "has no file"),
        ("up2/.env", "has no file"),
    ],
)
async def test_no_file_leads_out_of_the_folder_or_to_one_that_is_hidden_there(
    folder: Path, context: ToolContext, file: str, says: str
) -> None:
    (folder / "link.txt").symlink_to("../../outside.txt")
    (folder / "up").symlink_to("../..")
    (folder / ".env").write_text("secret")
    (folder / "plain.txt").symlink_to(".env")
    (folder / "up2").symlink_to(".")
    os.mkfifo(folder / "pipe")
    (folder / "large.txt").write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(ToolError, match=says) as caught:
        await load(loader(pdf(folder)), context, file=file)
    assert str(folder.parent) not in str(caught.value)


@pytest.mark.spec("7.9", "7.5")
async def test_a_long_text_comes_in_parts_that_say_how_to_go_on(folder: Path, context: ToolContext) -> None:
    lines = [f"line {number} {'x' * 90}" for number in range(1, 501)]
    tool = loader(pdf(folder, "\n".join(lines)))
    seen: list[str] = []
    offset = 1
    while len(seen) < len(lines):
        text = await load(tool, context, offset=offset)
        assert len(text) < 16_000
        head, _, rest = text.partition("\n")
        part = rest.split("\n\n[")[0].split("\n") if head.startswith("[") else text.split("\n")
        seen += part
        offset += len(part)
    assert seen == lines
    with pytest.raises(ToolError, match="500 lines; offset 501"):
        await load(tool, context, offset=501)
    whole = await load(loader(pdf(folder, "y" * 40_000)), context)
    assert whole.startswith("y" * 14_000)


@pytest.mark.spec("7.9")
async def test_an_unknown_skill_is_told_with_those_that_there_are(folder: Path, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"no skill 'PDF'; there are: pdf"):
        await load(loader(pdf(folder)), context, name="PDF")
    with pytest.raises(ToolError, match="there are none at the moment"):
        await load(loader(), context)
    gone = loader(pdf(folder / "gone"))
    assert await load(gone, context) == BODY
    with pytest.raises(ToolError, match="is gone"):
        await load(gone, context, file="reference.md")
