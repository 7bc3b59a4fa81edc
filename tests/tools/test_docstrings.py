"""What is read from docstrings."""

from collections.abc import Callable
from typing import Any

import pytest

from app.tools.docstrings import documentation_of


def documented(text: str | None) -> Callable[..., Any]:
    def function() -> None: ...

    function.__doc__ = text
    return function


@pytest.mark.spec("7.8")
@pytest.mark.parametrize(
    ("text", "summary", "parameters"),
    [
        (None, "", {}),
        ("One line.", "One line.", {}),
        ("First.\n\n    Second: with a colon.\n\n    Third.", "First.\n\nSecond: with a colon.\n\nThird.", {}),
        (
            "Do.\n\n    Args:\n        a: The first.\n        b (int, optional): The second\n            "
            "goes on: here.\n\n        **c: The third.\n\n    Returns:\n        d: not a parameter.",
            "Do.",
            {"a": "The first.", "b": "The second goes on: here.", "c": "The third."},
        ),
        ("Do.\n\n    Arguments:\n      a: x\n      no colon here\n      b: y", "Do.", {"a": "x", "b": "y"}),
        (
            "Do.\n\n    :param a: The first\n        goes on.\n    :param int b: The second.\n    :type b: int\n"
            "    :returns: a thing\n        of beauty",
            "Do.",
            {"a": "The first goes on.", "b": "The second."},
        ),
        ("Do.\n\n    Raises:\n        ValueError: never.\n\n    Args:\n        a: x", "Do.", {"a": "x"}),
        ("Do.\n\n    args:\n        a:\n            On the next line.", "Do.", {"a": "On the next line."}),
        ("Do :thing: now.\n\n    :param: nameless", "Do :thing: now.", {}),
    ],
)
def test_text_and_parameters_are_told_apart(text: str | None, summary: str, parameters: dict[str, str]) -> None:
    found = documentation_of(documented(text))

    assert (found.summary, found.parameters) == (summary, parameters)
