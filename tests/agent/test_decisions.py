"""What decisions are called: nothing else is recorded, and nothing else can be asked for."""

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from app.agent import hooks, subagent_hooks
from app.agent.approvals import AnswerKind
from app.agent.decisions import DECISIONS, CallDecision, HookOutcome
from app.agent.governed import HookDecision, PermissionResolved
from app.agent.permission_rules import Verdict
from app.api.audit_query import DecisionName
from app.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def named(module: object, function: str) -> set[str]:
    """The texts with which a function is called in a module: its first argument, in either arm of a condition."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # type: ignore[arg-type]
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("self.") == function and node.args:
            found |= {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}  # type: ignore[misc]
    return found


def told(payload: type, names: object) -> bool:
    """Whether the description of an event, which clients get, says them all."""
    return all(f"`{name}`" in (payload.__doc__ or "") for name in get_args(names))


@pytest.mark.spec("12.4", "8.3")
def test_a_decision_about_a_call_has_the_name_of_a_verdict_or_of_an_answer() -> None:
    assert set(get_args(CallDecision)) == {*Verdict, *AnswerKind} - {Verdict.ASK}, "what is asked is not decided yet"
    assert told(PermissionResolved, CallDecision)


@pytest.mark.spec("12.4", "6.2")
def test_a_decision_of_a_hook_has_one_of_the_names_that_hooks_record() -> None:
    assert set(get_args(HookOutcome)) == named(hooks, "noted") | named(subagent_hooks, "_record")
    assert told(HookDecision, HookOutcome)


@pytest.mark.spec("12.4", "16.4")
def test_every_name_can_be_asked_for_and_stands_in_the_page_and_in_the_help() -> None:
    assert set(get_args(DecisionName)) == {"any", *DECISIONS}
    _, table = PAGE.read_text(encoding="utf-8").split("| `decision` | what |")
    rows = [row for row in table.split("\n\n")[0].splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in row.split("|")[1].replace("`", "").replace(",", " ").split()} == set(
        DECISIONS
    )
    for command in ("show", "export"):
        helped = " ".join(CliRunner().invoke(main, ["audit", command, "--help"]).output.split())
        assert f"Decisions instead of messages: {', '.join(DECISIONS)}; any: all of them." in helped
