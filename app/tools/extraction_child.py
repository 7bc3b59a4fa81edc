"""The program that takes the readable part out of a web page: on stdin a line with its URL, which relative
links begin at, then its HTML; its text on stdout.

Runs by itself, in a process that may be killed: what a parser makes of a hostile page is bounded by nothing else.
Imports nothing of the service.
"""

import resource
import sys

CPU_S = 10
MEMORY_BYTES = 1 << 30
MAX_CHARS = 2_000_000


def main() -> None:
    """Nothing but the limits of this process bounds it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    url, _, html = sys.stdin.buffer.read().decode("utf-8", "replace").partition("\n")
    from trafilatura import extract  # noqa: PLC0415  under the limits, too

    text = extract(
        html, url=url, output_format="markdown", include_links=True, include_comments=False, favor_recall=True
    )
    sys.stdout.buffer.write((text or "")[:MAX_CHARS].encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
