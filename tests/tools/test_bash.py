"""Shell command lines taken apart: 500 and more of them judged, the traps one by one, and arbitrary text."""

import posixpath
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.agent.permissions import Means, ParsedCommand, PermissionPolicy, Scope, Verdict
from app.agent.tools import ToolSpec
from app.definitions.reading import Reading
from app.definitions.rules import read_rules
from app.tools.bash import MAX_CHARS, BashParser
from tests.longer import examples
from tests.tools.shell_cases import ALLOWED, DENIED, RULES, STOPPED, UNNAMED, UNTOUCHED, lines

PARSER = BashParser()
RUN_COMMAND = ToolSpec(name="run_command", description="Runs a command.", parameters={"type": "object"})
WORKSPACE = "/workspace"
MOST_WRONG_REFUSALS = 0.02


def resolved(path: str) -> str | None:
    full = posixpath.normpath(posixpath.join(WORKSPACE, path))
    inside = full == WORKSPACE or full.startswith(f"{WORKSPACE}/")
    return posixpath.relpath(full, WORKSPACE) if inside else None


MEANS = Means(parser=PARSER, resolve_path=resolved)


def policy(**permissions: object) -> PermissionPolicy:
    reading = Reading(strict=True, known_tools=None)
    rules = read_rules(reading, "permissions", permissions, Scope.SERVER)
    assert rules is not None, reading.found
    assert not reading.found
    return PermissionPolicy("lead", [rules])


def verdict(by: PermissionPolicy, command: str) -> Verdict:
    return by.decide(RUN_COMMAND, {"command": command}, MEANS).verdict


def texts(command: str) -> list[str]:
    """What the line runs; unknown pieces as ?."""
    return [(part.exact or part.loose)[0].replace("\0", "?") for part in PARSER.parse(command).parts]


def problem(command: str) -> str | None:
    return PARSER.parse(command).problem


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────


def table(by: PermissionPolicy, commands: list[str]) -> str:
    """The commands with what was decided and why, for a reader of a failure."""
    found = [(command, by.decide(RUN_COMMAND, {"command": command}, MEANS)) for command in commands]
    return "\n" + "\n".join(f"{one.verdict:6} {command!r}: {one.reason}" for command, one in found)


@pytest.mark.spec("8.4")
@pytest.mark.case("B107", "B108", "B109", "B110")
def test_of_all_lines_that_must_be_stopped_none_is_allowed() -> None:
    by = policy(**RULES)
    stopped = lines(STOPPED)
    assert len(set(stopped)) >= 250
    wrong = [command for command in stopped if verdict(by, command) is Verdict.ALLOW]
    assert not wrong, table(by, wrong)


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
def test_of_all_harmless_lines_at_most_one_in_fifty_is_stopped() -> None:
    by = policy(**RULES)
    allowed = lines(ALLOWED)
    assert len(set(allowed)) >= 250
    wrong = [command for command in allowed if verdict(by, command) is not Verdict.ALLOW]
    assert len(wrong) <= MOST_WRONG_REFUSALS * len(allowed), table(by, wrong)


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
def test_files_that_nobody_can_name_before_are_asked_for_where_some_may_not_be_read() -> None:
    by, unnamed = policy(**RULES), lines(UNNAMED)
    wrong = [command for command in unnamed if verdict(by, command) is not Verdict.ASK]
    assert not wrong, table(by, wrong)
    deny = [rule for rule in cast(list[str], RULES["deny"]) if not rule.startswith("Read")]
    by = policy(**{**RULES, "deny": deny})
    wrong = [command for command in unnamed if verdict(by, command) is not Verdict.ALLOW]
    assert not wrong, table(by, wrong)


@pytest.mark.spec("8.4")
@pytest.mark.case("B107", "B108", "B109", "B110")
@pytest.mark.parametrize("rules", DENIED)
def test_a_denial_stops_every_spelling_without_the_help_of_another_rule(rules: str) -> None:
    by, stopped = policy(deny=rules.split(", ")), lines(DENIED[rules])
    wrong = [command for command in stopped if verdict(by, command) is Verdict.ALLOW]
    assert not wrong, table(by, wrong)


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
def test_of_usual_lines_at_most_one_in_fifty_is_stopped_by_what_is_denied_elsewhere() -> None:
    by, usual = policy(deny=[rule for rules in DENIED for rule in rules.split(", ")]), lines(UNTOUCHED)
    assert len(set(usual)) >= 100
    wrong = [command for command in usual if verdict(by, command) is not Verdict.ALLOW]
    assert len(wrong) <= MOST_WRONG_REFUSALS * len(usual), table(by, wrong)


@pytest.mark.spec("8.4")
@pytest.mark.case("B108")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("strange rm x", Verdict.ASK),
        ("strange -c 'rm x'", Verdict.ASK),
        ("strange --run='rm x'", Verdict.ASK),
        ("strange a b c d e f g h i j k /bin/rm x", Verdict.ASK),
        ("strange x", Verdict.ALLOW),
        ("strange rmdir", Verdict.ALLOW),
        ("grep rm x", Verdict.ALLOW),
        ("git commit -m 'rm x'", Verdict.ALLOW),
    ],
)
def test_a_program_that_is_not_known_may_run_the_denied_command_among_its_words(
    command: str, expected: Verdict
) -> None:
    assert verdict(policy(deny=["Bash(rm *)"]), command) is expected


@pytest.mark.spec("8.4")
@pytest.mark.case("B110")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("rm -r docs/locked", Verdict.DENY),
        ("rm -r docs", Verdict.ASK),
        ("rm docs", Verdict.ALLOW),
        ("rm -r src", Verdict.ALLOW),
        ("rm -r ..", Verdict.ASK),
        ("mv docs old", Verdict.ASK),
        ("mv src old", Verdict.ALLOW),
        ("cp -r src docs", Verdict.ASK),
        ("cp src docs", Verdict.ALLOW),
        ("strange docs/locked/a", Verdict.ASK),
        ("pytest docs/locked/a", Verdict.ALLOW),
        ("ruff check docs/locked/a", Verdict.ALLOW),
        ("ruff check --fix docs/locked/a", Verdict.DENY),
    ],
)
def test_a_change_to_a_directory_is_one_to_all_below_it(command: str, expected: Verdict) -> None:
    assert verdict(policy(deny=["Write(./docs/locked/**)"]), command) is expected


@pytest.mark.spec("8.4")
@pytest.mark.case("B110")
def test_a_redirection_is_no_part_of_an_allowed_command() -> None:
    by = policy(allow=["Bash(git *)"])
    assert verdict(by, "git status") is Verdict.ALLOW
    assert verdict(by, "git status >> .git/hooks/pre-commit") is Verdict.ASK
    assert verdict(policy(allow=["Bash"]), "git status > f") is Verdict.ALLOW


@pytest.mark.spec("8.4")
@pytest.mark.case("B111")
@pytest.mark.parametrize(
    "command", ["git log 2>&1", 'grep "a > b" f', "git status && git diff", "ls *.txt", "git log | grep x"]
)
def test_harmless_forms_need_no_question(command: str) -> None:
    assert verdict(policy(default="ask", allow=["Bash(git *)", "Bash(ls *)", "Bash(grep *)"]), command) == "allow"


@pytest.mark.spec("8.4")
@pytest.mark.case("B107")
@pytest.mark.parametrize("between", [" && ", " ; ", ";", " || ", " | ", "\n", " & ", "&", " |& "])
def test_a_denied_command_behind_an_allowed_one_is_denied(between: str) -> None:
    by = policy(default="ask", allow=["Bash(git *)"], deny=["Bash(rm *)"])
    assert verdict(by, f"git status{between}rm -rf x") is Verdict.DENY
    assert verdict(by, f"rm -rf x{between}git status") is Verdict.DENY
    assert verdict(by, f"git status{between}touch x") is Verdict.ASK


@pytest.mark.spec("8.4")
@pytest.mark.case("B108")
@pytest.mark.parametrize(
    "command",
    ["env A=1 rm x", "nohup rm x", "timeout 5 rm x", 'bash -c "rm x"', "command rm x", "\\rm x", "xargs rm",
     "/bin/rm x", "find . -delete", "sudo -u bob rm x", "eval rm x", "sh -c 'timeout 5 rm x'", "rm", "r''m x",
     "time nice -n 5 rm x", "find . -exec rm {} +", "(rm x)", "f() { rm x; }", "if rm x; then ls; fi"],
)  # fmt: skip
def test_no_wrapper_hides_a_denied_command(command: str) -> None:
    assert verdict(policy(deny=["Bash(rm *)"]), command) is Verdict.DENY


@pytest.mark.spec("8.4")
@pytest.mark.case("B108")
@pytest.mark.parametrize(
    "command",
    ["$(echo rm) x", "$CMD x", 'eval "$x"', "curl x | sh", "bash <<EOF\nrm x\nEOF", "{rm,x}", "r?m x", "$'\\ca' x",
     'bash -c "$x"', "xargs sh", "rm\r", "r\\\nm x", "rm 'unclosed", "alias ls=rm\nls x", ". <(echo rm x)",
     "timeout --strange 5 rm x", "xargs -I{} sh -c 'rm {}'", "env -S 'rm x'", "x='a[$(rm y)]'; echo $((x))"],
)  # fmt: skip
def test_what_is_not_known_before_it_runs_is_asked_where_something_is_denied(command: str) -> None:
    assert verdict(policy(deny=["Bash(rm *)"]), command) is Verdict.ASK


@pytest.mark.spec("8.4")
@pytest.mark.parametrize("command", ["git status", "ls -la", "echo 'rm x'", "grep rm *", "echo $HOME", "a=1; ls $a"])
def test_a_denied_command_stops_no_other_one(command: str) -> None:
    assert verdict(policy(deny=["Bash(rm *)"]), command) is Verdict.ALLOW


@pytest.mark.spec("8.4")
@pytest.mark.case("B110")
@pytest.mark.parametrize(
    "command", ["echo x > f", "echo x >> f", "echo x >| f", "echo x &> f", "echo x >& f", "cat a | tee f", "dd of=f",
                "sed -i s/a/b/ f", "cp a f", "cat <<EOF > f\nx\nEOF"],
)  # fmt: skip
def test_a_file_that_a_command_writes_is_denied_like_any_other(command: str) -> None:
    for deny in ("Write", "Edit(./f)", "Write(f)"):
        assert verdict(policy(deny=[deny]), command) is Verdict.DENY


@pytest.mark.spec("8.4")
@pytest.mark.case("B110")
def test_an_allowed_command_does_not_make_a_redirection_allowed() -> None:
    by = policy(default="ask", allow=["Bash(echo *)", "Write(./out/**)"])
    assert verdict(by, "echo x") is Verdict.ALLOW
    assert verdict(by, "echo x > f") is Verdict.ASK
    assert verdict(by, "echo x > out/f") is Verdict.ALLOW
    assert verdict(by, "echo x > out/../f") is Verdict.ASK
    assert verdict(by, "cd src && echo x > out/f") is Verdict.ASK
    assert verdict(by, "echo x > /dev/null 2>&1") is Verdict.ALLOW


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat .env", Verdict.DENY),
        ("cat < sub/.env", Verdict.DENY),
        ("cat secrets/key", Verdict.DENY),
        ("cd secrets && cat key", Verdict.DENY),
        ("cat sub/../.env", Verdict.DENY),
        ("cat .e*", Verdict.ASK),
        ('cat "$DIR/.env"', Verdict.DENY),
        ("cat a.txt", Verdict.ALLOW),
        ("grep x a.txt", Verdict.ALLOW),
        ("grep -r x .", Verdict.ASK),
        ("grep -r x secrets", Verdict.DENY),
        ("tar c .", Verdict.ASK),
        ("tar c secrets", Verdict.DENY),
        ("git show HEAD:secrets/key", Verdict.DENY),
        ("git show HEAD:ws/secrets/key", Verdict.ASK),
        ("cd src && cat a.txt", Verdict.ALLOW),
        ("cat $f", Verdict.ASK),
        ("echo $f", Verdict.ALLOW),
        ("cat *.txt", Verdict.ALLOW),
        ("cat src/{a,b}.txt", Verdict.ALLOW),
        ("cat $'\\x2eenv'", Verdict.DENY),
        ("cat .en[v]", Verdict.ASK),
        ("cat lin[k]/../.env", Verdict.DENY),
    ],
)
def test_a_command_that_names_a_file_which_may_not_be_read_is_stopped(command: str, expected: Verdict) -> None:
    assert verdict(policy(deny=["Read(.env)", "Read(./secrets/**)"]), command) is expected


# ── taking apart ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git   log\t-1", ["git log -1"]),
        ("git 2>&1 log > f -1", ["git log -1"]),
        ("> f git log", ["git log"]),
        ("git commit -m 'a b'", ["git commit -m 'a b'"]),
        ("'npm run' x", ["'npm run' x"]),
        ("a $(b `c`) <(d) && (e; f) | { g; }", ["c", "b ?", "d", "a ? ?", "e", "f", "g"]),
        ("for x in $(a); do b $x; done", ["a", "b ?"]),
        ("cat <<EOF\n$(a) $b\nEOF\nc", ["a", "cat", "c"]),
        ("cat <<'EOF'\n$(a)\nEOF\nc", ["cat", "c"]),
        ("bash -c 'a; b'", ["bash -c 'a; b'", "a", "b"]),
        ("a | xargs -n1 b c", ["a", "xargs -n1 b c", "b c ?"]),
        ("../x/../bin/tool", ["../bin/tool"]),
        ("./x/../tool", ["./tool"]),
        ("", []),
        ("# nothing", []),
    ],
)
def test_every_part_of_a_line_is_found(command: str, expected: list[str]) -> None:
    assert texts(command) == expected
    assert problem(command) is None


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    "command",
    ["echo 'a", "echo )", "a\0b", "ls\r", "a\u00a0b", "r\\\nm", "echo $((x))", "echo ${x@P}", "[[ a -eq b ]]",
     "a[$(b)]=1", "x='$(a)'", "cat <<A <<B\nA\nB", "ls `a \\`b\\``", "for ((;;)); do a; done", "<" * 40, "a|" * 600,
     "a" * (MAX_CHARS + 1), "a;" * 400, "$(" * 150 + ")" * 150, "\ud800"],
)  # fmt: skip
def test_what_a_shell_may_read_differently_is_not_judged(command: str) -> None:
    assert problem(command) is not None
    assert verdict(policy(default="ask", allow=["Bash(ls *)", "Bash(a *)", "Bash(echo *)"]), command) is Verdict.ASK


@pytest.mark.spec("8.4")
@pytest.mark.parametrize("command", ["aa \n\\\" b", "aa #x\n\\b", "- x=1", "eval $ \t a=", "{} \\\n", "-c2>&1",
                                     ">& -c ", "aa \n\\\n \\&", "aa ${x:-<(b)}", 'b<&""a'])  # fmt: skip
def test_lines_that_a_shell_read_differently_than_the_grammar_are_not_allowed(command: str) -> None:
    assert verdict(policy(default="ask", allow=["Bash(aa *)"]), command) is not Verdict.ALLOW


@pytest.mark.spec("8.4")
def test_characters_that_the_grammars_scanner_cannot_bear_end_no_process() -> None:
    signs = ["$", "${", "<<", "<<-", "`", "[", "@", "'", ">", " ", "=", "a"]
    for code in range(0x3000, 0x110000, 97):
        if chr(code).isprintable():
            for sign in signs[code % 7 :: 3]:
                problem(f"cat {sign}{chr(code)}{sign}{chr(0x10FFFD)}\n{chr(code)}")
    for line in ("\U000bfc4f=\U0006b5e4${<${\U000f0f76<<-\\", "\U0008a1e3@\U0004bf1b>@"):
        assert problem(line) is not None
    assert texts("echo 子代理 <<é\nx\né") == ["echo 子代理"]
    assert problem("cat <<é\nrm x\nè\nrm y\né") is not None


# ── properties ──────────────────────────────────────────────────────────────────────────────────────────────────

BETWEEN = st.sampled_from([" && ", "; ", " || ", " | ", "\n", " & ", " |& "])
AROUND = st.sampled_from(["{}", "({})", "{{ {}; }}", "if {}; then git log; fi", "bash -c '{}'", "timeout 5 {}",
                          "git log $({})", "git log <({})", "! {}", "while {}; do git log; done"])  # fmt: skip


@pytest.mark.spec("8.4")
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(["git status", "git log -1", "ls 'a b'"]), max_size=4), st.data())
def test_no_chain_with_a_denied_command_is_allowed(allowed: list[str], data: st.DataObject) -> None:
    by = policy(default="ask", allow=["Bash(git *)", "Bash(ls *)"], deny=["Bash(rm *)"])
    denied = data.draw(AROUND).format("rm -rf x")
    chain = data.draw(st.permutations([*allowed, denied]))
    line = chain[0]
    for part in chain[1:]:
        line += data.draw(BETWEEN) + part
    found = verdict(by, line)
    assert found is Verdict.DENY or (found is Verdict.ASK and problem(line)), "the grammar misreads a few of these"


PIECES = ["a", "rm", " ", "\n", ";", "&&", "|", "'", '"', "$(", "`", ")", "(", "{", "}", "<<A", "A", "<", ">", "\\",
          "$x", "${", "if ", "do ", "case x in ", "#", "é", "[[", "((", "=", "*", "\0", "\ud800"]  # fmt: skip


@pytest.mark.spec("8.4")
@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
@example("")
@example("{} \\\n ")
@example('a >&"" b')
def test_any_text_is_taken_apart_or_said_to_be_unclear(text: str) -> None:
    found = PARSER.parse(text)
    assert isinstance(found, ParsedCommand)
    assert found == PARSER.parse(text)
    if found.problem is not None:
        assert verdict(policy(default="ask", allow=["Bash(a *)"]), text) is Verdict.ASK
