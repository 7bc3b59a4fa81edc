"""The MCP server of the tests as a program: over stdio as `mcp_plain.py` has it; with a port, or a file `sdk` in its
folder, as the SDK has it.

Its process is there, by number, and hangs or dies on demand before the SDK is imported, which takes a second or more:
whoever has a limit for its start meets what was asked for, however slow the machine.
"""

import os
import signal
import sys

from tests.tools.mcp_offers import FOLDER, has, mode, note


def main() -> None:
    """Say which process it is; then do what is wrong, or serve."""
    (FOLDER / "pid.new").write_text(str(os.getpid()))
    (FOLDER / "pid.new").replace(FOLDER / "pid")  # whoever reads it finds a number
    note("started")
    if mode() == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    if mode() == "die":
        sys.exit("nothing works")
    if mode() == "garbage":
        sys.stdout.write("Welcome to the server!\n{\n\n")
        sys.stdout.flush()
    if len(sys.argv) > 1 or has("sdk"):
        from tests.tools import mcp_server

        mcp_server.main()
    else:
        from tests.tools import mcp_plain

        mcp_plain.main()


if __name__ == "__main__":
    main()
