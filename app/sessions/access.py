"""Access: who asks, by which key, and what that key opens (spec 17.1, 17.2). Makes, lists and revokes keys.

Knows no HTTP and no SQL. A key is looked up by its SHA-256 and remembered for a moment; its text is kept nowhere.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.agent.errors import Denied, InvalidRequest, NotFound, SubagentdError, Unauthorized
from app.agent.events import Write
from app.agent.ids import new_id, now_us
from app.sessions.keys import KeyRecord, KeyStore
from app.sessions.views import moment
from app.wire import clean

log = logging.getLogger(__name__)

RUN, READ, APPROVE, ADMIN = "run", "read", "approve", "admin"
SCOPES = frozenset({RUN, READ, APPROVE, ADMIN})
DEFAULT_TENANT = "default"
PREFIX = "sk_sub_"  # so that scanners and people recognise one that was left somewhere
BOOTSTRAP = "bootstrap"
REMEMBER_S = 20.0  # a key revoked by another process is refused, and its streams end, after this at most (spec: 30)
REMEMBERED = 10_000
_TENANT = re.compile(r"[\w.@-]{1,64}", re.ASCII)


class WritesRows(Protocol):
    """The part of the journal that stores rows which are no events."""

    async def write(self, write: Write) -> None:
        """Store a row; returns after the commit. Raises `Unavailable` when the store does not take it in time, or too
        much waits for it already."""


class OpenStreams(Protocol):
    """The part of the event feed that knows whose streams are open."""

    def owners(self) -> Sequence[str]:
        """The ids of keys that have open streams."""

    def end(self, owner: str, reason: str) -> None:
        """Close the streams of one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `key_id` is empty where no key is needed: nobody can be told apart there. `key_hash` finds the key."""

    tenant: str
    scopes: frozenset[str]
    key_id: str = ""
    key_hash: bytes = b""

    def need(self, scope: str) -> None:
        """Raises `Denied` when the key does not open this."""
        if scope not in self.scopes:
            raise Denied(
                f"this needs a key with the scope {scope!r}, yours has {', '.join(sorted(self.scopes)) or 'none'}",
                code="missing_scope",
                scope=scope,
            )


ANYBODY = Caller(tenant=DEFAULT_TENANT, scopes=SCOPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key just made: `text` is shown once, `writes` are the rows to store (the tenant and the key)."""

    text: str
    record: KeyRecord
    writes: tuple[Write, ...]

    @property
    def id(self) -> str:
        """The id of the key."""
        return self.record.id


def new_key(*, tenant: str, name: str = "", scopes: Sequence[str], expires_at: int | None = None) -> NewKey:
    """A key of 256 random bits; `expires_at` in µs. Raises `InvalidRequest` for a scope or tenant name that is none."""
    _check(tenant, scopes)
    text = PREFIX + secrets.token_urlsafe(32)
    now = now_us()
    record = KeyRecord(
        id=new_id("key"),
        tenant=tenant,
        name=clean(name),
        hash=key_hash(text),
        scopes=tuple(dict.fromkeys(scopes)),
        created_at=now,
        expires_at=expires_at,
    )
    return NewKey(text=text, record=record, writes=(tenant_row(tenant, now), record.stored()))


def _check(tenant: str, scopes: Sequence[str]) -> None:
    if not _TENANT.fullmatch(tenant):
        raise InvalidRequest(
            f"tenant {tenant!r} is no name: use 1 to 64 of the characters A-Z, a-z, 0-9, _ . @ -",
            errors=[{"at": "tenant", "message": "1 to 64 of A-Z, a-z, 0-9, _ . @ -"}],
        )
    unknown = sorted(set(scopes) - SCOPES)
    if unknown or not scopes:
        raise InvalidRequest(
            f"scopes {', '.join(unknown) or '(none)'}: use one or more of {', '.join(sorted(SCOPES))}",
            errors=[{"at": "scopes", "message": f"one or more of {', '.join(sorted(SCOPES))}"}],
        )


def tenant_row(tenant: str, now: int) -> Write:
    """The row of a tenant; an existing one stays as it is."""
    values = {"tenant_id": tenant, "name": tenant, "created_at": now}
    return Write(table="tenants", values=values, key=("tenant_id",), keep=True)


def revocation(record: KeyRecord, now: int) -> Write:
    """The row of a key that opens nothing from `now` (µs) on; one revoked earlier keeps that time."""
    return replace(record, revoked_at=record.revoked_at or now).stored()


def key_hash(text: str) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class _Known:
    """A key that was found, and until when (clock of the event loop) the store is not asked again."""

    record: KeyRecord
    caller: Caller
    fresh_until: float


class Access:
    """Answers who asks. One per process. `bootstrap` is the key from the settings: all scopes, tenant `default`.

    Without any key at all, everybody is the one tenant `default`. Once there was a key this is over for good, also
    when that key was made by another process.
    """

    def __init__(self, keys: KeyStore, journal: WritesRows, bootstrap: str | None = None) -> None:
        self._keys = keys
        self._journal = journal
        self._bootstrap = None if bootstrap is None else key_hash(bootstrap)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._has_keys = True  # until `load` has seen that there is none
        self._asked_at = 0.0
        self._watched: dict[str, bytes] = {}
        self._patrol: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """See whether there is any key; called before the first request."""
        self._has_keys = self._bootstrap is not None or await self._keys.any()
        self._asked_at = asyncio.get_running_loop().time()

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed."""
        return self._has_keys

    async def caller(self, key: str | None) -> Caller:
        """Who asks with this key, or with none. Raises `Unauthorized`."""
        if not self._has_keys:
            if asyncio.get_running_loop().time() >= self._asked_at + REMEMBER_S:
                await self.load()
            if not self._has_keys:
                return ANYBODY
        if key is None:
            raise Unauthorized("a key is needed: send the header `Authorization: Bearer <key>`", code="missing_key")
        digest = key_hash(key)
        if self._bootstrap is not None and hmac.compare_digest(digest, self._bootstrap):
            return Caller(tenant=DEFAULT_TENANT, scopes=SCOPES, key_id=BOOTSTRAP)
        return await self._valid(digest)

    async def again(self, caller: Caller) -> Caller:
        """Somebody who was known a while ago. Raises `Unauthorized` when the key opens nothing any more."""
        return await self._valid(caller.key_hash) if caller.key_hash else caller

    async def _valid(self, digest: bytes) -> Caller:
        known = self._known.get(digest)
        if known is None or asyncio.get_running_loop().time() >= known.fresh_until:
            known = await self._look_up(digest)
        if known is None:
            raise Unauthorized("the key is not known", code="invalid_key")
        record = known.record
        if not record.valid(now_us()):
            what = "was revoked" if record.revoked_at is not None else f"expired at {moment(record.expires_at)}"
            raise Unauthorized(f"the key {what}: use another one", code="invalid_key")
        return known.caller

    async def _look_up(self, digest: bytes) -> _Known | None:
        record = await self._keys.find(digest)
        if record is None:
            self._known.pop(digest, None)
            return None  # not remembered: guesses must not push real keys out
        caller = Caller(tenant=record.tenant, scopes=frozenset(record.scopes), key_id=record.id, key_hash=digest)
        known = _Known(record, caller, asyncio.get_running_loop().time() + REMEMBER_S)
        self._known[digest] = known
        self._known.move_to_end(digest)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known

    # ── keys over the API ───────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, caller: Caller, *, name: str, scopes: Sequence[str], expires_at: int | None, tenant: str | None = None
    ) -> dict[str, Any]:
        """Make a key of the caller's tenant; the answer is the only place where its text is shown."""
        if tenant is not None and tenant != caller.tenant:
            raise Denied(
                f"over the API keys are made for the own tenant ({caller.tenant!r}) only: for {tenant!r} use "
                "`subagentd keys create --tenant` on the server",
                code="other_tenant",
            )
        if expires_at is not None and expires_at <= now_us():
            raise InvalidRequest(
                f"the key would have expired at {moment(expires_at)} already",
                errors=[{"at": "expires_at", "message": "lies in the past"}],
            )
        made = new_key(tenant=caller.tenant, name=name, scopes=scopes, expires_at=expires_at)
        for write in made.writes:
            await self._journal.write(write)
        self._has_keys = True
        log.info("key %s of tenant %s was made by %s", made.id, caller.tenant, caller.key_id or "anybody")
        return {**key_view(made.record), "key": made.text}

    async def list(self, tenant: str) -> list[dict[str, Any]]:
        """The keys of a tenant, newest first, without anything that opens something."""
        return [key_view(record) for record in await self._keys.list(tenant)]

    async def revoke(self, caller: Caller, key_id: str, streams: OpenStreams) -> dict[str, Any]:
        """End a key at once: requests are refused and its open streams end. Raises `NotFound`."""
        record = next((key for key in await self._keys.list(caller.tenant) if key.id == key_id), None)
        if record is None:
            raise NotFound(f"there is no key {key_id!r}")
        if record.revoked_at is None:
            record = replace(record, revoked_at=now_us())
            await self._journal.write(record.stored())
            log.info("key %s of tenant %s was revoked by %s", key_id, caller.tenant, caller.key_id or "anybody")
        self._known.pop(record.hash, None)
        streams.end(key_id, "revoked")
        return key_view(record)

    # ── open streams of keys that end ───────────────────────────────────────────────────────────────────────────

    def watch(self, caller: Caller, streams: OpenStreams) -> None:
        """The caller opens a stream: see to it that it does not outlive the key."""
        if not caller.key_hash:
            return  # no key, or the one from the settings: those last as long as the process
        self._watched[caller.key_id] = caller.key_hash
        if self._patrol is None or self._patrol.done():
            self._patrol = asyncio.create_task(self._walk(streams), name="key patrol")

    async def _walk(self, streams: OpenStreams) -> None:
        """Look after the keys of open streams until there is none."""
        while self._watched:
            await asyncio.sleep(REMEMBER_S)
            try:
                await self.check(streams)
            except SubagentdError as error:  # the store is away: the next round asks again
                log.warning("the keys of open streams could not be checked: %s", error)

    async def check(self, streams: OpenStreams) -> None:
        """End the streams of keys that have expired or were revoked, by whatever process."""
        open_now = set(streams.owners())
        self._watched = {key_id: digest for key_id, digest in self._watched.items() if key_id in open_now}
        for key_id, digest in list(self._watched.items()):
            record = await self._keys.find(digest)
            if record is None or not record.valid(now_us()):
                self._known.pop(digest, None)
                expired = record is not None and record.revoked_at is None
                streams.end(key_id, "expired" if expired else "revoked")

    async def close(self) -> None:
        """End the patrol."""
        if self._patrol is not None:
            self._patrol.cancel()
            await asyncio.wait((self._patrol,))


def check_bind(host: str, *, has_keys: bool) -> None:
    """Raises ValueError when others could reach the service and no key would stop them."""
    if has_keys or is_loopback(host):
        return
    raise ValueError(
        f"{host} can be reached from outside and there is no key: set SUBAGENTD_KEY (16 characters or more), or make a "
        "key with `subagentd keys create`, or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def key_view(record: KeyRecord) -> dict[str, Any]:
    """A key as a client sees it."""
    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "scopes": list(record.scopes),
        "created_at": moment(record.created_at),
        "expires_at": moment(record.expires_at),
        "revoked_at": moment(record.revoked_at),
        "last_used_at": moment(record.last_used_at),
    }
