"""How much work code does, counted and not timed."""

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def lines_of(module: ModuleType, work: Callable[[], object]) -> int:
    """How many lines of a module are executed while `work` is done."""
    count = 0

    def line(_frame: FrameType, kind: str, _value: Any) -> Any:
        nonlocal count
        count += kind == "line"
        return line

    def entered(frame: FrameType, _kind: str, _value: Any) -> Any:
        return line if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
