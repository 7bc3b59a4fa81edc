"""Server-sent events from bytes: which payloads one network read completed.

Knows no JSON; payloads of events named `error` come wrapped as `{"error": …}`, so that nobody mistakes them.
"""

from app.agent.errors import ModelError

MAX_LINE_BYTES = 16 * 1024 * 1024  # far above any chunk; bounds the memory that one endless line can take


class EventPayloads:
    """Collects `data:` payloads over reads. Comments, ids and retry hints are dropped.

    A line is taken as an event at once, since some servers leave out the blank line between events; a JSON object
    that is spread over several lines is held until its blank line.
    """

    __slots__ = ("_held", "_name", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._name = b""
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete, in order. Raises `ModelError` for a line beyond all measure."""
        if self._rest:
            data = self._rest + data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            raise ModelError(f"the model endpoint sent a line of more than {MAX_LINE_BYTES} bytes", retryable=True)
        payloads: list[bytes] = []
        for line in lines:
            if line[:5] == b"data:":
                payload = line[5:].strip()
                if not self._held and not self._name and (payload[-1:] == b"}" or payload[:1] != b"{"):
                    if payload:
                        payloads.append(payload)
                else:
                    self._hold(payload, payloads)
            else:
                self._other(line.rstrip(b"\r"), payloads)
        return payloads

    def end(self) -> list[bytes]:
        """What was left without a line end or blank line when the stream ended."""
        return self.feed(b"\n\n")

    def _hold(self, payload: bytes, payloads: list[bytes]) -> None:
        self._held.append(payload)
        if payload == b"[DONE]" and len(self._held) == 1:
            self._flush(payloads)

    def _other(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            self._flush(payloads)
            self._name = b""
        elif line[:6] == b"event:":
            name = line[6:].strip()
            self._name = name if name == b"error" else b""

    def _flush(self, payloads: list[bytes]) -> None:
        if not self._held:
            return
        payload = b"\n".join(self._held)
        self._held.clear()
        if self._name and payload != b"[DONE]":
            payload = b'{"error":' + payload + b"}" if payload[:1] in b'{"' else _quoted(payload)
        payloads.append(payload)


def _quoted(payload: bytes) -> bytes:
    text = payload.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b" ")
    return b'{"error":"' + text + b'"}'
