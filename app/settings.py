"""Every option: defaults, `subagentd.toml`, environment (prefix `SUBAGENTD_`, nested by `__`), arguments.

Later sources win in this order. Nothing below `wiring` sees this module: it passes plain values on.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.agent.policy import ToolInherit
from app.agent.texts import DEFAULT_LANGUAGE, LANGUAGES
from app.settings_mcp import Mcp
from app.settings_rules import Debug, Group, Hooks, Masking, Permissions, Webhooks
from app.settings_secrets import masked

TOML_FILE = "subagentd.toml"
FLAT = {  # the flat twins of nested settings (spec 16.5), and what other tools set for the same endpoints
    "SUBAGENTD_HOST": ("http", "host"),
    "SUBAGENTD_PORT": ("http", "port"),
    "SUBAGENTD_DB": ("store", "url"),
    "SUBAGENTD_AGENTS": ("agents",),
    "SUBAGENTD_MODEL": ("models", "default"),
    "SUBAGENTD_WORKSPACE": ("tools", "workspace"),
    "SUBAGENTD_KEY": ("http", "key"),
    "OPENAI_BASE_URL": ("models", "openai_base_url"),
    "OPENAI_API_KEY": ("models", "openai_api_key"),
    "ANTHROPIC_BASE_URL": ("models", "anthropic_base_url"),
    "ANTHROPIC_API_KEY": ("models", "anthropic_api_key"),
}


class Http(Group):
    """Where the service listens and who may ask."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    key: SecretStr | None = Field(None, description="Bootstrap key with all scopes (at least 16 characters).")
    hosts: list[str] | None = Field(None, description="Accepted Host names; default: loopback names.")
    origins: list[str] = Field(default_factory=list, description="Origins that CORS is open for.")
    max_body_bytes: int = Field(4 << 20, ge=1024)
    idempotency_h: float = Field(24.0, gt=0, le=8760, description="Hours that an Idempotency-Key is remembered.")
    docs: bool = Field(False, description="Serve a page about the API at /docs.")
    access_log: bool = Field(False, description="Write a line for each request, without its query.")
    head_timeout_s: float = Field(20.0, gt=0, le=3600, description="For the head of a request, from its first byte.")
    body_timeout_s: float = Field(300.0, gt=0, le=86_400, description="For its body, from then on.")
    keep_alive_s: int = Field(75, ge=1, le=3600, description="How long a connection may be idle between requests.")
    grace_s: float = Field(10.0, ge=0, description="How long runs may finish after SIGTERM.")

    @field_validator("key")
    @classmethod
    def _strong_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < 16:
            raise ValueError("the key is shorter than 16 characters: make one with `subagentd keys create`")
        return value


class Store(Group):
    """Where everything is kept."""

    url: str = Field("subagentd.db", description="A path, or an SQLAlchemy URL (sqlite, postgresql+psycopg).")
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    linger_ms: float = Field(2.0, ge=0, le=1000)
    max_waiting_bytes: int = Field(
        32 << 20, ge=1 << 20, description="How much may wait in memory while the store is away, before loops wait."
    )
    busy_timeout_ms: int = Field(5000, ge=0)


class Stream(Group):
    """Streams to clients."""

    heartbeat_s: float = Field(15.0, gt=0)
    send_timeout_s: float = Field(30.0, gt=0)
    max_readers: int = Field(4000, ge=1)
    max_per_owner: int = Field(200, ge=1)
    buffer_bytes: int = Field(512 << 10, ge=1 << 14)


class ModelProfile(Group):
    """One model under a name of its own. The key is read from the environment variable `api_key_env`."""

    provider: Literal["openai", "anthropic", "local", "scripted"] = "openai"
    model: str
    base_url: str | None = None
    api_key_env: str | None = None
    context_window: int | None = Field(None, ge=256)
    tool_mode: Literal["native", "json_envelope"] = "native"
    envelope_calls: int = Field(1, ge=1, le=16)
    think_tags: Literal["auto", "off"] = "auto"
    thinking_style: Literal[
        "none", "enable_thinking", "chat_template_kwargs", "thinking_type", "reasoning_effort", "adaptive"
    ] = Field("none", description="How the endpoint is told to reason; none: not told (Anthropic: by model name).")
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    include_usage: bool = True
    temperature: float | None = Field(None, ge=0, le=2, description="Used when an agent sets none.")
    send_temperature: bool = Field(True, description="false: the endpoint refuses one.")
    max_tokens: int | None = Field(None, ge=1, description="Bound of a reply when an agent sets none.")
    reasoning_key: str = Field("", description="Message field under which the endpoint wants its reasoning back.")
    tools_for_history: bool = Field(False, description="true: the endpoint refuses a tool history without tools.")
    cache: bool | None = Field(None, description="Mark what Anthropic's dialect is to cache; default: at Anthropic.")
    connect_s: float = Field(10.0, gt=0)
    idle_s: float = Field(120.0, gt=0)
    total_s: float = Field(1800.0, gt=0)
    headers: dict[str, str] = Field(default_factory=dict)
    input_price: int | None = Field(None, ge=0, description="Micro-units of the currency per million tokens.")
    cached_price: int | None = Field(None, ge=0, description="Of input tokens from a cache; default: as the others.")
    cache_write_price: int | None = Field(None, ge=0, description="Of tokens a cache takes in; default: 5/4 of input.")
    output_price: int | None = Field(None, ge=0, description="Set with input_price, or not at all.")
    currency: str = Field("USD", pattern="^[A-Z]{3}$")


class Models(Group):
    """Which models there are. `OPENAI_BASE_URL`, `OPENAI_API_KEY` and those of `ANTHROPIC_` are honoured."""

    default: str | None = Field(None, description="provider:model, or the name of a profile.")
    profiles: dict[str, ModelProfile] = Field(default_factory=dict)
    scripts: Path | None = Field(None, description="Directory of scripts for scripted:<name>.")
    openai_base_url: str | None = None
    openai_api_key: SecretStr | None = None
    anthropic_base_url: str | None = None
    anthropic_api_key: SecretStr | None = None


class Limits(Group):
    """Bounds on what may be asked for."""

    max_steps: int = Field(200, ge=1)
    parent_steps: int = Field(25, ge=1)
    subagent_steps: int = Field(5, ge=1)
    concurrent_runs: int = Field(2_000, ge=1, description="Runs that work at a time; others stay queued.")
    concurrent_children: int = Field(20, ge=1, description="Subagents of one session that work at a time.")


class RecoveryMode(StrEnum):
    """What becomes of runs whose process has ended."""

    CONTINUE = "continue"
    INTERRUPT = "interrupt"


class Recovery(Group):
    """What a process does about runs that another one has left open."""

    mode: RecoveryMode = Field(
        RecoveryMode.CONTINUE, description="Go on with them from their last complete step, or end them as interrupted."
    )
    max_attempts: int = Field(
        5, ge=1, le=1_000, description="Processes that may begin one run; then it is interrupted."
    )


class Loop(Group):
    """What a run does by itself about model errors that may pass, and about calls that go in circles."""

    retries: int = Field(4, ge=0, le=100, description="Of a model call after its first try; 0: a first error ends it.")
    backoff_ms: int = Field(500, ge=0, le=600_000, description="Pause before a second try; doubles with each one.")
    max_backoff_ms: int = Field(20_000, ge=0, le=3_600_000, description="Longest pause that doubling leads to.")
    max_wait_ms: int = Field(
        120_000,
        ge=0,
        le=86_400_000,
        description="Longest pause that a provider may ask for; a longer one is not waited for.",
    )
    duplicate_repeats: int = Field(
        3,
        ge=2,
        le=10_000,
        description="Of so many equal calls, or rounds of a cycle of calls, the last is not carried out.",
    )
    duplicate_blocks: int = Field(2, ge=1, le=10_000, description="After so many of these the run has to answer.")


class Compaction(Group):
    """How the contexts of runs are kept below the windows of their models; shares are of 1."""

    enabled: bool = True
    threshold: float = Field(
        0.8, gt=0, le=1, description="Of the window less the answer: over it a context is shortened."
    )
    keep_share: float = Field(0.25, gt=0, le=1, description="Of that, the newest part that stays as it is.")
    least_gain: float = Field(0.2, gt=0, le=1, description="Of the context, which a summary must free.")
    tries: int = Field(3, ge=0, description="Summaries in one run; after them old tool results are cut.")
    summary_tokens: int = Field(1024, ge=64)
    window: int = Field(128_000, ge=256, description="Tokens, where a model's context_window is not set.")
    output_tokens: int = Field(4096, ge=1, description="Kept for an answer when an agent sets no max_tokens.")


class Handoff(Group):
    """How attempts of a handoff follow each other; how many there may be is a matter of policies."""

    backoff_ms: int = Field(500, ge=0, le=600_000, description="Pause before a second attempt; doubles with each one.")
    max_backoff_ms: int = Field(30_000, ge=0, le=3_600_000, description="Longest pause that doubling leads to.")
    deadline_ms: int = Field(
        600_000,
        ge=1,
        le=86_400_000,
        description="No attempt begins later than this after the first; a policy's is used first.",
    )


class Texts(Group):
    """What the service says to models, where a session does not say it itself."""

    language: Literal["default", "en", "zh"] = "default"
    replace: dict[str, str] = Field(default_factory=dict, description="Own texts, by the names of the built-in ones.")

    @field_validator("replace")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        LANGUAGES[DEFAULT_LANGUAGE].replaced(value)  # refuses a name that there is not
        return value


class Tasks(Group):
    """Background tasks."""

    retention_h: float = Field(168.0, gt=0, le=876_000, description="How long a task that has ended is listed.")


class Tools(Group):
    """What agents can do, and where."""

    workspace: Path = Field(
        Path("workspace"),
        description="Root of all workspaces of the tenant 'default', made if it is not named and not there; each other "
        "tenant has one of its own beside it, <workspace>.tenants/<tenant>.",
    )
    functions: list[str] = Field(default_factory=list, description="Import paths of own tools: package.module:name.")
    inherit: ToolInherit = Field(
        ToolInherit.OWN, description="intersect: no subagent has a tool that whoever delegates to it does not have."
    )
    max_output_chars: int = Field(16_000, ge=1000)
    output_head_chars: int = Field(12_000, ge=100)
    output_tail_chars: int = Field(3_000, ge=0)
    without: list[str] = Field(default_factory=list, description="Built-in tools that this service does not have.")
    file_cache_mb: int = Field(64, ge=0, le=4096, description="Contents of files that need no second read.")
    web_fetch: bool = Field(True, description="false: there is no such tool.")
    fetch_timeout_ms: int = Field(30_000, ge=100, le=45_000, description="For a page with all its redirects.")
    fetch_bytes: int = Field(5 << 20, ge=1024, le=64 << 20, description="Of a page, unpacked; the rest is left out.")
    fetch_allow: list[str] = Field(
        default_factory=list,
        description="What web_fetch may reach besides the public internet: host, host:port, address:port, 10.1.0.0/16.",
    )
    run_command: bool = Field(False, description="Whether agents may have the tool run_command: docs/sandbox.md.")
    sandbox: Literal["full", "landlock", "none"] = Field(
        "full",
        description="The lowest level of sandbox in which commands are run; 'none': commands may read, change and send "
        "whatever the user of the server may.",
    )
    sandbox_uid: int = Field(65534, ge=1, description="As whom commands run where server and workspace are root's.")
    command_timeout_ms: int = Field(120_000, ge=100, le=86_400_000)
    command_memory_mb: int = Field(1024, ge=16)
    command_processes: int = Field(128, ge=4)
    command_file_mb: int = Field(1024, ge=1, description="The largest file that a command may write.")
    command_disk_mb: int = Field(4096, ge=1, description="A command is ended when the disk has filled by this much.")
    command_files: int = Field(262_144, ge=1000, description="The same for the number of files on that disk.")
    command_output_bytes: int = Field(4 << 20, ge=1000, description="What is kept of a command's output.")
    command_environment: list[str] = Field(
        default_factory=list, description="Names of variables of the server that commands get as well."
    )
    command_paths: list[Path] = Field(default_factory=list, description="Further places that commands may read.")
    interrupt_grace_ms: int = Field(
        5_000, ge=0, le=600_000, description="How long a cancelled run waits for a tool that is to finish, or is deaf."
    )


class Audit(Group):
    """The audit chain and its upkeep."""

    key: SecretStr | None = Field(None, description="Key of the HMAC over each session's head.")
    index_lag_s: float = Field(
        60.0, gt=0, le=86_400, description="How far the text index may be behind while there is always something to do."
    )
    retention_h: float | None = Field(
        None,
        ge=0,
        le=876_000,
        description="How long events, and what is made of them, are kept; from 24 on. Not set or 0: for good.",
    )


class Settings(BaseSettings):
    """All options. `agents` are directories of definitions, later ones win."""

    model_config = SettingsConfigDict(
        env_prefix="SUBAGENTD_", env_nested_delimiter="__", toml_file=TOML_FILE, extra="forbid", validate_default=True
    )
    overrides: ClassVar[Mapping[str, Any]] = {}

    http: Http = Field(default_factory=Http)
    store: Store = Field(default_factory=Store)
    stream: Stream = Field(default_factory=Stream)
    models: Models = Field(default_factory=Models)
    limits: Limits = Field(default_factory=Limits)
    loop: Loop = Field(default_factory=Loop)
    recovery: Recovery = Field(default_factory=Recovery)
    compaction: Compaction = Field(default_factory=Compaction)
    handoff: Handoff = Field(default_factory=Handoff)
    texts: Texts = Field(default_factory=Texts)
    tasks: Tasks = Field(default_factory=Tasks)
    tools: Tools = Field(default_factory=Tools)
    mcp: Mcp = Field(default_factory=Mcp)
    hooks: Hooks = Field(default_factory=Hooks)
    webhooks: Webhooks = Field(default_factory=Webhooks)
    permissions: Permissions = Field(default_factory=Permissions)
    masking: Masking = Field(default_factory=Masking)
    debug: Debug = Field(default_factory=Debug)
    audit: Audit = Field(default_factory=Audit)
    agents: list[Path] = Field(default_factory=list)
    trusted_agents: bool | list[Path] = Field(
        default_factory=list,
        description="Directories whose agents may name code and allow what would be asked otherwise; true: all.",
    )
    skills: list[Path] = Field(default_factory=list, description="Directories of skills (SKILL.md), later ones win.")
    watch: Literal["auto", "poll", "off"] = Field("auto", description="How changes of agents and skills are seen.")
    default_agent: str = "lead"
    default_subagent: str = Field("researcher", description="Whom the surface `subagent` leads to.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            FlatSource(settings_cls),
            NestedSource(settings_cls),
            TomlConfigSettingsSource(settings_cls),
        )


class NestedSource(EnvSettingsSource):
    """`SUBAGENTD_HTTP__PORT` and the like. The flat names are the business of `FlatSource`: `SUBAGENTD_AGENTS` is a
    path list, not JSON."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {k: v for k, v in self.env_vars.items() if k.upper() not in FLAT}


class FlatSource(PydanticBaseSettingsSource):
    """The variables of `FLAT`."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Not used: the whole mapping is built at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, place in FLAT.items():
            text = os.environ.get(name)
            if text:
                value: Any = text.split(os.pathsep) if name == "SUBAGENTD_AGENTS" else text
                _put(values, place, value)
        return values


def _put(values: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for part in place[:-1]:
        values = values.setdefault(part, {})
    values[place[-1]] = value


def load(**given: Any) -> Settings:
    """Read all sources; `given` are nested mappings from the command line. Raises `ValidationError`."""
    return Settings(**given)


def unknown_variables() -> list[str]:
    """Variables with our prefix that are no setting. Not refused: others set such names too, as for service links."""
    known = {f"SUBAGENTD_{name.upper()}" for name in Settings.model_fields}
    ours = [name for name in os.environ if name.upper().startswith("SUBAGENTD_") and name.upper() not in FLAT]
    return sorted(name for name in ours if name.upper().partition("__")[0] not in known)


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────


def sources(settings: Settings, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All settings with the place that each value came from, secrets masked: for people."""
    layers = [
        ("argument", given),
        ("environment", FlatSource(Settings)()),
        ("environment", NestedSource(Settings)()),
        (TOML_FILE, TomlConfigSettingsSource(Settings)()),
    ]
    rows = []
    for parts, value in _flat(settings.model_dump(mode="json")):
        source = next((label for label, layer in layers if _has(layer, parts)), "default")
        rows.append({"name": ".".join(parts), "value": masked(parts, value), "source": source})
    return rows


def _flat(values: Mapping[str, Any], place: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found.extend(_flat(value, (*place, key)))
        else:
            found.append(((*place, key), value))
    return found


def _has(layer: Any, parts: tuple[str, ...]) -> bool:
    for part in parts:
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True
