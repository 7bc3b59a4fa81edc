"""Where messages about ended runs may go: hosts as an operator named them, each with one port."""

import pytest

from app.hooks.completion import CompletionSender, exact
from app.net.outgoing import Outgoing

KEY = b"k" * 32


def sender(*hosts: str) -> CompletionSender:
    return CompletionSender(outgoing=Outgoing(exact(hosts)), key=KEY)


@pytest.mark.spec("9.9")
@pytest.mark.parametrize(
    ("named", "url", "shown"),
    [
        ("Hooks.example.org", "https://hooks.EXAMPLE.org./x?a=b", "hooks.example.org"),
        ("hooks.example.org:443", "https://hooks.example.org:443/x", "hooks.example.org"),
        ("hooks.example.org:8443", "https://hooks.example.org:8443/x", "hooks.example.org:8443"),
        ("10.0.0.7:80", "http://10.0.0.7/x", "10.0.0.7:80"),
        ("[::1]:9000", "http://[::1]:9000/x", "[::1]:9000"),
        ("[::1]", "https://[::1]/x", "[::1]"),
    ],
)
def test_a_host_is_shown_without_the_rest_of_the_url(named: str, url: str, shown: str) -> None:
    assert sender(named).host(url) == shown


@pytest.mark.spec("9.9")
@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/x",
        "https://hooks.example.org:22/x",
        "https://hooks.example.org.evil.org/x",
        "https://hooks.example.org@evil.org/x",
        "https://user@hooks.example.org/x",
        "https://:word@hooks.example.org/x",
        "https:///x",
        "https://hooks.example.org:port/x",
        "",
    ],
)
def test_other_ports_other_hosts_and_users_are_refused_in_words_without_the_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"^the (URL|host) ") as caught:
        sender("hooks.example.org").host(url)
    assert "/x" not in str(caught.value)
    assert "word@" not in str(caught.value)
