"""What commands find on the machine: the system tree, a few files of its configuration, a clean environment.

An allow list: whatever is not named here, or by the operator, is not there. Knows no way to build a box.
"""

from collections.abc import Mapping
from pathlib import Path

SHELL = "/bin/bash"  # the language that permission rules read
SYSTEM = tuple(
    Path(place) for place in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
)  # directories, or links into /usr
CONFIGURATION = tuple(
    Path("/etc") / name
    for name in (
        "alternatives", "ca-certificates", "crypto-policies", "debian_version", "default/locale", "fonts",
        "group", "host.conf", "hosts", "inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias",
        "locale.conf", "localtime", "login.defs", "magic", "magic.mime", "mime.types", "nsswitch.conf", "os-release",
        "passwd", "perl", "pki", "profile", "protocols", "python3", "services", "shells", "ssl/certs",
        "ssl/openssl.cnf", "terminfo", "timezone",
    )
)  # fmt: skip
DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))
ABOUT_MACHINE = tuple(Path("/proc") / name for name in ("cpuinfo", "meminfo", "stat", "version", "filesystems"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(home: str, extra: Mapping[str, str]) -> dict[str, str]:
    """What a command gets: nothing of the server's but what the operator has named."""
    return {"PATH": _PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "TERM": "dumb", **extra}
