"""subagentd as a target of a comparison harness: `run.py --extra bench/target.py --target subagentd`.

The harness calls this file with `TARGETS` and `jbody`: it starts the service, posts a run and reads its events. One
session is a parent, one subagent (four in the fan-out) with a `lookup` tool; every message is persisted.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TARGETS["subagentd"] = {  # noqa: F821  given by the harness
    "kind": "http",
    "venv": "tool",
    "flow": "post_get",
    "sub_stream": True,
    "persist": ["{db}"],
    "cmd": [
        str(ROOT / ".venv" / "bin" / "python"), "-m", "app", "serve", "--port", "{port}", "--db", "{db}",
        "--agents", str(ROOT / "bench" / "agents"), "--model", "openai:mock",
    ],
    "env": {
        "OPENAI_BASE_URL": "{mock}/v1",
        "OPENAI_API_KEY": "x",
        "PYTHONPATH": str(ROOT),
        "SUBAGENTD_TOOLS__FUNCTIONS": '["bench.lookup:lookup"]',
        "SUBAGENTD_DEFAULT_AGENT": "parent",
    },
    "ready": "/readyz",
    "body": jbody("/v1/runs", lambda sid, task: {"input": task}),  # noqa: F821  given by the harness
    "id_key": "id",
    "events": "/v1/runs/{id}/events",
}  # fmt: skip

if __name__ == "__main__":
    sys.exit("run it with the harness: run.py --extra bench/target.py --target subagentd")
