"""Lines in all the spellings of a shell are judged, and those that were allowed are run: nothing denied may happen."""

import os
from pathlib import Path

import pytest

from app.agent.permissions import Means, PermissionPolicy, Verdict
from app.boxes.directory import Directories
from app.wiring_permissions import path_resolver
from tests.tools.shell_spellings import DENIED, Spelling, Workshop
from tests.tools.test_bash import PARSER, RUN_COMMAND, policy

LINES = int(os.environ.get("SHELL_LINES", "150"))  # as many as wanted: each costs two hundredths of a second
SEED = int(os.environ.get("SHELL_SEED", "7"))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path.resolve())


def allowing(by: dict[str, PermissionPolicy], line: str, means: Means) -> set[str]:
    """What may come of a line as far as those policies go that allow it."""
    decided = {name: one.decide(RUN_COMMAND, {"command": line}, means).verdict for name, one in by.items()}
    return {name for name, verdict in decided.items() if verdict is Verdict.ALLOW}


@pytest.mark.spec("8.4")
@pytest.mark.case("B107", "B108", "B109", "B110")
def test_no_spelling_of_what_is_denied_is_allowed_and_then_really_done(workshop: Workshop) -> None:
    means = Means(parser=PARSER, resolve_path=path_resolver(Directories())(workshop.workspace))
    by = {name: policy(deny=rules) for name, rules in DENIED.items()}
    spelling, wrong, ran, did = Spelling(SEED, str(workshop.workspace)), [], 0, set[str]()
    for _ in range(LINES):
        line = spelling.line()
        workshop.renew()
        allowed = allowing(by, line, means)
        if allowed:
            ran += 1
            came = workshop.harm(line)
            did |= came
            if came & allowed:
                wrong.append((line, came & allowed))
    assert not wrong
    assert ran > LINES // 5, "enough was allowed for this to say something"
    assert did == set(DENIED), "and it was run for real"


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
def test_a_file_has_nothing_below_it(workshop: Workshop) -> None:
    means = Means(parser=PARSER, resolve_path=path_resolver(Directories())(workshop.workspace))
    by = policy(deny=["Read(.env)"])
    for line, expected in (("grep -r x docs/a.txt", Verdict.ALLOW), ("mv docs/a.txt docs/a.txt", Verdict.ALLOW),
                           ("grep -r x docs", Verdict.ASK), ("mv docs x", Verdict.ASK)):  # fmt: skip
        assert by.decide(RUN_COMMAND, {"command": line}, means).verdict is expected, line


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("line", "came"),
    [("cat conf/k[e]y.pem", "key.pem"), ("cat {.env,x}", ".env"), ("echo x > conf/o*", "written"), ("z''ap", "run")],
)
def test_the_place_where_lines_are_run_tells_what_came_of_them(workshop: Workshop, line: str, came: str) -> None:
    assert workshop.harm("cat docs/a.txt") == set()
    assert workshop.harm(line) == {came}
