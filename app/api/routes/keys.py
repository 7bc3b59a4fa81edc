"""Keys and tickets: what opens the service."""

from starlette.responses import Response

from app.agent.ids import now_us
from app.api.deps import Administering, Asked, Reading
from app.api.docs import new_router, problems
from app.api.pages import Cursor, Limit, answer, part_of
from app.api.schemas import things
from app.api.schemas.requests import KeyBody, TicketBody
from app.sessions.tickets import stream_of
from app.sessions.views import moment

router = new_router("keys")


@router.post("/v1/tickets", status_code=201, response_model=things.Ticket, responses=problems(400, 404, 415, 429))
async def create_ticket(asked: Reading, body: TicketBody) -> Response:
    """A ticket for one event stream: for a browser's EventSource, which can send no key."""
    path = body.stream()
    await _check_stream(asked, *stream_of(path))
    text, ticket = asked.services.tickets.issue(asked.caller, path)
    shown = {"ticket": text, "expires_at": moment(ticket.expires_at), "url": f"{path}?ticket={text}"}
    return answer(shown, 201, {"Cache-Control": "no-store"})


async def _check_stream(asked: Asked, kind: str, stream_id: str) -> None:
    """Raises `NotFound` when the tenant has no such stream."""
    services = asked.services
    if kind == "sessions":
        await services.sessions.known(asked.tenant, stream_id)
    elif kind == "runs":
        await services.sessions.run_stream(asked.tenant, stream_id)
    else:
        await services.delegations.stream(asked.tenant, stream_id)


@router.post("/v1/keys", status_code=201, response_model=things.NewKey, responses=problems(400, 415, 503))
async def create_key(asked: Administering, body: KeyBody) -> Response:
    """A new key of the own tenant; its text is in this answer only."""
    asked.services.need_store()
    made = await asked.services.access.create(
        asked.caller, name=body.name, scopes=body.scopes, expires_at=body.ends(now_us()), tenant=body.tenant
    )
    return answer(made, 201, {"Cache-Control": "no-store"})


@router.get("/v1/keys", response_model=things.KeyPage, responses=problems())
async def list_keys(asked: Administering, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """The keys of the tenant, newest first, revoked ones too."""
    return answer(part_of(await asked.services.access.list(asked.tenant), cursor, limit))


@router.delete("/v1/keys/{key_id}", response_model=things.Key, responses=problems(404, 503))
async def revoke_key(asked: Administering, key_id: str) -> Response:
    """Revoke a key at once; its open streams end."""
    asked.services.need_store()
    return answer(await asked.services.access.revoke(asked.caller, key_id, asked.services.feed))
