"""Redirects stay with one host and are checked anew; one to another host is reported, or refused for what it says."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.net.fetching import Fetched, Fetcher, FetchError
from app.net.urls import Target, read_location
from tests.net.standin import PUBLIC, PUBLIC_TOO, Net, net, page, redirect
from tests.net.tables import INNER_HOSTS

URL = "http://page.example/"
STATUSES = ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent")


def anything(kind: str) -> bool:
    """Every body is wanted."""
    return True


async def refused(world: Net, url: str = URL, **bounds: Any) -> str:
    """Why there is no answer."""
    with pytest.raises(FetchError) as caught:
        await world.fetcher(**bounds).get(url, anything)
    return str(caught.value)


@pytest.mark.spec("7.3")
@pytest.mark.case("B127")
@pytest.mark.parametrize("status", STATUSES)
async def test_a_redirect_within_a_host_is_followed_with_a_new_look_at_its_address(status: str) -> None:
    async with net() as world:
        site = world.sites[PUBLIC]
        site.answers |= {"/": redirect("/a?x=1", status), "/a?x=1": redirect("b#c", status), "/b": page(b"there")}
        found = await world.fetcher().get(URL, anything)
        assert (found.body, found.url, site.paths) == (b"there", "http://page.example/b", ["/", "/a?x=1", "/b"])
        assert world.asked == ["page.example"] * 3
        assert all("referer" not in headers and "cookie" not in headers for _, headers in site.requests)


@pytest.mark.spec("7.3")
@pytest.mark.case("B128")
async def test_a_host_that_turns_to_loopback_between_two_redirects_is_left_there() -> None:
    async with net() as world:
        world.names["turns.example"] = [[PUBLIC], ["127.0.0.1"]]
        world.sites[PUBLIC].answers["/"] = redirect("/next")
        assert "public internet" in await refused(world, "http://turns.example:8080/")
        assert (world.trapped, world.dialled) == (0, [(PUBLIC, 8080)])


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.case("B127", "B130")
@pytest.mark.parametrize("status", STATUSES)
async def test_a_redirect_to_another_host_is_reported_and_not_followed(status: str) -> None:
    async with net() as world:
        site = world.sites[PUBLIC]
        site.answers |= {"/": redirect("/a"), "/a": redirect("//other.example/x?y", status)}
        found = await world.fetcher().get(URL, anything)
        assert found.elsewhere is not None
        assert (str(found.elsewhere.url), found.body) == ("http://other.example/x?y", None)
        assert (world.asked, world.sites[PUBLIC_TOO].connections) == (["page.example"] * 2, 0)


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.case("B130")
@pytest.mark.parametrize(
    "location", ["http://www.page.example/", "http://a.page.example/", "http://example/", "http://PAGE.example.org"]
)
async def test_a_host_above_or_below_is_another_one(location: str) -> None:
    async with net() as world:
        world.names["www.page.example"] = [[PUBLIC_TOO]]
        world.sites[PUBLIC].answers["/"] = redirect(location)
        try:
            found = await world.fetcher().get(URL, anything)
        except FetchError as error:
            assert location == "http://example/", error
        else:
            assert found.elsewhere is not None
        assert world.sites[PUBLIC_TOO].connections == 0


@pytest.mark.spec("7.3")
@pytest.mark.case("B127")
async def test_a_redirect_to_an_inner_host_is_refused_in_every_spelling_and_nothing_is_reached() -> None:
    async with net() as world, asyncio.timeout(60):
        for host in INNER_HOSTS:
            for location in (f"http://{host}:{world.port}/", f"//{host}:{world.port}/"):
                line = location.encode("utf-8").decode("latin-1").replace("\r", "").replace("\n", "").replace("\0", "")
                world.sites[PUBLIC].answers |= {"/": redirect("/2"), "/2": redirect("/3"), "/3": redirect(line)}
                try:
                    found = await world.fetcher().get(URL, anything)
                except FetchError:
                    continue
                assert found.elsewhere is not None  # a name: what it resolves to is seen when it is asked for
                with pytest.raises(FetchError):
                    await world.fetcher().get(str(found.elsewhere.url), anything)
        assert (world.trapped, set(world.dialled)) == (0, {(PUBLIC, 80)})


@pytest.mark.spec("7.3")
@pytest.mark.case("B127")
@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://page.example/", "gopher://page.example/", "javascript:1", "http://user@page.example/",
     "http://page.example:22/", "http://page.example\\@other.example/", "", "http://169.254.169.254/latest/meta-data"],
)  # fmt: skip
async def test_a_redirect_to_what_is_no_open_page_is_refused(location: str) -> None:
    async with net() as world:
        world.sites[PUBLIC].answers["/"] = redirect(location)
        assert "page.example" in await refused(world)
        assert (world.trapped, world.dialled) == (0, [(PUBLIC, 80)])


@pytest.mark.spec("7.3")
async def test_an_upgrade_to_https_is_followed() -> None:
    async with net() as world:
        world.sites[PUBLIC].answers["/"] = redirect("https://page.example/")
        await refused(world, head_s=0.2)  # the site speaks no TLS
        assert world.dialled == [(PUBLIC, 80), (PUBLIC, 443)]


@pytest.mark.spec("7.3")
async def test_a_downgrade_to_http_is_reported_and_not_followed() -> None:
    asked: list[str] = []

    class Downgrading(Fetcher):
        """Over TLS, without a certificate."""

        async def _once(self, target: Target, wanted: Callable[[str], bool]) -> Fetched:
            asked.append(str(target.url))
            return Fetched(url=asked[-1], status=301, elsewhere=read_location("http://page.example/x", target))

    async with net() as world:
        found = await Downgrading(dialler=world.dialler()).get("https://page.example/", anything)
    assert found.elsewhere is not None
    assert (str(found.elsewhere.url), asked) == ("http://page.example/x", ["https://page.example/"])


@pytest.mark.spec("7.3")
async def test_circles_and_long_chains_end() -> None:
    async with net() as world:
        site = world.sites[PUBLIC]
        site.answers |= {"/": redirect("/a"), "/a": redirect("/")}
        assert "in a circle" in await refused(world)
        assert site.paths == ["/", "/a"]
        site.answers |= {"/": redirect("/0")} | {f"/{n}": redirect(f"/{n + 1}") for n in range(20)}
        assert "more than 5 times" in await refused(world)
        assert len(site.paths) == 2 + 6
