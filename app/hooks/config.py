"""Entries of the settings → hooks, in their order. What is wrong with one is said when the service starts.

Gets plain values: it sees neither the settings nor the environment.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from app.agent.hooks import FunctionHook, Hook, HookPoint, Matcher, OnFailure
from app.hooks.entry_point import asynchronous, load_function
from app.hooks.shell import CommandHook, clean_environment
from app.hooks.webhook import WebhookHook
from app.net.outgoing import Outgoing
from app.net.signing import key_of

_TOOL_POINTS = frozenset({HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE})
_EVERY_TOOL = ("", "*")
_MAX_MEMORY = 1 << 20  # of one compiled pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEntry:
    """One hook as an operator writes it. `path` belongs to functions, `url` and `secret_env` (the variable that holds
    `whsec_…`) to webhooks, `command` to commands: a list is started as it is, a text by the shell."""

    name: str
    kind: str
    points: frozenset[HookPoint]
    matcher: str | None = None
    timeout_s: float = 30.0
    on_failure: OnFailure | None = None
    path: str | None = None
    url: str | None = None
    secret_env: str | None = None
    command: str | Sequence[str] | None = None


def build_hooks(
    entries: Sequence[HookEntry],
    outgoing: Outgoing,
    environment: Mapping[str, str],
    mask: Callable[[bytes], bytes] = bytes,
) -> list[Hook]:
    """The hooks of these entries; `mask` takes secrets out of JSON that leaves this machine. Raises
    ValueError that names the entry and says what to change."""
    hooks: list[Hook] = []
    for entry in entries:
        try:
            hooks.append(build_hook(entry, outgoing, environment, mask))
        except ValueError as error:
            raise ValueError(f"hooks.entries, {entry.name}: {error}") from error
    return hooks


def build_hook(
    entry: HookEntry, outgoing: Outgoing, environment: Mapping[str, str], mask: Callable[[bytes], bytes] = bytes
) -> Hook:
    """The hook of one entry. Raises ValueError that says what to change."""
    shared: dict[str, Any] = {
        "name": entry.name,
        "points": entry.points,
        "matcher": _matcher(entry),
        "timeout_s": entry.timeout_s,
        "on_failure": entry.on_failure,
    }
    if entry.kind == "function" and entry.path:
        return FunctionHook(function=asynchronous(load_function(entry.path)), **shared)
    if entry.kind == "webhook" and entry.url and entry.secret_env:
        outgoing.allowed(entry.url)
        key = _key(entry.secret_env, environment)
        return WebhookHook(url=entry.url, key=key, outgoing=outgoing, mask=mask, **shared)
    if entry.kind == "command" and entry.command:
        kept = clean_environment(environment)
        return CommandHook(command=_command(entry.command, kept), environment=kept, **shared)
    raise ValueError("set path for a function, url and secret_env for a webhook, command for a command")


def _matcher(entry: HookEntry) -> Matcher | None:
    """For whole names. Linear in time, since names come from outside."""
    if entry.matcher is None or entry.matcher.strip() in _EVERY_TOOL:
        return None
    if entry.points.isdisjoint(_TOOL_POINTS):
        raise ValueError("matcher is for the names of tools, and its points have none; leave it out")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        compiled: Matcher = re2.compile(entry.matcher, options)
    except re2.error as error:
        raise ValueError(f"matcher {entry.matcher!r} is no pattern: {_text(error)}") from None
    return compiled


def _text(error: Exception) -> str:
    given = error.args[0] if error.args else ""
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)


def _key(variable: str, environment: Mapping[str, str]) -> bytes:
    secret = environment.get(variable, "")
    if not secret:
        raise ValueError(f"the environment variable {variable} is not set; it must hold the secret, whsec_…")
    try:
        return key_of(secret)
    except ValueError as error:
        raise ValueError(f"the environment variable {variable}: {error}") from None


def _command(given: str | Sequence[str], environment: Mapping[str, str]) -> list[str]:
    command = ["/bin/sh", "-c", given] if isinstance(given, str) else list(given)
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise ValueError(f"the program {command[0]!r} is not found or cannot be executed; write its full path")
    return command
