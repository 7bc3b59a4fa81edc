"""A receiver of webhooks on this machine: it answers as it is told to, one answer for each request, and checks
signatures by the words of the Standard Webhooks specification."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections import deque
from collections.abc import AsyncIterator

from tests.net.listening import listening
from tests.net.loopback import Request, http

WAIT_S = 30.0
KEY = b"a key of the receiver, 32 bytes."
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
HANG = b"hang"
GOOD = http(status="204 No Content", kind="")
BROKEN = http(b"{}", status="500 Internal Server Error")


class Receiver:
    """`answers` are used up one by one, then `rest` is the answer to all; `b""` closes without one."""

    def __init__(self, *answers: bytes, rest: bytes = GOOD) -> None:
        self.port = 0
        self.requests: list[Request] = []
        self._answers = deque(answers)
        self._rest = rest
        self._changed = asyncio.Condition()
        self._open = contextlib.AsyncExitStack()

    @property
    def host(self) -> str:
        """As settings allow it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """With a parameter that nobody should read."""
        return f"http://{self.host}/done?token=url-parameter-1234"

    async def listen(self, port: int = 0) -> None:
        """Begin."""
        self.port = await self._open.enter_async_context(listening(self._serve, port=port))

    async def close(self) -> None:
        """End."""
        await self._open.aclose()

    async def got(self, count: int) -> list[Request]:
        """Wait for so many requests."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(WAIT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.rstrip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                answer = self._answers.popleft() if self._answers else self._rest
                async with self._changed:
                    self.requests.append(Request(path=first.split(" ")[1], headers=headers, body=body))
                    self._changed.notify_all()
                if answer is HANG:
                    while await reader.read(1024):
                        pass
                else:
                    writer.write(answer)
                    await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def receiving(*answers: bytes, rest: bytes = GOOD) -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver(*answers, rest=rest)
    await receiver.listen()
    try:
        yield receiver
    finally:
        await receiver.close()


def is_signed(request: Request, secret: str = SECRET) -> bool:
    """Whether one of the signatures is the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    told = request.headers
    content = f"{told['webhook-id']}.{told['webhook-timestamp']}.".encode() + request.body
    wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    given = [part.partition(",")[::2] for part in told["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(value, wanted) for version, value in given)
