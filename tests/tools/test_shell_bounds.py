"""What judging one command line may cost, whatever the line: names that are looked up, findings, rules compared."""

import pytest

from app.agent.permissions import Means, Verdict
from app.agent.rule_patterns import PatternKind, Screen, fits, may_fit
from tests.tools.test_bash import PARSER, RUN_COMMAND, policy, resolved

MOST_PLACES, MOST_FINDINGS = 1_100, 200
RULES = [f"Read(./secret{at}/**/x*y*z)" for at in range(250)]
WORDS = " ".join(f"a/b/c{at}" for at in range(400))


@pytest.mark.spec("8.4", "8.5")
@pytest.mark.parametrize(
    "line",
    [
        f"cat {WORDS}",
        "; ".join(f"cd d{at}" for at in range(8)) + f"; cat {WORDS}",
        "; ".join(f"cd d{at}/e/f" for at in range(8)) + "; cat " + WORDS.replace("c", "c*/"),
        f"cat {WORDS.replace('a/', '$x/')}",
        "; ".join(f"cd d{at}; cat > f{at}" for at in range(140)),
        "cat " + " ".join(f"--a{at}=b{at}:c{at},d{at}" for at in range(300)),
    ],
)
def test_a_line_with_very_many_names_is_asked_for_and_costs_little(line: str) -> None:
    looked_up: list[str] = []

    def place(path: str) -> str | None:
        looked_up.append(path)
        return resolved(path)

    found = policy(deny=RULES, allow=["Read"]).explain(
        RUN_COMMAND, {"command": line}, Means(parser=PARSER, resolve_path=place)
    )
    assert len(looked_up) <= MOST_PLACES
    assert len(found.findings) <= MOST_FINDINGS
    alone = line == f"cat {WORDS}"
    assert found.decision.verdict is (Verdict.ALLOW if alone else Verdict.ASK)


@pytest.mark.spec("8.4")
def test_a_denied_file_among_very_many_is_still_denied() -> None:
    by, means = policy(deny=[*RULES, "Read(./conf/key)"]), Means(parser=PARSER, resolve_path=resolved)
    for line in (f"cat {WORDS} conf/key", "; ".join(f"cd d{at}" for at in range(8)) + f"; cat conf/key {WORDS}"):
        assert by.decide(RUN_COMMAND, {"command": line}, means).verdict is Verdict.DENY


PATTERNS = ["**/.env", "conf/key", "conf/**", "**", "a/**/b*.c", "*", "x[ab]y/?", "**/d/**", "a/b/c"]
PATHS = [".", ".env", "a/.env", "conf", "conf/key", "conf/x/y", "a/b.c", "a/x/bq.c", "xay/z", "d", "q/d/e", "a/b/c/d"]


@pytest.mark.spec("8.4")
@pytest.mark.parametrize("path", [*PATHS, "\0", "a/\0", "\0/key", "\0.c", "con\1/key", "conf/\1", "\1", "\1env"])
def test_no_rule_that_speaks_of_a_path_is_screened_out(path: str) -> None:
    hits = Screen(PatternKind.PATH, PATTERNS).hits(path)
    for at, pattern in enumerate(PATTERNS):
        speaks = fits(PatternKind.PATH, pattern, path, strict=False) or may_fit(PatternKind.PATH, pattern, path)
        assert at in hits or not speaks, pattern


@pytest.mark.spec("8.4")
def test_a_screen_leaves_out_the_rules_that_are_about_something_else() -> None:
    assert Screen(PatternKind.PATH, PATTERNS).hits("conf/key") == {1, 2, 3, 5}
    assert Screen(PatternKind.COMMAND, ["git *", "git push *", "rm *", "*"]).hits("git") == {0, 3}
    assert Screen(PatternKind.COMMAND, ["git *", "git push *", "rm *", "*"]).hits("git \0 x") == {0, 1, 3}
    assert Screen(PatternKind.COMMAND, [f"a{at} *" for at in range(500)]).hits("a77 b") == {77}
