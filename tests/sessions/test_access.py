"""Keys as values, and which addresses need one."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.errors import Denied, InvalidRequest, TooMany, Unauthorized
from app.sessions.access import SCOPES, Caller, check_bind, key_hash, new_key, revocation
from app.sessions.tickets import LIFE_US, MAX_OF_TENANT, MAX_OPEN, Tickets, stream_of

CALLER = Caller(tenant="t", scopes=frozenset({"read"}), key_id="key_1")


@pytest.mark.spec("17.2")
def test_a_new_key_is_random_and_its_row_holds_the_hash_only() -> None:
    first, second = (new_key(tenant="acme", name="ci", scopes=["read", "read", "run"]) for _ in range(2))
    assert first.text != second.text
    assert first.record.hash == hashlib.sha256(first.text.encode()).digest() == key_hash(first.text)
    assert first.record.scopes == ("read", "run")
    tenant, key = first.writes
    assert (tenant.table, tenant.values["tenant_id"], tenant.keep) == ("tenants", "acme", True)
    assert (key.table, key.values["tenant_id"], key.values["hash"]) == ("api_keys", "acme", first.record.hash)
    assert first.text not in str(key.values)


@pytest.mark.spec("17.2")
def test_a_revocation_keeps_the_time_of_the_first_one() -> None:
    record = new_key(tenant="t", scopes=sorted(SCOPES)).record
    assert record.valid(10**18)
    first = revocation(record, 5)
    assert first.values["revoked_at"] == 5
    assert first.values["hash"] == record.hash


@pytest.mark.spec("16.3")
@pytest.mark.parametrize(
    ("tenant", "scopes"), [("", ["read"]), ("a b", ["read"]), ("a" * 65, ["read"]), ("t", []), ("t", ["x"])]
)
def test_a_tenant_or_scope_that_is_none_is_refused(tenant: str, scopes: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        new_key(tenant=tenant, scopes=scopes)


@pytest.mark.spec("17.2")
def test_a_caller_may_do_what_its_key_opens() -> None:
    CALLER.need("read")
    with pytest.raises(Denied, match="'admin'"):
        CALLER.need("admin")


@pytest.mark.spec("17.1", "17.2")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.1.2.3", "example.org", "192.168.0.1", "2001:db8::1", ""])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ValueError, match="SUBAGENTD_KEY"):
        check_bind(host, has_keys=False)
    check_bind(host, has_keys=True)


@pytest.mark.spec("17.1")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_this_machine_needs_none(host: str) -> None:
    check_bind(host, has_keys=False)


# ── tickets ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("17.3")
def test_a_ticket_is_used_once_in_time_and_on_its_path_only() -> None:
    now = [1_000]
    tickets = Tickets(lambda: now[0])
    path = "/v1/runs/run_1/events"
    text, ticket = tickets.issue(CALLER, path)
    assert ticket.expires_at == 1_000 + LIFE_US
    assert tickets.take(text, path).caller == CALLER
    for again in (text, "tk_sub_unknown", ""):
        with pytest.raises(Unauthorized):
            tickets.take(again, path)
    late, _ = tickets.issue(CALLER, path)
    now[0] += LIFE_US
    with pytest.raises(Unauthorized):
        tickets.take(late, path)
    elsewhere, _ = tickets.issue(CALLER, path)
    with pytest.raises(Unauthorized, match="used up"):
        tickets.take(elsewhere, "/v1/runs/run_2/events")
    with pytest.raises(Unauthorized):
        tickets.take(elsewhere, path)


@pytest.mark.spec("17.3")
def test_a_ticket_that_opened_nothing_can_be_used_again_in_its_time_and_never_twice_at_once() -> None:
    now = [0]
    tickets = Tickets(lambda: now[0])
    path = "/v1/runs/run_1/events"
    text, _ = tickets.issue(CALLER, path)
    taken = tickets.take(text, path)
    with pytest.raises(Unauthorized):
        tickets.take(text, path)
    tickets.give_back(taken)
    assert tickets.take(text, path) == taken
    tickets.give_back(taken)
    now[0] = LIFE_US
    with pytest.raises(Unauthorized):
        tickets.take(text, path)


@pytest.mark.spec("17.1", "17.3")
def test_unused_tickets_are_bounded_and_forgotten_and_one_tenant_leaves_some_for_others() -> None:
    now = [0]
    tickets = Tickets(lambda: now[0])
    path = "/v1/runs/run_1/events"
    first, _ = tickets.issue(CALLER, path)
    for _ in range(MAX_OF_TENANT - 1):
        tickets.issue(CALLER, path)
    with pytest.raises(TooMany):
        tickets.issue(CALLER, path)
    tickets.take(first, path)
    tickets.issue(CALLER, path)
    others = [Caller(tenant=f"t{n}", scopes=frozenset({"read"})) for n in range(MAX_OPEN)]
    for other in others[MAX_OF_TENANT:]:
        tickets.issue(other, path)
    with pytest.raises(TooMany):
        tickets.issue(others[0], path)
    now[0] = LIFE_US
    for _ in range(MAX_OF_TENANT):
        tickets.issue(CALLER, path)


@pytest.mark.spec("17.3")
def test_a_ticket_can_be_had_for_event_streams_only() -> None:
    assert stream_of("/v1/delegations/ho_1/events") == ("delegations", "ho_1")
    for path in (
        "",
        "/v1/keys",
        "/v1/runs/x",
        "/v1/runs/x/events?types=y",
        "/v1/runs/a/b/events",
        "/v1/runs/x/events/",
    ):
        with pytest.raises(InvalidRequest):
            stream_of(path)


@given(st.text())
def test_any_text_is_a_key_that_nobody_has_and_never_a_fault(text: str) -> None:
    assert len(key_hash(text)) == 32
