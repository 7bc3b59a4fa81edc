"""The groups of settings that say what agents may do, who else has a say in it, and what nobody may see."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from app.agent.hooks import HookPoint, OnFailure
from app.agent.permission_rules import Verdict
from app.masking.shapes import NAMES, patterns_of
from app.net.signing import key_of


class Group(BaseModel):
    """A group of settings; unknown names are refused, since a misspelt one would be silently without effect."""

    model_config = ConfigDict(extra="forbid")


class Rules(Group):
    """Rules as in Claude Code: `Bash(git *)`, `Read(./docs/**)`, `WebFetch(domain:example.org)`, `mcp__server`."""

    allow: list[str] = Field(default_factory=list, description="With a pattern: all else of the tool is asked.")
    ask: list[str] = Field(default_factory=list, description="A person is asked before each such call.")
    deny: list[str] = Field(default_factory=list, description="Never; wins over everything else.")


class TenantRules(Rules):
    """What holds for one tenant besides; what it allows must be allowed by the server's rules as well."""

    default: Verdict | None = Field(None, description="Where no rule speaks; of several the strictest holds.")


class Permissions(Group):
    """What agents may do, whoever they are; definitions and sessions can only make it less."""

    rules: Rules = Field(default_factory=Rules)
    tenants: dict[str, TenantRules] = Field(default_factory=dict, description="More rules, by the name of a tenant.")
    default: Verdict | None = Field(None, description="Where no rule speaks; unset: allow, the whitelist is the grant.")
    expires_s: float = Field(300.0, gt=0, le=604_800, description="How long a person may take to answer.")


HOOK_FIELDS = {"function": {"path"}, "webhook": {"url", "secret_env"}, "command": {"command"}}  # each needs its own


class HookEntry(Group):
    """One hook. A text as `command` is run by the shell, a list is started as it is."""

    name: str = Field(pattern=r"^[\w.-]{1,64}$", description="For events and logs.")
    kind: Literal["function", "webhook", "command"]
    points: list[HookPoint] = Field(min_length=1)
    matcher: str | None = Field(None, description="Pattern for whole tool names, ours or Claude Code's; default: all.")
    timeout_s: float = Field(30.0, gt=0, le=600)
    on_failure: OnFailure | None = Field(None, description="Default: block before, allow after the fact.")
    path: str | None = Field(None, description="package.module:name, or a name in the group subagentd.hooks.")
    url: str | None = Field(None, description="Its host must be among hooks.hosts.")
    secret_env: str | None = Field(None, description="Variable that holds the secret, whsec_ and base64.")
    command: str | list[str] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for kind, names in HOOK_FIELDS.items():
            for name in sorted(names):
                if bool(getattr(self, name)) != (kind == self.kind):
                    word = "needs" if kind == self.kind else "has no"
                    raise ValueError(f"the hook {self.name!r} of the kind {self.kind!r} {word} {name}")
        return self


class Hooks(Group):
    """Who else has a say in what runs do, in this order."""

    hosts: list[str] = Field(default_factory=list, description="Where webhooks may go: host, or host:port.")
    secret_env: str | None = Field(None, description="Variable that holds the secret of webhooks of agent files.")
    entries: list[HookEntry] = Field(default_factory=list)

    @field_validator("entries")
    @classmethod
    def _told_apart(cls, value: list[HookEntry]) -> list[HookEntry]:
        names = [entry.name for entry in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two hooks are named {', '.join(twice)}: events could not tell them apart, rename one")
        return value


class Webhooks(Group):
    """Who may be told of the end of runs, where requests ask for it."""

    hosts: list[str] = Field(
        default_factory=list, description="host (https on port 443), or host:port. None: no request may ask for it."
    )
    secret: SecretStr | None = Field(None, description="What messages are signed with: whsec_ and base64.")
    timeout_s: float = Field(15.0, gt=0, le=120, description="For one try.")
    first_pause_s: float = Field(5.0, gt=0, le=86_400, description="Before a second try; doubles with each one.")
    max_pause_s: float = Field(3600.0, gt=0, le=86_400, description="Longest pause, also when a receiver asks for one.")
    total_s: float = Field(86_400.0, ge=0, le=2_592_000, description="From the end of a run to the last try.")
    per_host: int = Field(4, ge=1, le=1000, description="Messages under way to one host.")

    @field_validator("hosts")
    @classmethod
    def _plain(cls, value: list[str]) -> list[str]:
        for host in value:
            if not host.strip() or any(sign in host for sign in "/@?# "):
                raise ValueError(f"{host!r} is no host: write host or host:port, without https://")
        return value

    @field_validator("secret")
    @classmethod
    def _usable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            key_of(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.hosts and self.secret is None:
            raise ValueError(
                "webhooks are signed: set webhooks.secret (SUBAGENTD_WEBHOOKS__SECRET) to whsec_ and 24 to 64 bytes in "
                "base64"
            )
        return self


class Debug(Group):
    """For whoever looks for what went wrong."""

    record_model_io: bool = Field(
        False,
        description="Keep each request to a model and its reply as artifacts, masked: `model.recorded` names them.",
    )


class Masking(Group):
    """What is masked besides the secrets that settings and environment hold: what has the form of one."""

    without: list[str] = Field(
        default_factory=list, description=f"Known forms that are left as they are, or 'all': {', '.join(NAMES)}."
    )
    patterns: list[str] = Field(
        default_factory=list,
        description="Own forms, as Python writes patterns, without look-around, references and anchors but \\b; "
        "the first group is the secret.",
    )

    @field_validator("without")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        unknown = sorted(set(value) - {*NAMES, "all"})
        if unknown:
            raise ValueError(f"there is no form named {', '.join(unknown)}; known are: all, {', '.join(NAMES)}")
        return value

    @field_validator("patterns")
    @classmethod
    def _readable(cls, value: list[str]) -> list[str]:
        patterns_of((), value)
        return value

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the known forms that are masked."""
        return () if "all" in self.without else tuple(name for name in NAMES if name not in self.without)
