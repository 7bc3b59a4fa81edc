"""Which addresses belong to the public internet, and which an operator has opened besides them.

Knows no names and dials nothing. The ranges are written down here: what a Python release calls global changes, and
leaves out multicast, site-local addresses and those that carry another address inside.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

V4 = ipaddress.IPv4Address
V6 = ipaddress.IPv6Address
Address = V4 | V6
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS = frozenset({80, 443, 8080, 8443})

_V4 = (
    ("0.0.0.0/8", "this machine"),
    ("10.0.0.0/8", "a private network"),
    ("100.64.0.0/10", "a provider's inner network"),
    ("127.0.0.0/8", "this machine"),
    ("168.63.129.16/32", "a cloud's inner service"),  # the host agent of Azure, on an address of the public range
    ("169.254.0.0/16", "a link-local network"),
    ("172.16.0.0/12", "a private network"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "relays that are no longer in use"),
    ("192.168.0.0/16", "a private network"),
    ("198.18.0.0/15", "benchmarks"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
_V6 = (
    ("::1/128", "this machine"),
    ("::/96", "this machine"),
    ("64:ff9b:1::/48", "a local translation network"),
    ("fc00::/7", "a private network"),
    ("fe80::/10", "a link-local network"),
    ("fec0::/10", "a private network"),
    ("ff00::/8", "multicast"),
    ("2001::/23", "protocol assignments"),  # Teredo too, which hides the address of a home network
    ("2001:db8::/32", "documentation"),
    ("3fff::/20", "documentation"),
)
_REFUSED_V4 = tuple((ipaddress.IPv4Network(network), what) for network, what in _V4)
_REFUSED_V6 = tuple((ipaddress.IPv6Network(network), what) for network, what in _V6)
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that was ever given to anybody for public use
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE, 0x0100_5EFE, 0x0300_5EFE})  # before an embedded IPv4 address


def why_not_public(address: Address) -> str | None:
    """What the address is for, in words, if it is not one of the public internet; None if it is."""
    inner = embedded(address)
    if inner is not None and (reason := why_not_public(inner)) is not None:
        return reason
    if isinstance(address, V4):
        return next((what for network, what in _REFUSED_V4 if address in network), None)
    if address.scope_id is not None:
        return "a link-local network"
    for network, what in _REFUSED_V6:
        if address in network:
            return what
    if address in _UNICAST or inner is not None:
        return None
    return "reserved"


def embedded(address: Address) -> V4 | None:
    """The IPv4 address that an IPv6 one leads to, if it is of a kind that does."""
    if isinstance(address, V4):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _TRANSLATED:
        return V4(number & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        return V4(number >> 80 & 0xFFFF_FFFF)
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        return V4(number & 0xFFFF_FFFF)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Openings:
    """Hosts that an operator opened although they are not public. `addresses` and `names` with None are open at the
    ports of the web, otherwise at the one port."""

    names: frozenset[tuple[str, int | None]] = frozenset()
    addresses: tuple[tuple[Network, int | None], ...] = ()

    def has_name(self, host: str, port: int) -> bool:
        """Whether this host name, in lower case, is open at this port."""
        return (host, port) in self.names or (port in WEB_PORTS and (host, None) in self.names)

    def has_address(self, address: Address, port: int) -> bool:
        """Whether this address is, whatever name led to it."""
        inner = address.ipv4_mapped if isinstance(address, V6) else None
        return any(
            (at == port or (at is None and port in WEB_PORTS)) and (address in network or (inner or address) in network)
            for network, at in self.addresses
        )


def read_openings(entries: Iterable[str]) -> Openings:
    """From `docs.corp.example`, `docs.corp.example:9000`, `10.1.0.0/16`, `10.1.2.3:9000`, `[fd00::1]:9000`.

    Raises ValueError that names the entry.
    """
    names: set[tuple[str, int | None]] = set()
    addresses: list[tuple[Network, int | None]] = []
    for entry in entries:
        host, port = _host_and_port(entry.strip().lower())
        try:
            addresses.append((ipaddress.ip_network(host), port))
        except ValueError:
            if not _is_name(host):
                raise ValueError(f"{entry!r} is no host, host:port, address or network (10.1.0.0/16)") from None
            names.add((host.rstrip("."), port))
    return Openings(names=frozenset(names), addresses=tuple(addresses))


def _host_and_port(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or not port.isdecimal() or not port.isascii():
        return text.strip("[]"), None
    if not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: there is no port {port}")
    return host.strip("[]"), int(port)


def _is_name(host: str) -> bool:
    labels = host.rstrip(".").split(".")
    plain = all(label and label.isascii() and label.replace("-", "").replace("_", "").isalnum() for label in labels)
    return plain and not labels[-1].isdecimal()
