"""The group of settings that names MCP servers, in the form of other programs' `mcpServers` where that has one."""

import re
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from app.settings_rules import Group

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class McpServerEntry(Group):
    """One server. `${NAME}` in a value of `env` or `headers` is the variable of that name: so secrets stay out of
    files."""

    command: str | None = Field(None, description="A program that speaks MCP over its standard input and output.")
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(
        default_factory=dict, description="Its variables, besides HOME, LOGNAME, PATH, SHELL, TERM and USER."
    )
    cwd: str | None = None
    url: str | None = Field(None, description="Of a server that speaks streamable HTTP.")
    headers: dict[str, str] = Field(default_factory=dict)
    trusted: bool = Field(False, description="What it says of its tools is believed; changed ones are taken unasked.")
    timeout_ms: int = Field(60_000, ge=1, le=86_400_000, description="Of one call.")
    startup_ms: int = Field(20_000, ge=1, le=600_000, description="How long runs that name its tools wait for it.")
    pollers: list[str] = Field(default_factory=list, description="Its tools that are asked again and again on purpose.")
    tools: list[str] | None = Field(None, description="Of its tools only these, by its own names; unset: all.")
    pin: str = Field("", description="Any text; a new one accepts the server's tools as they are now.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server needs either a command or a url")
        return self


class Mcp(Group):
    """MCP servers whose tools agents may have, as `mcp__<server>__<tool>`."""

    servers: dict[str, McpServerEntry] = Field(default_factory=dict)


def filled(values: Mapping[str, str], environment: Mapping[str, str], where: str) -> dict[str, str]:
    """The values with their variables put in. Raises ValueError for one that is not set."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ValueError(f"{where}: the environment variable {match[1]} is not set")
        return environment[match[1]]

    return {name: _VARIABLE.sub(value_of, value) for name, value in values.items()}
