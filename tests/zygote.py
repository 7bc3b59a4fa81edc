"""A process that has the service imported and forks server processes: a second of CPU less for each of hundreds.

    python -m tests.zygote   (one socket on file descriptor 0; started by tests/service.py)

A forked server is a process of its own that runs `subagentd serve` with its arguments, environment and folder; that the
command starts from nothing is tested in tests/cli.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

BYTES = 1 << 20


def main() -> None:
    """Answer requests until the other side is gone."""
    import app.cli.serving
    import app.main  # noqa: F401
    from app.masking.masker import ValueMasker
    from app.masking.shapes import patterns_of

    ValueMasker(patterns=patterns_of())  # both keep what they have compiled and found out
    gc.collect()
    gc.freeze()  # what is there stays for good: no server has to look through it when it starts
    with socket.socket(fileno=0) as line:
        while True:
            data, files, _, _ = socket.recv_fds(line, BYTES, 1)
            if not data:
                return
            request = json.loads(data)
            if "ended" in request:
                answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
            else:
                answer = os.fork()
                if not answer:
                    line.detach()  # its number, 0, is taken over below; closed now, another file would get it
                    _serve(request, files[0])
                os.close(files[0])
            line.sendall(json.dumps(answer).encode())


def _serve(request: Mapping[str, Any], stdout: int) -> NoReturn:
    """In the forked process: become the server. Never returns."""
    code = 70
    try:
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (stdout, 1), (log, 2)):
            os.dup2(source, target)
        for source in (nothing, stdout, log):
            if source > 2:
                os.close(source)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        paths = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:0] = [request["folder"], *(path for path in paths if path not in sys.path)]
        from app.cli import main as command

        sys.argv = ["subagentd", *request["args"]]
        try:
            command()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  border of a process: it must not go on as the zygote
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
