"""`make bench`: what can be measured without other services; `ARGS=writer`, `audit` or `verify` for one of them.

Comparisons with peers need their services and a common harness: see README.md.
"""

import sys

from bench import audit_log, verify, writer_cost

MEASUREMENTS = {"writer": writer_cost.main, "audit": audit_log.main, "verify": verify.main}


def main() -> int:
    """Run the measurements that were asked for; all of them when none was."""
    wanted = sys.argv[1:] or list(MEASUREMENTS)
    unknown = [name for name in wanted if name not in MEASUREMENTS]
    if unknown:
        sys.stderr.write(f"unknown measurement {', '.join(unknown)}: there are {', '.join(MEASUREMENTS)}\n")
        return 2
    sys.argv = sys.argv[:1]  # the measurements read their own arguments when they are run alone
    for name in wanted:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        MEASUREMENTS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
