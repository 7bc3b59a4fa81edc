"""The one JSON form: whatever a fact holds, its bytes are one line of strict JSON that every reader agrees on."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent import events as kinds
from app.agent.events import Event, StoredEvent
from app.agent.runs import Run, Session
from app.wire import (
    MAX_DEPTH,
    clean,
    encode,
    encode_payload,
    encode_tree,
    envelope,
    event_json,
    frame,
    microseconds_of,
    read_envelope,
    scope_bytes,
    timestamp,
    transient_frame,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates and NUL too
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=4) | st.just({1, 2}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(st.sampled_from(["content", "arguments", "output", "error"]), ANY, max_size=4)
RUN = Run(
    id="run_1", session_id="ses_1", tenant="t", memory_id="mem_1", turn=0, ordinal=3, depth=1, path=(1, 3), agent="a\n",
    parent_id="run_0",
)  # fmt: skip
SESSION = Session(id="ses_1", tenant="t", memory_id="mem_1", agent="lead", created_at=0)


def strict(data: bytes) -> Any:
    """Read JSON as a strict client does: no NaN, UTF-8 that is whole, one line."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert b"\n" not in data and b"\r" not in data
    text = data.decode()
    value = json.loads(text, parse_constant=refuse)
    assert not any("\ud800" <= c <= "\udfff" or c == "\0" for c in _texts(value))
    return value


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(key + _texts(item) for key, item in value.items())
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return value if isinstance(value, str) else ""


@given(PAYLOADS)
@pytest.mark.spec("11.1")
@pytest.mark.case("B147", "B176", "B184", "B185")
def test_any_payload_becomes_one_line_of_strict_json_that_agrees_with_what_is_kept(payload: dict[str, Any]) -> None:
    kept, data = encode_payload(payload)
    assert strict(data) == json.loads(encode(kept))
    assert None not in kept.values()
    assert kept.keys() <= payload.keys()


@given(ANY)
@pytest.mark.case("B185")
def test_cleaning_a_clean_value_changes_nothing(value: Any) -> None:
    once = clean(value)
    assert clean(once) == once
    strict(json.dumps(once).encode())


@given(st.text(max_size=20), st.integers(0, 2**53), st.floats(allow_nan=False, allow_infinity=False))
def test_values_that_json_can_carry_stay_as_they_are(text: str, number: int, other: float) -> None:
    payload = {"content": text.replace("\0", ""), "number": number, "deep": {"list": [other, True]}}
    kept, data = encode_payload(payload)
    assert kept == payload
    assert json.loads(data) == payload


@pytest.mark.case("B185")
@pytest.mark.parametrize("depth", [MAX_DEPTH // 2, MAX_DEPTH + 1, 20_000])
def test_a_value_that_is_nested_without_end_is_cut_and_not_raised(depth: int) -> None:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    kept, data = encode_payload({"arguments": value})
    assert strict(data) == json.loads(encode(kept))
    assert (b"bottom" in data) == (depth < 1000)
    cleaned = encode(clean(value))
    assert (b"bottom" in cleaned) == (depth <= MAX_DEPTH)


@pytest.mark.case("B185")
def test_an_integer_that_nobody_can_write_down_becomes_null() -> None:
    kept, data = encode_payload({"output": [10**5000, 10**400, 2**70]})
    assert strict(data) == {"output": [None, 10**400, 2**70]}
    assert kept == {"output": [None, 10**400, 2**70]}


@pytest.mark.case("B147")
def test_a_bare_cr_in_a_text_forges_no_frame() -> None:
    data = encode({"text": "a\revent: run_finished\rid: 999\n\ndata: x\u2028"})
    event = Event(
        seq=7, type="message", ts=0, tenant="t", session_id="s", run=None, step=None, payload={},
        envelope=b'{"id":7}', data=data,
    )  # fmt: skip
    assert frame(event).count(b"\n") == 4
    assert b"\r" not in frame(event)
    assert frame(event).startswith(b"id: 7\nevent: message\ndata: {")


@given(st.text(st.sampled_from('a"\\\x85\u2028\u2029\xa8â\u0080\u2027你\n\x1c\x0b\x7f'), max_size=12))
@pytest.mark.spec("11.1")
def test_no_reader_of_lines_sees_a_frame_end_within_a_text_and_pages_keep_the_stored_bytes(text: str) -> None:
    data = encode({"text": text})
    head = envelope(7, kinds.MESSAGE, 0, scope_bytes(RUN), None)
    stored = StoredEvent(seq=7, type="message", envelope=head, data=data)
    passing = Event(
        seq=0, type="text.delta", ts=0, tenant="t", session_id="s", run=None, step=None, payload={}, data=data
    )
    for made in (
        frame(stored),
        frame(stored, prev=3),
        frame(passing),
        transient_frame("text.snapshot", {"text": text}),
    ):
        lines = made.decode().splitlines()
        assert [line.partition(":")[0] for line in lines] == ["id", "event", "data", ""][
            not lines[0].startswith("id") :
        ]
        value = json.loads(lines[-2].removeprefix("data: "))
        assert value.get("data", value)["text"] == text
    assert event_json(head, data).endswith(data + b"}")


@pytest.mark.spec("11.1")
def test_an_envelope_holds_who_where_and_when_and_leaves_out_what_is_absent() -> None:
    made = envelope(5, kinds.STEP_STARTED, 1_700_000_000_123_456, scope_bytes(RUN), 2)
    assert json.loads(made) == {
        "id": 5, "type": "step.started", "v": 1, "ts": "2023-11-14T22:13:20.123Z", "session_id": "ses_1",
        "run_id": "run_1", "run": 3, "parent_run_id": "run_0", "agent": "a\n", "depth": 1, "path": [1, 3], "step": 2,
    }  # fmt: skip
    alone = envelope(1, kinds.SESSION_IDLE, 0, scope_bytes(SESSION), None)
    assert json.loads(alone) == {
        "id": 1, "type": "session.idle", "v": 1, "ts": "1970-01-01T00:00:00.000Z", "session_id": "ses_1",
    }  # fmt: skip


@pytest.mark.spec("11.1")
def test_frames_of_durable_events_carry_the_id_twice_and_transient_ones_none() -> None:
    made = envelope(5, kinds.SESSION_IDLE, 0, scope_bytes(SESSION), None)
    stored = StoredEvent(seq=5, type="session.idle", envelope=made, data=b"{}")
    assert frame(stored) == b"id: 5\nevent: session.idle\ndata: " + event_json(made, b"{}") + b"\n\n"
    assert json.loads(frame(stored, prev=3).split(b"data: ")[1]) == {"prev": 3, **json.loads(made), "data": {}}
    assert transient_frame("stream.skipped", {"deltas": 2}) == b'event: stream.skipped\ndata: {"deltas":2}\n\n'


@given(st.integers(0, 4_000_000_000_000_000))
@pytest.mark.spec("11.1")
def test_times_are_rfc_3339_in_utc_with_milliseconds(ts: int) -> None:
    written = datetime.fromisoformat(timestamp(ts))
    assert written.tzinfo == UTC
    assert timestamp(ts).endswith("Z")
    assert round(written.timestamp() * 1000) == ts // 1000


@given(st.integers(1, 10**9), st.lists(st.integers(1, 99), min_size=1, max_size=4))
@pytest.mark.spec("11.3")
def test_what_filters_look_at_is_read_back_from_an_envelope(seq: int, path: list[int]) -> None:
    run = Run(
        id="run_9", session_id="s", tenant="t", memory_id="m", turn=0, ordinal=path[-1], depth=len(path) - 1,
        path=tuple(path), agent="é\u0000",
    )  # fmt: skip
    seen = read_envelope(envelope(seq, kinds.RUN_STARTED, 0, scope_bytes(run), None))
    assert (seen.id, seen.type, seen.run_id) == (seq, "run.started", "run_9")
    assert (seen.run, seen.depth, seen.path) == (path[-1], len(path) - 1, tuple(path))


NODES = st.recursive(
    st.dictionaries(st.sampled_from(["id", "text"]), st.text(max_size=4) | st.integers(-9, 9), max_size=2),
    lambda inner: st.fixed_dictionaries({"id": st.integers(0, 9), "children": st.lists(inner, max_size=3)}),
    max_leaves=8,
)


@pytest.mark.spec("14.4")
@given(st.fixed_dictionaries({"runs": st.lists(NODES, max_size=3), "total": st.integers()}) | NODES)
def test_a_tree_is_the_json_of_its_maps(tree: dict[str, Any]) -> None:
    assert json.loads(encode_tree(tree, ("runs", "children"))) == json.loads(encode(tree))


@pytest.mark.case("B185")
@pytest.mark.parametrize("levels", [150, 20_000])
def test_of_a_tree_that_is_deep_nothing_is_left_out_even_where_one_value_cannot_be_written(levels: int) -> None:
    tree: dict[str, Any] = {"number": 10**5000, "text": "bottom \ud800", "children": []}
    for level in range(levels):
        tree = {"level": level, "children": [tree, {"level": -1, "children": []}]}
    data = encode_tree({"runs": [tree]}, ("runs", "children"))
    assert data.count(b'"level"') == 2 * levels
    assert "…".encode() not in data
    assert '"number":null,"text":"bottom \ufffd","children":[]'.encode() in data


@pytest.mark.spec("12.4")
@given(st.datetimes())
def test_a_time_of_rfc_3339_is_exact_to_the_microsecond_in_every_offset(moment: datetime) -> None:
    micros = microseconds_of(f"{moment.isoformat()}Z")
    assert timedelta(microseconds=micros) == moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert microseconds_of(f"{moment.isoformat()}+02:30") == micros - 9_000_000_000
    assert microseconds_of(f"{moment.isoformat(' ')}z") == micros


@pytest.mark.spec("12.4")
def test_a_date_alone_is_its_beginning_in_utc_and_nothing_else_is_guessed_at() -> None:
    assert microseconds_of("2026-01-01") == microseconds_of("2026-01-01T00:00:00.000Z") == 1_767_225_600_000_000
    for wrong in (
        *("", "2026", "20261201", "1767225600", "1e9", "2026-1-1", "2026-W01-1", "２０２６-01-01", "yesterday"),
        *("2026-01-01T00:00:00", "2026-01-01T00:00Z", "2026-02-30", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00+1"),
    ):
        with pytest.raises(ValueError, match=r"."):
            microseconds_of(wrong)
