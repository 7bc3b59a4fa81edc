"""Event streams as bytes that come from anywhere: cut at any place, ended in any way, wrong in any way."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import frames
from app.frames import FrameParser, Gap, Malformed, Place, Received, Texts

STREAM = (
    b": hello\n\nretry: 1200\n\n"
    b'id: 1\nevent: session.created\ndata: {"id":1}\n\n'
    b": ping\n\n"
    b'event: text.delta\ndata: {"run":1,"step":1,"at":0,"text":"\xe5\x90\x88 \xf0\x9f\x8e\x88"}\n\n'
    b"id: 3\n\n"
    b'id:4\nevent:message\ndata:{"id":4,\ndata: "x":"\\u2028"}\nunknown: 1\nlonely\n\n'
    b'id: 5\nevent: cut off\ndata: {"id":5}\n'
)
FRAMES = [
    Received(1, "session.created", {"id": 1}, '{"id":1}'),
    Received(
        None, "text.delta", {"run": 1, "step": 1, "at": 0, "text": "合 🎈"}, '{"run":1,"step":1,"at":0,"text":"合 🎈"}'
    ),
    Received(3, "", {}),
    Received(4, "message", {"id": 4, "x": "\u2028"}, '{"id":4,\n"x":"\\u2028"}'),
]


def parsed(pieces: Iterable[bytes]) -> tuple[list[Received], int | None]:
    """All frames of a stream that came in these pieces, and its `retry`."""
    parser = FrameParser()
    return [frame for piece in pieces for frame in parser.feed(piece)], parser.retry_ms


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("start", [b"", frames.BOM])
def test_a_stream_means_the_same_wherever_it_is_cut_and_however_its_lines_end(start: bytes, end: bytes) -> None:
    stream = start + STREAM.replace(b"\n", end)
    assert parsed([stream]) == (FRAMES, 1200)
    assert parsed(bytes([byte]) for byte in stream) == (FRAMES, 1200)
    for at in range(len(stream) + 1):
        assert parsed([stream[:at], stream[at:]]) == (FRAMES, 1200), at
        assert parsed([stream[:at], b"", stream[at:]]) == (FRAMES, 1200), at


@given(st.lists(st.integers(0, 2 * len(STREAM)), max_size=12), st.randoms(use_true_random=False))
@pytest.mark.spec("11.3")
def test_a_stream_with_mixed_line_ends_in_any_pieces_gives_its_frames(cuts: list[int], dice: Any) -> None:
    mixed = b"".join(line + dice.choice((b"\n", b"\r\n")) for line in STREAM.split(b"\n")[:-1])
    places = sorted({0, *cuts, 2 * len(STREAM)})
    assert parsed(mixed[a:b] for a, b in itertools.pairwise(places)) == (FRAMES, 1200)


@pytest.mark.spec("11.3")
def test_a_huge_frame_in_small_pieces_is_read_and_one_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "x" * 3_000_000
    stream = f'id: 1\nevent: message\ndata: {{"text":"{text}"}}\n\n'.encode()
    (frame,), _ = parsed(stream[at : at + 1000] for at in range(0, len(stream), 1000))
    assert frame.data == {"text": text}
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100_000)
    with pytest.raises(Malformed, match="100000 bytes"):
        parsed(stream[at : at + 1000] for at in range(0, len(stream), 1000))


@pytest.mark.spec("11.3")
@pytest.mark.parametrize(
    "wrong",
    [
        b"id: x\n\n",
        b"id: -1\n\n",
        b"id: \xc2\xb2\n\n",
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"data: \xff\n\n",
        b"id: 1\x00\n\n",
    ],
)
def test_what_is_no_stream_of_this_service_is_refused_and_not_guessed_at(wrong: bytes) -> None:
    with pytest.raises(Malformed):
        parsed([wrong])


def event(number: int, kind: str = "message", **fields: Any) -> Received:
    """A durable event."""
    return Received(number, kind, {"id": number, "data": {}, **fields})


def told(kind: str, **data: Any) -> Received:
    """A transient event."""
    return Received(None, kind, data)


@pytest.mark.spec("11.3")
def test_a_missing_event_is_noticed_and_one_that_came_before_is_not_shown_twice() -> None:
    place = Place("/v1/sessions/ses_1/events", 2)
    assert place.take(event(3))
    assert not place.take(event(3))
    assert not place.take(event(1))
    with pytest.raises(Gap, match="event 5 comes after 4, but the last one here is 3"):
        place.take(event(5))
    assert place.cursor == 3
    assert place.take(event(4))


@pytest.mark.spec("11.3")
def test_a_filtered_stream_has_no_gap_where_prev_and_empty_frames_say_so() -> None:
    place = Place("/v1/sessions/ses_1/events", 0)
    assert place.take(event(3, prev=0))
    assert place.take(event(7, prev=3))
    assert place.take(Received(12, "", {}))
    assert place.take(event(13, prev=12))
    with pytest.raises(Gap):
        place.take(event(20, prev=15))
    assert place.cursor == 13


@pytest.mark.spec("11.3")
def test_after_a_reset_the_count_begins_anew() -> None:
    place = Place("/v1/sessions/ses_1/events", 90)
    assert place.take(told("stream.reset", head=2))
    assert [place.take(event(1)), place.take(event(2))] == [True, True]
    assert place.cursor == 2


@pytest.mark.spec("11.3")
@pytest.mark.parametrize(
    ("path", "last", "ended"),
    [
        ("/v1/runs/run_1/events", event(9, "run.failed", run_id="run_1", prev=0), True),
        ("/v1/runs/run_1/events", event(9, "run.failed", run_id="run_2", prev=0), False),
        ("/v1/runs/run_1/events", event(9, "session.idle", prev=0), False),
        ("/v1/delegations/ho_1/events", event(9, "handoff.end", data={"handoff_id": "ho_1"}, prev=0), True),
        ("/v1/delegations/ho_1/events", event(9, "handoff.end", data={"handoff_id": "ho_2"}, prev=0), False),
        ("/v1/sessions/ses_1/events", event(9, "session.idle", prev=0), False),  # another turn may have begun since
        ("/v1/sessions/ses_1/events", event(9, "session.closed", prev=0), True),
    ],
)
def test_only_the_event_that_ends_the_view_ends_it(path: str, last: Received, ended: bool) -> None:
    place = Place(path, 0)
    place.take(last)
    assert place.ended is ended


def delta(at: int, text: str, **more: Any) -> Received:
    """A piece of what run 1 says in step 1."""
    return told("text.delta", **{"run": 1, "step": 1, "at": at, "text": text, **more})


@pytest.mark.spec("11.1")
def test_texts_are_whole_from_deltas_snapshots_and_withdrawn_steps() -> None:
    texts = Texts()
    texts.feed(delta(0, "🎈a"))
    texts.feed(delta(2, "b"))
    assert texts.text(1, 1) == "🎈ab"
    texts.feed(delta(1, "abc"))  # shown before, but for its end
    assert texts.text(1, 1) == "🎈abc"
    texts.feed(delta(9, "later"))
    assert texts.text(1, 1) is None
    texts.feed(told("text.snapshot", run=1, step=1, of="text.delta", at=6, text="🎈abcde"))
    texts.feed(delta(6, "f"))
    assert texts.text(1, 1) == "🎈abcdef"
    texts.feed(event(4, "step.retried", run=1, step=1))
    assert texts.text(1, 1) is None
    texts.feed(delta(0, "again"))
    texts.feed(told("text.delta", run=2, step=1, at=0, text="other"))
    assert (texts.text(1, 1), texts.text(2, 1)) == ("again", "other")
    texts.feed(event(5, "step.started", run=1, step=2))
    assert (texts.text(1, 1), texts.text(2, 1)) == (None, "other")
    texts.feed(told("stream.reset", head=1))
    assert texts.text(2, 1) is None


@pytest.mark.spec("11.1")
def test_a_message_gives_the_whole_text_whichever_pieces_came() -> None:
    texts = Texts()
    texts.feed(delta(3, "end"))
    said = {"role": "assistant", "content": "An end", "reasoning": "hm"}
    texts.feed(event(2, "message", run=1, step=1, data=said))
    texts.feed(event(3, "message", run=1, data={"role": "user", "content": "no"}))
    assert (texts.text(1, 1), texts.text(1, 1, "reasoning.delta")) == ("An end", "hm")


@pytest.mark.spec("11.1")
def test_texts_of_calls_and_kinds_are_kept_apart() -> None:
    texts = Texts()
    for kind in sorted(frames.DELTA_TYPES):
        texts.feed(told(kind, run=1, step=1, at=0, text=kind))
    texts.feed(told("tool.progress", run=1, step=1, at=0, text="b", call="call_b"))
    assert [texts.text(1, 1, kind) for kind in sorted(frames.DELTA_TYPES)] == sorted(frames.DELTA_TYPES)
    assert texts.text(1, 1, "tool.progress", "call_b") == "b"


@pytest.mark.spec("11.3", "12.5")
@pytest.mark.parametrize("told", [{"head": 45, "oldest": 35}, {"head": 45, "oldest": 1}, {"head": 45}])
@pytest.mark.parametrize("filtered", [False, True])
def test_after_a_reset_the_first_event_that_is_kept_is_the_next(told: dict[str, int], filtered: bool) -> None:
    oldest = told.get("oldest", 1)
    place = Place("/v1/sessions/ses_1/events", 70)
    assert place.take(Received(None, "stream.reset", told))
    assert place.cursor == oldest - 1
    first = oldest + 3 if filtered else oldest
    data = {"id": first, "prev": oldest - 1} if filtered else {"id": first}
    with pytest.raises(Gap):
        place.take(Received(first + 1, "message", {**data, "id": first + 1, "prev": first}))
    assert place.take(Received(first, "message", data))
