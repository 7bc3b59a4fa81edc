"""Holds the lists of what the service has to do against the marks of the tests that prove it, in both directions.

Reads the marks from the source of the tests. Nothing is imported and nothing is run, so it does not know whether a
marked test passes or is skipped.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

# How much the service was asked for. An entry that gets lost would otherwise never be missed.
REQUIREMENTS = 111
SEED_ROWS = 181

STATES = ("todo", "part", "done")
KINDS = ("spec", "seed", "case")

Entries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One `@pytest.mark.<kind>(…)` in the source of a test, with its place for people."""

    kind: str
    args: tuple[Any, ...]
    place: str


def marks_in(source: str, name: str) -> Iterator[Mark]:
    """All marks of our kinds, wherever they stand: on a function or class, in `pytestmark`, in `pytest.param`."""
    for node in ast.walk(ast.parse(source, filename=name)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=kind), args=args) if kind in KINDS:
                place = f"{name}:{node.lineno}"
                try:
                    values = tuple(ast.literal_eval(arg) for arg in args)
                except ValueError:
                    raise ValueError(f"{place}: a mark takes plain values, so that it can be read here") from None
                yield Mark(kind=kind, args=values, place=place)


def claims(marks: list[Mark], kind: str) -> dict[str, list[str]]:
    """Key of an entry → places of the marks that claim it. The first argument of `seed` is the document."""
    found: dict[str, list[str]] = {}
    for mark in marks:
        if mark.kind == kind:
            for key in mark.args[1:] if kind == "seed" else mark.args:
                found.setdefault(str(key), []).append(mark.place)
    return found


def problems(entries: Entries, claimed: Mapping[str, list[str]]) -> list[str]:
    """Everything in which a list and the marks of the tests contradict each other, as sentences."""
    found = [
        f"{key} is marked at {', '.join(places)} but not in the list"
        for key, places in claimed.items()
        if key not in entries
    ]
    for key, entry in entries.items():
        state, places = entry.get("state"), claimed.get(key, [])
        if state not in STATES:
            found.append(f"{key} has the state {state!r}, which is none of {', '.join(STATES)}")
        if (state == "part") != bool(entry.get("missing")):
            found.append(f"{key} is {state!r}: `missing` belongs to `part`, and to nothing else")
        if state in ("part", "done") and not places:
            found.append(f"{key} is {state!r} but no test is marked with it")
        if state == "todo" and places:
            found.append(f"{key} is 'todo' but marked at {', '.join(places)}")
        if state != "todo" and entry.get("later"):
            found.append(f"{key} is {state!r}: `later` says why something is 'todo'")
    return found


@pytest.fixture(scope="module")
def marks() -> list[Mark]:
    return [
        mark
        for path in sorted(TESTS.rglob("*.py"))
        for mark in marks_in(path.read_text(encoding="utf-8"), str(path.relative_to(TESTS.parent)))
    ]


@pytest.fixture(scope="module")
def requirements() -> Entries:
    entries: Entries = read("spec.toml")["requirements"]
    return entries


@pytest.fixture(scope="module")
def seeds() -> dict[str, Any]:
    return read("seeds.toml")


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((TESTS / name).read_text(encoding="utf-8"))


# ── the lists and the marks ──────────────────────────────────────────────────────────────────────


def test_each_requirement_has_the_tests_that_its_state_promises(marks: list[Mark], requirements: Entries) -> None:
    assert problems(requirements, claims(marks, "spec")) == []


def test_each_seed_row_has_the_tests_that_its_state_promises(marks: list[Mark], seeds: dict[str, Any]) -> None:
    assert problems(seeds["rows"], claims(marks, "seed")) == []


def test_a_seed_row_without_a_test_says_why(seeds: dict[str, Any]) -> None:
    assert [key for key, row in seeds["rows"].items() if row["state"] == "todo" and not row.get("later")] == []


def test_a_seed_mark_names_the_document_that_its_rows_belong_to(marks: list[Mark], seeds: dict[str, Any]) -> None:
    wrong = [
        f"{mark.place}: row {row} belongs to {seeds['rows'][str(row)]['seed']}, not to {mark.args[0]}"
        for mark in marks
        if mark.kind == "seed"
        for row in mark.args[1:]
        if str(row) in seeds["rows"] and seeds["rows"][str(row)]["seed"] != mark.args[0]
    ]
    assert wrong == []


def test_marks_have_the_form_that_is_looked_for(marks: list[Mark]) -> None:
    def well_formed(mark: Mark) -> bool:
        match mark.kind, mark.args:
            case "spec", (_, *_):
                return all(isinstance(number, str) for number in mark.args)
            case "seed", (str(), _, *_):
                return all(type(row) is int for row in mark.args[1:])
            case "case", (_, *_):
                return all(isinstance(case, str) and re.fullmatch(r"[A-Z]\d{3}", case) for case in mark.args)
        return False

    assert [f"{mark.place}: {mark.kind}{mark.args}" for mark in marks if not well_formed(mark)] == []


def test_no_requirement_got_lost(requirements: Entries) -> None:
    sections: dict[str, list[int]] = {}
    for key, entry in requirements.items():
        section, number = key.split(".")
        sections.setdefault(section, []).append(int(number))
        assert entry["title"], key
    assert [numbers for numbers in sections.values() if numbers != list(range(1, len(numbers) + 1))] == []
    assert sum(map(len, sections.values())) == REQUIREMENTS


def test_no_seed_row_got_lost(seeds: dict[str, Any]) -> None:
    assert list(seeds["rows"]) == [str(number) for number in range(1, SEED_ROWS + 1)]
    assert {row["seed"] for row in seeds["rows"].values()} == set(seeds["documents"])
    assert all(row["behaviour"] and row["where"] for row in seeds["rows"].values())


# ── this check itself ────────────────────────────────────────────────────────────────────────────

SAMPLE = '''
"""A text with @pytest.mark.spec("9.9") in it."""
import pytest
pytestmark = [pytest.mark.seed("003", 105, 106), pytest.mark.slow]

@pytest.mark.spec("5.3", "5.4")
@pytest.mark.case("B012")
@pytest.mark.parametrize("value", [pytest.param(1, marks=pytest.mark.spec("5.5"))])
async def test_something(value): ...
'''


def test_marks_are_found_wherever_they_stand() -> None:
    assert {(mark.kind, *mark.args, mark.place) for mark in marks_in(SAMPLE, "t.py")} == {
        ("seed", "003", 105, 106, "t.py:4"),
        ("spec", "5.3", "5.4", "t.py:6"),
        ("case", "B012", "t.py:7"),
        ("spec", "5.5", "t.py:8"),
    }


def test_a_mark_that_has_to_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"t\.py:1: a mark takes plain values"):
        list(marks_in("pytestmark = pytest.mark.spec(NUMBER)", "t.py"))


@pytest.mark.parametrize(
    ("entry", "places", "problem"),
    [
        ({"state": "todo"}, [], None),
        ({"state": "done"}, ["t.py:1"], None),
        ({"state": "part", "missing": "the rest"}, ["t.py:1"], None),
        ({"state": "todo"}, ["t.py:1"], "'todo' but marked at t.py:1"),
        ({"state": "done"}, [], "'done' but no test is marked"),
        ({"state": "part", "missing": "the rest"}, [], "'part' but no test is marked"),
        ({"state": "part"}, ["t.py:1"], "`missing` belongs to `part`"),
        ({"state": "done", "missing": "the rest"}, ["t.py:1"], "`missing` belongs to `part`"),
        ({"state": "soon"}, [], "the state 'soon', which is none of"),
    ],
)
def test_a_contradiction_between_state_and_marks_is_named(
    entry: dict[str, str], places: list[str], problem: str | None
) -> None:
    found = problems({"5.3": entry}, {"5.3": places} if places else {})
    assert (problem is None) == (found == [])
    assert problem is None or problem in found[0]


def test_a_mark_that_is_not_in_the_list_is_named() -> None:
    assert problems({}, {"99.9": ["t.py:1"]}) == ["99.9 is marked at t.py:1 but not in the list"]
