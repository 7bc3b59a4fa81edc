"""How fast the hash chains of a log are verified, as `subagentd audit verify --all` does it.

    python -m bench.verify [EVENTS] [PATH]

The log is that of `bench.big_log`, kept when PATH is given. Prints events a second: of all sessions and of the longest
one, without and with `audit.key`.
"""

import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, text

from app.sessions.verifying import Checked
from app.store.database import looking_connection
from app.store.location import locate
from app.store.verifying import Chains
from bench.big_log import KEY, build

EVENTS_OF_A_MESSAGE = 2


def measure(name: str, look: Callable[[], Iterable[Checked]]) -> None:
    """Verify once."""
    begun, cpu = time.perf_counter(), time.process_time()
    found = list(look())
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    events = sum(checked.place.seq for checked in found)
    assert not [checked.flaw for checked in found if checked.flaw is not None]
    print(
        f"{name:<34} {events:>9} events in {took:6.2f} s: {events / took:>9,.0f} a second, "
        f"{cpu / events * 1e6:.1f} µs of CPU each"
    )


def verify(connection: Connection) -> None:
    """All that is measured of one log."""
    longest = "SELECT tenant_id, id FROM sessions ORDER BY next_seq DESC LIMIT 1"
    tenant, session = connection.execute(text(longest)).one()
    for key, label in ((None, ""), (KEY, ", with the key")):
        chains = Chains(connection, key)
        measure(f"all sessions{label}", lambda chains=chains: (checked for _, _, checked in chains.all()))
        measure(f"the longest session{label}", lambda chains=chains: filter(None, [chains.check(tenant, session)]))
    tracemalloc.start()
    for _ in Chains(connection, None).all():
        pass
    print(f"{'memory of it at most':<34} {tracemalloc.get_traced_memory()[1] / 2**20:.1f} MiB")
    tracemalloc.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as directory:
        path = (Path(sys.argv[2]) if len(sys.argv) > 2 else Path(directory)) / "verify.db"
        if not path.exists():
            build(path, count // EVENTS_OF_A_MESSAGE)
        with closing(looking_connection(locate(path))) as connection:
            verify(connection)


if __name__ == "__main__":
    main()
