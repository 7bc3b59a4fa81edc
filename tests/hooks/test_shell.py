"""Commands as hooks: exit codes, bounds, the clean environment, and that nothing of them is left running."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.agent.hooks import MAX_BLOCK_CHARS, HookPoint, HookRegistry, OnFailure
from app.hooks.shell import MAX_STDERR_BYTES, MAX_STDOUT_BYTES, CommandHook, clean_environment
from app.hooks.verdict import NO_REASON
from tests.hooks.calls import asked, told
from tests.processes import alive, linux, numbers_in, until

WAIT_S = 10.0


def command(*words: str, **fields: Any) -> CommandHook:
    given = {"name": "guard", "points": frozenset(HookPoint), "environment": clean_environment(os.environ)}
    return CommandHook(command=words, **{**given, **fields})


def shell(script: str, **fields: Any) -> CommandHook:
    return command("/bin/sh", "-c", script, **fields)


def python(script: str, *words: str, **fields: Any) -> CommandHook:
    return command(sys.executable, "-c", script, *words, **fields)


@pytest.mark.spec("6.3")
async def test_a_command_reads_the_call_as_json_and_a_silent_end_lets_things_go_on(tmp_path: Path) -> None:
    outcome, decisions = await asked(shell(f"cat > '{tmp_path}/told.json'"))
    assert (outcome.block, decisions) == (None, [])
    assert json.loads((tmp_path / "told.json").read_text())["tool_input"] == {"path": "diary.txt"}


@pytest.mark.spec("6.3")
async def test_after_exit_0_stdout_is_the_answer_and_stderr_means_nothing() -> None:
    outcome, _ = await asked(shell("""echo oops >&2; echo '{"mutate_input": {"path": "b"}}'"""))
    assert (outcome.block, outcome.call.arguments) == (None, {"path": "b"})


@pytest.mark.spec("6.3")
async def test_exit_2_blocks_with_stderr_as_the_reason_and_stdout_is_ignored() -> None:
    outcome, decisions = await asked(shell("""echo '{"decision": "approve"}'; echo ' not here ' >&2; exit 2"""))
    assert outcome.block == "not here"
    assert [(one.kind, one.decision, one.reason) for one in decisions] == [("command", "block", "not here")]
    outcome, _ = await asked(shell("exit 2"))
    assert outcome.block == NO_REASON


@pytest.mark.spec("6.3")
async def test_exit_2_blocks_however_much_was_written() -> None:
    write = "import sys; sys.stdout.write('x' * int(sys.argv[1])); sys.stderr.write('no ' * int(sys.argv[1])); exit(2)"
    outcome, decisions = await asked(python(write, str(MAX_STDOUT_BYTES + 1)))
    assert [one.decision for one in decisions] == ["block"]
    assert (outcome.block or "").startswith("no no")
    assert len(outcome.block or "") == MAX_BLOCK_CHARS <= MAX_STDERR_BYTES


FAILING = {
    "another code": (["/bin/sh", "-c", "echo bad luck >&2; exit 1"], "exit code 1: bad luck"),
    "a signal": (["/bin/sh", "-c", "kill -9 $$"], "signal 9"),
    "no program": (["/does/not/exist"], "'/does/not/exist' cannot be started: No such file"),
    "no right to start it": (["/etc/passwd"], "cannot be started: Permission denied"),
    "a name that cannot be one": (["a\0b"], "cannot be started"),
    "no json": (["/bin/sh", "-c", "echo fine"], "not JSON"),
    "a wrong type": (["/bin/sh", "-c", """echo '{"block": 1}'"""], "block has a wrong type"),
    "too much": ([sys.executable, "-c", f"print(' ' * {MAX_STDOUT_BYTES + 1})"], "more than"),
    "no end": (["/bin/sh", "-c", "sleep 60"], "no answer within 0.2 s"),
}


@pytest.mark.spec("6.3")
@pytest.mark.case("B102")
@pytest.mark.parametrize("effect", list(OnFailure))
@pytest.mark.parametrize("what", FAILING)
async def test_any_other_end_counts_as_on_failure_says(what: str, effect: OnFailure) -> None:
    words, reason = FAILING[what]
    outcome, (failed,) = await asked(command(*words, on_failure=effect, timeout_s=0.2 if what == "no end" else WAIT_S))
    assert (failed.decision, failed.effect) == ("failed", effect.value)
    assert reason in (failed.reason or "")
    assert (outcome.block is not None) == (effect is OnFailure.BLOCK)


@pytest.mark.spec("6.3")
async def test_a_command_that_does_not_read_what_it_is_told_has_not_failed() -> None:
    outcome, decisions = await asked(shell("exit 0"), call=told(arguments={"text": "x" * 1_000_000}))
    assert (outcome.block, decisions) == (None, [])


@pytest.mark.spec("6.3")
async def test_a_command_gets_what_programs_need_and_no_secret_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("SUBAGENTD_KEY", "a-bootstrap-key-of-ours")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    show = "import json, os; print(json.dumps({'mutate_input': dict(os.environ)}))"
    outcome, _ = await asked(python(show))
    assert isinstance(outcome.call.arguments, dict)
    assert outcome.call.arguments["PATH"] == os.environ["PATH"]
    assert outcome.call.arguments["LC_ALL"] == "C.UTF-8"
    assert not [name for name in outcome.call.arguments if "KEY" in name]


# ── nothing is left ─────────────────────────────────────────────────────────────────────────────────────────────

FAMILY = "echo $$ > '{0}'; sleep 60 & echo $! >> '{0}'; {1}"


@linux
@pytest.mark.spec("6.3")
async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    _, (failed,) = await asked(shell(FAMILY.format(numbers, "wait"), timeout_s=2.0))
    assert "no answer within 2 s" in (failed.reason or "")
    assert len(numbers_in(numbers)) == 2
    await until(lambda: not any(map(alive, numbers_in(numbers))))


@linux
@pytest.mark.spec("5.7", "6.3")
async def test_a_cancelled_run_kills_the_command_that_it_waits_for(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    decisions: list[Any] = []
    registry = HookRegistry([shell(FAMILY.format(numbers, "wait"))])
    asking = asyncio.create_task(registry.fire(told(), decisions.append))
    await until(lambda: len(numbers_in(numbers)) == 2)
    asking.cancel()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert decisions == []
    await until(lambda: not any(map(alive, numbers_in(numbers))))


@linux
@pytest.mark.spec("5.7", "6.3")
async def test_a_run_that_is_cancelled_while_its_command_is_being_started_leaves_nothing_of_it(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    registry = HookRegistry([shell(FAMILY.format(numbers, "wait"))])
    asking = asyncio.create_task(registry.fire(told(), lambda decision: None))
    for _ in range(3):  # as many tasks begin one after the other
        await asyncio.sleep(0)
    # the process exists; that it does is not known here before the loop has gone on
    end = time.monotonic() + WAIT_S
    while len(numbers_in(numbers)) < 2:
        assert time.monotonic() < end
    asking.cancel()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(asyncio.CancelledError):
            await asking
    await until(lambda: not any(map(alive, numbers_in(numbers))))


@linux
@pytest.mark.spec("6.3")
async def test_a_command_has_ended_when_it_exits_whoever_still_holds_its_pipes(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    answer = """echo '{"block": "not here"}'; exit 0"""
    async with asyncio.timeout(WAIT_S):  # the process in the background writes to the same pipes for a minute
        outcome, _ = await asked(shell(FAMILY.format(numbers, answer), timeout_s=60))
    assert outcome.block == "not here"
    await until(lambda: not any(map(alive, numbers_in(numbers))))


@linux
@pytest.mark.spec("6.3")
def test_all_of_this_holds_on_the_loop_that_the_service_runs_on(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"

    async def both() -> Sequence[str | None]:
        async with asyncio.timeout(WAIT_S):
            told_no, _ = await asked(shell("cat > /dev/null; echo 'not here' >&2; exit 2"))
            held, _ = await asked(shell(FAMILY.format(numbers, """echo '{"block": "held"}'""")))
            slow, _ = await asked(shell(FAMILY.format(numbers, "wait"), timeout_s=0.5))
            broken, _ = await asked(command("/does/not/exist"))
            unread = told(arguments={"text": "x" * 1_000_000})
            deaf = await asyncio.gather(*(asked(shell("exit 0"), call=unread) for _ in range(20)))
            assert [outcome.block for outcome, _ in deaf] == [None] * 20
            await until(lambda: not any(map(alive, numbers_in(numbers))))
        return [told_no.block, held.block, slow.block, broken.block]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told_no, held, slow, broken = runner.run(both())
    assert (told_no, held) == ("not here", "held")
    assert "no answer within 0.5 s" in (slow or "")
    assert "cannot be started" in (broken or "")
