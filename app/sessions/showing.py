"""Texts as they come, on their way to whoever looks: numbered by their offsets, masked, never stored."""

from typing import Any

from app.agent.events import Event, EventKind
from app.agent.payloads import TextDelta
from app.agent.ports import EventBus
from app.agent.runs import Run
from app.masking import ValueMasker
from app.sessions.streams import Offset, Stream
from app.sessions.waiting import Waiting
from app.wire import encode


class Showing:
    """Shows the texts of steps that are under way, each piece after everything that was recorded before it."""

    def __init__(self, waiting: Waiting, bus: EventBus, masker: ValueMasker) -> None:
        self._waiting = waiting
        self._bus = bus
        self._masker = masker

    def emit(
        self, stream: Stream, run: Run, kind: EventKind[TextDelta], step: int, text: str, call_id: str | None
    ) -> None:
        """Show a piece, but for what may be the beginning of a secret."""
        texts = stream.texts.get(run.id)
        if texts is None:
            texts = stream.texts[run.id] = {}
        key = (kind.name, call_id)
        offset = texts.get(key)
        if offset is None or offset.step != step:
            offset = texts[key] = Offset(step, self._masker.stream())
        if offset.mask is not None:
            text = offset.mask.feed(text)
        self._show(stream, run, key, offset, text)

    def flush(self, stream: Stream, run: Run) -> None:
        """Show what was held back as the possible beginning of a secret."""
        for key, offset in stream.texts.get(run.id, {}).items():
            if offset.mask is not None:
                self._show(stream, run, key, offset, offset.mask.flush())

    @staticmethod
    def break_off(stream: Stream) -> None:
        """The texts that are under way end here: what waits of them is dropped."""
        for texts in stream.texts.values():
            for offset in texts.values():
                offset.lost = True

    def _show(self, stream: Stream, run: Run, key: tuple[str, str | None], offset: Offset, text: str) -> None:
        if not text:
            return
        payload: dict[str, Any] = {"run": run.ordinal, "step": offset.step, "at": offset.at, "text": text}
        if key[1] is not None:
            payload["call"] = key[1]
        offset.at += len(text)
        if offset.lost or stream.session_id in self._waiting.damaged:
            offset.lost = True  # it is part of a message that is shown once it is stored
            return
        event = Event(
            seq=0,
            type=key[0],
            ts=0,
            tenant=stream.tenant,
            session_id=stream.session_id,
            run=run,
            step=offset.step,
            payload=payload,
            data=encode(payload),
        )
        if self._waiting.has(stream.session_id):
            self._waiting.add(event)
        else:  # nothing of its session is before it
            self._bus.publish(stream.session_id, (event,))
