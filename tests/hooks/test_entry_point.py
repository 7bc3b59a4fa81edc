"""Python functions as hooks: how they are found, where they run, what they may return."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, Verdict
from app.hooks import entry_point
from app.hooks.entry_point import asynchronous, load_function
from tests.hooks.calls import asked, told

WAIT_S = 10.0
MODULE = """
from app.agent.hooks import Verdict

def guard(call):
    return Verdict(block=f"not {call.tool}")

class Guard:
    async def __call__(self, call):
        return Verdict(block="by an object")

ready = Guard()
number = 7

def yields(call):
    yield Verdict()
"""
METADATA = "Metadata-Version: 2.1\nName: own-hooks\nVersion: 1\n"
ENTRY_POINTS = "[subagentd.hooks]\nown-guard = own_hook_functions:guard\n"


@pytest.fixture(autouse=True)
def _own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_hook_functions.py").write_text(MODULE)
    (tmp_path / "own_broken_hooks.py").write_text("raise RuntimeError('broken at import')\n")
    info = tmp_path / "own_hooks-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def hook(function: Callable[[HookCall], Any], **fields: Any) -> FunctionHook:
    given = {"name": "guard", "points": frozenset(HookPoint)}
    return FunctionHook(function=asynchronous(function), **{**given, **fields})


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("own_hook_functions:guard", "not read_file"),
        ("own-guard", "not read_file"),
        ("own_hook_functions:ready", "by an object"),
    ],
)
async def test_a_function_is_found_by_import_path_or_as_an_entry_point(path: str, reason: str) -> None:
    outcome, _ = await asked(hook(load_function(path)))
    assert outcome.block == reason


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("own-gard", r"no entry point 'own-gard' in the group subagentd\.hooks \(installed: .*own-guard"),
        ("own_hook_functions:gard", "cannot be imported: AttributeError"),
        ("no_such_module_here:guard", "cannot be imported: ModuleNotFoundError"),
        ("own_broken_hooks:guard", "cannot be imported: RuntimeError: broken at import"),
        (":guard", "no import path"),
        ("own_hook_functions:", "no import path"),
        ("own_hook_functions:Guard", "is a class"),
        ("own_hook_functions:number", "is a int"),
        ("own_hook_functions:yields", "is a generator"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_function(path)


@pytest.mark.spec("6.3")
async def test_a_sync_function_does_not_hold_up_the_loop_and_an_async_one_runs_on_it() -> None:
    asked_both = threading.Event()
    threads: dict[str, int] = {}

    def sync(call: HookCall) -> Verdict:
        threads["sync"] = threading.get_ident()
        assert asked_both.wait(WAIT_S)  # only the loop can let it go on
        return Verdict(block="waited")

    async def on_loop(call: HookCall) -> None:
        threads["async"] = threading.get_ident()
        asked_both.set()

    (outcome, _), _ = await asyncio.gather(asked(hook(sync)), asked(hook(on_loop)))
    assert outcome.block == "waited"
    assert threads["async"] == threading.get_ident() != threads["sync"]


@pytest.mark.spec("6.3")
async def test_a_sync_function_that_never_returns_is_given_up_and_others_still_run() -> None:
    end = threading.Event()
    try:
        outcome, (failed,) = await asked(hook(lambda call: end.wait(WAIT_S), timeout_s=0.05))
        assert (outcome.blocked_by, failed.reason) == ("guard", "no answer within 0.05 s")
        outcome, _ = await asked(hook(lambda call: None))
        assert outcome.block is None
    finally:
        end.set()


@pytest.mark.spec("6.3")
async def test_a_function_that_hangs_again_and_again_takes_no_more_than_its_threads() -> None:
    end = threading.Event()
    begun: list[HookCall] = []

    def hangs(call: HookCall) -> None:
        begun.append(call)
        end.wait(WAIT_S)

    limited = FunctionHook(
        name="guard",
        function=entry_point._OffLoop(hangs, limit=2),
        points=frozenset(HookPoint),
        timeout_s=0.05,
    )
    try:
        for _ in range(4):
            await asked(limited)
        assert len(begun) == 2
    finally:
        end.set()
    limited.timeout_s = WAIT_S
    outcome, decisions = await asked(limited)  # the threads came back
    assert (outcome.block, decisions, len(begun)) == (None, [], 3)


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("broken"), "ValueError: broken"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_whatever_a_sync_function_raises_is_its_failure(error: BaseException, reason: str) -> None:
    def function(call: HookCall) -> None:
        raise error

    outcome, (failed,) = await asked(hook(function))
    assert (outcome.blocked_by, failed.reason) == ("guard", reason)


@pytest.mark.spec("6.3")
async def test_a_function_may_answer_as_a_webhook_does() -> None:
    async def wrapped(call: HookCall) -> dict[str, Any]:
        return {"hookSpecificOutput": {"additionalContext": "Mind the dog."}}

    def around(call: HookCall) -> Any:
        return wrapped(call)

    for function in (wrapped, around, lambda call: {"context": "Mind the dog."}):
        outcome, _ = await asked(hook(function), call=told(HookPoint.SUBAGENT_START))
        assert outcome.context == ("Mind the dog.",)
    outcome, (failed,) = await asked(hook(lambda call: {"block": 1}))
    assert (outcome.blocked_by, failed.reason) == ("guard", "block has a wrong type: a number")
