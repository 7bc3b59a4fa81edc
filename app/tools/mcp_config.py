"""One MCP server as an operator has configured it.

Knows neither settings nor the protocol.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.tools.mcp_names import MAX_SERVER_NAME, SERVER_NAME

TIMEOUT_MS = 60_000
STARTUP_MS = 20_000  # the first start of a server by `npx` or `uvx` installs it


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A command that speaks over its standard input and output, or a URL (streamable HTTP); secrets are filled in.

    `environment`: variables besides the few that every server gets. `trusted`: what it says of its tools is believed,
    and a changed tool is taken over unasked. `pollers`: its tools that are called again and again on purpose. `tools`
    None: all that it has. `pin`: whoever changes it accepts the tools as they are now. `private`: an agent file brings
    it along, for its own agent. Raises ValueError.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: bool = False
    timeout_ms: int = TIMEOUT_MS
    startup_ms: int = STARTUP_MS
    pollers: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    pin: str = ""
    private: bool = False

    def __post_init__(self) -> None:
        if not SERVER_NAME.fullmatch(self.name) or len(self.name) > MAX_SERVER_NAME:
            raise ValueError(
                f"the MCP server name {self.name!r} cannot be used: at most {MAX_SERVER_NAME} letters, digits and '-', "
                "single '_' between them"
            )
        if bool(self.command) == bool(self.url):
            raise ValueError(f"the MCP server {self.name!r} needs either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"the url of the MCP server {self.name!r} must begin with http:// or https://")
        if self.url and (self.args or self.environment or self.cwd):
            raise ValueError(f"the MCP server {self.name!r} has a url: args, env and cwd belong to a command")
        if self.command and self.headers:
            raise ValueError(f"the MCP server {self.name!r} has a command: headers belong to a url")

    @property
    def source(self) -> str:
        """Where its tools come from, as a digest: another program, or another `pin`, is another source."""
        told = json.dumps([self.command, list(self.args), self.cwd, self.url, self.pin])
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]
