"""Whoever starts a command wrongly is told what is wrong, with exit code 2 and without a traceback."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from app.settings import load, unknown_variables
from app.wiring import Refused, build


def result_of(*arguments: str) -> Result:
    """What a command says; a fault of our own is raised."""
    found = CliRunner().invoke(main, list(arguments))
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.mark.spec("16.3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[http", "subagentd.toml cannot be read"),
        (b"\xff\xfe", "subagentd.toml cannot be read"),
        (b"[restart]\nmode = 'continue'", "setting restart: there is no such setting"),
        (b"[recovery]\nmode = 'perhaps'", "setting recovery.mode"),
        (b"[recovery]\nmax_attempts = 0", "setting recovery.max_attempts"),
        (b"[http]\nbogus = 1", "setting http.bogus: there is no such setting"),
        (b"[limits]\nmax_steps = 0", "setting limits.max_steps"),
    ],
)
def test_a_wrong_settings_file_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "subagentd.toml").write_bytes(text)
    found = result_of("settings")
    assert found.exit_code == 2
    assert expected in found.output


@pytest.mark.spec("16.3")
@pytest.mark.parametrize(("name", "value"), [("SUBAGENTD_LIMITS", "x"), ("SUBAGENTD_HTTP__ORIGINS", '["x"')])
def test_a_variable_that_is_no_json_is_refused_by_its_field(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    found = result_of("settings")
    assert found.exit_code == 2
    assert name.removeprefix("SUBAGENTD_").partition("__")[0].lower() in found.output


@pytest.mark.spec("16.3")
def test_a_variable_that_is_no_setting_is_known_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SUBAGENTD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUBAGENTD_RESTART__MODE", "continue")
    monkeypatch.setenv("SUBAGENTD_LIMITS__MAX_STEPS", "9")
    monkeypatch.setenv("SUBAGENTD_WORKSPACE", ".")
    assert unknown_variables() == ["SUBAGENTD_RESTART__MODE"]


@pytest.mark.spec("16.3")
@pytest.mark.parametrize("command", [("db", "upgrade"), ("keys", "list"), ("keys", "create")])
def test_a_file_that_is_no_database_ends_every_command_with_the_reason(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    path = tmp_path / "notes.db"
    path.write_text("These are my notes, and no database at all. " * 50)
    found = result_of(*command, "--db", str(path))
    assert found.exit_code == 2
    assert "notes.db cannot be used: file is not a database" in found.output


@pytest.mark.spec("16.1")
async def test_the_service_does_not_start_on_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("These are my notes, and no database at all. " * 50)
    with pytest.raises(Refused, match="file is not a database"):
        await build(load(store={"url": str(path)}))


@pytest.mark.spec("16.3")
@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--tenant", "no name!", "is no name"),
        ("--scopes", "root", "unknown scope root"),
        ("--expires", "soon", "neither a length of time"),
        ("--expires", "2001-01-01", "already"),
        ("--expires", "0d", "already"),
    ],
)
def test_a_key_that_cannot_be_is_not_made(tmp_path: Path, option: str, value: str, expected: str) -> None:
    found = result_of("keys", "create", "--db", str(tmp_path / "x.db"), option, value)
    assert found.exit_code == 2
    assert expected in found.output
    assert result_of("keys", "list", "--json", "--db", str(tmp_path / "x.db")).output.strip() == "[]"
