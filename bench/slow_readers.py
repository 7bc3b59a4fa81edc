"""`python -m bench.slow_readers [--stalled 100] [--healthy 20]`: readers that stop reading, beside others that do not.

The same load without and with them: how soon the healthy ones get each event, what a stalled one costs in memory and in
the kernel, when it is cut off, and whether it finds every durable event when it comes back. Exit code 1 otherwise.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.readers.stalled import HEARTBEAT_S, SEND_TIMEOUT_S, SPARE_S, both

SESSIONS = 10
MIB = 1 << 20
P99_MS, RSS_EACH = 250.0, 0.5 * MIB


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.slow_readers", description="Readers that stop reading.")
    parser.add_argument("--stalled", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        without, found = asyncio.run(
            both(
                Path(folder),
                sessions=SESSIONS,
                stalled=given.stalled // SESSIONS,
                healthy=given.healthy // SESSIONS,
            )
        )
    each = (found.rss - without.rss) / max(1, given.stalled)
    sys.stdout.write(
        f"delivery to the healthy: p99 {found.p99_ms:.0f} ms ({without.p99_ms:.0f} ms without the others)\n"
        f"memory for each who stalled: {each / MIB:+.2f} MiB; in the kernel at most {found.unsent / MIB:.2f} MiB\n"
        f"all {found.closed} cut off {found.closed_after_s:.1f} s after the last event "
        f"(heartbeat {HEARTBEAT_S:g} s, send timeout {SEND_TIMEOUT_S:g} s)\n"
        f"back again: {found.resumed.events} events, {found.resumed.doubles} doubles, {found.resumed.gaps} gaps, "
        f"{found.resumed.changed} changed\n"
    )
    late = found.closed_after_s > HEARTBEAT_S + SEND_TIMEOUT_S + SPARE_S
    return int(found.p99_ms > P99_MS or each > RSS_EACH or late or not found.resumed.right)


if __name__ == "__main__":
    sys.exit(main())
