"""Who asks: the key of a request, or the ticket of a stream, before its body is read (spec 17.2, 17.3).

What that key opens is decided by the route (`api/deps.py`).
"""

from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.agent.errors import Unauthorized
from app.api.middleware import HEAD
from app.sessions.access import Access, Caller
from app.sessions.tickets import Ticket, Tickets

CALLER = "subagentd.caller"  # in the scope
_KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "access_token", "token"})


class Identification:
    """An ASGI layer that puts the `Caller` into the scope of everything that needs one."""

    def __init__(self, app: ASGIApp, *, access: Access, tickets: Tickets) -> None:
        self._app = app
        self._access = access
        self._tickets = tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `Unauthorized`, which the layer in front answers."""
        if scope["type"] == "http" and needs_key(scope["path"]):
            header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            if header is None and b"ticket=" in scope["query_string"]:
                texts = parse_qs(scope["query_string"].decode("latin-1")).get("ticket")
                if texts:
                    await self._with_ticket(self._ticket(scope, texts[0]), scope, receive, send)
                    return
            scope[CALLER] = await self._caller(scope, header)
        await self._app(scope, receive, send)

    async def _with_ticket(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by a ticket, which is used up once the answer begins that was asked for."""
        used = False

        async def sending(message: Message) -> None:
            nonlocal used
            if message["type"] == "http.response.start":
                used = message["status"] == 200 and HEAD not in scope
            await send(message)

        try:
            scope[CALLER] = await self._access.again(ticket.caller)
            await self._app(scope, receive, sending)
        finally:
            if not used:
                self._tickets.give_back(ticket)

    async def _caller(self, scope: Scope, header: bytes | None) -> Caller:
        key = None if header is None else _bearer(header)
        try:
            return await self._access.caller(key)
        except Unauthorized as error:
            names = _KEY_NAMES.intersection(parse_qs(scope["query_string"].decode("latin-1")))
            if names and header is None:
                raise Unauthorized(
                    f"a key in the query ({', '.join(sorted(names))}) is not accepted, since addresses end up in logs: "
                    "send `Authorization: Bearer <key>`, or use a ticket for a stream (POST /v1/tickets)",
                    code="key_in_query",
                ) from error
            raise

    def _ticket(self, scope: Scope, text: str) -> Ticket:
        if scope["method"] != "GET" or not scope["path"].endswith("/events"):
            raise Unauthorized(
                "a ticket opens one event stream and nothing else: send `Authorization: Bearer <key>`",
                code="invalid_ticket",
            )
        return self._tickets.take(text, scope["path"])


def needs_key(path: str) -> bool:
    """Whether somebody must be known who asks for this path."""
    return path.startswith("/v1/") or path == "/metrics"


def _bearer(header: bytes) -> str:
    scheme, _, value = header.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise Unauthorized("the Authorization header must read `Bearer <key>`", code="invalid_key")
    return value.strip()
