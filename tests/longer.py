"""How long tests that try many things go on: `make test` has short forms, `make test-long` the whole.

Both try the same kind of things; the longer one more of them.
"""

import os

LONG = os.environ.get("SUBAGENTD_TEST_LONG") == "1"


def times(short: int, long: int) -> int:
    """How many there are to try."""
    return long if LONG else short


def examples(most: int) -> int:
    """How many examples a property is asked of."""
    return times(max(20, most // 4), most)
