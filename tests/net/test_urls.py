"""URLs are read once; what readers could take for different things is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from app.agent.permission_subjects import host_of
from app.net.urls import MAX_URL_CHARS, BadUrl, read_location, read_url


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("https://example.org", "example.org", 443),
        ("HTTP://EXAMPLE.org:080/a?b=c", "example.org", 80),
        ("https://Example.org.:8443/x#part", "example.org", 8443),
        ("http://93.184.216.34/", "93.184.216.34", 80),
        ("http://[2606:4700:4700::1111]:8080/", "2606:4700:4700::1111", 8080),
        ("http://bücher.example/ü?q=ü", "xn--bcher-kva.example", 80),
        ("http://xn--bcher-kva.example/", "xn--bcher-kva.example", 80),
        ("http://例え.テスト/", "xn--r8jz45g.xn--zckzah", 80),
        ("http://a_b.example.org/@user?x=@y#@z", "a_b.example.org", 80),
        ("http://1and1.example.4u/", "1and1.example.4u", 80),
    ],
)
def test_a_url_is_read_as_the_client_will_dial_it_and_as_rules_judge_it(text: str, host: str, port: int) -> None:
    target = read_url(text)
    assert (target.host, target.port) == (host, port)
    assert (target.url.raw_host, target.url.port, target.url.raw_fragment) == (host, port, "")
    assert host_of(text) == host


@pytest.mark.spec("7.3")
@pytest.mark.case("B127", "B129")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "1 to"),
        ("https://example.org/" + "x" * MAX_URL_CHARS, "1 to"),
        ("example.org", "must begin with"),
        ("//example.org/", "must begin with"),
        ("file:///etc/passwd", "must begin with"),
        ("ftp://example.org/", "must begin with"),
        ("gopher://example.org:70/", "must begin with"),
        ("javascript:alert(1)", "must begin with"),
        ("https:example.org", "must begin with"),
        ("https:/example.org", "must begin with"),
        ("https:///example.org", "host, or host:port"),
        ("https://user:secret@example.org/", "user or password"),
        ("https://@example.org/", "user or password"),
        ("https://example.org\\@evil.example/", "backslash"),
        ("https:\\\\example.org", "backslash"),
        ("https://example.org/a b", "blanks"),
        ("https://example.org/\n", "blanks"),
        ("https://exam\tple.org/", "blanks"),
        ("https://example.org/\u200b", "blanks"),
        ("https://example.org/\ud800", "blanks"),
        ("https://example.org:/", "host, or host:port"),
        ("https://example.org:0/", "port"),
        ("https://example.org:65536/", "port"),
        ("https://example.org:8０80/", "host, or host:port"),
        ("https://example.org:80:80/", "host, or host:port"),
        ("https://exa%6dple.org/", "no host name"),
        ("https://example..org/", "no host name"),
        ("https://.example.org/", "no host name"),
        ("https://-example.org/", "no host name"),
        ("https://" + "a" * 64 + ".org/", "host"),
        ("https://" + ".".join(["a" * 60] * 5) + "/", "host"),
        ("https://exam*ple.org/", "host"),
        ("https://straße.example/", "readers differ on its host; write it as xn--"),
        ("https://ⓔxample.org/", "stand for others"),
        ("https://example。org/", "stand for others"),
        ("https://127.1/", "ends in a number"),
        ("https://1.2.3.4.5/", "ends in a number"),
        ("https://example.0x7f/", "ends in a number"),
        ("https://[::1/", "host, or host:port"),
        ("https://[1::2::3]/", "no IPv6 address"),
        ("https://[2606:4700:4700:0::1111]/", r"write its address as \[2606:4700:4700::1111\]"),
        ("https://[::ffff:8.8.8.8]/", "carries an IPv4"),
        ("https://[64:ff9b::808:808]/", "carries an IPv4"),
    ],
)
def test_what_parsers_disagree_on_is_refused_with_the_reason_and_without_the_url(text: str, reason: str) -> None:
    with pytest.raises(BadUrl, match=reason) as caught:
        read_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.spec("7.3", "8.4")
@given(
    st.text(alphabet="aA0.:/@\\#?%[]-_①。ß ｅü\t\x00x127", max_size=30)
    | st.from_regex(r"[a-z0-9.:@\[\]%-]{1,25}(/[a-z?#@:]{0,5})?", fullmatch=True)
)
def test_whatever_passes_means_the_same_host_to_the_client_and_to_the_rules(rest: str) -> None:
    text = f"http://{rest}"
    try:
        target = read_url(text)
    except BadUrl:
        return
    assert host_of(text) == target.host == URL(text).with_fragment(None).raw_host.rstrip(".").lower()  # type: ignore[union-attr]
    assert read_url(str(target.url)) == target


@pytest.mark.spec("7.3")
@pytest.mark.case("B127")
@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("/b", "https://example.org/b"),
        ("b?x=1", "https://example.org/a/b?x=1"),
        ("../c#d", "https://example.org/c"),
        ("?q", "https://example.org/a/page?q"),
        ("//other.example/x", "https://other.example/x"),
        ("http://other.example:8080/x", "http://other.example:8080/x"),
        ("/ü", "https://example.org/%C3%BC"),
    ],
)
def test_a_redirect_is_read_from_where_it_came(location: str, wanted: str) -> None:
    assert str(read_location(location, read_url("https://example.org/a/page")).url) == wanted


@pytest.mark.spec("7.3")
@pytest.mark.case("B127")
@pytest.mark.parametrize(
    "location",
    ["", "file:///etc/passwd", "data:text/html,x", "mailto:a@b.example", "//a@b.example/", "\\\\b.example",
     "/\\b.example", "http:b.example", "http:///b.example", "/a\r\nX: y", "//b.example:99999/", "//127.1/", "https://",
     "///b.example"],
)  # fmt: skip
def test_a_redirect_that_cannot_be_read_safely_is_refused(location: str) -> None:
    with pytest.raises(BadUrl):
        read_location(location, read_url("https://example.org/a/page"))
