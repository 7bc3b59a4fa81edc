"""Which form of an answer a client gets, and the small parts of pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from app.agent.errors import InvalidRequest, RequestError
from app.api.errors import place_of
from app.api.pages import cursor_after, number_of
from app.api.sse import wants_stream


@pytest.mark.spec("11.3")
@pytest.mark.parametrize(
    ("accept", "stream"),
    [
        (None, True),
        ("*/*", True),
        ("text/event-stream", True),
        ("text/event-stream, application/json", True),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("text/event-stream;q=0.5, application/json", False),
        ("text/html, */*;q=0.8", True),
    ],
)
def test_accept_decides_the_form(accept: str | None, stream: bool) -> None:
    assert wants_stream(_request(accept), default=True) is stream


@pytest.mark.parametrize(
    ("accept", "stream"),
    [(None, False), ("*/*", False), ("application/json", False), ("text/event-stream", True)],
)
def test_a_start_streams_only_when_it_is_asked_to(accept: str | None, stream: bool) -> None:
    assert wants_stream(_request(accept), default=False) is stream


def _request(accept: str | None) -> Request:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    return Request({"type": "http", "headers": headers})


@given(st.text(max_size=60))
def test_any_accept_header_is_decided_or_refused(accept: str) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode("latin-1", "replace"))]})
    try:
        assert wants_stream(request, default=True) in (True, False)
    except RequestError as error:
        assert error.code == "not_acceptable"


@given(st.integers(min_value=0, max_value=10**12))
def test_a_cursor_gives_its_number_back(number: int) -> None:
    assert number_of(cursor_after(number)) == number


@pytest.mark.parametrize("cursor", ["", "x", "bm4", "é", "=" * 40, "bi0x", cursor_after(10**18)])
def test_a_foreign_cursor_is_refused_by_its_name(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        number_of(cursor)
    assert refused.value.code == "invalid_cursor"


def test_places_read_as_people_write_them() -> None:
    assert place_of(("agents", 0, "handoff", "max_depth")) == "agents[0].handoff.max_depth"
    assert place_of(()) == ""
