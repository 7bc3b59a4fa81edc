"""Which skills there are: folders with anything in them, names and descriptions, precedence, reloading."""

from pathlib import Path

import pytest

from app.definitions.markdown import MAX_FILE_BYTES
from app.definitions.skills import Skills

FOLDER = "the-skill"


def write(folder: Path, head: str, body: str = "Do it so.") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "SKILL.md"
    path.write_text(f"---\n{head}\n---\n{body}\n", encoding="utf-8")
    return path


def read(*directories: Path) -> Skills:
    skills = Skills(directories)
    skills.reload()
    return skills


def said(skills: Skills) -> list[str]:
    return [f"{Path(p.path).parent.name}:{p.line}: {p.severity}: {p.message}" for p in skills.report().problems]


@pytest.mark.spec("7.9")
def test_a_folder_with_a_skill_file_is_a_skill_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "office" / "pdf", "name: pdf\ndescription: Reads PDF files.", "\n# PDF\n\n---\nUse pdftotext.")
    write(tmp_path / "tables", "name: tables\ndescription: >\n  Makes\n  tables.\nlicense: MIT\nmetadata: {a: b}")
    (tmp_path / "tables" / "README.md").write_text("no skill")
    skills = read(tmp_path)
    assert [(skill.name, skill.description) for skill in skills.skills()] == [
        ("pdf", "Reads PDF files."),
        ("tables", "Makes tables."),
    ]
    pdf = skills.get("pdf")
    assert pdf is not None
    assert (pdf.body, pdf.folder) == ("# PDF\n\n---\nUse pdftotext.", str(tmp_path / "office" / "pdf"))
    assert skills.get("PDF") is None
    assert said(skills) == []


@pytest.mark.spec("7.9", "10.3")
@pytest.mark.case("B195")
@pytest.mark.parametrize(
    ("head", "name", "says"),
    [
        ("name: other\ndescription: d", "other", "should be that of the folder"),
        ("description: d", FOLDER, "no name is given"),
        ("name: The Skill\ndescription: d", "The Skill", "lower-case letters, digits and single hyphens"),
        (f"name: {FOLDER}\ndescription: {'d' * 1100}", FOLDER, "1100 characters"),
        (f"name: {FOLDER}\ndescription: d\nallowed-tools: Bash(git *)", FOLDER, "grants nothing here"),
        (f"name: {FOLDER}\ndescription: d\nname: twice", FOLDER, "given twice"),
        (f'name: {FOLDER}\ndescription: Use when: user: "x"', FOLDER, "not valid YAML"),
        (f"name: {FOLDER}\nlicense: MIT", None, "description is missing"),
        ("- a\n- b", None, "list, not a map"),
        ("a: &x 1\nb: *x", None, "anchors and aliases"),
        ("", None, "empty"),
    ],
)
def test_a_skill_is_read_tolerantly_and_what_is_odd_is_told(
    tmp_path: Path, head: str, name: str | None, says: str
) -> None:
    write(tmp_path / FOLDER, head)
    write(tmp_path / "good", "name: good\ndescription: Good.")
    skills = read(tmp_path)
    assert [skill.name for skill in skills.skills()] == sorted(filter(None, [name, "good"]))
    assert any(says in text for text in said(skills)), said(skills)
    assert all(text.startswith(f"{FOLDER}:") for text in said(skills))
    assert any("error" in text for text in said(skills)) is (name is None)


@pytest.mark.spec("7.9", "10.3")
def test_later_directories_win_and_of_two_in_one_directory_the_first_loads(tmp_path: Path) -> None:
    write(tmp_path / "one" / "pdf", "name: pdf\ndescription: First.")
    write(tmp_path / "two" / "pdf", "name: pdf\ndescription: Second.")
    write(tmp_path / "two" / "x" / "pdf", "name: pdf\ndescription: Third.")
    skills = read(tmp_path / "one", tmp_path / "two", tmp_path / "none")
    report = skills.report()
    assert [skill.description for skill in report.skills] == ["Second."]
    assert [(item.skill.description, item.by) for item in report.shadowed] == [
        ("First.", str(tmp_path / "two" / "pdf"))
    ]
    assert [(Path(p.path).parent.name, str(p.severity)) for p in report.problems][:1] == [("pdf", "error")]
    assert "already defined" in report.problems[0].message
    assert "does not exist" in report.problems[1].message


@pytest.mark.spec("7.9", "10.3")
def test_a_reload_sees_what_changed_and_keeps_a_skill_whose_file_broke(tmp_path: Path) -> None:
    path = write(tmp_path / "pdf", "name: pdf\ndescription: Old.")
    skills = read(tmp_path)
    before = skills.get("pdf")
    write(tmp_path / "pdf", "name: pdf\ndescription: New.")
    write(tmp_path / "more", "name: more\ndescription: More.")
    skills.reload()
    assert [skill.description for skill in skills.skills()] == ["More.", "New."]
    assert before is not None
    assert before.description == "Old.", "whoever holds a skill keeps it as it was"
    path.write_text("---\nname: pdf\n")
    skills.reload()
    assert [skill.description for skill in skills.skills()] == ["More.", "New."]
    assert [text.split(": ")[1] for text in said(skills)] == ["error", "warning"]
    path.unlink()
    skills.reload()
    assert [skill.name for skill in skills.skills()] == ["more"]


@pytest.mark.spec("7.9")
def test_a_skill_file_that_links_out_or_is_too_large_is_left_out(
    tmp_path: Path,
) -> None:
    write(tmp_path / "outside", "name: outside\ndescription: d")
    inside = tmp_path / "skills"
    (inside / "linked").mkdir(parents=True)
    (inside / "linked" / "SKILL.md").symlink_to(tmp_path / "outside" / "SKILL.md")
    write(inside / "large", "name: large\ndescription: d", "x" * 300_000)
    skills = read(inside)
    assert skills.skills() == ()
    assert len(said(skills)) == 2
    assert MAX_FILE_BYTES < 300_000
