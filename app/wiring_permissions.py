"""The part of the composition root that is about permissions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.agent.approvals import Approvals
from app.agent.permission_subjects import CommandParser, ParsedCommand, PathResolver
from app.agent.permissions import PermissionRules, Scope, Verdict
from app.boxes.directory import BoxError, Directories
from app.definitions.reading import Reading
from app.definitions.rules import read_rules
from app.sessions.explaining import Resolver
from app.sessions.inbox import Inbox
from app.sessions.journal import Journal
from app.sessions.policies import Policies
from app.sessions.requests import AgentReader
from app.settings_rules import Permissions, Rules
from app.store.approvals import SqlApprovalStore
from app.store.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What rules and persons are asked with."""

    approvals: Approvals
    inbox: Inbox
    policies: Policies
    parser: CommandParser
    resolver: Resolver


def asking(
    given: Permissions,
    known_tools: frozenset[str],
    journal: Journal,
    rows: Reader,
    definitions: AgentReader,
    directories: Directories,
) -> Asking:
    """All of it; `directories` are those of workspaces. Raises ValueError for rules that cannot be read."""
    approvals = Approvals(journal, int(given.expires_s * 1000))
    return Asking(
        approvals=approvals,
        inbox=Inbox(approvals, SqlApprovalStore(rows), journal, definitions),
        policies=Policies(server_rules(given, known_tools), tenant_rules(given, known_tools)),
        parser=CommandLines(),
        resolver=path_resolver(directories),
    )


def server_rules(given: Permissions, known_tools: frozenset[str]) -> PermissionRules | None:
    """The operator's rules for all agents; None for none. Raises ValueError that names the setting to change."""
    return _rules("permissions.rules", given.rules, given.default, Scope.SERVER, known_tools)


def tenant_rules(given: Permissions, known_tools: frozenset[str]) -> dict[str, PermissionRules]:
    """The operator's rules for single tenants, by their names. Raises ValueError like `server_rules`."""
    read = {
        name: _rules(f"permissions.tenants.{name}", rules, rules.default, Scope.TENANT, known_tools)
        for name, rules in given.tenants.items()
    }
    return {name: rules for name, rules in read.items() if rules is not None}


def _rules(
    place: str, given: Rules, default: Verdict | None, scope: Scope, known_tools: frozenset[str]
) -> PermissionRules | None:
    value: dict[str, Any] = {name: rules for name, rules in given.model_dump(exclude={"default"}).items() if rules}
    if default is not None:
        value["default"] = default.value
    if not value:
        return None
    reading = Reading(strict=True, known_tools=known_tools)
    rules = read_rules(reading, place, value, scope)
    if reading.found:
        raise ValueError(f"{reading.found[0].message} (setting permissions)")
    return rules


class CommandLines:
    """`CommandParser` that fetches the grammar when the first line is to be judged: most services have no rule that
    needs it."""

    def __init__(self) -> None:
        self._parser: CommandParser | None = None

    def parse(self, command: str) -> ParsedCommand:
        """All that the line may run or write; never raises."""
        if self._parser is None:
            from app.tools.bash import BashParser  # noqa: PLC0415  a grammar of several megabytes

            self._parser = BashParser()
        return self._parser.parse(command)


def path_resolver(directories: Directories) -> Callable[[Path], PathResolver]:
    """For each workspace: what a path in it really names, relative to it; None for a path that leads outside, and for
    one with a slash at its end that is a file."""

    def of(workspace: Path) -> PathResolver:
        def resolve(path: str) -> str | None:
            try:
                directory = directories.get(workspace)
            except BoxError:  # the workspace itself is gone
                return None
            place = directory.place(path)
            return None if place is not None and path.endswith("/") and directory.is_file(place) else place

        return resolve

    return of
