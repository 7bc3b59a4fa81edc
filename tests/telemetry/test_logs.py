"""A log line holds no secret, is one line, and is JSON where that was asked for."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from app.masking import ValueMasker
from app.masking.in_force import mask_with
from app.telemetry.logs import setup, take_strays

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    mask_with(ValueMasker())


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


@pytest.mark.spec("12.6")
@pytest.mark.parametrize("json_lines", [False, True])
def test_a_message_that_cannot_be_made_is_dropped_and_its_arguments_are_not_written(
    json_lines: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = written(json_lines)
    wrong = "two %s %s"
    logging.getLogger("app.x").warning(wrong, SECRET)
    text = stream.getvalue()
    assert "cannot be written: TypeError" in text
    assert "app.x" in text
    assert SECRET not in text + "".join(capfd.readouterr())


@pytest.mark.spec("12.6")
def test_what_nobody_catches_in_a_thread_or_a_finalizer_is_a_masked_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(module, name, getattr(module, name))  # given back afterwards
    stream = written(json_lines=True)
    take_strays()

    class Leaving:
        def __del__(self) -> None:
            raise RuntimeError(f"left {SECRET}")

    def fail() -> None:
        raise RuntimeError(f"ran {SECRET}")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(10)
    del (leaving := [Leaving()])[0]
    assert leaving == []
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["nobody caught RuntimeError"] * 2
    assert ["ran [masked]" in lines[0]["traceback"], "left [masked]" in lines[1]["traceback"]] == [True, True]
    assert SECRET not in stream.getvalue() + "".join(capfd.readouterr())
