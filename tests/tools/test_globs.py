"""Glob patterns: what they match, where they lead, what they cost."""

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.globs import Glob


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", ".py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("**", "x/y", True),
        ("src/**", "src/a/b", True),
        ("src/**", "src", False),
        ("src/**/**/a", "src/a", True),
        ("./src//a", "src/a", True),
        ("src/*/", "src/a", True),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("?", "数", True),
        ("?", "🍸", True),
        ("数*", "数据", True),
        ("?", "/", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^a]x", "bx", True),
        ("[!a]", "/", False),
        ("[]]", "]", True),
        ("[]a]", "a", True),
        ("[!]a]", "b", True),
        ("[a", "[a", True),
        (r"[\]", "\\", True),
        ("[.]x", "ax", False),
        ("a.c", "abc", False),
        ("a+(b)|c$", "a+(b)|c$", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("*.{yml,yaml}", "a.yaml", True),
        ("{a,b/{c,d}}/*.x", "b/d/f.x", True),
        ("{a,b/{c,d}}/*.x", "b/f.x", False),
        ("{a}", "{a}", True),
        ("{a,b", "{a,b", True),
        (r"\{a,b\}", "{a,b}", True),
        ("a*", "a\nb", True),
        (".github/*", ".github/x", True),
        ("*", "odd\udcff", True),
    ],
)
def test_a_pattern_matches_as_in_a_shell(pattern: str, path: str, matches: bool) -> None:
    assert Glob(pattern).matches(path) is matches


@pytest.mark.spec("7.3")
@pytest.mark.case("B207")
@pytest.mark.parametrize(
    ("pattern", "entered", "left_out"),
    [
        ("*.py", [], ["a", "a/b"]),
        ("a/b/*.py", ["a", "a/b"], ["b", "a/c", "a/b/c", "a/b/c/d"]),
        ("a/**/x", ["a", "a/b", "a/b/c"], ["b", "b/a"]),
        ("*/b/x", ["q", "q/b"], ["q/c", "q/b/c"]),
        ("{a,b/c}/x", ["a", "b", "b/c"], ["c", "a/c", "b/d"]),
        ("**/x", ["a", "a/b"], []),
        ("a/**", ["a", "a/b/c"], ["b"]),
    ],
)
def test_only_directories_that_can_hold_a_match_are_entered(
    pattern: str, entered: list[str], left_out: list[str]
) -> None:
    glob = Glob(pattern)

    assert [path for path in entered + left_out if glob.may_hold(path)] == entered


@pytest.mark.spec("7.3")
def test_names_without_wildcards_are_known_as_literal() -> None:
    assert Glob("**/node_modules/{a,b*}/.venv").literal_names == {"node_modules", "a", ".venv"}


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "the pattern is empty"),
        ("/", "the pattern is empty"),
        ("a/../b", "'..' is not supported"),
        ("[z-a]", "cannot be used"),
        ("{a,b}" * 7, "more than 64 alternatives"),
        ("\ud800", "not valid Unicode"),
        ("x" * 1_001, "longer than 1,000 characters"),
    ],
)
def test_a_pattern_that_cannot_be_one_says_why(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Glob(pattern)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("pattern", ["*a" * 500, "{" * 1_000, "**/" * 300 + "x", "[" * 1_000, "?" * 1_000])
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()

    Glob(pattern).matches("a" * 5_000 + "/" + "ab/" * 500 + "b")

    assert time.process_time() - began < 1.0


_NAMES = st.text(st.sampled_from("ab.x-"), min_size=1, max_size=6)


@pytest.mark.spec("7.3")
@given(pattern=st.text(st.sampled_from("ab.x-*?[]!"), min_size=1, max_size=7), name=_NAMES)
def test_within_a_name_the_pattern_means_what_fnmatch_says(pattern: str, name: str) -> None:
    try:
        glob = Glob(pattern)
    except ValueError:
        return  # an impossible range such as [b-a], or `.` and `..`, which are no names
    if pattern.startswith(".") and pattern.strip(".") == "":
        return

    assert glob.matches(name) == fnmatch.fnmatchcase(name, pattern)


@pytest.mark.spec("7.3")
@given(
    parts=st.lists(st.sampled_from(["*", "**", "a", "b*", "?"]), min_size=1, max_size=5),
    path=st.lists(st.sampled_from(["a", "b", "bc"]), min_size=1, max_size=5),
)
def test_each_directory_on_the_way_to_a_match_may_hold_it(parts: list[str], path: list[str]) -> None:
    glob = Glob("/".join(parts))

    if glob.matches("/".join(path)):
        assert all(glob.may_hold("/".join(path[:length])) for length in range(1, len(path)))
