"""A URL of the web, read once, by the parser of the client that will dial it.

What parsers disagree on is refused instead of decided: whoever judged the host (a rule, a person) may have used another
one. Knows nothing of names and what they resolve to.
"""

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import urlsplit

from yarl import URL

from app.agent.permission_subjects import host_of
from app.net.addresses import Address, embedded

MAX_URL_CHARS = 4_096
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_WEB = re.compile(r"(https?)://([^/?#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FOREIGN_DOTS = frozenset("\u3002\uff0e\uff61")
# Names that are only ever answered inside a machine or a network (RFC 6761, 6762, 8375, 7686, ICANN on `internal`).
_INNER = frozenset({"localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa", "onion"})


class BadUrl(ValueError):
    """The URL is not fetched; the text says what is wrong with it and does not repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a request goes. `host`: lower case, ASCII, without a dot at the end and without brackets; `address` if it
    is one. `url` has no fragment and no user."""

    url: URL
    host: str
    port: int
    address: Address | None = None

    @property
    def secure(self) -> bool:
        """Whether it is asked over TLS."""
        return self.url.scheme == "https"

    @property
    def inner(self) -> bool:
        """Whether the name can only be one of this machine or its network."""
        if self.address is not None:
            return False
        labels = self.host.split(".")
        return len(labels) == 1 or labels[-1] in _INNER or ".".join(labels[-2:]) in _INNER


def read_url(text: str) -> Target:
    """The URL as it will be dialled. Raises `BadUrl`."""
    _check_signs(text)
    found = _WEB.match(text)
    if found is None:
        raise BadUrl("it must begin with https:// or http://")
    if "@" in found[2]:
        raise BadUrl("a user or password in a URL is not sent: leave out what stands before @")
    authority = _AUTHORITY.fullmatch(found[2])
    if authority is None:
        raise BadUrl("the part between // and the path must be a host, or host:port")
    try:
        url = URL(text).with_fragment(None)
        host, port = (url.raw_host or "").lower().removesuffix("."), url.port
    except (ValueError, UnicodeError):
        raise BadUrl("its host or port cannot be read") from None
    address = _literal(authority[1].lower(), host)
    if address is None:
        _check_name(authority[1].lower().removesuffix("."), host)
    if not port:
        raise BadUrl("there is no such port")
    _check_agreement(text, host)
    if url.raw_host != host:
        url = url.with_host(host)  # a name with and one without a dot at its end are the same server
    return Target(url=url, host=host, port=port, address=address)


def read_location(location: str, base: Target) -> Target:
    """Where a redirect of `base` leads: as `read_url`, also for what is relative. Raises `BadUrl`."""
    _check_signs(location)
    if _SCHEME.match(location):
        return read_url(location)
    if location.startswith("//"):
        return read_url(f"{base.url.scheme}:{location}")
    try:
        joined = base.url.join(URL(location))
    except ValueError:
        raise BadUrl("it cannot be read") from None
    return read_url(str(joined))


def _check_signs(text: str) -> None:
    if not text or len(text) > MAX_URL_CHARS:
        raise BadUrl(f"it must have 1 to {MAX_URL_CHARS:,} characters, not {len(text):,}")
    if "\\" in text:
        raise BadUrl("it holds a backslash, which not all readers take for the same; write / or %5C")
    if not text.isprintable() or any(char.isspace() for char in text):
        raise BadUrl("it holds blanks or characters that cannot be seen; write them as %20 and the like")


def _literal(written: str, host: str) -> Address | None:
    """The address that the host is; None for a name. Raises `BadUrl` for one in an unusual spelling."""
    if written.startswith("["):
        return _literal_v6(written.strip("[]"))
    if not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return None
    try:
        return ipaddress.IPv4Address(written)
    except ValueError:
        raise BadUrl("a host that ends in a number must be an address such as 93.184.216.34") from None


def _literal_v6(written: str) -> Address:
    """In its one canonical spelling: a rule that names an address must not be got round by another."""
    try:
        address = ipaddress.IPv6Address(written)
    except ValueError:
        raise BadUrl("what stands in brackets is no IPv6 address") from None
    if embedded(address) is not None:
        raise BadUrl("its IPv6 address carries an IPv4 address: write that one")
    if str(address) != written:
        raise BadUrl(f"write its address as [{address}]")
    return address


def _check_name(written: str, host: str) -> None:
    if not written.isascii() and (
        not _FOREIGN_DOTS.isdisjoint(written) or unicodedata.normalize("NFKC", written) != written
    ):
        raise BadUrl("its host holds characters that stand for others; write it in plain letters")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise BadUrl("its host is no host name")


def _check_agreement(text: str, host: str) -> None:
    """Rules are judged by `host_of`; that and the client must mean the same host."""
    try:
        plain = (urlsplit(text).hostname or "").isascii()
    except ValueError:
        plain = False
    judged = host_of(text)
    if judged is None or _same(judged) != _same(host):
        hint = "" if plain else "; write it as xn--… instead"
        raise BadUrl(f"readers differ on its host{hint}")


def _same(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
