"""Nothing but a checked address is dialled, whatever the name, the spelling or the second answer of the resolver."""

import asyncio
import gc
import ipaddress
import socket
from collections.abc import Sequence

import aiohttp
import pytest
from yarl import URL

from app.net import dialler as module
from app.net.addresses import Address, read_openings
from app.net.dialler import DialError, Dialler, SystemLookup
from app.net.fetching import FetchError
from app.net.urls import Target, read_url
from tests.net.listening import listening
from tests.net.standin import PUBLIC, PUBLIC_TOO, PUBLIC_V6, Net, net, page
from tests.net.tables import INNER_ADDRESSES, INNER_HOSTS, INNER_NAMES, OUTER_HOSTS, PUBLIC_ADDRESSES

WAIT_S = 10.0


def anything(kind: str) -> bool:
    """Every body is wanted."""
    return True


async def ask(world: Net, target: Target, *, anywhere: bool = False) -> bytes:
    """Dial and read, without the check of URLs that stands before it."""
    async with world.dialler(anywhere=anywhere).session(target) as session, session.get(target.url) as response:
        return await response.read()


def by_address(address: str, port: int) -> Target:
    """A literal address, whether or not a URL could name it."""
    host = f"[{address}]" if ":" in address else address
    url = URL.build(scheme="http", authority=f"{host}:{port}", path="/", encoded=True)
    return Target(url=url, host=address, port=port, address=ipaddress.ip_address(address))


@pytest.mark.spec("7.3")
@pytest.mark.case("B127", "B129")
async def test_no_spelling_of_an_inner_host_reaches_this_machine_or_its_network() -> None:
    assert len(INNER_HOSTS) >= 60
    async with net() as world, asyncio.timeout(60):
        world.names |= {name: [addresses] for name, addresses in INNER_NAMES.items()}
        for host in INNER_HOSTS:
            for url in (f"http://{host}:{world.port}/", f"https://{host}/", f"http://{host}"):
                with pytest.raises(FetchError) as refused:
                    await world.fetcher().get(url, anything)
                assert "MARKER" not in str(refused.value)
        assert (world.trapped, world.dialled) == (0, [])


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
async def test_a_name_of_the_inner_network_is_refused_before_anybody_is_asked_for_its_address() -> None:
    async with net() as world:
        for host in (
            "localhost",
            "a.localhost",
            "printer.local",
            "db.internal",
            "nas.lan",
            "x.home.arpa",
            "wiki",
            "x.onion",
        ):
            world.names[host] = [[PUBLIC]]
            with pytest.raises(FetchError, match=f"{host} is a name of this machine or its network"):
                await world.fetcher().get(f"http://{host}./", anything)
        assert (world.asked, world.dialled) == ([], [])


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
async def test_what_only_looks_like_an_inner_host_is_the_public_one() -> None:
    async with net() as world:
        for host in OUTER_HOSTS:
            await world.fetcher().get(f"http://{host}:{world.port}/", anything)
        assert (world.trapped, world.dialled) == (0, [(PUBLIC, 80)])


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
async def test_the_address_that_a_name_resolves_to_is_judged_and_not_how_the_name_is_written() -> None:
    async with net() as world:
        for host in ("localhost", "2130706433", "127.1", "0x7f.1", "0177.0.0.1", "0"):  # as the system resolves them
            with pytest.raises(DialError):
                await ask(world, Target(url=URL(f"http://{host}.x:{world.port}/"), host=f"{host}", port=world.port))
        assert (world.trapped, world.dialled) == (0, [])


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
async def test_no_inner_address_is_dialled_as_a_literal_or_as_the_answer_for_a_name() -> None:
    async with net() as world, asyncio.timeout(60):
        for address in INNER_ADDRESSES:
            world.names["name.example"] = [[PUBLIC, address]]
            for target in (by_address(address, world.port), read_url(f"http://name.example:{world.port}/")):
                with pytest.raises(DialError) as refused:
                    await ask(world, target)
                if target.address is None:
                    assert address not in str(refused.value)  # how a network is built is nobody's business
        assert (world.trapped, world.dialled) == (0, [])


@pytest.mark.spec("7.3")
async def test_every_public_address_is_dialled_just_as_it_is() -> None:
    async with net() as world:
        world.sites.clear()
        for address in PUBLIC_ADDRESSES:
            world.dialled.clear()
            world.names["name.example"] = [[address]]
            for target in (by_address(address, 443), read_url("http://name.example:8080/")):
                with pytest.raises(aiohttp.ClientConnectorError):  # nothing is behind them here
                    await ask(world, target)
            dialled = [(ipaddress.ip_address(host), port) for host, port in world.dialled]
            assert dialled == [(ipaddress.ip_address(address), port) for port in (443, 8080)]


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    "url", ["http://page.example/", f"http://{PUBLIC}/", "http://six.example:8080/", f"http://[{PUBLIC_V6}]/"]
)
async def test_a_public_host_answers_and_is_told_the_name_that_it_was_asked_by(url: str) -> None:
    async with net() as world:
        for site in world.sites.values():
            site.answers["/"] = page(b"hello")
        assert await ask(world, read_url(url)) == b"hello"
        ((_, headers),) = [request for site in world.sites.values() for request in site.requests]
        assert headers["host"] == url.removeprefix("http://").rstrip("/")
        assert world.trapped == 0


@pytest.mark.spec("7.3")
async def test_a_secure_host_is_named_in_the_handshake_and_not_trusted_without_a_certificate() -> None:
    hellos: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.read(4096))
        writer.close()

    async with net() as world, listening(listen) as port:
        world.sites[PUBLIC].where = "127.0.0.1", port
        with pytest.raises(FetchError, match=r"page\.example"):
            await world.fetcher().get("https://page.example/", anything)
    assert b"page.example" in hellos[0]


@pytest.mark.spec("7.3")
@pytest.mark.case("B128")
async def test_a_name_that_turns_to_loopback_after_the_check_is_still_dialled_where_it_was_checked() -> None:
    async with net() as world:
        world.names["turns.example"] = [[PUBLIC], ["127.0.0.1"]]
        world.sites[PUBLIC].answers["/"] = page(b"the public one")
        target = read_url(f"http://turns.example:{8080}/")
        assert await ask(world, target) == b"the public one"
        assert world.asked == ["turns.example"]  # resolved once: there was no second answer to take
        with pytest.raises(DialError, match="this machine"):
            await ask(world, target)
        assert (world.trapped, world.dialled) == (0, [(PUBLIC, 8080)])


@pytest.mark.spec("7.3")
@pytest.mark.case("B128")
async def test_the_last_gate_holds_when_the_client_itself_is_led_to_another_address() -> None:
    async with net() as world:
        elsewhere = Target(url=URL(f"http://127.0.0.1:{world.port}/"), host="page.example", port=world.port)
        world.names["page.example"] = [[PUBLIC]]
        opened = read_openings([f"page.example:{world.port}"])
        async with world.dialler(opened).session(elsewhere) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(elsewhere.url)
        assert (world.trapped, world.dialled) == (0, [])


@pytest.mark.spec("7.3")
async def test_no_connection_outlives_its_request() -> None:
    async with net() as world:
        site = world.sites[PUBLIC]
        site.answers["/"] = page(b"x")
        async with world.dialler().session(read_url("http://page.example/")) as session:
            for _ in range(2):
                async with session.get("http://page.example/") as response:
                    await response.read()
        assert site.connections == 2


@pytest.mark.spec("7.3")
@pytest.mark.case("B129")
async def test_an_operator_may_open_a_name_or_a_network_and_nothing_else_opens_with_it() -> None:
    async with net(), net() as world:
        port = world.port
        world.names |= {"docs.corp": [["127.0.0.1"]], "wiki.corp": [["127.0.0.1"]], "six.corp": [["::1"]]}
        by_name = world.fetcher(read_openings([f"docs.corp:{port}"]))
        assert (await by_name.get(f"http://docs.corp:{port}/", anything)).body == b"INNER MARKER"
        by_net = world.fetcher(read_openings([f"127.0.0.1:{port}"]))
        assert (await by_net.get(f"http://wiki.corp:{port}/", anything)).body == b"INNER MARKER"
        assert (await by_net.get(f"http://localhost:{port}/", anything)).body == b"INNER MARKER"
        reached = world.trapped
        assert reached == 3
        for fetcher, url in (
            (by_name, f"http://wiki.corp:{port}/"),
            (by_name, f"http://127.0.0.1:{port}/"),
            (by_name, "http://docs.corp:8081/"),
            (by_name, "http://docs.corp/"),
            (by_net, f"http://six.corp:{port}/"),
            (by_net, "http://wiki.corp/"),
            (by_net, f"http://127.0.0.2:{port}/"),
        ):
            with pytest.raises(FetchError, match=r"public internet is open|no answer|port"):
                await fetcher.get(url, anything)
        assert world.trapped == reached


@pytest.mark.spec("7.3")
async def test_a_port_that_is_not_of_the_web_is_refused() -> None:
    async with net() as world:
        for port in (22, 25, 6379, 9200, 65535):
            with pytest.raises(DialError, match=f"port {port} of page.example is not open; the ports 80, 443"):
                await ask(world, read_url(f"http://page.example:{port}/"))
        assert world.dialled == []


@pytest.mark.spec("7.3")
async def test_variables_of_the_environment_lead_nobody_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with net() as world:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{world.port}")
        world.sites[PUBLIC].answers["/"] = page(b"direct")
        assert await ask(world, read_url("http://page.example/")) == b"direct"
        assert world.trapped == 0


@pytest.mark.spec("7.3")
async def test_an_address_of_this_machine_is_refused_though_it_is_a_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine with a public address of its own is not to be had in a test; loopback is as much its own.
    monkeypatch.setattr(module, "why_not_public", lambda address: None)
    async with net() as world:
        for host in ("127.0.0.1", "[::1]"):
            with pytest.raises(DialError, match="this machine"):
                await ask(world, read_url(f"http://{host}:{world.port}/"))
        assert (world.trapped, world.dialled) == (0, [])


@pytest.mark.spec("7.3")
async def test_all_of_many_addresses_are_checked_and_only_some_are_dialled() -> None:
    async with net() as world:
        world.names["many.example"] = [[f"93.184.217.{n}" for n in range(1, 201)]]
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(world, read_url("http://many.example/"))
        assert 1 <= len(world.dialled) <= 6


@pytest.mark.spec("7.3")
async def test_the_next_address_is_dialled_where_one_is_dead() -> None:
    async with net() as world:
        world.names["half.example"] = [["93.184.217.1", PUBLIC_TOO]]
        world.sites[PUBLIC_TOO].answers["/"] = page(b"the second")
        assert await ask(world, read_url("http://half.example/")) == b"the second"


@pytest.mark.spec("7.3")
async def test_a_name_that_nobody_has_or_that_is_resolved_too_slowly_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOKUP_S", 0.05)
    never = asyncio.Event()

    async def slow(host: str) -> Sequence[Address]:
        await never.wait()
        return []

    async def unknown(host: str) -> Sequence[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(DialError, match=r"page\.example was not resolved within 0\.05 s"):
            await Dialler(lookup=slow).addresses(read_url("http://page.example/"))
        with pytest.raises(DialError, match=r"no host of the name page\.example"):
            await Dialler(lookup=unknown).addresses(read_url("http://page.example/"))
    assert [str(found) for found in await SystemLookup()("127.0.0.1")] == ["127.0.0.1"]


@pytest.mark.spec("7.3")
async def test_a_request_that_is_given_up_leaves_nothing_open() -> None:
    async with net() as world, asyncio.timeout(WAIT_S):
        begun = asyncio.Event()

        async def hang(writer: asyncio.StreamWriter) -> None:
            begun.set()

        site = world.sites[PUBLIC]
        site.answers["/"] = hang
        asking = asyncio.create_task(ask(world, read_url("http://page.example/")))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await site.left.wait()
    gc.collect()  # a socket that was left open would warn
