"""The program of `mcp_server.py`. Its process is there, by number, and hangs or dies on demand before the SDK is imported,
which takes a second or more: whoever has a limit for its start meets what was asked for, however slow the machine."""

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Say which process it is; then do what is wrong, or serve."""
    folder = Path(os.environ["MCP_TEST"])
    (folder / "pid.new").write_text(str(os.getpid()))
    (folder / "pid.new").replace(folder / "pid")  # whoever reads it finds a number
    with (folder / "calls").open("a") as file:
        file.write("started\n")
    mode = (folder / "mode").read_text() if (folder / "mode").exists() else ""
    if mode == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    if mode == "die":
        sys.exit("nothing works")
    from tests.tools import mcp_server

    mcp_server.main()


if __name__ == "__main__":
    main()
