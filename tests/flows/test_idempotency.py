"""`Idempotency-Key` over HTTP: what is sent again is answered again, after a crash too, and never carried out twice."""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.commands import key_for
from tests.flows.test_tenants import ROOT_KEY
from tests.longer import times
from tests.service import ROOT, WAIT_S, Service, agent, finished, script, serving

KILLS = times(2, 25)
CLIENTS = 50
PLAY = """
defaults: {chunks: 3, delay_ms: 2}
agents:
  - when: {system_contains: "You are slow"}
    turns: [{text: "abcdefghij", chunks: 10, delay_ms: 60000}]
  - turns: [{text: "Answer to {{ task }}.", repeat: true}]
"""
QUICK = {"agent": "quick", "agents": [agent("quick", mode="all", tools=[])]}
RUN = {**QUICK, "input": "Hi."}
DELEGATION = {"agent": agent("quick", tools=[]), "task": "Hi."}
SLOW = {"agent": agent("slow", tools=[]), "task": "Hi."}
SSE = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """What a POST was answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.text))

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"

    @property
    def durable(self) -> list[str]:
        """The durable events of a stream, as they were sent."""
        return [frame for frame in self.text.split("\n\n") if frame.startswith("id: ") and "\ndata: " in frame]


async def post(
    service: Service, path: str, body: Any, key: str | None, *, accept: str = "application/json", by: str | None = None
) -> Answer:
    """One POST; a stream is read to its end. `body` may be text that is sent as it is."""
    headers = {"Accept": accept, "Content-Type": "application/json"}
    headers |= {} if key is None else {"Idempotency-Key": key}
    headers |= {} if by is None else {"Authorization": f"Bearer {by}"}
    data = body if isinstance(body, str) else json.dumps(body)
    async with (
        asyncio.timeout(WAIT_S),
        aiohttp.ClientSession() as http,
        http.post(service.url + path, data=data, headers=headers) as answer,
    ):
        return Answer(answer.status, answer.headers.copy(), await answer.text())


async def events_of_delegation(service: Service, handoff: str) -> None:
    """Read the stream of a delegation to its end."""
    url = f"{service.url}/v1/delegations/{handoff}/events"
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status in (200, 204)
        await answer.read()


def count(service: Service, table: str) -> int:
    """How many rows of a table the database has."""
    with closing(sqlite3.connect(service.database)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    async with serving(folder, env={**script(folder, PLAY), "SUBAGENTD_HTTP__GRACE_S": "0.1"}) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


# ── the same request again ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1")
async def test_a_session_is_made_once_and_shown_as_it_was_made(service: Service) -> None:
    body = {**QUICK, "title": "Letters", "metadata": {"a": 1.5}, "policy": {"max_depth": 1}, "texts": "zh"}
    first = await post(service, "/v1/sessions", body, "made once")
    path = f"/v1/sessions/{first.json['id']}"
    async with service.client() as client:
        await client.request("PATCH", path, {"title": "Changed", "metadata": {}})
    again = await post(service, "/v1/sessions", body, "made once")
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert again.text == first.text
    assert again.headers["Location"] == first.headers["Location"] == path


@pytest.mark.spec("14.7", "14.3")
async def test_a_run_is_started_once_also_as_a_turn(service: Service) -> None:
    session = (await post(service, "/v1/sessions", QUICK, None)).json["id"]
    for path, body in (("/v1/runs", RUN), (f"/v1/sessions/{session}/runs", {"input": "Hi."})):
        key = f"started once {path}"
        first = await post(service, path, body, key)
        async with service.client() as client:
            await finished(client, first.json["id"])
        again = await post(service, path, body, key)
        assert (first.status, first.replayed, again.status, again.replayed) == (202, False, 202, True)
        assert again.text == first.text
        assert first.json["status"] == "queued"
        assert again.headers["Location"] == first.headers["Location"] == f"/v1/runs/{first.json['id']}"
    other = await post(service, f"/v1/sessions/{session}/runs", {"input": "Hi."}, "another key")
    assert (other.replayed, other.json["run"]) == (False, 2)


@pytest.mark.spec("14.7", "14.3")
async def test_a_key_does_not_change_the_answer(service: Service) -> None:
    session = (await post(service, "/v1/sessions", QUICK, None)).json["id"]
    for path, body in (("/v1/runs", RUN), (f"/v1/sessions/{session}/runs", {"input": "Hi."})):
        plain = (await post(service, path, body, None)).json
        async with service.client() as client:
            await finished(client, plain["id"])
        keyed = (await post(service, path, body, f"no change {path}")).json
        same = ["depth", "agent", "status", *(["run", "turn", "after"] if path == "/v1/runs" else [])]
        assert list(keyed) == list(plain)
        assert {name: keyed[name] for name in same} == {name: plain[name] for name in same}


@pytest.mark.spec("14.9")
async def test_a_delegation_is_carried_out_once_and_its_result_given_again(service: Service) -> None:
    first = await post(service, "/v1/delegations", DELEGATION, "delegated once")
    again = await post(service, "/v1/delegations", DELEGATION, "delegated once")
    assert (first.status, first.replayed, again.status, again.replayed) == (200, False, 200, True)
    assert again.text == first.text
    assert again.headers["Location"] == first.headers["Location"]


@pytest.mark.spec("14.9", "9.4")
async def test_a_delegation_that_resumes_a_task_is_shown_from_the_same_event_again(service: Service) -> None:
    task = (await post(service, "/v1/delegations", DELEGATION, None)).json
    body = {"resume": task["handoff_id"], "task": "And now?", "background": True}
    first = await post(service, "/v1/delegations", body, "resumed once")
    again = await post(service, "/v1/delegations", body, "resumed once")
    assert (first.status, first.replayed, again.status, again.replayed) == (202, False, 202, True)
    assert again.json["task_id"] == first.json["task_id"]
    assert again.json["after"] == first.json["after"] > 0


@pytest.mark.spec("14.9", "4.1")
async def test_a_denied_delegation_is_denied_again_and_not_asked_for_again(service: Service) -> None:
    body = {**DELEGATION, "policy": {"max_depth": 0}}
    first = await post(service, "/v1/delegations", body, "denied once")
    for accept in ("application/json", SSE):
        again = await post(service, "/v1/delegations", body, "denied once", accept=accept)
        assert (first.status, again.status, again.json) == (403, 403, first.json)


@pytest.mark.spec("14.7", "14.3", "14.9", "11.4")
async def test_the_form_of_an_answer_is_that_which_is_asked_for_now(service: Service) -> None:
    session = (await post(service, "/v1/sessions", QUICK, None)).json["id"]
    turn = f"/v1/sessions/{session}/runs"
    inside = {**DELEGATION, "session_id": session}
    asked_for = [("/v1/runs", RUN), (turn, {"input": "Hi."}), *(("/v1/delegations", d) for d in (DELEGATION, inside))]
    for number, (path, body) in enumerate(asked_for):
        streamed = await post(service, path, body, f"stream first {number}", accept=SSE)
        assert streamed.durable, streamed
        shown = await post(service, path, body, f"stream first {number}")
        replay = await post(service, path, body, f"stream first {number}", accept=SSE)
        assert (streamed.replayed, shown.replayed, replay.replayed) == (False, True, True)
        assert shown.headers["Location"] == streamed.headers["Location"]
        assert (replay.durable, replay.headers["Content-Type"]) == (streamed.durable, streamed.headers["Content-Type"])
        asked = await post(service, path, body, f"stream last {number}")
        late = await post(service, path, body, f"stream last {number}", accept=SSE)
        assert late.headers["Location"] == asked.headers["Location"]
        ends = [(kind_of(answer.durable[0]), kind_of(answer.durable[-1])) for answer in (late, streamed)]
        assert ends[0] == ends[1]


def kind_of(frame: str) -> str:
    return frame.split("\nevent: ")[1].split("\n", maxsplit=1)[0]


# ── another request ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.7", "14.1")
async def test_another_body_or_route_is_refused_and_starts_nothing(service: Service) -> None:
    assert (await post(service, "/v1/runs", RUN, "taken")).status == 202
    before = count(service, "runs"), count(service, "sessions")
    for path, body, said in (
        ("/v1/runs", {**RUN, "input": "Ho."}, "another body"),
        ("/v1/sessions", QUICK, "POST /v1/runs"),
        ("/v1/delegations", DELEGATION, "POST /v1/runs"),
    ):
        for accept in ("application/json", SSE):
            refused = await post(service, path, body, "taken", accept=accept)
            assert (refused.status, refused.json["code"]) == (422, "idempotency_key_reused")
            assert said in refused.json["detail"]
            assert refused.json["errors"][0]["at"] == "Idempotency-Key"
    assert (count(service, "runs"), count(service, "sessions")) == before


@pytest.mark.spec("14.7")
async def test_white_space_and_the_order_of_keys_make_no_other_body(service: Service) -> None:
    first = await post(service, "/v1/runs", {"input": "x", "metadata": {"a": 1, "b": [1, 2]}, **QUICK}, "same body")
    turned = json.dumps({**QUICK, "metadata": {"b": [1, 2], "a": 1}, "input": "x"}, indent=3)
    again = await post(service, "/v1/runs", turned, "same body")
    assert (again.replayed, again.text) == (True, first.text)
    other = {"input": "x", "metadata": {"a": 1, "b": [2, 1]}, **QUICK}
    assert (await post(service, "/v1/runs", other, "same body")).status == 422


@pytest.mark.spec("14.7")
@pytest.mark.parametrize("key", ["", "x" * 256, "schl\u00fcssel", "tab\tin it"], ids=["empty", "long", "umlaut", "tab"])
async def test_what_is_no_key_is_refused(service: Service, key: str) -> None:
    answer = await post(service, "/v1/runs", RUN, key)
    assert (answer.status, answer.json["code"]) == (422, "invalid_idempotency_key")
    assert "1 to 255 printable ASCII characters" in answer.json["detail"]


@pytest.mark.spec("14.7")
async def test_two_keys_are_refused(service: Service) -> None:
    headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]
    async with aiohttp.ClientSession() as http, http.post(f"{service.url}/v1/runs", json=RUN, headers=headers) as got:
        assert (got.status, (await got.json())["errors"][0]["at"]) == (422, "Idempotency-Key")


@pytest.mark.spec("14.7", "14.1", "14.3", "14.9")
async def test_a_request_that_was_refused_leaves_its_key_free(service: Service) -> None:
    nobody = "/v1/sessions/ses_nobody/runs"
    deep = '{"input": "x", "metadata": ' + '{"a":' * 800 + "1" + "}" * 801
    for path, body, status in (
        ("/v1/runs", {"input": "x", "agent": "nobody"}, 422),
        ("/v1/runs", {"input": 7}, 422),
        ("/v1/runs", "{", 400),
        ("/v1/runs", "", 422),
        ("/v1/runs", deep, 422),
        ("/v1/runs", "[" * 100_000, 400),
        ("/v1/sessions", {"agent": "nobody"}, 422),
        ("/v1/delegations", {"agent": "nobody", "task": "x"}, 422),
        (nobody, {"input": "x"}, 404),
    ):
        refused = await post(service, path, body, "refused")
        assert refused.status == status, refused
    assert (await post(service, "/v1/runs", RUN, "refused", accept="image/png")).status == 406
    used = await post(service, "/v1/runs", RUN, "refused")
    assert (used.status, used.replayed) == (202, False)


# ── the first request is not answered ───────────────────────────────────────────────────────────────────────────


async def under_way(service: Service, key: str) -> tuple[asyncio.Task[Answer], Answer]:
    """A delegation that goes on, and how the same request is answered meanwhile."""
    before = count(service, "handoffs")
    first = asyncio.create_task(post(service, "/v1/delegations", SLOW, key))
    async with asyncio.timeout(WAIT_S), service.client() as client:
        while count(service, "handoffs") == before:
            await client.request("GET", "/healthz")
        while True:
            answer = await post(service, "/v1/delegations", SLOW, key)
            if "handoff_id" in answer.json:
                return first, answer


@pytest.mark.spec("14.9", "11.4")
async def test_a_delegation_that_goes_on_is_in_use_or_a_stream_and_then_its_result(service: Service) -> None:
    first, early = await under_way(service, "goes on")
    assert (early.status, early.json["code"]) == (409, "idempotency_key_in_use")
    assert int(early.headers["Retry-After"]) >= 1
    assert (await post(service, "/v1/delegations", DELEGATION, "goes on")).status == 422
    stream = asyncio.create_task(post(service, "/v1/delegations", SLOW, "goes on", accept=SSE))
    async with service.client() as client:
        view = await client.request("GET", f"/v1/delegations/{early.json['handoff_id']}")
        await client.request("POST", f"/v1/sessions/{view['session_id']}/cancel")
    frames = (await stream).durable
    assert (kind_of(frames[0]), kind_of(frames[-1])) == ("handoff.start", "handoff.end")
    again = await post(service, "/v1/delegations", SLOW, "goes on")
    assert (again.status, again.replayed, again.text) == (200, True, (await first).text)
    assert again.json["status"] == "cancelled"


@pytest.mark.spec("14.9")
async def test_a_client_that_goes_away_finds_its_delegation_by_the_key(service: Service) -> None:
    before = count(service, "handoffs")
    gone, early = await under_way(service, "gone")
    gone.cancel()
    await asyncio.wait([gone])
    async with service.client() as client:
        view = await client.request("GET", f"/v1/delegations/{early.json['handoff_id']}")
        assert view["ended_at"] is None
        await client.request("POST", f"/v1/sessions/{view['session_id']}/cancel")
    ended = await post(service, "/v1/delegations", SLOW, "gone", accept=SSE)
    assert kind_of(ended.durable[-1]) == "handoff.end"
    again = await post(service, "/v1/delegations", SLOW, "gone")
    assert (again.json["handoff_id"], again.json["status"]) == (early.json["handoff_id"], "cancelled")
    assert count(service, "handoffs") == before + 1


@pytest.mark.spec("14.7")
async def test_of_many_at_the_same_time_one_is_carried_out(service: Service) -> None:
    before = count(service, "runs")
    answers = await asyncio.gather(*(post(service, "/v1/runs", RUN, "many") for _ in range(CLIENTS)))
    assert {answer.status for answer in answers} <= {202, 409}
    assert len({answer.text for answer in answers if answer.status == 202}) == 1
    assert sum(answer.status == 202 and not answer.replayed for answer in answers) == 1
    assert all(answer.json["code"] == "idempotency_key_in_use" for answer in answers if answer.status == 409)
    assert count(service, "runs") == before + 1
    late = await asyncio.gather(*(post(service, "/v1/runs", RUN, "many") for _ in range(CLIENTS)))
    assert {(answer.status, answer.replayed) for answer in late} == {(202, True)}


# ── what keys are kept by, and for how long ─────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1", "14.7", "14.9", "14.2")
async def test_what_a_key_made_is_gone_when_it_was_deleted_and_not_made_again(service: Service) -> None:
    for path, body in (("/v1/sessions", QUICK), ("/v1/runs", RUN), ("/v1/delegations", DELEGATION)):
        first = await post(service, path, body, f"deleted {path}")
        session = first.json.get("session_id", first.json["id"] if path == "/v1/sessions" else None)
        async with service.client() as client:
            await client.request("DELETE", f"/v1/sessions/{session}")
        for accept in ("application/json", SSE):
            again = await post(service, path, body, f"deleted {path}", accept=accept)
            if (path, accept) == ("/v1/sessions", SSE):
                continue  # this route has one form
            assert (again.status, again.json["code"]) == (404, "not_found")


@pytest.mark.spec("12.6")
async def test_neither_the_key_nor_the_body_is_kept(service: Service) -> None:
    await post(service, "/v1/sessions", {**QUICK, "title": "words-of-the-body"}, "words-of-the-key")
    with closing(sqlite3.connect(service.database)) as db:
        rows = repr(db.execute("SELECT * FROM idempotency_keys").fetchall())
    assert "words-of" not in rows


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.spec("14.7", "16.5")
async def test_a_key_stands_for_its_request_as_long_as_the_setting_says(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_HTTP__IDEMPOTENCY_H": "0.000000001"}
    async with serving(tmp_path, env=env) as service:
        first = await post(service, "/v1/runs", RUN, "short")
        second = await post(service, "/v1/runs", {**RUN, "input": "Ho."}, "short")
        assert (second.status, second.replayed) == (202, False)
        assert first.json["id"] != second.json["id"]
        assert count(service, "runs") == 2


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.spec("17.1", "14.7")
async def test_the_keys_of_two_tenants_do_not_meet(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service:
        one, two = (
            await key_for(service, "one", "run", "read"),
            await key_for(service, "two", "run", "read"),
        )
        first = await post(service, "/v1/runs", RUN, "shared", by=one)
        other = await post(service, "/v1/runs", {**RUN, "input": "Ho."}, "shared", by=two)
        assert (first.status, other.status, other.replayed) == (202, 202, False)
        for by, body, made in ((one, RUN, first), (two, {**RUN, "input": "Ho."}, other)):
            again = await post(service, "/v1/runs", body, "shared", by=by)
            assert (again.replayed, again.text) == (True, made.text)


# ── kill -9 ─────────────────────────────────────────────────────────────────────────────────────────────────────


CRASH = """
import os, pathlib, signal
from app.agent import faults

ARMED = pathlib.Path(__file__).with_name("armed")

def crash():
    if ARMED.exists():
        left = int(ARMED.read_text()) - 1
        ARMED.write_text(str(left))
        if not left:
            ARMED.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

faults.arm({point!r}, crash)

def nothing() -> str:
    \"\"\"Nothing.\"\"\"
    return ""
"""
MADE = [("/v1/runs", RUN, "runs"), ("/v1/sessions", QUICK, "sessions"), ("/v1/delegations", DELEGATION, "handoffs")]
NAMES = ["run", "session", "delegation"]


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.spec("14.7", "14.9", "14.1", "12.3")
@pytest.mark.parametrize("point", ["store.commit", "store.committed"])
@pytest.mark.parametrize(("path", "body", "table"), MADE, ids=NAMES)
async def test_a_crash_leaves_a_key_with_what_it_made_or_neither(
    tmp_path: Path, path: str, body: dict[str, Any], table: str, point: str
) -> None:
    (tmp_path / "crashing.py").write_text(CRASH.format(point=point))
    env = {"SUBAGENTD_TOOLS__FUNCTIONS": '["crashing:nothing"]', "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    service = await Service(tmp_path, env={**script(tmp_path, PLAY), **env}).start()
    try:
        # the session of a delegation is stored by itself, before its start
        (tmp_path / "armed").write_text("2" if table == "handoffs" else "1")
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await post(service, path, body, "crash")
        await service.ended()
        stored = point == "store.committed"
        assert count(service, table) == count(service, "idempotency_keys") == int(stored)
        await service.start()
        answer = await post(service, path, body, "crash")
        if answer.status == 409:  # what the crash broke off goes on; its events end with it
            handoff = json.loads(answer.text)["handoff_id"]
            await events_of_delegation(service, handoff)
            answer = await post(service, path, body, "crash")
        assert (answer.status in (200, 201, 202), answer.replayed) == (True, stored), answer
        again = await post(service, path, body, "crash")
        assert (again.replayed, again.text) == (True, answer.text)
        assert count(service, table) == count(service, "idempotency_keys") == 1
        assert await service.stop() == 0
    finally:
        if service.process is not None and service.process.returncode is None:
            await service.kill()


async def persistent(service: Service, path: str, body: Any, key: str, changed: asyncio.Event) -> Answer:
    """Send a request again until it is answered, whatever happens to the server."""
    while True:
        try:
            answer = await post(service, path, body, key)
        except (aiohttp.ClientError, ConnectionError):
            await changed.wait()  # there is a server again
            continue
        if answer.status not in (409, 503):
            return answer


async def _killed_between(service: Service, path: str, body: Any, key: str, seconds: float) -> list[Answer]:
    """50 clients with one key, and a server that is killed after so many seconds and started again."""
    changed = asyncio.Event()
    clients = [asyncio.create_task(persistent(service, path, body, key, changed)) for _ in range(CLIENTS)]
    await asyncio.wait(clients, timeout=seconds)
    await service.kill()
    await service.start()
    changed.set()
    async with asyncio.timeout(WAIT_S):
        return await asyncio.gather(*clients)


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.timeout(300)
@pytest.mark.spec("14.7", "14.9", "14.1", "12.3")
@pytest.mark.parametrize(("path", "body", "table"), MADE, ids=NAMES)
async def test_fifty_clients_and_a_kill_make_exactly_one(
    tmp_path: Path, path: str, body: dict[str, Any], table: str
) -> None:
    dice = random.Random(path)
    service = Service(tmp_path, env=script(tmp_path, PLAY))
    await service.start()
    try:
        for cycle in range(KILLS):
            # one of the first moments, in which the row is or is not there
            answers = await _killed_between(service, path, body, f"key {cycle}", dice.uniform(0.0, 0.12))
            assert {answer.status for answer in answers} <= {200, 201, 202}, answers
            assert len({without_end(answer) for answer in answers}) == 1
            with closing(sqlite3.connect(service.database)) as db:
                kept = db.execute("SELECT resource_id FROM idempotency_keys").fetchall()
            assert len(kept) == cycle + 1
            assert count(service, table) == cycle + 1
        assert await service.stop() == 0
    finally:
        if service.process is not None and service.process.returncode is None:
            await service.kill()


def without_end(answer: Answer) -> str:
    """What all answers to one request have in common."""
    return str(answer.json.get("handoff_id", answer.text))
