"""What functions return, as strict JSON."""

import collections
import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.tools.results import as_text


class Level(enum.IntEnum):
    HIGH = 3


class Tag(enum.Enum):
    A = "a"


@dataclass
class Part:
    name: str
    data: bytes


class Whole(BaseModel):
    parts: list[Part]
    when: datetime.datetime


class Pair(NamedTuple):
    left: int
    right: set[int]


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


UTC = datetime.UTC
HUGE = 10**400


@pytest.mark.spec("7.8")
@pytest.mark.case("B185")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2.5, "x", None, True], [1, 2.5, "x", None, True]),
        ([float("nan"), float("inf"), -float("inf")], [None, None, None]),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        ([datetime.date(2026, 1, 2), datetime.time(3, 4)], ["2026-01-02", "03:04:00"]),
        ([b"abc\xff", bytearray(b"d"), memoryview(b"e")], ["abc\ufffd", "d", "e"]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (HUGE, HUGE),
        pytest.param(10**5_000, hex(10**5_000), id="more digits than Python writes"),
        ({1: "a", None: "b", False: "c", ("x", 1): "d"}, {"1": "a", "null": "b", "false": "c", '["x", 1]': "d"}),
        ([Level.HIGH, Tag.A], [3, "a"]),
        (Pair(left=1, right={2}), {"left": 1, "right": [2]}),
        (collections.deque([1]), [1]),
        (collections.OrderedDict(a=(1, 2)), {"a": [1, 2]}),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        (Mute(), "(a Mute without a text)"),
        (["\ud83c\udf78", "\ud83c", {"\udf78": 1}], ["🍸", "\ufffd", {"\ufffd": 1}]),
        (
            Whole(parts=[Part("p", b"x")], when=datetime.datetime(2026, 1, 2, tzinfo=UTC)),
            {"parts": [{"name": "p", "data": "x"}], "when": "2026-01-02T00:00:00+00:00"},
        ),
    ],
)
def test_every_value_has_a_form_in_json(value: Any, expected: Any) -> None:
    assert json.loads(as_text(value)) == expected


@pytest.mark.spec("7.8")
@pytest.mark.case("B185")
def test_values_that_hold_themselves_or_go_very_deep_come_to_an_end() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = {}
    for _ in range(10_000):
        deep = {"d": deep}

    assert as_text(circle).count("[") == 64
    assert as_text(deep).count("{") == 64


@pytest.mark.spec("7.8")
def test_text_is_not_quoted_and_can_always_be_written() -> None:
    assert as_text('a "quoted" text\n') == 'a "quoted" text\n'
    assert as_text("half \ud83c") == "half \ufffd"
    assert as_text(None) == "(no output)"
    assert as_text("") == ""


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.datetimes()
    | st.decimals()
    | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.floats(), inner) | st.tuples(inner),
    max_leaves=10,
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.spec("7.8")
@pytest.mark.case("B185")
@given(value=_VALUES)
def test_whatever_comes_back_is_strict_json_in_valid_utf8(value: Any) -> None:
    text = as_text([value])

    json.loads(text.encode("utf-8"), parse_constant=refuse)
