"""Which addresses are public, and what an operator opens besides them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.net.addresses import embedded, read_openings, why_not_public
from tests.net.tables import INNER_ADDRESSES, PUBLIC_ADDRESSES


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
@pytest.mark.parametrize("text", INNER_ADDRESSES)
def test_an_address_that_is_not_of_the_public_internet_is_refused(text: str) -> None:
    assert why_not_public(ipaddress.ip_address(text))


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("text", PUBLIC_ADDRESSES)
def test_an_address_of_the_public_internet_passes(text: str) -> None:
    assert why_not_public(ipaddress.ip_address(text)) is None


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
@given(st.ip_addresses())
def test_nothing_passes_that_the_standard_library_knows_to_be_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    special = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
        or address.is_reserved or address.is_unspecified
    )  # fmt: skip
    if special and embedded(address) is None:
        assert why_not_public(address)


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_judged_as_if_it_stood_alone(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    outer = [
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(0x0064_FF9B << 96 | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1),
        ipaddress.IPv6Address(0x2A00 << 112 | 0x5EFE << 32 | number),
    ]
    assert {why_not_public(address) for address in outer} == {why_not_public(inner)}


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
def test_what_an_operator_opens_is_open_at_the_ports_of_the_web_or_at_the_one_that_is_written() -> None:
    openings = read_openings(
        ["Docs.Corp.example.", "wiki:9000", "10.1.0.0/16", "10.2.0.1:9000", "[fd00::1]:9000", "fd01::1"]
    )
    assert openings.has_name("docs.corp.example", 443)
    assert openings.has_name("wiki", 9000)
    for name, port in (("docs.corp.example", 22), ("wiki", 80), ("a.docs.corp.example", 443), ("corp.example", 443)):
        assert not openings.has_name(name, port)
    opened = [("10.1.2.3", 80), ("10.2.0.1", 9000), ("fd00::1", 9000), ("fd01::1", 8080), ("::ffff:10.1.2.3", 80)]
    closed = [("10.1.2.3", 6379), ("10.2.0.1", 80), ("10.2.0.2", 9000), ("fd00::2", 9000), ("127.0.0.1", 80)]
    assert all(openings.has_address(ipaddress.ip_address(address), port) for address, port in opened)
    assert not any(openings.has_address(ipaddress.ip_address(address), port) for address, port in closed)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("entry", ["", "a b", "http://x.example", "10.0.0.1/8", "host:0", "host:70000", "*", "1.2.3"])
def test_an_opening_that_cannot_be_read_is_refused_with_its_text(entry: str) -> None:
    with pytest.raises(ValueError, match="host") as caught:
        read_openings([entry])
    assert repr(entry) in str(caught.value)
