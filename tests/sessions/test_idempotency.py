"""Keys of requests: one resource each, stored with the event that makes it, whatever happens to those who ask."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.errors import Conflict, InvalidRequest, NotFound, Unavailable
from app.agent.events import Event, Write
from app.agent.ids import now_us
from app.sessions import idempotency as module
from app.sessions.delegations import Delegated
from app.sessions.follow_ups import FollowUps
from app.sessions.idempotency import (
    DELEGATION_IN_SESSION,
    ONE_SHOT,
    RESUMED,
    SESSION,
    TURN,
    Idempotency,
    IdempotencyStore,
    Kept,
    KeyedRequest,
    KeyInUse,
    KeyReused,
    Once,
    keyed,
)
from app.sessions.ports import EventWriter, Rejected
from app.sessions.requests import DelegationInput, ResumeInput, RunInput, SessionInput
from app.sessions.service import Started
from app.store.idempotency import SqlIdempotencyStore
from tests.plan import call, task
from tests.sessions.asking import moments
from tests.sessions.lives import Story, still
from tests.sessions.writers import Wrapped
from tests.world import WAIT_S, World, world

DAY_S = 86_400.0
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def keys_of(w: World, keep_s: float = DAY_S) -> Idempotency:
    return Idempotency(SqlIdempotencyStore(w.database.reader), w.journal, keep_s)


def request(w: World, key: str = "k", body: Any = None, route: str = "POST /v1/runs") -> KeyedRequest:
    return keyed(w.tenant, key, route, body)


class Making:
    """The work of a request: a session, or a turn of one."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.times = 0

    async def session(self) -> dict[str, Any]:
        self.times += 1
        return await self.w.sessions.create(self.w.tenant, SessionInput(agent="node", agents=[self.w.node()]))

    async def refused(self) -> dict[str, Any]:
        self.times += 1
        raise NotFound("there is no such thing")


async def answered(keys: Idempotency, given: KeyedRequest, making: Making) -> Once[dict[str, Any]] | None:
    """What a key answers; None while its first request is under way."""
    try:
        return await keys.once(given, SESSION, making.session)
    except KeyInUse:
        return None


class Batches:
    """Looks at what is written together."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.real: EventWriter

    def __call__(self, real: EventWriter) -> "Batches":
        self.real = real
        return self

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        self.seen += batch
        return self.real.write(batch, writes)

    def rest(self) -> float | None:
        return self.real.rest()

    def close(self) -> None:
        self.real.close()


# ── what is the same request ────────────────────────────────────────────────────────────────────────────────────


@given(values)
def test_a_body_is_the_same_however_it_is_written(value: Any) -> None:
    spread = json.loads(json.dumps(value, indent=2))
    turned = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    digests = {keyed("t", "k", "r", body).digest for body in (value, spread, turned)}
    assert len(digests) == 1


@given(values, values)
def test_another_body_has_another_digest(one: Any, two: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (keyed("t", "k", "r", one).digest == keyed("t", "k", "r", two).digest) is same


def test_any_text_that_a_parser_gives_has_a_digest() -> None:
    for body in ("\ud800", "\0", float("nan"), 10**4000, {"\udfff": [1e999]}):
        assert keyed("t", "k", "r", body).digest


@pytest.mark.parametrize("key", ["a", "~" * 255, "with a blank", "6f1c-\"'\\"], ids=["one", "long", "blank", "signs"])
def test_a_key_is_any_printable_ascii(key: str) -> None:
    assert keyed("t", key, "r", None).name == hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize("key", ["", "x" * 256, "\u00e9", "\x7f", "a\nb"], ids=["empty", "long", "e", "del", "line"])
def test_what_is_no_key_is_refused_with_what_one_is(key: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 255 printable ASCII") as refused:
        keyed("t", key, "r", None)
    assert refused.value.code == "invalid_idempotency_key"


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1", "12.3")
async def test_a_keys_row_is_written_with_the_event_that_makes_its_resource(tmp_path: Path) -> None:
    batches = Batches()
    async with world(tmp_path, wrap=batches) as w:
        keys, making = keys_of(w), Making(w)
        first = await keys.once(request(w), SESSION, making.session)
        again = await keys.once(request(w), SESSION, making.session)
        assert first.made is not None
        assert (first.replayed, again.replayed, making.times) == (False, True, 1)
        assert first.kept == again.kept == {"id": first.made["id"]}
        assert await w.sessions.created(w.tenant, first.made["id"]) == first.made
        (event,) = [event for event in batches.seen if event.also]
        assert (event.type, event.session_id) == ("session.created", first.made["id"])
        (row,) = await w.rows("idempotency_keys")
        assert (row["session_id"], row["resource_id"], row["status"]) == (first.made["id"], first.made["id"], 201)
        assert row["expires_at"] - row["created_at"] == DAY_S * 1_000_000


@pytest.mark.spec("14.3", "14.7")
async def test_a_run_of_a_key_is_its_root_and_none_of_those_below(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, session = keys_of(w), await w.session()
        plan = task({"calls": [call("dispatch_subagent", agent_type="node", task=task("below"))]}, "end")
        turn = await keys.once(
            request(w, "turn"), TURN, lambda: w.sessions.start(w.tenant, session, RunInput(input=plan))
        )
        assert turn.made is not None and turn.kept is not None
        assert (turn.kept["id"], turn.kept["after"]) == (turn.made.run.id, turn.made.after)
        await w.finished(turn.made.run)
        given = SessionInput(agent="node", agents=[w.node()])
        shot = await keys.once(
            request(w, "shot"), ONE_SHOT, lambda: w.sessions.run_once(w.tenant, given, RunInput(input=task("end")))
        )
        assert shot.made is not None and shot.kept is not None
        assert (shot.kept["id"], shot.kept["after"]) == (shot.made.run.id, shot.made.after)
        await w.finished(shot.made.run)
        assert {row["resource_id"] for row in await w.rows("idempotency_keys")} == {turn.kept["id"], shot.kept["id"]}


@pytest.mark.spec("14.9")
async def test_delegations_side_by_side_in_one_session_keep_their_own_keys(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, session = keys_of(w), await w.session()

        async def delegated(number: int) -> tuple[str, str]:
            given = DelegationInput(agent="node", task=task(f"end {number}"), session_id=session)
            once = await keys.once(
                request(w, str(number)), DELEGATION_IN_SESSION, lambda: w.delegations.start(w.tenant, given)
            )
            assert once.made is not None and once.kept is not None
            await w.delegations.result(w.tenant, once.made)
            return once.made.handoff_id, once.kept["id"]

        made = await asyncio.gather(*map(delegated, range(8)))
        assert all(own == kept for own, kept in made)
        assert len({own for own, _ in made}) == 8


@pytest.mark.spec("14.1")
async def test_another_body_or_route_is_told_from_the_first_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w), Making(w)
        await keys.once(request(w), SESSION, making.session)
        with pytest.raises(KeyReused, match="another body"):
            await keys.once(request(w, body=1), SESSION, making.session)
        with pytest.raises(KeyReused, match="POST /v1/runs;"):
            await keys.once(request(w, route="POST /v1/sessions"), SESSION, making.session)
        assert making.times == 1


@pytest.mark.spec("14.1")
async def test_those_who_ask_at_the_same_time_are_measured_by_the_first_request(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w), Making(w)
        first = await keys.once(request(w), SESSION, making.session)
        asked = [keys.once(request(w, body=body), SESSION, making.session) for body in (1, None, 1, None)]
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [KeyReused, Once, KeyReused, Once]
        assert all(answer.kept == first.kept for answer in answers if isinstance(answer, Once))
        assert making.times == 1


@pytest.mark.spec("14.1")
async def test_a_refused_request_leaves_no_trace(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w), Making(w)
        with pytest.raises(NotFound):
            await keys.once(request(w, body=1), SESSION, making.refused)
        assert await w.rows("idempotency_keys") == []
        assert not (await keys.once(request(w, body=2), SESSION, making.session)).replayed


@pytest.mark.spec("17.1")
async def test_tenants_have_keys_of_their_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w), Making(w)
        for tenant in ("default", "other"):
            w.tenant = tenant
            assert not (await keys.once(request(w, body=tenant), SESSION, making.session)).replayed
        w.tenant = "default"
        assert (await keys.once(request(w, body="default"), SESSION, making.session)).replayed
        assert making.times == 2


# ── in progress, cut short, restarted ───────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1")
async def test_a_request_in_progress_holds_its_key(tmp_path: Path) -> None:
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        keys, making = keys_of(w), Making(w)
        held.writer.gate.clear()
        first = asyncio.create_task(keys.once(request(w), SESSION, making.session))
        await moments(50)
        with pytest.raises(KeyInUse) as busy:
            await keys.once(request(w), SESSION, making.session)
        assert (busy.value.code, busy.value.retry_after_s) == ("idempotency_key_in_use", 1)
        with pytest.raises(KeyReused):
            await keys.once(request(w, body=1), SESSION, making.session)
        held.writer.gate.set()
        assert (await first).made is not None
        assert (await keys.once(request(w), SESSION, making.session)).replayed
        assert making.times == 1


@pytest.mark.spec("14.1")
async def test_the_work_goes_on_when_its_caller_goes_away_and_the_key_keeps_what_it_made(tmp_path: Path) -> None:
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        keys, making = keys_of(w), Making(w)
        held.writer.gate.clear()
        gone = asyncio.create_task(keys.once(request(w), SESSION, making.session))
        await moments(50)
        gone.cancel()
        await asyncio.wait([gone])
        with pytest.raises(KeyInUse):
            await keys.once(request(w), SESSION, making.session)
        held.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            while (again := await answered(keys, request(w), making)) is None:
                await asyncio.sleep(0.001)
        assert (again.replayed, making.times, len(await w.rows("sessions"))) == (True, 1, 1)


@pytest.mark.spec("14.1", "12.3")
async def test_what_was_recorded_while_the_store_was_away_is_found_when_it_is_back(tmp_path: Path) -> None:
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        keys, making = keys_of(w), Making(w)
        held.writer.gate.clear()

        async def impatient() -> dict[str, Any]:
            making.times += 1
            given = SessionInput(agent="node", agents=[w.node()])
            session = w.sessions.draft(w.tenant, given)
            w.sessions.begin(session, given)
            w.journal.release(session.id)
            raise NotFound("answered before it was stored")

        with pytest.raises(NotFound):
            await keys.once(request(w), SESSION, impatient)
        again = asyncio.create_task(keys.once(request(w), SESSION, impatient))
        await moments(50)
        assert not again.done()
        held.writer.gate.set()
        assert ((await again).replayed, making.times) == (True, 1)


@pytest.mark.spec("14.3", "12.7")
async def test_a_key_outlives_the_process(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        first = await keys_of(w).once(
            request(w), TURN, lambda: w.sessions.start(w.tenant, session, RunInput(input=task("end")))
        )
        assert first.made is not None
        await w.finished(first.made.run)
    async with world(tmp_path) as w:
        again = await keys_of(w).once(request(w), TURN, Making(w).session)
        assert (again.replayed, again.kept) == (True, first.kept)


@pytest.mark.spec("14.3", "9.4")
async def test_a_delegation_that_was_refused_for_its_busy_memory_is_refused_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys = keys_of(w)
        first = await w.delegate(task("one"))
        ended = await first.result
        more = DelegationInput(task=task("two"), resume=ended.handoff_id)
        both, gate = asyncio.Barrier(2), w.sessions.gate

        async def together(session_id: str) -> None:
            await both.wait()  # so that both see a task that nobody goes on with

        w.sessions.gate = together

        async def asked(key: str) -> tuple[Once[Delegated], Conflict | None]:
            once = await keys.once(request(w, key), DELEGATION_IN_SESSION, lambda: w.delegations.start(w.tenant, more))
            assert once.made is not None
            try:
                await w.delegations.result(w.tenant, once.made)
            except Conflict as error:
                return once, error
            return once, None

        async with asyncio.timeout(WAIT_S):
            pairs = await asyncio.gather(asked("a"), asked("b"))
        w.sessions.gate = gate
        ((lost, told),) = [(once, error) for once, error in pairs if error is not None]
        assert lost.kept is not None
        with pytest.raises(Conflict) as again:
            await w.delegations.answered(w.tenant, lost.kept["id"])
        assert told is not None
        assert (again.value.code, again.value.message) == (told.code, told.message)
        assert told.code == "memory_busy"


@pytest.mark.spec("14.3", "9.4", "12.7")
@pytest.mark.parametrize("stored", [1, 2, 3])
async def test_a_subagent_is_resumed_once_though_the_process_died_before_its_run_was_stored(
    tmp_path: Path, stored: int
) -> None:
    first: dict[str, Any] = {}

    async def resume(w: World) -> Once[Started]:
        ups = FollowUps(sessions=w.sessions, delegations=w.delegations, supervisor=w.supervisor, journal=w.journal)
        given = ResumeInput(input=task("more"))
        once = await keys_of(w).once(request(w), RESUMED, lambda: ups.resume(w.tenant, first["run"], given))
        return await ups.resumed(w.tenant, once)

    async def begin(w: World) -> None:
        delegated = await w.delegate(task("one"))
        first["run"] = (await delegated.result).run_ids[0]
        await still(w)
        first["events"] = w.journal.recorded(delegated.session.id)
        first["answer"] = (await resume(w)).kept

    story = Story(begin)
    await story.whole(tmp_path)
    await story.after(tmp_path / "dies", first["events"] + stored)
    async with story.ends(tmp_path / "dies") as w:
        again = await resume(w)
        rows = await w.rows("runs")
        assert (again.replayed, len(rows)) == (True, 2)
        assert again.kept is not None
        assert again.kept["id"] == rows[1]["id"]
        assert set(again.kept) == set(first["answer"])


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1")
async def test_a_key_whose_time_ran_out_is_a_new_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w, keep_s=0), Making(w)
        for body in (1, 2):
            assert not (await keys.once(request(w, body=body), SESSION, making.session)).replayed
        await keys.close()
        assert (making.times, len(await w.rows("sessions"))) == (2, 2)


@pytest.mark.spec("14.1")
async def test_rows_whose_time_ran_out_are_removed_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLEAN_ROWS", 4)
    async with world(tmp_path) as w:
        keys, making, now = keys_of(w), Making(w), now_us()
        row = {"route": "r", "body_digest": b"d", "session_id": "s", "resource_id": "s", "body": b"{}", "created_at": 1}
        for number in range(6):
            old = {"tenant_id": w.tenant, "key": f"old {number}", "expires_at": now - number - 1}
            await w.journal.write(Write(table="idempotency_keys", values={**row, **old}))
        foreign = {"tenant_id": "other", "key": "old", "expires_at": now - 1}
        await w.journal.write(Write(table="idempotency_keys", values={**row, **foreign}))
        for key, left in (("one", 3), ("two", 2), ("three", 3)):  # of the tenant: those that are old, and its own
            await keys.once(request(w, key), SESSION, making.session)
            async with asyncio.timeout(WAIT_S):
                while len(await w.rows("idempotency_keys", tenant_id=w.tenant)) != left:
                    await asyncio.sleep(0.001)
        assert len(await w.rows("idempotency_keys", tenant_id="other")) == 1


@pytest.mark.spec("14.1")
async def test_a_key_that_is_used_again_while_it_is_removed_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making = keys_of(w), Making(w)
        first = await keys.once(request(w), SESSION, making.session)
        (row,) = await w.rows("idempotency_keys")
        gone = {"tenant_id": w.tenant, "key": row["key"], "expires_at": row["expires_at"] - 1}
        await w.journal.write(Write(table="idempotency_keys", values=gone, key=("key", "expires_at"), delete=True))
        assert (await keys.once(request(w), SESSION, making.session)).kept == first.kept


class Slow:
    """A store that looks keys up when it is let."""

    def __init__(self, real: IdempotencyStore) -> None:
        self._real = real
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.expired = real.expired

    async def find(self, tenant: str, name: str, now: int) -> Kept | None:
        self.asked.set()
        await self.gate.wait()
        return await self._real.find(tenant, name, now)


@pytest.mark.spec("14.1", "9.6")
async def test_whoever_is_looked_up_when_the_service_stops_is_told_to_ask_again_and_nothing_was_made(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        store, making = Slow(SqlIdempotencyStore(w.database.reader)), Making(w)
        keys = Idempotency(store, w.journal, DAY_S)
        asking = asyncio.create_task(keys.once(request(w), SESSION, making.session))
        await store.asked.wait()
        keys.refuse()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Unavailable, match="send it again"):
                await asking
            with pytest.raises(Unavailable, match="send it again"):
                await keys.once(request(w, "later"), SESSION, making.session)
            await keys.close()
        assert (making.times, await w.rows("idempotency_keys"), await w.rows("sessions")) == (0, [], [])


@pytest.mark.spec("14.1", "9.6")
async def test_what_was_made_before_the_service_stopped_is_the_answer_of_the_next_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        keys, making, made = keys_of(w), Making(w), asyncio.Event()

        async def slow() -> dict[str, Any]:
            session = await making.session()
            made.set()
            await asyncio.Event().wait()
            return session

        asking = asyncio.create_task(keys.once(request(w), SESSION, slow))
        await made.wait()
        async with asyncio.timeout(WAIT_S):
            await keys.close()
            with pytest.raises(Unavailable, match="send it again"):
                await asking
        again = await keys_of(w).once(request(w), SESSION, making.session)
        assert (again.replayed, making.times, len(await w.rows("sessions"))) == (True, 1, 1)
