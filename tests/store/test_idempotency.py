"""Keys of requests on both kinds of database: stored with an event, found until their time runs out."""

from dataclasses import replace
from typing import Any

import pytest

from app.agent.events import Write
from app.sessions.idempotency import IdempotencyStore, Kept
from app.store.idempotency import SqlIdempotencyStore
from tests.store.conftest import Store
from tests.store.facts import Facts

pytestmark = pytest.mark.spec("14.7", "12.1")


def row(name: str, expires_at: int, **changes: Any) -> dict[str, Any]:
    made = {"tenant_id": "default", "key": name, "route": "POST /v1/runs", "body_digest": b"\0\xff", "status": 202}
    made |= {"session_id": "ses_x", "resource_id": "run_x", "body": b'{"id":"run_x"}', "created_at": 1}
    return {**made, "expires_at": expires_at, **changes}


def put(name: str, expires_at: int, **changes: Any) -> Write:
    return Write(table="idempotency_keys", values=row(name, expires_at, **changes), key=("key",))


def keys_of(store: Store) -> IdempotencyStore:
    return SqlIdempotencyStore(store.database.reader)


async def test_a_key_is_stored_with_its_event_and_found_in_its_time_by_its_tenant(store: Store) -> None:
    facts, keys = Facts(), keys_of(store)
    store.stored(replace(facts.created(), also=(put("k", 100),)))
    kept = Kept(route="POST /v1/runs", digest=b"\0\xff", session_id="ses_x", answer=b'{"id":"run_x"}')
    assert await keys.find("default", "k", 99) == kept
    assert await keys.find("default", "k", 100) is None
    assert await keys.find("other", "k", 99) is None
    assert await keys.find("default", "nobody", 99) is None


async def test_a_key_takes_the_place_of_one_whose_time_ran_out(store: Store) -> None:
    keys = keys_of(store)
    store.stored(writes=[put("k", 100)])
    store.stored(writes=[put("k", 300, session_id="ses_y")])
    found = await keys.find("default", "k", 200)
    assert found is not None
    assert found.session_id == "ses_y"
    assert len(await store.rows("idempotency_keys")) == 1


async def test_expired_keys_are_listed_oldest_first_for_one_tenant(store: Store) -> None:
    store.stored(writes=[put("b", 20), put("a", 10), put("c", 30), put("other", 5, tenant_id="other")])
    keys = keys_of(store)
    assert list(await keys.expired("default", 20, 10)) == [("a", 10), ("b", 20)]
    assert list(await keys.expired("default", 99, 1)) == [("a", 10)]
    assert list(await keys.expired("default", 9, 10)) == []
