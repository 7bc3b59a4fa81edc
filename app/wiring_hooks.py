"""The part of the composition root that is about hooks."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.agent.definition import AgentDefinition, OwnHook
from app.agent.errors import InvalidRequest
from app.agent.hooks import Hook, HookPoint, HookRegistry, OnFailure
from app.definitions.toolnames import is_delegation, mapped
from app.hooks.completion import CompletionSender, exact
from app.hooks.config import HookEntry, build_hook, build_hooks
from app.masking import ValueMasker
from app.net.dialler import Dialler, SystemLookup
from app.net.outgoing import Outgoing
from app.net.signing import PREFIX, key_of
from app.sessions.deliveries import Retries
from app.sessions.journal import Journal
from app.sessions.opening import Opening
from app.sessions.webhooks import Webhooks
from app.settings import Settings
from app.settings_secrets import url_secrets
from app.store.reader import Reader
from app.store.webhooks import SqlWebhookStore
from app.telemetry.metrics import Metrics
from app.tools.threads import DaemonThreads

_LOOKUPS = 4  # names of receivers that are looked up at a time

# What matchers written for Claude Code and opencode call our tools.
_FOREIGN = (
    *("Read", "Write", "Edit", "MultiEdit", "LS", "Glob", "Grep", "Bash", "WebFetch", "Skill", "Task", "Agent"),
    *("read", "write", "edit", "list", "bash", "webfetch", "skill", "task"),
)


def hooks_of(settings: Settings, masker: ValueMasker | None = None) -> HookRegistry:
    """All hooks of the operator, for parents and children alike. Raises ValueError that names what to change."""
    entries = [
        HookEntry(**{**entry.model_dump(), "points": frozenset(entry.points)}) for entry in settings.hooks.entries
    ]
    mask = bytes if masker is None else masker.json
    return HookRegistry(build_hooks(entries, Outgoing(settings.hooks.hosts), os.environ, mask), foreign_names)


def webhooks_of(
    settings: Settings, journal: Journal, reader: Reader, masker: ValueMasker, metrics: Metrics
) -> Webhooks:
    """The completion webhooks. Names are looked up in threads of their own: a slow name server must hold nobody else
    up."""
    given, sender = settings.webhooks, None
    if given.hosts and given.secret is not None:
        lookup = SystemLookup(threads=DaemonThreads(_LOOKUPS, "webhook lookup"))
        dialler = Dialler(anywhere=True, lookup=lookup)  # an operator has named each host, with its port
        sender = CompletionSender(
            outgoing=Outgoing(exact(given.hosts), dialler=dialler),
            key=key_of(given.secret.get_secret_value()),
            timeout_s=given.timeout_s,
        )
    return Webhooks(
        journal,
        SqlWebhookStore(reader),
        sender,
        retries=Retries(first_s=given.first_pause_s, most_s=given.max_pause_s, total_s=given.total_s),
        per_host=given.per_host,
        masked=masker.text,
        told=metrics.webhook,
    )


class OwnHooks:
    """The hooks that agent files bring along, each made once. A webhook that names no secret is signed with that of
    the settings."""

    def __init__(self, settings: Settings, masker: ValueMasker | None = None) -> None:
        self._outgoing = Outgoing(settings.hooks.hosts)
        self._secret_env = settings.hooks.secret_env
        self._masker = masker
        self._made: dict[tuple[str, OwnHook], Hook] = {}

    def of(self, definition: AgentDefinition) -> Sequence[Hook]:
        """Those of a definition, named after it. Raises ValueError."""
        return [self._hook(definition.name, own) for own in definition.hooks]

    def of_files(self, find: Callable[[str], AgentDefinition | None], agent: str) -> Sequence[Hook]:
        """Those of an agent's file, as it is now."""
        definition = find(agent)
        return () if definition is None else self.of(definition)

    def problem(self, own: OwnHook) -> str | None:
        """Why one cannot be asked here, or None."""
        try:
            self._built("", own)
        except ValueError as error:
            return str(error)
        return None

    def _hook(self, agent: str, own: OwnHook) -> Hook:
        hook = self._made.get((agent, own))
        if hook is None:
            hook = self._made[agent, own] = self._built(agent, own)
        return hook

    def _built(self, agent: str, own: OwnHook) -> Hook:
        variable = own.secret_env or self._secret_env
        if own.url and not variable:
            raise ValueError(
                "webhooks are signed: set secret_env here, or hooks.secret_env, to the variable of a secret"
            )
        entry = HookEntry(
            name=f"{agent}/{own.label}",
            kind="command" if own.command else "webhook",
            points=frozenset({HookPoint(own.point)}),
            matcher=own.matcher,
            timeout_s=own.timeout_s,
            on_failure=None if own.on_failure is None else OnFailure(own.on_failure),
            url=own.url,
            secret_env=variable,
            command=own.command,
        )
        hook = build_hook(entry, self._outgoing, os.environ, bytes if self._masker is None else self._masker.json)
        if self._masker is not None and own.url:
            self._masker.learn(_secrets(variable, own.url))
        return hook


def foreign_names(tool: str) -> Sequence[str]:
    """The names that other services have for a tool of ours; for every tool that delegates, those of their one."""
    return [name for name in _FOREIGN if mapped(name) == tool or (is_delegation(mapped(name)) and is_delegation(tool))]


def hook_secrets(settings: Settings) -> list[str]:
    """What webhooks are signed with, with its prefix and without, and what their URLs carry."""
    found = _secrets(settings.hooks.secret_env, None)
    if settings.webhooks.secret is not None:
        secret = settings.webhooks.secret.get_secret_value().strip()
        found += [secret, secret.removeprefix(PREFIX)]
    for entry in settings.hooks.entries:
        found += _secrets(entry.secret_env, entry.url)
    return found


def _secrets(variable: str | None, url: str | None) -> list[str]:
    secret = os.environ.get(variable or "", "").strip()
    return [secret, secret.removeprefix(PREFIX), *url_secrets(url or "")]


def directory_of(opening: Opening) -> Callable[[Mapping[str, Any]], str]:
    """The workspace of a session's row; empty where it is gone."""

    def directory(row: Mapping[str, Any]) -> str:
        try:
            return str(opening.workspace(row["tenant_id"], (row["config"] or {}).get("workspace") or ""))
        except InvalidRequest:
            return ""

    return directory
