"""An MCP server over stdio, line by line: it starts in a twentieth of the time that importing the SDK takes, and is a
second reading of the protocol. Speaks the eras of 2026-07-28 and, with the mode `old`, of 2025-11-25."""

import json
import sys
from typing import Any

from tests.tools.mcp_offers import NAME, STEPS, answer, effect, mode, note, tools

NEW, OLD = "2026-07-28", "2025-11-25"
PREFIX = "io.modelcontextprotocol/"
INFO = {"name": NAME, "version": ""}
NOT_FOUND = {"code": -32601, "message": "Method not found"}


class Conversation:
    """With one client."""

    def __init__(self, *, old: bool) -> None:
        self._old = old
        self._listening: Any = None
        self._slow: set[Any] = set()

    def hold(self) -> None:
        """Answer until there is nothing more to read."""
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message:
                self._asked(message["id"], message["method"], message.get("params") or {})
            elif message["method"] == "notifications/cancelled":
                self._cancelled(message["params"]["requestId"])
        for request in [*self._slow]:
            self._cancelled(request)

    def _asked(self, number: Any, method: str, params: dict[str, Any]) -> None:
        era = (params.get("_meta") or {}).get(f"{PREFIX}protocolVersion")
        if method == "initialize":
            capabilities = {"tools": {"listChanged": False}}
            self._say(id=number, result={"capabilities": capabilities, "protocolVersion": OLD, "serverInfo": INFO})
        elif method == "ping":
            self._say(id=number, result={})
        elif method == "tools/list":
            self._result(number, {"tools": tools()}, cacheScope="private", ttlMs=0)
        elif method == "tools/call":
            self._called(number, params)
        elif self._old or era != NEW:
            self._say(id=number, error=NOT_FOUND)
        elif method == "server/discover":
            capabilities = {"tools": {"listChanged": True}}
            found = {"capabilities": capabilities, "supportedVersions": [NEW]}
            self._result(number, found, cacheScope="private", ttlMs=0)
        elif method == "subscriptions/listen":
            self._listening = number
            params = {"_meta": {f"{PREFIX}subscriptionId": number}, "notifications": params["notifications"]}
            self._say(method="notifications/subscriptions/acknowledged", params=params)
        else:
            self._say(id=number, error=NOT_FOUND)

    def _called(self, number: Any, params: dict[str, Any]) -> None:
        name, text = params["name"], str((params.get("arguments") or {}).get("text", ""))
        note(f"{name} {text}")
        if name == "slow":
            self._slow.add(number)
            return
        token = (params.get("_meta") or {}).get("progressToken")
        if name == "count" and token is not None:
            for at in range(1, STEPS + 1):
                step = {"progressToken": token, "progress": at, "total": STEPS, "message": f"step {at}"}
                self._say(method="notifications/progress", params=step)
        effect(name, text)
        if name == "relist":
            self._changed()
        self._result(number, answer(name, text))

    def _changed(self) -> None:
        if self._old:
            self._say(method="notifications/tools/list_changed")
        elif self._listening is not None:
            about = {"_meta": {f"{PREFIX}subscriptionId": self._listening}}
            self._say(method="notifications/tools/list_changed", params=about)

    def _cancelled(self, number: Any) -> None:
        if number in self._slow:
            self._slow.discard(number)
            note("slow ended")
        if number == self._listening:
            self._listening = None

    def _result(self, number: Any, result: dict[str, Any], **about: Any) -> None:
        if not self._old:
            result = {**result, **about, "resultType": "complete", "_meta": {f"{PREFIX}serverInfo": INFO}}
        self._say(id=number, result=result)

    @staticmethod
    def _say(**message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve."""
    Conversation(old=mode() == "old").hold()
