"""Every error as problem details (RFC 9457): the one place that knows which status an error has.

What a client reads is what the error says on purpose; of an unforeseen one it gets a request id, and the log the rest.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app.agent.errors import (
    Conflict,
    Denied,
    InvalidRequest,
    NotFound,
    Outdated,
    RequestError,
    SubagentdError,
    TooMany,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from app.agent.ids import new_id
from app.api.schemas.requests import Body
from app.masking.in_force import masked_json
from app.wire import encode

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_VALUE_ERROR = "Value error, "
MAX_ERRORS = 50  # places that one answer names: a body of a megabyte can have a hundred thousand


class BadRequest(RequestError):
    """Not understood: no JSON, or a cursor that is none."""

    code = "bad_request"


class NotAcceptable(RequestError):
    """The client accepts nothing of what there is."""

    code = "not_acceptable"


class UnsupportedMediaType(RequestError):
    """A body that does not say that it is JSON."""

    code = "unsupported_media_type"


class Gone(RequestError):
    """It was there, and is not kept any more."""

    code = "gone"


class TooLarge(RequestError):
    """A body beyond the limit."""

    code = "too_large"


class Endless(TooLarge):
    """A body so large, or without an end, that its rest is not even taken to be thrown away."""


class ForeignHost(Denied):
    """Asked under a name that is not ours: another page may be behind it."""

    code = "foreign_host"


class ForeignOrigin(Denied):
    """Asked by a web page of another origin."""

    code = "foreign_origin"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a class of errors is over HTTP."""

    status: int
    slug: str
    title: str


_INTERNAL = Kind(500, "internal-error", "Internal error")
KINDS: Mapping[type[SubagentdError], Kind] = {
    BadRequest: Kind(400, "bad-request", "The request was not understood"),
    Unauthorized: Kind(401, "unauthorized", "No valid key"),
    Denied: Kind(403, "denied", "Not allowed"),
    NotFound: Kind(404, "not-found", "Not found"),
    NotAcceptable: Kind(406, "not-acceptable", "No acceptable form"),
    Conflict: Kind(409, "conflict", "Not possible in this state"),
    Gone: Kind(410, "gone", "Not kept any more"),
    Outdated: Kind(412, "outdated", "Changed in between"),
    TooLarge: Kind(413, "too-large", "The body is too large"),
    UnsupportedMediaType: Kind(415, "unsupported-media-type", "The body is not JSON"),
    InvalidRequest: Kind(422, "invalid-request", "The request cannot be carried out"),
    Unsupported: Kind(422, "unsupported", "Not carried out by this version"),
    TooMany: Kind(429, "too-many", "A limit is reached"),
    Unavailable: Kind(503, "unavailable", "Not available at the moment"),
    SubagentdError: _INTERNAL,
}


def kind_of(error: SubagentdError) -> Kind:
    """The kind of an error: that of the nearest class in its tree."""
    return next(KINDS[cls] for cls in type(error).__mro__ if cls in KINDS)


def problem(kind: Kind, detail: str, code: str, headers: Mapping[str, str] | None = None, **extra: Any) -> Response:
    """A problem as an answer; `extra` fields that are None or empty are left out."""
    fields = {
        "type": f"/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": code,
        **{name: value for name, value in extra.items() if value not in (None, (), [])},
    }
    return Response(masked_json(encode(fields)), kind.status, headers, MEDIA_TYPE)


def problem_of(error: SubagentdError) -> Response:
    """The answer to an error that was raised on purpose."""
    kind = kind_of(error)
    if kind is _INTERNAL:
        return internal(error)
    if isinstance(error, RequestError):
        headers = {}
        if kind.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="subagentd"'
        elif isinstance(error, Endless):
            headers["Connection"] = "close"  # a client that is still sending may not see this answer
        elif (again := getattr(error, "retry_after_s", None)) is not None:
            headers["Retry-After"] = str(again)
        return problem(kind, error.message, error.code, headers, errors=list(error.errors), **error.extra)
    after = getattr(error, "retry_after_s", 1)
    return problem(kind, error.message, error.code, {"Retry-After": str(after)})


def internal(error: BaseException) -> Response:
    """The answer to an error that nobody foresaw: an id here, the rest in the log."""
    request_id = new_id("req")
    log.error("request %s failed", request_id, exc_info=error)
    detail = f"something went wrong in the service; its log has the details under {request_id}"
    return problem(_INTERNAL, detail, "internal_error", {"X-Request-Id": request_id}, request_id=request_id)


def install(app: FastAPI) -> None:
    """Let every error of the routes become a problem. What is left over is the middleware's."""
    app.add_exception_handler(SubagentdError, _on_purpose)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


async def _on_purpose(_: Request, error: Exception) -> Response:
    assert isinstance(error, SubagentdError)
    return problem_of(error)


async def _http(request: Request, error: Exception) -> Response:
    """What the framework raises by itself: unknown routes, wrong methods, bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    method, path = request.scope["method"], request.scope["path"]
    if error.status_code == 404:
        return problem_of(NotFound(f"there is no {method} {path}: GET /openapi.json lists all routes"))
    if error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        kind = Kind(405, "method-not-allowed", "Wrong method")
        return problem(kind, f"{path} takes {allowed}, not {method}", "method_not_allowed", {"Allow": allowed})
    if error.status_code == 400:  # deeper than the parser goes, or a number of thousands of digits
        return problem_of(BadRequest(f"the body cannot be read: {error.detail}", code="malformed_json"))
    if error.status_code == 413:
        return problem_of((Endless if error.headers else TooLarge)(str(error.detail)))
    return problem(Kind(error.status_code, "http", "HTTP error"), str(error.detail), "http_error", error.headers)


def _methods_of(request: Request) -> list[str]:
    """The methods of a path: each has a route of its own, and the framework names those of the first."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    found = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


# ── validation ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _validation(request: Request, error: Exception) -> Response:
    """Everything that is wrong with a request, with its places; what a later version takes is told apart."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if found and found[0]["type"] == "json_invalid":
        reason, position = found[0]["ctx"]["error"], found[0]["loc"][-1]
        return problem_of(BadRequest(f"the body is no JSON: {reason} at character {position}", code="malformed_json"))
    model = _body_model(request)
    places = [_place(item, model) for item in found[:MAX_ERRORS]]
    later = [message for _, message, is_later in places if is_later]
    errors = [{"at": at, "message": message} for at, message, _ in places]
    first = f"{errors[0]['at']}: {errors[0]['message']}" if errors[0]["at"] else errors[0]["message"]
    if len(found) > MAX_ERRORS:
        first += f" (and {len(found) - 1} more; the first {MAX_ERRORS} are listed)"
    cls = Unsupported if len(later) == len(places) else InvalidRequest
    return problem_of(cls(first, errors=errors))


def _body_model(request: Request) -> type[Body] | None:
    """The model of the route's body."""
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return model if isinstance(model, type) and issubclass(model, Body) else None


def _place(item: Mapping[str, Any], model: type[Body] | None) -> tuple[str, str, bool]:
    """Where, what, and whether it is something of a later version."""
    where, *path = item["loc"]
    at = place_of(path)
    name = path[-1] if path else ""
    kind = item["type"]
    if where == "body" and not path:
        return "", _BODY.get(kind, str(item["msg"]).removeprefix(_VALUE_ERROR)), False
    if kind == "extra_forbidden":
        if model is not None and name in model.later:
            return at, "not carried out by this version", True
        return at, f"there is no such field; there are {', '.join(_fields(model))}", False
    given = item.get("input")
    later = model.later_values.get(str(name), frozenset()) if model is not None and len(path) == 1 else frozenset()
    if isinstance(given, str) and given in later:
        return at, f"{given!r} is not carried out by this version", True
    return at, str(item["msg"]).removeprefix(_VALUE_ERROR), False


_BODY = {
    "missing": "the body is missing: send a JSON object",
    "model_attributes_type": "the body must be a JSON object",
    "model_type": "the body must be a JSON object",
    "dict_type": "the body must be a JSON object",
}


def _fields(model: type[Body] | None) -> list[str]:
    return [] if model is None else list(model.model_fields)


def place_of(path: Sequence[Any]) -> str:
    """A path into a value, as `agents[0].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
