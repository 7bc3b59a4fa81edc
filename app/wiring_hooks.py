"""The part of the composition root that is about hooks."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.agent.errors import InvalidRequest
from app.agent.hooks import HookRegistry
from app.definitions.toolnames import is_delegation, mapped
from app.hooks.config import HookEntry, build_hooks
from app.masking import ValueMasker
from app.net.outgoing import Outgoing
from app.net.signing import PREFIX
from app.sessions.opening import Opening
from app.settings import Settings
from app.settings_secrets import url_secrets

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


def foreign_names(tool: str) -> Sequence[str]:
    """The names that other services have for a tool of ours; for every tool that delegates, those of their one."""
    return [name for name in _FOREIGN if mapped(name) == tool or (is_delegation(mapped(name)) and is_delegation(tool))]


def hook_secrets(settings: Settings) -> list[str]:
    """What webhooks are signed with, with its prefix and without, and what their URLs carry."""
    found: list[str] = []
    for entry in settings.hooks.entries:
        secret = os.environ.get(entry.secret_env or "", "").strip()
        found += [secret, secret.removeprefix(PREFIX), *url_secrets(entry.url or "")]
    return found


def directory_of(opening: Opening) -> Callable[[Mapping[str, Any]], str]:
    """The workspace of a session's row; empty where it is gone."""

    def directory(row: Mapping[str, Any]) -> str:
        try:
            return str(opening.workspace((row["config"] or {}).get("workspace") or ""))
        except InvalidRequest:
            return ""

    return directory
