"""Order of the files, and how much of what is tried at random."""

import pytest
from hypothesis import settings

from tests.compiled import share
from tests.longer import LONG

share()
settings.register_profile("short", max_examples=25)
if not LONG:  # where a test does not say how often itself
    settings.load_profile("short")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: whole files are dealt out to processes, and a long one dealt last would keep one
    process busy while the others have nothing left."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
