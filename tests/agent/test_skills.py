"""How skills stand in a system prompt: which, how long, and always the same text."""

import pytest

from app.agent.skills import MAX_LISTED, MAX_PRELOADED, NO_SKILLS, Skill, listing, system_prompt
from app.agent.texts import CHINESE, ENGLISH


def skill(name: str, description: str = "What it is for.", body: str = "How.") -> Skill:
    return Skill(name=name, description=description, body=body, folder="/nowhere")


class Some:
    """A catalog of these."""

    def __init__(self, *skills: Skill) -> None:
        self._skills = skills

    def get(self, name: str) -> Skill | None:
        """By name."""
        return next((each for each in self._skills if each.name == name), None)

    def skills(self) -> tuple[Skill, ...]:
        """All."""
        return self._skills


@pytest.mark.spec("7.9")
def test_who_can_load_skills_is_told_which_there_are_and_others_are_not() -> None:
    catalog = Some(skill("pdf", "Reads\n  PDF."), skill("tables"))
    told = system_prompt("You are x.", catalog, (), ENGLISH, listed=True)
    assert told.startswith("You are x.\n\nSkills:")
    assert told.endswith("\n- pdf: Reads PDF.\n- tables: What it is for.")
    assert "How." not in told
    assert system_prompt("You are x.", catalog, (), ENGLISH, listed=False) == "You are x."
    assert system_prompt("You are x.", NO_SKILLS, ("pdf",), ENGLISH, listed=True) == "You are x."
    assert "技能" in system_prompt("x", catalog, (), CHINESE, listed=True)


@pytest.mark.spec("7.9", "10.1")
def test_a_skill_of_the_definition_stands_there_in_full_and_is_not_listed_again() -> None:
    catalog = Some(skill("pdf", body="Use {name} and {body}."), skill("tables"))
    told = system_prompt("You are x.", catalog, ("pdf", "gone", "pdf"), ENGLISH, listed=True)
    assert told.count("Use {name} and {body}.") == 1
    assert "- pdf" not in told
    assert "- tables" in told
    assert "- tables" not in system_prompt("You are x.", catalog, ("pdf",), ENGLISH, listed=False)


def test_what_is_preloaded_is_bounded() -> None:
    catalog = Some(skill("a", body="x" * MAX_PRELOADED), skill("b", body="y" * 100))
    told = system_prompt("", catalog, ("a", "b"), ENGLISH, listed=False)
    assert len(told) < MAX_PRELOADED + 500
    assert "yy" not in told
    assert "[… cut]" in told


@pytest.mark.spec("7.9")
@pytest.mark.parametrize(("count", "length"), [(5, 1000), (30, 1000), (100, 1000), (400, 1000), (5000, 1000)])
def test_the_list_is_bounded_and_names_come_before_descriptions(count: int, length: int) -> None:
    skills = [skill(f"skill-{number:04}", "d" * length) for number in range(count)]
    text = listing(skills)
    assert len(text) <= MAX_LISTED + 50
    lines = text.splitlines()
    if count <= 400:
        assert [line[2:12] for line in lines] == [each.name for each in skills]
    else:
        assert lines[-1] == f"… {count - len(lines) + 1} more"
