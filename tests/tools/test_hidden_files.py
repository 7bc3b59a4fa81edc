"""Command lines where the box hides what may not be read: what is allowed then, and that none of it shows anything."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.permissions import Means, PermissionPolicy, Verdict
from app.boxes.box import BoxRefused, Level
from app.boxes.covers import Veil
from app.boxes.directory import Directories
from app.boxes.sandbox import Sandbox
from app.wiring_permissions import path_resolver
from tests.boxes.outside import need, open_folder, own
from tests.tools.shell_cases import ALLOWED, DENIED, RULES, STOPPED, UNNAMED, UNTOUCHED, lines
from tests.tools.test_bash import MEANS, PARSER, RUN_COMMAND, policy

HIDING = replace(MEANS, hides=True)
READING = "Read(./secrets/**), Read(./docs/secret/**)"
DENIED_FILES = {"table": ("of-.env", "of-sub/.env", "of-secrets"), READING: ("of-secrets", "of-docs")}
LINE_S, AT_ONCE = 2.0, 4
EVERY = os.environ.get("SHELL_EVERY") == "1"  # run what would be asked as well: some minutes


def verdict(by: PermissionPolicy, command: str, means: Means = HIDING) -> Verdict:
    return by.decide(RUN_COMMAND, {"command": command}, means).verdict


@pytest.fixture
def workspace() -> Iterator[Path]:
    """Files that are denied, and others, for a user that commands run as."""
    need(Level.FULL)
    with open_folder() as folder:
        place = folder / "workspace"
        for name in (".env", "sub/.env", "secrets/key", "docs/secret/x", "docs/secret/key"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"x canary-of-{name} key\n")
        for name in ("x", "docs/a.txt", "docs/key", "sub/key", "list.txt", "f", "pats", "l"):
            (place / name).write_text("x plain\n")
        for path in (place, *place.rglob("*")):
            own(path)
        yield place


async def shown(commands: list[str], workspace: Path, by: PermissionPolicy, denied: Sequence[str]) -> list[str]:
    """Those of the commands that show something of what is denied when they are run in the box."""
    veil = Veil(conceals=by.concealing(RUN_COMMAND), protects=by.protecting(RUN_COMMAND))
    places, found = asyncio.Semaphore(AT_ONCE), list[str]()

    async def one(command: str) -> None:
        said = bytearray()
        async with places:
            try:
                await Sandbox().run_at(Level.FULL, command, workspace, timeout_s=LINE_S, output=said.extend, veil=veil)
            except BoxRefused:  # another one has moved something
                return
        if any(each.encode() in said for each in denied):
            found.append(command)

    await asyncio.gather(*(one(command) for command in commands))
    return sorted(found)


@pytest.mark.spec("8.4")
@pytest.mark.case("B112", "B111")
def test_where_the_box_hides_what_is_denied_hardly_any_harmless_line_is_stopped() -> None:
    by = policy(**RULES)
    for means, most in ((MEANS, 5), (HIDING, 2)):
        wrong = [command for command in lines(ALLOWED) if verdict(by, command, means) is not Verdict.ALLOW]
        assert len(wrong) <= most, wrong
    wrong = [command for command in lines(UNNAMED) if verdict(by, command) is not Verdict.ALLOW]
    assert wrong == ["git grep TODO"], "what git keeps of a file is hidden by no box"
    by = policy(deny=[rule for rules in DENIED for rule in rules.split(", ")])
    wrong = [command for command in lines(UNTOUCHED) if verdict(by, command) is not Verdict.ALLOW]
    assert wrong == ["mv a.txt docs/"], "that is about writing"


@pytest.mark.spec("8.4")
@pytest.mark.case("B112")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("grep -r x .", Verdict.ALLOW), ("cp -r . /tmp/x", Verdict.ALLOW), ("tar c .", Verdict.ALLOW),
        ("cat $F", Verdict.ALLOW), ("cat *", Verdict.ALLOW), ("python3 -c \"open('.env')\"", Verdict.ALLOW),
        ("cat .env", Verdict.DENY), ("cat < .env", Verdict.DENY), ("grep -r x secrets", Verdict.DENY),
        ("cat secrets/*", Verdict.DENY), ("cat $(echo .env)", Verdict.DENY), ("cp sub/.env x", Verdict.DENY),
        ("git show HEAD:.env", Verdict.DENY), ("git show HEAD:$F", Verdict.ASK), ("git archive HEAD", Verdict.ASK),
        ("git show $F; cat *", Verdict.ASK), ("strange git show HEAD:.env", Verdict.ASK),
        ("$X show HEAD:.env", Verdict.ASK),
        ("git log; cat *", Verdict.ALLOW), ("bash $F", Verdict.ASK), ("cat $F |& odd\"", Verdict.ASK),
    ],
)  # fmt: skip
def test_only_what_a_line_surely_names_counts_unless_it_may_come_from_a_repository(
    command: str, expected: Verdict
) -> None:
    by = policy(deny=["Read(.env)", "Read(./secrets/**)"], allow=["Bash"])
    assert verdict(by, command) is expected
    if expected is Verdict.ALLOW and "git" not in command:
        assert verdict(by, command, MEANS) is Verdict.ASK


@pytest.mark.spec("8.4")
@pytest.mark.case("B112", "B113")
def test_what_may_not_be_written_is_asked_for_as_before() -> None:
    by = policy(deny=["Write(./locked/**)"])
    for command in ("rm -r .", "cp -r x .", "tar xf a", "unzip a", "echo x > $F", "mv a.txt docs/"):
        assert verdict(by, command) is verdict(by, command, MEANS), command
    assert verdict(by, "echo x > locked/a") is Verdict.DENY


@pytest.mark.spec("8.4", "7.3")
@pytest.mark.case("B112", "B107", "B108")
@pytest.mark.parametrize("rules", ["table", READING])
async def test_no_line_that_is_allowed_because_the_box_hides_shows_anything_denied(workspace: Path, rules: str) -> None:
    by = policy(**RULES) if rules == "table" else policy(deny=rules.split(", "))
    stopped = lines(STOPPED) if rules == "table" else lines(DENIED[rules])
    means = Means(parser=PARSER, resolve_path=path_resolver(Directories())(workspace), hides=True)
    allowed = [command for command in stopped if EVERY or verdict(by, command, means) is Verdict.ALLOW]
    assert len(allowed) >= 15, "enough for this to say something"
    assert await shown(allowed, workspace, by, DENIED_FILES[rules]) == []
    unhidden = ["cat s*/k* .e*", "grep -r x ."]
    assert await shown(unhidden, workspace, policy(deny=["Read(./nothing)"]), DENIED_FILES[rules]) == unhidden
