"""Many paths held against the patterns of rules together: the same as one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.rule_patterns import PatternKind, fits, means_any

NAMES = st.sampled_from(["a", "b", "ab", ".env", "a.pem", "b.pem", "**"])
WILD = st.sampled_from(["a", "b", ".env", "*.pem", "a*", "?", "[ab]", "**"])


@pytest.mark.spec("8.4")
@given(
    st.lists(st.lists(WILD, min_size=1, max_size=4).map("/".join), max_size=4),
    st.lists(NAMES.filter(lambda name: name != "**"), max_size=5).map(lambda names: "/".join(names) or "."),
)
def test_many_patterns_mean_what_each_of_them_means(patterns: list[str], path: str) -> None:
    each = any(fits(PatternKind.PATH, pattern, path, strict=False) for pattern in patterns)
    assert means_any(patterns)(path) is each
