"""The hash chain: recomputed here in another way, from what stands in the database alone."""

import hashlib
import hmac
import json
import subprocess
import sys
from typing import Any

import pytest

from app.store.database import Database
from app.store.writer import SqlWriter
from tests.store.conftest import AUDIT_KEY, Store
from tests.store.facts import Facts, replaced


def recomputed(rows: list[dict[str, Any]]) -> list[bytes]:
    """The hashes of a chain, straight from the words of the specification."""
    hashes, previous = [], b"\0" * 32
    for row in rows:
        inner = row["data_digest"] if row["data"] is None else hashlib.sha256(row["data"]).digest()
        chain = hashlib.sha256()
        for part in (previous, row["envelope"], inner):
            chain.update(part)
        previous = chain.digest()
        hashes.append(previous)
    return hashes


async def assert_sound(store: Store, facts: Facts, tenant: str = "default") -> None:
    rows = await store.rows("events", tenant_id=tenant, session_id=facts.session.id)
    session = await store.row("sessions", tenant_id=tenant, id=facts.session.id)
    assert [row["seq"] for row in rows] == list(range(1, facts.seq + 1))
    assert [row["hash"] for row in rows] == recomputed(rows)
    assert session["next_seq"] == facts.seq + 1
    assert session["head_hash"] == rows[-1]["hash"]
    sealed = session["head_hash"] + facts.seq.to_bytes(8, "big")
    assert session["head_mac"] == hmac.new(AUDIT_KEY, sealed, "sha256").digest()


@pytest.mark.spec("12.5")
async def test_every_event_is_chained_to_the_one_before_over_batches_and_sessions(store: Store) -> None:
    one, two = Facts(), Facts(tenant="other")
    store.stored(one.created())
    store.stored(two.created(), *one.whole_run(one.run()))
    store.stored(*two.whole_run(two.run(), steps=3), *one.whole_run(one.run()))
    await assert_sound(store, one)
    await assert_sound(store, two, "other")


@pytest.mark.spec("12.5")
async def test_the_chain_goes_on_after_a_restart_and_after_the_head_was_forgotten(store: Store) -> None:
    one, two = Facts(), Facts()
    small = SqlWriter(store.database._connect, replaced, audit_key=AUDIT_KEY, heads=1)
    small.write([one.created()])
    small.write([two.created()])  # pushes the first head out
    small.write([one.idle(), two.idle()])
    small.close()
    store.stored(one.idle(), two.idle())
    await assert_sound(store, one)
    await assert_sound(store, two)


@pytest.mark.spec("12.5")
async def test_a_service_without_the_key_says_of_each_sealed_session_that_it_takes_the_seal_off(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Facts(), Facts()
    store.stored(one.created(), two.created())
    without = store.database.writer(replaced)
    try:
        for _ in range(2):
            without.write([one.idle()])
    finally:
        without.close()
    told = [record.message for record in caplog.records if "no audit.key is set" in record.message]
    assert [one.session.id in line for line in told] == [True], told
    assert (await store.row("sessions", id=one.session.id))["head_mac"] is None
    assert (await store.row("sessions", id=two.session.id))["head_mac"] is not None


@pytest.mark.spec("12.5")
async def test_the_chain_holds_what_stands_in_place_of_a_bad_event(store: Store) -> None:
    facts = Facts()
    bad = facts.created()
    bad.payload = {}
    run = facts.run()
    assert len(store.write(bad, facts.queued(run))) == 1
    store.stored(facts.ended(run))
    await assert_sound(store, facts)


@pytest.mark.spec("12.5", "14.2")
async def test_erased_data_leaves_its_digest_so_that_the_chain_still_holds(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run()))
    store.stored(facts.closed("deleted"))
    rows = await store.rows("events")
    assert [row["data"] is None for row in rows] == [True] * (facts.seq - 1) + [False]
    await assert_sound(store, facts)


@pytest.mark.spec("12.5")
async def test_a_changed_byte_a_swap_and_a_cut_tail_can_be_told(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run()))
    rows = await store.rows("events")
    session = await store.row("sessions")
    changed = [dict(row) for row in rows]
    changed[3]["data"] = changed[3]["data"].replace(b"a", b"b", 1)
    renamed = [dict(row) for row in rows]
    renamed[4]["envelope"] = json.dumps(json.loads(renamed[4]["envelope"]) | {"step": 9}).encode()
    swapped = [*rows[:2], rows[3], rows[2], *rows[4:]]
    assert recomputed(rows)[-1] == session["head_hash"]
    for forged, first in ((changed, 3), (renamed, 4), (swapped, 2)):
        hashes = recomputed(forged)
        assert hashes[:first] == [row["hash"] for row in rows[:first]]
        assert hashes[first] != rows[first]["hash"]
        assert hashes[-1] != session["head_hash"]
    assert recomputed(rows[:-1])[-1] != session["head_hash"]


@pytest.mark.spec("12.5")
async def test_without_a_key_the_head_is_not_sealed(where: str) -> None:
    database = Database(where, synchronous="OFF")
    await database.open()
    store = Store(database)
    writer = database.writer(replaced)
    writer.write([Facts().created()])
    assert (await store.row("sessions"))["head_mac"] is None
    writer.close()
    await database.close()


WRITE_FOR_EVER = """
import sys
from app.store.database import Database
from tests.store.conftest import AUDIT_KEY
from tests.store.facts import Facts, replaced
writer = Database(sys.argv[1], synchronous="NORMAL").writer(replaced, audit_key=AUDIT_KEY)
facts = Facts(session_id="ses_killed")
writer.write([facts.created()])
while True:
    writer.write(facts.whole_run(facts.run(), steps=2))
    print(facts.seq, flush=True)
"""


@pytest.mark.spec("11.2", "12.3", "12.5")
async def test_what_was_told_before_the_process_was_killed_is_stored_and_the_chain_holds(
    sqlite_store: Store,
) -> None:
    path = str(sqlite_store.database.location.path)
    process = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = 0
    for _ in range(25):
        told = int(process.stdout.readline())
    process.kill()
    for line in process.communicate()[0].splitlines(keepends=True):
        if line.endswith("\n"):
            told = int(line)
    facts = Facts(session_id="ses_killed")
    facts.seq = await sqlite_store.log.head("default", "ses_killed") or 0
    assert facts.seq >= told > 100
    await assert_sound(sqlite_store, facts)
    sqlite_store.stored(facts.idle())
    await assert_sound(sqlite_store, facts)
