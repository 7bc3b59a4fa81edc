"""A log line holds no secret, is one line, and is JSON where that was asked for."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from app.masking import ValueMasker
from app.telemetry.logs import _Masking, mask_with, setup

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    _Masking.masker = None


def written(json_lines: bool) -> io.StringIO:
    stream = io.StringIO()
    setup(json_lines=json_lines, stream=stream)
    mask_with(ValueMasker([SECRET]))
    return stream


@pytest.mark.spec("12.6")
@pytest.mark.case("B137")
@pytest.mark.parametrize("json_lines", [False, True])
def test_secrets_are_masked_in_messages_arguments_and_tracebacks(json_lines: bool) -> None:
    stream = written(json_lines)
    log = logging.getLogger("app.somewhere")
    log.warning("asked with %s", SECRET)
    try:
        raise RuntimeError(f"refused: {SECRET}")
    except RuntimeError:
        log.exception("it failed")
    text = stream.getvalue()
    assert SECRET not in text
    assert text.count("[masked]") == 2
    assert "RuntimeError" in text


def test_a_message_cannot_forge_a_line() -> None:
    stream = written(json_lines=False)
    logging.getLogger("app.x").warning("agent %s", "x\n2026-01-01 INFO app: all is well\r\n")
    assert stream.getvalue().count("\n") == 1


def test_json_lines_are_json_whatever_they_hold() -> None:
    stream = written(json_lines=True)
    logging.getLogger("app.x").warning("odd \ud800 %s", b"\xff")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"]) == ("warning", "app.x")
    assert record["ts"].endswith("Z")


def test_the_server_writes_through_the_same_handler() -> None:
    stream = written(json_lines=True)
    logging.getLogger("uvicorn.error").info("Started")
    assert json.loads(stream.getvalue())["message"] == "Started"
