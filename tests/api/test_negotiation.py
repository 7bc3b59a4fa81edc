"""Which form of an answer a client gets, and the small parts of pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from app.agent.errors import InvalidRequest, RequestError
from app.api.errors import NotAcceptable, place_of
from app.api.pages import cursor_after, number_of
from app.api.sse import look_of, wants_stream


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
        ("application/*", False),
        ("text/*", True),
        ("text/*;q=0.5, application/*", False),
        ("application/*;q=0.5, */*", True),
        ("text/event-stream;q=0, */*", False),
        ("application/json;q=0, */*;q=0.1", True),
        ("text/html, application/*;q=0.9, */*;q=0.8", False),
    ],
)
def test_accept_decides_the_form(accept: str | None, stream: bool) -> None:
    assert wants_stream(_request(accept), default=True) is stream


@pytest.mark.parametrize(
    ("accept", "stream"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream", True),
        ("text/*", True),
        ("application/*", False),
        ("application/json, text/event-stream", False),
    ],
)
def test_a_start_streams_only_when_it_is_asked_to(accept: str | None, stream: bool) -> None:
    assert wants_stream(_request(accept), default=False) is stream


@pytest.mark.parametrize("accept", ["text/html", "image/*", "text/event-stream;q=0", "*/*;q=0", "text/*;q=nan"])
def test_who_takes_neither_is_told_so(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        wants_stream(_request(accept), default=True)


def test_accept_headers_that_come_apart_count_together() -> None:
    fields = [(b"accept", b"text/html"), (b"accept", b"application/json")]
    assert wants_stream(Request({"type": "http", "headers": fields}), default=True) is False


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("value", ["7", "7 ", " 7", "\t7 \t"])
@pytest.mark.parametrize("query", [b"", b"after=3"])
def test_blanks_around_the_last_event_id_are_no_part_of_it(value: str, query: bytes) -> None:
    fields = [(b"last-event-id", value.encode())]
    request = Request({"type": "http", "headers": fields, "query_string": query})
    assert look_of(request).after == 7


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
    assert number_of(cursor_after(number, "ses_1"), "ses_1") == number


@pytest.mark.spec("14.4")
def test_a_cursor_of_another_list_is_refused() -> None:
    for whose, of in (("ses_1", "ses_2"), ("ses_1", ""), ("", "ses_1")):
        with pytest.raises(InvalidRequest, match="does not belong to this list"):
            number_of(cursor_after(7, whose), of)


@pytest.mark.parametrize("cursor", ["", "x", "bm4", "é", "=" * 40, "bi0x", cursor_after(10**18)])
def test_a_foreign_cursor_is_refused_by_its_name(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        number_of(cursor)
    assert refused.value.code == "invalid_cursor"


def test_places_read_as_people_write_them() -> None:
    assert place_of(("agents", 0, "handoff", "max_depth")) == "agents[0].handoff.max_depth"
    assert place_of(()) == ""
