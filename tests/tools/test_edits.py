"""Edits of texts: the one exact place whatever the line ends, everything else byte by byte as it was, near misses."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.tools.edits import NoMatch, decoded, difference, replaced
from tests.longer import examples

TEXTS = st.text(alphabet="ab\n\r \ufeff\udc80é", max_size=40)


@pytest.mark.spec("7.3")
@pytest.mark.case("B205")
@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\r\nc", "b\nc", "b\nd\n", "a\r\nb\r\nd\r\n"),
        ("a\r\nb\r\n", "b", "b1\nb2", "a\r\nb1\r\nb2\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a\nb\r\nc\nd\r\n", "b\nc\nd", "x\ny\nz", "a\nx\r\ny\nz\r\n"),  # mixed: each as it was
        ("a\nb\r\nc\nd\r\n", "a\nb\nc\nd\n", "a\nb\nx\nd\n", "a\nb\r\nx\nd\r\n"),
        ("a\nb\r\nc\n", "a\nb\nc", "a\nb\nx\nc", "a\nb\r\nx\nc\n"),
        ("a\nb\r\nc\r\n", "b", "x\ny", "a\nx\r\ny\r\nc\r\n"),  # mixed: that of the line itself
        ("a\nb\nlast", "last", "x\ny", "a\nb\nx\ny"),
        ("a\r\nb\r\n", "\nb", "", "a\r\n"),
        ("a\rb\n", "a\rb", "c", "c\n"),
        ("one", "one", "", ""),
        ("", "", "", None),
    ],
)
def test_a_match_keeps_the_line_ends_of_its_place(text: str, old: str, new: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(NoMatch):
            replaced(text, old, new)
    else:
        assert replaced(text, old, new).text == expected


@given(TEXTS, TEXTS, TEXTS)
@example("a\r\r\n", "a", "")
@settings(max_examples=examples(500), deadline=None)
@pytest.mark.spec("7.3")
@pytest.mark.case("B205", "B206")
def test_an_edit_changes_one_exact_place_and_not_a_byte_elsewhere(text: str, old: str, new: str) -> None:
    plain, wanted, given_new = (each.replace("\r\n", "\n") for each in (text, old, new))
    places = [at for at in range(len(plain)) if wanted and plain.startswith(wanted, at)]
    try:
        edited = replaced(text, old, new)
    except NoMatch:
        assert len(places) != 1 or wanted == given_new
        return
    (place,) = places
    expected = plain[:place] + given_new + plain[place + len(wanted) :]
    # what stands before a line feed may belong to the line end or not, once the two have come together
    assert re.sub("\r+\n", "\n", edited.text) == re.sub("\r+\n", "\n", expected)
    lines = text.split("\n")
    first, last = plain.count("\n", 0, place), plain.count("\n", place + len(wanted))
    assert edited.text.split("\n")[:first] == lines[:first]
    if last:
        assert edited.text.split("\n")[-last:] == lines[-last:]


@pytest.mark.spec("7.3")
@pytest.mark.case("B206")
@pytest.mark.parametrize(
    ("text", "old", "said"),
    [
        ("a\nb\na\n", "a", "found 2 times, at lines 1, 3: give more"),
        ("aaa", "aa", "found 2 times, at line 1"),
        ("x\n" * 30, "x", "found 30 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more"),
        ("a", "", "old_string is empty"),
        ("a\r\n", "a\n", "equal"),
        (
            "def f():\n\treturn 1\n",
            "def f():\n    return 1",
            "lines 1-2 differs only in blanks:\n def f():\n \treturn 1",
        ),
        ("one\ntwo\nthree\n", "two\nfour", "lines 2-3 is the closest:\n two\n three"),
        ("colour = 1\n", "color = 1", "line 1 is the closest:\n colour = 1"),
        ("abc", "xyz", "blanks included."),
    ],
)
def test_what_does_not_match_just_once_is_refused_in_words_that_help(text: str, old: str, said: str) -> None:
    with pytest.raises(NoMatch) as problem:
        replaced(text, old, "a\n" if "equal" in said else "new")
    assert said in str(problem.value)


@pytest.mark.spec("7.3")
def test_everywhere_means_all_places_each_with_its_own_line_ends() -> None:
    edited = replaced("a\nb\r\na\r\n", "a", "x\ny", everywhere=True)

    assert (edited.text, edited.count) == ("x\ny\nb\r\nx\r\ny\r\n", 2)
    assert replaced("aaaa", "aa", "b", everywhere=True).text == "bb"


@pytest.mark.spec("7.3")
def test_an_edit_is_shown_with_the_lines_around_it() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 12))

    assert replaced(text, "6\nline 7", "six").diff == (
        " line 3\n line 4\n line 5\n-line 6\n-line 7\n+line six\n line 8\n line 9\n line 10"
    )
    assert replaced("only", "only", "other").diff == "-only\n+other"
    assert len(replaced("x", "x", "long\n" * 10_000).diff) < 1_000


@pytest.mark.spec("7.6")
def test_a_difference_names_its_lines() -> None:
    assert difference("a\nb\nc\n", "a\nx\nc\n") == "line 2 differs:\n-b\n+x"
    assert difference("a\nb\nc\n", "a\nc\n") == "line 2 differs:\n-b"
    assert difference("a\nb\nc\nd\n", "a\nx\ny\nd\n") == "lines 2-3 differ:\n-b\n-c\n+x\n+y"
    assert difference("a\n", "a\r\n") == "only its line ends differ"


@pytest.mark.spec("7.3")
@pytest.mark.case("B205")
@pytest.mark.parametrize(
    "data",
    [
        b"plain",
        b"\xef\xbb\xbfwith mark\r\n",
        "zw\u00f6lf \U0001f378".encode(),
        b"latin \xe9 bytes",
        b"\xff\xfe" + "sechzehn \U0001f378\r\n".encode("utf-16-le"),
        b"\xfe\xff" + "andersherum".encode("utf-16-be"),
        b"\xff\xfe\0\0" + "32".encode("utf-32-le"),
        b"",
    ],
)
def test_a_text_is_written_back_byte_by_byte(data: bytes) -> None:
    form = decoded(data)
    assert form is not None
    assert form.encoded(form.text) == data


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("data", [b"a\0b", b"\x89PNG\r\n\x1a\n" + bytes(100), b"\xff\xfea", b"\xff\xfe\x00\xd8"])
def test_what_is_no_text_or_could_not_be_written_back_is_not_edited(data: bytes) -> None:
    assert decoded(data) is None
