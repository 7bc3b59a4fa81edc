"""An MCP server without the SDK, which does one thing at a time and says what no good server says: run as a program.

`MCP_TEST` names a folder: `tools` in it holds the list of tools as JSON, in which TOKEN stands for the variable of this
name; `calls` gets a line for each request.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["MCP_TEST"])


def _note(line: str) -> None:
    with (FOLDER / "calls").open("a") as file:
        file.write(line + "\n")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _result(number: int, result: str) -> None:
    _say(f'{{"jsonrpc":"2.0","id":{number},"result":{result}}}')


def _next() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    _note(str(message.get("method")))
    return message


def _called(number: int, name: str) -> None:
    text = '{"content":[{"type":"text","text":"%s"}]}'
    if name == "half":
        _result(number, text % r"a\ud800b \\ud800 \ud83d\ude00")
    elif name == "torn":
        _result(number, text % "a" + ",,")
    elif name == "work":  # until the client gives up another request, which it does when that takes too long
        _say('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        while _next().get("method") != "notifications/cancelled":
            pass
        _result(number, text % "worked")
    elif name == "mute":
        while True:
            _next()
    else:
        _result(number, text % name)


def main() -> None:
    """Serve."""
    (FOLDER / "pid.new").write_text(str(os.getpid()))
    (FOLDER / "pid.new").replace(FOLDER / "pid")  # whoever reads it finds a number
    _note("started")
    while True:
        message = _next()
        number, method, given = message.get("id"), message.get("method"), message.get("params", {})
        if number is None:
            continue
        if method == "initialize":
            about = {"name": "raw", "version": "1"}
            able = {"tools": {"listChanged": True}}
            version = given["protocolVersion"]
            _result(number, json.dumps({"protocolVersion": version, "capabilities": able, "serverInfo": about}))
        elif method == "tools/list":
            tools = (FOLDER / "tools").read_text().replace("TOKEN", os.environ.get("TOKEN", ""))
            _result(number, f'{{"tools":{tools}}}')
        elif method == "tools/call":
            _called(number, given["name"])
        else:
            _say(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}))


if __name__ == "__main__":
    main()
