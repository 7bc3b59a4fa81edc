"""The child process of the local model: llama.cpp's own OpenAI-compatible server on a free loopback port.

Stands alone, since the engine is native code that may fail without taking the service down: imports nothing of this
package and must be started by its path. Says `{"port": …}` or `{"error": …}` on stdout, once; the first line of its
stdin is the API key that it asks for, the end of stdin is the end of its parent and its own.
"""

import argparse
import json
import os
import signal
import sys
import threading
from typing import Any


def _params(options: argparse.Namespace, key: str) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.weights
    params.n_ctx = options.context
    params.n_parallel = options.parallel
    # One thread: more of them spin, and collapse when another process takes a core.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.use_jinja = True
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cache_ram_mib = 256  # of earlier prompts: a dozen of a few hundred tokens; the default is 8 GiB
    params.api_keys = [key]
    params.sampling.temp, params.sampling.seed = 0.0, 1
    # Without this a model of this size repeats one phrase up to its limit. It looks at sequences only, and at long
    # ones: a penalty on tokens would forbid the words of the task, one on short sequences its paths and names.
    params.sampling.dry_multiplier, params.sampling.dry_allowed_length = 0.8, 12
    return params


def _start(options: argparse.Namespace, key: str) -> Any:
    """The running server; it stops when this value is dropped."""
    import xllamacpp

    return xllamacpp.Server(_params(options, key))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a local model on a loopback port.")
    parser.add_argument("--weights", required=True, help="path of a GGUF file")
    parser.add_argument("--context", type=int, default=8192, help="tokens of context, shared by the slots")
    parser.add_argument("--parallel", type=int, default=2, help="slots: requests at the same time")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Start the server, announce it, live as long as the parent."""
    options = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt on the terminal is the parent's business
    announce = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints must not mix with the announcement
    key = sys.stdin.readline().strip()
    try:
        server = _start(options, key)
        said: dict[str, Any] = {"port": int(server.listening_address.rpartition(":")[2])}
    except Exception as error:  # noqa: BLE001  border: the parent turns any reason into its own error
        said = {"error": f"{type(error).__name__}: {error}"}
    announce.write(json.dumps(said) + "\n")
    announce.close()
    if "port" in said:
        threading.Thread(target=_watch_parent, daemon=True).start()
        threading.Event().wait()


def _watch_parent() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)  # the engine's own shutdown waits for its requests


if __name__ == "__main__":
    main()
