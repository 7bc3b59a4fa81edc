"""`subagentd audit`: a service and its database say the same, and the exit code says whether the log is sound."""

import asyncio
import contextlib
import csv
import io
import json
import os
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.agent.events import Write
from app.cli import main
from app.cli.audit import time_of
from app.cli.audit_lines import lines_of
from app.sessions.exporting import MESSAGES
from app.sessions.verifying import UNSEALED
from app.store.database import Database
from app.store.migrate import upgrade
from tests.commands import Ended
from tests.commands import run as run_process
from tests.flows.test_audit import PLAY, SEALED, done
from tests.net.listening import listening
from tests.postgres import postgres_server, postgres_url  # noqa: F401  fixtures
from tests.service import script, serving
from tests.store.facts import Facts, replaced

FILTERS = ("run", "agent", "decision", "role", "tool", "text", "since", "until", "tenant")


async def run(*arguments: str, env: Mapping[str, str] | None = None) -> Ended:
    """The command in a thread of this process."""
    runner = CliRunner(env={**{name: None for name in os.environ if name.startswith("SUBAGENTD_")}, **(env or {})})
    async with asyncio.timeout(60):
        done = await asyncio.to_thread(runner.invoke, main, ["audit", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ended(done.exit_code, done.stdout, done.stderr)


def spoil(database: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(database, timeout=10)) as connection, connection:
        assert connection.execute(statement).rowcount


@pytest.mark.spec("16.4", "16.6", "12.5", "12.4", "11.7")
async def test_service_and_database_say_the_same_and_the_exit_code_says_whether_the_log_is_sound(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env={**script(tmp_path, PLAY), **SEALED}) as service, service.client() as client:
        session, other = await done(client), await done(client)
        there, here = ("--url", service.url), ("--db", str(service.database))
        for place in (there, here):
            shown = await run("show", session, *place)
            assert shown.code == 0, shown.err
            assert "[sub] glob" in shown.out
            assert "[子代理] looker" in shown.out
            assert "user: Go." in shown.out
            assert shown.out.splitlines()[-1].endswith("boss  assistant: =HYPERLINK(1)")
        assert (await run("show", session, *there, "--json")).out == (await run("show", session, *here, "--json")).out
        narrowed = await run("show", "--tool", "glob", "--since", "1h", "--limit", "1", *here, "--json")
        assert [(line["tool"], line["session_id"]) for line in narrowed.lines] == [("glob", other)]
        assert (await run("show", "--until", "1h", *here)).out == ""

        for form in ("ndjson", "csv"):
            written = [await run("export", "--format", form, *place) for place in (there, here)]
            assert written[0].code == 0, written[0].err
            assert written[0].out == written[1].out
            file = tmp_path / f"all.{form}"
            ended = await run("export", session, "--format", form, "-o", str(file), "--json", *there)
            (told,) = ended.lines
            assert told == {"file": str(file), "format": form, "size_bytes": file.stat().st_size}
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_bytes().decode(), newline="")))
        assert {row["session_id"] for row in rows} == {session}
        assert [line["id"] for line in map(json.loads, (tmp_path / "all.ndjson").read_text().splitlines())] == [
            row["id"] for row in rows
        ]

        for place in (there, here):
            good = await run("verify", session, *place, env=SEALED)
            assert (good.code, good.out.split()[:2]) == (0, ["ok", session]), good.err
            assert "sealed with audit.key" in good.out
        assert "damage, not forgery" in (await run("verify", session, *here)).out
        assert (await run("verify", "--all", "--rows", *here)).code == 0
        spoil(service.database, f"UPDATE messages SET content = 'x' WHERE session_id = '{session}'")
        told = await run("verify", session, "--rows", *here)
        assert (told.code, "its row in messages differs: content" in told.out) == (1, True), told.out
        spoil(service.database, f"DELETE FROM events WHERE session_id = '{other}' AND seq = 6")
        for place in (there, here):
            bad = await run("verify", other, *place)
            assert (bad.code, "event 6 is missing" in bad.out) == (1, True), bad.out
            everything = await run("verify", "--all", "--json", *place, env=SEALED)
            assert everything.code == 1
            *reports, sums = everything.lines
            assert {report["session_id"]: report["ok"] for report in reports} == {session: True, other: False}
            assert (sums["sessions"], sums["bad"], sums["ok"], sums["keyed"]) == (2, 1, False, True)
        kept = tmp_path / "all.csv"
        before = kept.read_bytes()
        for place, whose in ((here, " of tenant 'default'"), (there, "")):
            assert (await run("verify", "ses_nobody", *place)).code == 2
            for named, what in (
                (("ses_nobody",), "session 'ses_nobody'"),
                (("--run", "run_nobody"), "run 'run_nobody'"),
            ):
                for more in (("show",), ("show", "--decision", "any"), ("export",), ("export", "--format", "csv")):
                    ended = await run(*more, *named, *place)
                    assert (ended.code, ended.out) == (2, ""), (more, ended.err)
                    assert f"there is no {what}{whose}" in ended.err
                for file in (kept, tmp_path / "none.csv"):
                    ended = await run("export", *named, "--format", "csv", "-o", str(file), *place)
                    assert (ended.code, ended.out) == (2, ""), ended.err
        assert kept.read_bytes() == before
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("none") or path.suffix == ".part"]
        foreign = await run("show", session, "--tenant", "other", *here)
        assert (foreign.code, f"there is no session {session!r} of tenant 'other'" in foreign.err) == (2, True)
    gone = await run("verify", session, *there)
    assert gone.code == 3
    assert "--db" in gone.err
    assert (await run("verify", session, *here, env=SEALED)).code == 0, "nobody is needed for it"


@pytest.mark.postgres
@pytest.mark.spec("16.4", "12.1")
async def test_a_log_in_postgresql_is_shown_exported_and_verified_beside_the_service(
    tmp_path: Path,
    postgres_url: str,  # noqa: F811
) -> None:
    env = script(tmp_path, PLAY)
    async with serving(tmp_path, env=env, where=postgres_url) as service, service.client() as client:
        session = await done(client)
        for command in (("show",), ("export", "--format", "csv"), ("verify", "--all")):
            ended = await run(*command, "--db", postgres_url)
            assert (ended.code, session in ended.out or command == ("show",)) == (0, True), ended.err


def written(tmp_path: Path, *, upto: int = 0) -> tuple[Path, str]:
    """A database with one session of tenant `acme`, its front removed up to an event."""
    path = tmp_path / "own.db"
    upgrade(path)
    facts = Facts(tenant="acme")
    writer = Database(path).writer(replaced)
    writer.write([facts.created(), *facts.whole_run(facts.run())])
    asked = {"tenant_id": "acme", "session_id": facts.session.id, "upto": upto, "created_at": 1}
    writer.write([], [Write(table="checkpoints", values=asked, key=("session_id",))])
    writer.close()
    return path, facts.session.id


@pytest.mark.spec("12.5", "16.4", "17.1")
async def test_all_sessions_of_a_tenant_that_is_not_there_are_no_sound_sessions(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    for tenant, code, says in (("acme", 0, "1 sessions"), ("acmee", 2, "no tenant 'acmee'"), ("default", 0, "0 ses")):
        ended = await run("verify", "--all", "--tenant", tenant, "--db", str(path))
        assert (ended.code, says in ended.out + ended.err) == (code, True), (tenant, ended)
    spoil(path, "UPDATE messages SET tenant_id = 'acmee'")
    ended = await run("verify", "--all", "--rows", "--tenant", "acmee", "--db", str(path))
    assert (ended.code, "tenant 'acmee' has no such session" in ended.out) == (1, True), ended


@pytest.mark.spec("12.5", "16.4")
async def test_what_stands_in_a_database_does_nothing_to_the_terminal_and_forges_no_line(tmp_path: Path) -> None:
    path, session = written(tmp_path)
    spoil(path, "UPDATE events SET session_id = 'ses_x' || char(10) || 'ok   ses_y' || char(27) || '[8m'")
    ended = await run("verify", "--all", "--db", str(path))
    missing, added, *_ = ended.out.splitlines()
    assert (ended.code, missing.split()[:2], added.split("  ")[:2]) == (
        1, ["BAD", session], ["BAD", "ses_x ok ses_y\ufffd[8m"],
    ), ended.out  # fmt: skip


@pytest.mark.spec("12.5", "16.4")
async def test_without_a_key_it_is_said_what_is_not_known_of_events_that_were_removed(tmp_path: Path) -> None:
    for folder, upto, told in (("whole", 0, False), ("cut", 5, True)):
        (tmp_path / folder).mkdir()
        path, session = written(tmp_path / folder, upto=upto)
        for which in ("--all", session):
            ended = await run("verify", which, "--tenant", "acme", "--db", str(path))
            assert (ended.code, UNSEALED in ended.out) == (0, told), ended.out


@pytest.mark.spec("16.4")
async def test_a_name_that_is_no_text_is_wrong_usage(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    for arguments in (
        ("ses_\udcff", "--db", str(path)),
        ("ses_\udcff", "--url", "http://127.0.0.1:1"),
        ("--all", "--tenant", "\udcff", "--db", str(path)),
        ("--all", "--url", "http://127.0.0.1:1/\udcff"),
    ):
        ended = await run("verify", *arguments)
        assert (ended.code, "is no text in UTF-8" in ended.err) == (2, True), ended


@pytest.mark.spec("16.4", "16.6")
async def test_wrong_usage_and_what_is_no_database_of_ours_end_with_2_and_make_no_file(tmp_path: Path) -> None:
    (tmp_path / "other.db").touch()
    for arguments, says in (
        (("verify",), "--all"),
        (("verify", "ses_1", "--all"), "--all"),
        (("show", "--since", "yesterday"), "--since"),
        (("show", "--role", "boss"), "boss"),
        (("show", "--decision", "bogus"), "'bogus': there are any, allow, deny, allow_once,"),
        (("export", "--decision", "denied", "-o", str(tmp_path / "out")), "send_back"),
        *((("show", f"--{name}", ""), f"--{name} is empty") for name in FILTERS),
        (("export", ""), "SESSION is empty"),
        (("export", "--until", "20261201"), "2026-01-31T08:00:00Z"),
        (("export", "--since", "2026-12-01T00:00:00"), "2026-01-31T08:00:00Z"),
        (("show", "--url", "http://127.0.0.1:1", "--db", "x.db"), "--url"),
        (("verify", "--all", "--rows", "--url", "http://127.0.0.1:1"), "--rows"),
        (("verify", "--all", "--db", str(tmp_path / "missing.db")), "there is no database"),
        (("show", "--db", str(tmp_path / "missing.db")), "there is no database"),
        (("export", "--db", str(tmp_path / "other.db")), "db upgrade"),
        (("show", "--db", "mysql://x"), "not supported"),
    ):
        ended = await run(*arguments)
        assert (ended.code, says in ended.err) == (2, True), (arguments, ended.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.db"]
    assert (tmp_path / "other.db").read_bytes() == b""


async def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    upgrade(tmp_path / "own.db")
    written = await run_process("audit", "export", "--format", "csv", "--db", "own.db", folder=tmp_path)
    assert (written.code, written.out) == (0, ",".join(MESSAGES.columns) + "\r\n"), written.err
    ended = await run_process("audit", "export", "--db", "own.db", "-o", "nowhere/x.csv", folder=tmp_path)
    assert ended.code == 2
    assert "nowhere/x.csv" in ended.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.spec("16.4", "16.6", "12.4")
async def test_a_full_standard_output_is_said_like_a_full_file(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        await done(client)
        for command in (
            ("show", "--db", str(service.database)),
            ("export", "--db", str(service.database)),
            ("export", "--format", "csv", "--url", service.url),
        ):
            with open("/dev/full", "wb") as full:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "app", "audit", *command, stdout=full, stderr=subprocess.PIPE
                )
                async with asyncio.timeout(60):
                    _, said = await process.communicate()
            expected = "standard output cannot be written: No space left on device\n"
            assert (process.returncode, said.decode()) == (2, expected), command


@pytest.mark.spec("16.4", "16.6", "12.4")
@pytest.mark.parametrize("abort", [False, True], ids=["closed", "reset"])
async def test_an_export_that_is_cut_off_says_so_and_leaves_no_file(tmp_path: Path, abort: bool) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n")
        await writer.drain()
        if abort:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async with listening(cut) as port:
        url = f"http://127.0.0.1:{port}"
        for output in ((), ("-o", str(tmp_path / "all.ndjson"))):
            ended = await run("export", "--url", url, *output)
            assert ended.code == 3
            assert f"the answer of {url} was cut off after" in ended.err
            assert "subagentd serve" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("16.4", "16.6")
async def test_a_file_that_is_broken_ends_with_a_sentence_and_never_with_0(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    upgrade(path)
    whole = path.read_bytes()
    path.write_bytes(b"no database at all" * 400)
    ended = await run("verify", "--all", "--db", str(path))
    assert (ended.code, "not a database" in ended.err) == (3, True), ended.err
    path.write_bytes(whole[: len(whole) // 8])
    ended = await run("verify", "--all", "--db", str(path))
    assert (ended.code != 0, ended.err.count("\n")) == (True, 1), ended.err


def message(**fields: Any) -> dict[str, Any]:
    told = {"ts": "T", "agent": "lead", "name": None, "depth": 0, "role": "assistant", "content": "", "tool": None}
    return {**told, "tool_calls": None, "is_error": None, **fields}


@pytest.mark.spec("11.7", "16.4")
def test_depth_and_name_make_the_labels_and_nothing_reaches_the_terminal_but_text() -> None:
    call = {"name": "grep", "arguments": '{"pattern": "x"}'}
    child = {"depth": 2, "agent": "scout", "name": "Finder"}
    assert list(lines_of(message(content="Hi.", tool_calls=[call]))) == [
        "T  lead  assistant: Hi.",
        'T  lead  grep {"pattern": "x"}',
    ]
    assert list(lines_of(message(tool_calls=[call], **child))) == [
        'T  [子代理] scout Finder  [sub] grep {"pattern": "x"}'
    ]
    told = message(role="tool", tool="grep", content="a\x1b[2J\nb", is_error=True, **child)
    assert list(lines_of(told)) == ["T  [子代理] scout Finder  [sub] grep ✗ a\ufffd[2J b"]
    (long,) = lines_of(message(content="x" * 10_000))
    assert len(long) < 200
    assert list(lines_of(message())) == ["T  lead  assistant: (nothing)"]


@pytest.mark.spec("8.3", "16.4")
def test_a_decision_is_one_line_that_says_what_was_decided_by_whom_and_why() -> None:
    nothing = dict.fromkeys(("name", "tool", "hook", "rule", "scope", "owner", "decided_by", "reason", "edited_digest"))
    told = {**nothing, "ts": "T", "agent": "scout", "depth": 1, "kind": "person", "decision": "allow_once"}
    answered = {**told, "tool": "run_command", "decided_by": "key_1", "edited_digest": "ab", "reason": "a\x1b[2J\nb"}
    assert list(lines_of(answered)) == [
        "T  [子代理] scout  [sub] run_command allow_once (person key_1, arguments edited): a\ufffd[2J b"
    ]
    assert list(lines_of({**told, "depth": 0, "kind": "hook", "hook": "guard"})) == [
        "T  scout  allow_once (hook guard)"
    ]


def test_a_time_is_rfc_3339_or_how_long_ago() -> None:
    assert time_of("2026-01-01T00:00:00Z") == time_of("2026-01-01") == 1_767_225_600_000_000
    assert time_of("2h") - time_of("3h") > 3_500_000_000
    for wrong in ("", "h", "-3h", "3x", "9999999d", "tomorrow"):
        with pytest.raises(ValueError, match=r"."):
            time_of(wrong)
