"""Regular expressions over the lines of a file: the same lines as a plain loop finds, in bounded time."""

import random
import time
from itertools import pairwise

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from app.tools import lines
from app.tools.lines import Line, compiled, matching_lines, searchable


def found(
    text: bytes, pattern: str, *, context: int = 0, limit: int = 1_000, ignore_case: bool = False
) -> list[tuple[int, str, bool]]:
    expression = compiled(pattern, ignore_case=ignore_case)
    result = matching_lines(text, expression, context=context, limit=limit, more=lambda: True)
    return [(line.number, line.text, line.matched) for line in result]


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("text", "pattern", "numbers"),
    [
        (b"a\nb\na\n", "a", [1, 3]),
        (b"a\nb\na", "a$", [1, 3]),
        (b"ab\nb\n", "^b", [2]),
        (b"a\n\nb\n", "^$", [2]),
        (b"a\n", "^", [1]),
        (b"a\nb", "$", [1, 2]),
        (b"\n", "^$", [1]),
        (b"", "^", []),
        (b"a\nb\n", r"a[^x]b|a\sb", []),
        (b"aXb\nb\n", r"a[^y]b", [1]),
        ("größe\n".encode(), "gr.ße", [1]),
        (b"gr\xf6\xdfe\nx\n", "^gr", [1]),
        (b"a.c\nabc\n", r"a\.c", [1]),
    ],
)
def test_a_match_stays_within_its_line(text: bytes, pattern: str, numbers: list[int]) -> None:
    assert [number for number, _, _ in found(text, pattern)] == numbers


@pytest.mark.spec("7.3")
def test_case_can_be_ignored() -> None:
    assert found(b"A\na\nb\n", "a", ignore_case=True) == [(1, "A", True), (2, "a", True)]


@pytest.mark.spec("7.3")
def test_lines_around_matches_are_shown_once_and_in_order() -> None:
    text = b"".join(b"%d\n" % n for n in range(1, 13))

    assert found(text, "^(1|4|5|9)$", context=2) == [
        (n, str(n), n in (1, 4, 5, 9)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    ]
    assert [n for n, _, _ in found(text, "^(1|12)$", context=1)] == [1, 2, 11, 12]


@pytest.mark.spec("7.3")
def test_the_limit_counts_matches_and_ends_the_search() -> None:
    assert [n for n, _, _ in found(b"a\n" * 9, "a", limit=2)] == [1, 2]


@pytest.mark.spec("7.3")
@given(
    parts=st.lists(st.sampled_from([b"a", b"b", b"ab", b"\n", b"\n\n", "ü".encode()]), max_size=60),
    pattern=st.sampled_from(["a", "^a", "b$", "^$", "a+b", "ba?", "^", "[^a]b"]),
    context=st.integers(0, 3),
    block=st.integers(4, 12),
)
def test_the_same_lines_are_found_as_by_looking_at_one_after_the_other(
    parts: list[bytes], pattern: str, context: int, block: int
) -> None:
    text = b"".join(parts)
    plain = text.split(b"\n")[: -1 if text.endswith(b"\n") or not text else None]
    expression = re2.compile(pattern)
    matched = [n for n, line in enumerate(plain, start=1) if expression.search(line)]
    around = sorted({n + by for n in matched for by in range(-context, context + 1) if 1 <= n + by <= len(plain)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK", block)
        patch.setattr(lines, "_OVERLAP", 3)
        result = found(text, pattern, context=context)

    assert result == [(n, plain[n - 1].decode(), n in matched) for n in around]


@pytest.mark.spec("7.3")
def test_a_match_anywhere_in_a_huge_line_is_found_and_shown_with_its_surroundings() -> None:
    line = b"x" * 3_000_000 + "ü needle ".encode() + b"y" * 3_000_000
    text = b"first\n" + line + b"\nlast needle"

    (first, shown, _), (second, last, _) = found(text, "needle")

    assert (first, second, last) == (2, 3, "last needle")
    assert "xxü needle yy" in shown
    assert shown.startswith("…x")
    assert shown.endswith("y…")
    assert len(shown) == lines.MAX_SHOWN_CHARS + 2


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("shift", range(0, 40_000, 3_333))
def test_a_match_is_found_wherever_the_pieces_of_a_long_line_meet(shift: int) -> None:
    text = b"x" * shift + b"<" + b"n" * 2_000 + b">" + b"x" * 100_000

    assert len(found(text, "<n+>")) == 1


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", r"missing \): \("),
        (")a", "unexpected"),
        ("a**", "bad repetition"),
        ("(?=x)", "no look-around"),
        (r"(a)\1", "no back-references"),
        ("((a{1,100}){1,100}){1,100}", "no valid expression"),
        ("\ud800", "not valid Unicode"),
        ("x" * 5_001, "longer than 5,000 characters"),
    ],
)
def test_an_expression_that_cannot_be_one_says_why(
    pattern: str, problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=problem):
        compiled(pattern, ignore_case=False)

    assert capfd.readouterr().err == ""  # the library's own messages would go there


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("pattern", ["^(a+)+$", "(x+x+)+y", "^(a|a?)+$", "(a*)*b", "a?" * 900 + "a" * 900])
def test_expressions_that_kill_other_engines_take_no_time(pattern: str) -> None:
    began = time.process_time()

    found(b"a" * 5_000 + b"!\n" + b"x" * 5_000, pattern)

    assert time.process_time() - began < 1.0


@pytest.mark.spec("7.3")
def test_the_worst_expression_is_left_soon_after_the_caller_says_so() -> None:
    text = bytes(random.Random(1).choices(b"ab", k=5_000_000))  # would take 20 s and more
    asked: list[float] = []

    def more() -> bool:
        asked.append(time.perf_counter())
        return len(asked) < 5

    expression = compiled("(a[ab]{500}|b[ab]{499})c", ignore_case=False)
    assert list(matching_lines(text, expression, context=0, limit=1, more=more)) == []

    assert len(asked) == 5
    assert max(later - before for before, later in pairwise(asked)) < 2.0


@pytest.mark.spec("7.3")
@pytest.mark.case("B176")
def test_text_in_other_encodings_is_searched_and_binaries_are_not() -> None:
    utf16 = searchable("größe\r\nb\r\n".encode("utf-16"))

    assert utf16 == "größe\nb\n".encode()
    assert searchable(b"\xef\xbb\xbfa\r\nb") == b"a\nb"
    assert searchable(b"a\0b") is None
    assert searchable("\ud800".encode("utf-16-le", "surrogatepass").join([b"\xff\xfe", b"a\0"])) == "\ufffda".encode()


@pytest.mark.spec("7.3")
def test_a_shown_line_holds_no_nul_and_no_half_characters() -> None:
    text = b"x" * 9_000 + b"\n" + "ü".encode() * 2_000 + b"key\0\xff\n"

    (line,) = matching_lines(text, compiled("key", ignore_case=False), context=0, limit=9, more=lambda: True)

    assert line == Line(number=2, text="…" + "ü" * 100 + "key\ufffd\ufffd", matched=True)
