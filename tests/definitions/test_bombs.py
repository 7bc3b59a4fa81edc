"""Files that are made to be expensive or to be more than text: each is refused or read at once, by file and line, and
the others load."""

from pathlib import Path

import pytest

from app.definitions import Catalog
from app.definitions.skills import Skills

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + at)}: &{chr(98 + at)} [{', '.join([f'*{chr(97 + at)}'] * 9)}]\n" for at in range(9)
)
# A front matter, what is said of it, and whether an agent is left. The parser has a bound of nesting too.
HOSTILE: dict[str, tuple[str, str, bool]] = {
    "billion laughs": (LAUGHS + "name: x\ndescription: d", "anchors and aliases", True),
    "an alias to itself": ("description: d\nx: &a [*a]", "anchors and aliases", True),
    "a merge of itself": ("description: d\nx: &a {<<: *a}", "anchors and aliases", True),
    "a value that aliases": ("description: d\ntools: *", "", True),
    "code to construct": ('description: d\nx: !!python/object/apply:os.system ["touch built"]', "tags", True),
    "code as the name": ("name: !!python/name:os.system\ndescription: d", "tags", True),
    "a binary tag": ("description: d\nx: !!binary aGk=", "tags", True),
    "deep flow lists": ("description: d\nx: " + "[" * 30_000 + "]" * 30_000, "nest", True),
    "deep flow maps": ("description: d\nx: " + "{a: " * 12_000 + "1" + "}" * 12_000, "nest", True),
    "deep block lists": ("description: d\nx:\n  " + "- " * 30_000, "nest", True),
    "deep open lists": ("description: d\nx: " + "[" * 60_000, "nest", True),
    "a list as a key": ("description: d\n? [a, b]\n: c", "cannot be a key", True),
    "questions": ("? " * 30_000 + "\ndescription: d", "", True),
    "too many values": ("description: d\nx: [" + "1," * 12_000 + "1]", "more than 10000 values", True),
    "too many keys in a map": (
        "description: d\nx: {" + ",".join(f"k{n}: 1" for n in range(6_000)) + "}",
        "10000",
        True,
    ),
    "too many odd keys": (
        "".join(f"k{n}: a: b\n" for n in range(4_000)) + "description: d",
        "more than 200 keys",
        False,
    ),
    "a key twice in a map": ("description: d\nx: {a: 1, a: 2}", "given twice", True),
    "tools twice": ("description: d\ntools: Read\ntools: Write", "given twice", False),
    "two documents": ("description: d\n--- \nname: y", "", True),
    "too large a head": ("description: d\nx: " + "y" * 70_000, "at most 65536 are read", False),
    "a number without end": ("description: d\nmax_steps: " + "9" * 60_000, "max_steps", True),
    "brackets without end": ("description: d\ntools: " + "Agent(" * 10_000, "", True),
    "commas without end": ("description: d\ntools: Read" + "," * 60_000, "", True),
    "quotes without end": ('description: d\nx: "' + '\\"' * 30_000, "not valid YAML", True),
    "blanks without end": ("description: d\nx:" + " " * 60_000 + "y", "", True),
    "colons without end": ("description: d\nx: " + ":" * 60_000, "", True),
    "lines without end": ("description: d" + "\n" * 60_000, "", True),
    "one long key": ("description: d\n" + "k" * 60_000 + ": v", "", True),
    "rules without end": ("description: d\npermissions: {deny: [" + "Bash(a)," * 7_000 + "]}", "permissions", False),
    "a pattern of stars": ("description: d\npermissions: {deny: ['Bash(" + "*a" * 400 + ")']}", "", True),
    "escapes of control": ('description: d\nx: "\\0\\u0000\\x1b"', "", True),
}


@pytest.mark.spec("10.3", "10.1")
@pytest.mark.case("B195")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_told_by_file_and_line_and_the_others_load(tmp_path: Path, kind: str) -> None:
    head, says, loads = HOSTILE[kind]
    (tmp_path / "bomb.md").write_text(f"---\n{head}\n---\nbody\n", encoding="utf-8")
    (tmp_path / "good.md").write_text("---\nname: good\ndescription: d\n---\nbody\n")
    catalog = Catalog([tmp_path], library=None)
    catalog.reload()
    report = catalog.report("t")
    names = {agent.name for agent in report.agents}
    assert "good" in names
    assert (len(names) == 2) is loads, [str(problem)[:300] for problem in report.problems]
    assert any(says in problem.message for problem in report.problems) or not says, report.problems
    last = head.count("\n") + 4
    assert all(problem.path.endswith("bomb.md") and 1 <= problem.line <= last for problem in report.problems)
    assert sum(len(problem.message) for problem in report.problems) < 50_000
    assert not Path("built").exists()


@pytest.mark.spec("7.9", "10.3")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_skill_is_told_and_the_others_load(tmp_path: Path, kind: str) -> None:
    for name, head in {"bomb": HOSTILE[kind][0], "good": "name: good\ndescription: d"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\n{head}\n---\nbody\n", encoding="utf-8")
    skills = Skills([tmp_path])
    skills.reload()
    assert skills.get("good") is not None
    report = skills.report()
    assert all(problem.path.endswith("bomb/SKILL.md") for problem in report.problems)
    assert sum(len(problem.message) for problem in report.problems) < 50_000


@pytest.mark.spec("10.3")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"---\nname: a\ndescription: \xff\n---\n", "not UTF-8"),
        ("---\nname: a\ndescription: d\n---\n".encode("utf-16"), "UTF-16"),
        (b"---\nname: a\ndescription: d\0\n---\n", "control characters"),
        (b"\0" * 100_000, "no front matter"),
        (b"---\n" * 60_000, "empty"),
        (b"---\n" + b"x" * 400_000, "larger than"),
        (b"-" * 200_000, "no front matter"),
    ],
)
def test_bytes_that_are_no_text_are_told(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "bomb.md").write_bytes(data)
    catalog = Catalog([tmp_path], library=None)
    catalog.reload()
    (problem,) = catalog.report("t").problems[:1]
    assert says in problem.message
