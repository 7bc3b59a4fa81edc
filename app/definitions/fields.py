"""One table of the keys that an agent definition has, for files and for mappings: spellings, readers, and the keys
that this version knows but does not carry out yet.

Knows neither YAML nor JSON text: it gets keys with values and states what it finds in a `Reading`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.agent.definition import AgentDefinition, SessionMode, SessionScope, Source
from app.definitions import attributes
from app.definitions.hooks import read_hooks
from app.definitions.importpaths import TRUST, read_import_path
from app.definitions.limits import read_budget, read_dollars
from app.definitions.modes import Mode, denied_by, read_disable, read_permission_mode, read_read_only, under_mode
from app.definitions.policy import read_policy
from app.definitions.reading import Reading, as_names, as_text, is_scalar, is_unset, shown
from app.definitions.rules import read_definition_rules, read_denial, read_grant
from app.definitions.servers import Servers, read_servers
from app.definitions.surfaces import read_surfaces
from app.definitions.toolnames import Denial, Grant, squeezed

# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A key of a definition. `limits`: it grants or takes away, so it may not be given twice."""

    attribute: str
    read: Callable[[Reading, str, Any], Any]
    limits: bool = False


def _spelled(field: Field, *more: str) -> dict[str, Field]:
    return {squeezed(name): field for name in (field.attribute, *more)}


FIELDS: Mapping[str, Field] = {
    **_spelled(Field(attribute="name", read=attributes.read_name)),
    **_spelled(Field(attribute="description", read=as_text)),
    **_spelled(Field(attribute="prompt", read=attributes.read_prompt)),
    **_spelled(Field(attribute="mode", read=attributes.read_mode, limits=True)),
    **_spelled(Field(attribute="tools", read=read_grant, limits=True), "allowed_tools"),
    **_spelled(Field(attribute="disallowed_tools", read=read_denial, limits=True), "denied_tools"),
    **_spelled(Field(attribute="model", read=attributes.read_model)),
    **_spelled(Field(attribute="temperature", read=attributes.read_temperature)),
    **_spelled(Field(attribute="effort", read=attributes.read_effort)),
    **_spelled(Field(attribute="thinking", read=attributes.read_thinking)),
    **_spelled(Field(attribute="max_tokens", read=attributes.read_max_tokens)),
    **_spelled(Field(attribute="tool_choice", read=attributes.read_tool_choice)),
    **_spelled(
        Field(attribute="max_steps", read=attributes.read_max_steps), "max_turns", "steps", "max_iteration_per_run"
    ),
    **_spelled(Field(attribute="parallel_tool_calls", read=attributes.read_parallel)),
    **_spelled(Field(attribute="abort_siblings", read=attributes.read_abort_siblings)),
    **_spelled(Field(attribute="background", read=attributes.read_background)),
    **_spelled(Field(attribute="detached", read=attributes.read_background)),
    **_spelled(Field(attribute="tool_name", read=attributes.read_tool_name)),
    **_spelled(Field(attribute="input_schema", read=attributes.read_input_schema)),
    **_spelled(Field(attribute="output_schema", read=attributes.read_output_schema)),
    **_spelled(Field(attribute="session_mode", read=attributes.read_session_mode, limits=True)),
    **_spelled(Field(attribute="session_scope", read=attributes.read_session_scope, limits=True)),
    **_spelled(Field(attribute="inherit_context", read=attributes.read_inherit_context, limits=True)),
    **_spelled(Field(attribute="runner", read=read_import_path, limits=True)),
    **_spelled(Field(attribute="permissions", read=read_definition_rules, limits=True), "permission"),
    **_spelled(Field(attribute="budget", read=read_budget, limits=True)),
    **{
        squeezed(name): Field(attribute="budget", read=read_dollars, limits=True)
        for name in ("max_budget_usd", "max_budget_per_run")
    },
    **_spelled(Field(attribute="surfaces", read=read_surfaces, limits=True)),
    **_spelled(Field(attribute="agents", read=attributes.read_agents, limits=True)),
    "handoff": Field(attribute="policy", read=read_policy, limits=True),
    **_spelled(Field(attribute="skills", read=as_names)),
    **_spelled(Field(attribute="mcp_servers", read=read_servers, limits=True), "mcp_config"),
    **_spelled(Field(attribute="hooks", read=read_hooks, limits=True)),
    **_spelled(Field(attribute="permission_mode", read=read_permission_mode, limits=True)),
    "readonly": Field(attribute="read_only", read=read_read_only, limits=True),
    "disable": Field(attribute="disable", read=read_disable, limits=True),
}
TOOLS_KEYS = frozenset(name for name, field in FIELDS.items() if field.attribute in ("tools", "disallowed_tools"))
HOOKS_KEYS = frozenset({"hooks"})

# Known keys that are not carried out: the values that ask for nothing, and what holds instead (empty: it comes later).
_FALSE = frozenset({"false", "no", "off", "0"})
_NOTHING: frozenset[str] = frozenset()
LATER_KEYS: Mapping[str, tuple[frozenset[str], str]] = {
    "initialprompt": (_NOTHING, "an agent begins with the input of its session or the task that it is given"),
    "topp": (_NOTHING, "temperature is what an agent can set"),
    "condenser": (_NOTHING, "contexts are shortened as the settings of compaction say"),
    "isolation": (frozenset({"none"}), "the agents of a session share its workspace"),
    "memory": (frozenset({"none"}), "session_mode: reuse_session keeps what an agent did before"),
}
_LABELS = frozenset(
    {"color", "emoji", "vibe", "author", "version", "tags", "category", "license", "metadata", "hidden"}
)


def is_known(key: str) -> bool:
    """A key that ends a text which may hold lines that look like keys."""
    name = squeezed(key)
    return name in FIELDS or name in LATER_KEYS or name in _LABELS


def _asks_for_something(key: str, value: Any) -> bool:
    if not is_scalar(value):
        return bool(value)
    return value is not None and value != "" and str(value).strip().lower() not in LATER_KEYS[squeezed(key)][0]


# ── assembly ────────────────────────────────────────────────────────────────────────────────────────────────────


def assemble(entries: Iterable[tuple[str, Any, int]], reading: Reading) -> dict[str, Any]:
    """Read keys, values and lines into the attributes of a definition; what is unset is absent."""
    values: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for key, value, line in sorted(entries, key=_after_servers):
        reading.line = line
        name = squeezed(key)
        field = FIELDS.get(name)
        target = field.attribute if field is not None else f"metadata {key}"
        if target in seen:
            _state_twice(reading, key, seen[target], field)
            continue
        seen[target] = key
        if field is not None:
            _read_field(reading, field, key, value, values)
            continue
        plain = reading.plain(value)
        if name in LATER_KEYS:  # no metadata either: models and own runners are shown that
            if _asks_for_something(key, plain):
                instead = LATER_KEYS[name][1]
                reading.later(key, f"{key} is not carried out" + (f": {instead}" if instead else " yet"))
        elif key == "metadata" and isinstance(plain, dict):
            metadata = plain | metadata
        elif key == "metadata" and reading.strict and plain is not None:
            reading.error(key, f"{key} must be a map, not {shown(plain)}")
        elif key != "metadata" or plain is not None:
            metadata[key] = plain
    return _merged(reading, values, metadata)


def _after_servers(entry: tuple[str, Any, int]) -> bool:
    """Servers are read first: a list of tools may name theirs."""
    field = FIELDS.get(squeezed(entry[0]))
    return field is None or field.attribute != "mcp_servers"


def _state_twice(reading: Reading, key: str, first: str, field: Field | None) -> None:
    if field is not None and field.limits:
        reading.error(key, f"{key} is given twice (first as {first}), so it is not clear which one holds")
    else:
        reading.warn(key, f"{key} is given twice (first as {first})", "the first one holds")


def _read_field(reading: Reading, field: Field, key: str, value: Any, values: dict[str, Any]) -> None:
    if is_unset(value):
        if value is not None and field.attribute == "tools":
            reading.error(key, f"{key} is empty: write [] for no tools, or leave the key out to inherit")
        elif value is not None and field.attribute in ("agents", "surfaces"):
            reading.remark(key, f"{key} is empty and counts as not given; write [] for none")
        elif value is not None and field.attribute == "hooks" and reading.trusted:
            reading.error(key, f"{key} is empty: indent what belongs to it, or leave the key out")
        return
    found = field.read(reading, key, value)
    if found is not None:
        values[field.attribute] = found


def _merged(reading: Reading, values: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Put together what two keys may say of one thing; where both speak, only what both allow is left."""
    grant: Grant | None = values.pop("tools", None)
    denial: Denial = values.pop("disallowed_tools", None) or Denial(names=())
    modes: tuple[Mode | None, Mode | None] = (values.pop("permission_mode", None), values.pop("read_only", None))
    taken = (name for mode in modes for name in denied_by(mode, reading.known_tools))
    denied = tuple(dict.fromkeys((*(grant.denied if grant is not None else ()), *denial.names, *taken)))
    if denied:
        values["disallowed_tools"] = denied
    if denial.limits or (grant is not None and grant.limits):
        values["limits"] = (*(grant.limits if grant is not None else ()), *denial.limits)
    servers: Servers = values.pop("mcp_servers", None) or Servers(names=())
    values["mcp_servers"], values["own_servers"] = servers.names, servers.own
    if grant is not None:
        values["tools"] = grant.names
        values["mcp_servers"] = tuple(  # one of which `tools` names some tools is not granted as a whole
            s for s in servers.names if not any(n.startswith(f"mcp__{s}__") for n in grant.names)
        )
        if grant.agents is not None:
            own = values.get("agents")
            allowed = frozenset(grant.agents if own is None else own)
            values["agents"] = tuple(name for name in grant.agents if name in allowed)
    mode: tuple[SessionMode | None, SessionScope | None] = values.pop("session_mode", None) or (None, None)
    if mode[0] is not None:
        values["session_mode"] = mode[0]
    if mode[1] is not None and values.setdefault("session_scope", mode[1]) is not mode[1]:
        reading.error("session_scope", "session_scope and session_mode.scope differ: keep one of them")
    rules = under_mode(values.get("permissions"), modes[0])
    if rules is not None:
        values["permissions"] = rules
        if rules.allows_anything and not reading.trusted:
            reading.remark("permissions", f"rules that allow grant nothing in a file that is not trusted: {TRUST}")
    if metadata:
        values["metadata"] = metadata
    return values


def build(values: Mapping[str, Any], reading: Reading, source: Source) -> AgentDefinition | None:
    """The definition, or None after the errors that were stated."""
    if reading.failed:
        return None
    return AgentDefinition(source=source, **values)
