"""Tells receivers of the end of runs: one signed POST for each try (port `Sender`).

Knows nothing of when it is tried again. The client names the URL, the operator the hosts.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.net.outgoing import Outgoing, OutgoingError
from app.net.signing import signed_headers
from app.sessions.deliveries import Heard, SendFailed

_PORT = re.compile(r":\d+$")
HTTPS = 443


def exact(hosts: Iterable[str]) -> list[str]:
    """Entries of the settings, each with its port: one without stands for that of https. Another port is another
    service, which the operator has not named."""
    written = [host.strip().lower() for host in hosts]
    return [host if _PORT.search(host) else f"{host}:{HTTPS}" for host in written]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionSender:
    """`outgoing` holds the allowed hosts, each with a port."""

    outgoing: Outgoing = field(repr=False)
    key: bytes = field(repr=False)
    timeout_s: float = 15.0

    def host(self, url: str) -> str:
        """See `Sender`. http is for hosts that are named with their port."""
        try:
            parsed = self.outgoing.allowed(url)
        except ValueError as error:
            raise ValueError(
                f"{error}, in the setting webhooks.hosts (without a port an entry stands for https on port {HTTPS})"
            ) from None
        if parsed.user is not None or parsed.password is not None:
            raise ValueError("the URL holds a user name or a password: leave them out")
        host = f"[{parsed.host}]" if ":" in (parsed.host or "") else (parsed.host or "").lower().rstrip(".")
        return host if parsed.port == HTTPS else f"{host}:{parsed.port}"

    async def send(self, url: str, message_id: str, body: bytes) -> Heard:
        """See `Sender`. The time in the signature is that of this try."""
        headers = signed_headers(self.key, message_id, int(time.time()), body)
        try:
            reply = await self.outgoing.tell(url, body, headers, timeout_s=self.timeout_s)
        except OutgoingError as error:
            raise SendFailed(str(error)) from None
        return Heard(status=reply.status, retry_after_s=reply.retry_after_s)
