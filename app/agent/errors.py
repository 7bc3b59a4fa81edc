"""The exception tree of the kernel: one branch for each thing that a caller can do about it.

Knows neither HTTP statuses nor log levels; `api/errors.py` maps these once.

    SubagentdError
    ├── ToolError              the model reads it as the error result of one call
    │   ├── UnknownTool
    │   ├── RepeatedCall
    │   ├── CallDenied
    │   └── InvalidArguments
    ├── ModelError             a model could not answer; ends the run as failed when it cannot be retried
    │   └── IncompleteReply    a stream that ended without a positive end signal
    ├── InvalidOutput          a final answer that does not satisfy the output schema, also the second time
    ├── HandoffStop            a handoff under `fail`: ends the parent's turn
    ├── HookDenied             a hook does not let a subagent start
    ├── BudgetSpent            a limit of the tree is reached: ends the run, a root with a forced answer
    ├── RequestError           a caller asked for something that cannot be done
    │   ├── InvalidRequest · Unsupported · NotFound · Conflict · Denied · Unauthorized · TooMany
    └── Unavailable            try again later: store away, shutting down
"""

from collections.abc import Mapping, Sequence
from typing import Any


class SubagentdError(Exception):
    """Root of everything that this service raises on purpose. `code` is stable and machine readable."""

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ToolError(SubagentdError):
    """A tool call failed in a way that the model should read and can react to."""

    code = "tool_error"


class UnknownTool(ToolError):
    """The model named a tool outside its registry."""

    code = "unknown_tool"


class InvalidArguments(ToolError):
    """The arguments are no JSON object or do not satisfy the tool's schema. The tool was not run."""

    code = "invalid_arguments"


class CallDenied(ToolError):
    """A hook, a rule or a person does not let this call run, or nobody answered; it was not executed (spec 8.3).
    `status` is that of its result: `denied`, or `expired` for a question without an answer."""

    code = "denied"

    def __init__(self, message: str, *, status: str = "denied") -> None:
        super().__init__(message)
        self.status = status


class RepeatedCall(ToolError):
    """The same calls again and again: this one was not carried out (spec 5.3)."""

    code = "duplicate"


class ModelError(SubagentdError):
    """The model endpoint refused, failed or was not understood.

    `retryable` says whether the same request may succeed later; `retry_after_ms` is the provider's own wish.
    """

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.status = status


class IncompleteReply(ModelError):
    """The stream ended without a positive end signal, so what came is not an answer."""

    code = "model_incomplete"


class InvalidOutput(SubagentdError):
    """The final answer does not satisfy the output schema, after it went back to the model once (spec 5.6)."""

    code = "output_invalid"


class HandoffStop(SubagentdError):
    """A handoff was denied or failed under the policy `fail`: the parent's turn ends and the parent run fails.

    `code` is `handoff_denied` or `handoff_failed` (spec 4.1); `result` is what the tool message of the call says.
    """

    code = "handoff_failed"

    def __init__(self, message: str, *, code: str, result: str) -> None:
        super().__init__(message, code=code)
        self.result = result


class HookDenied(SubagentdError):
    """A hook does not let a subagent start (spec 6.4)."""

    code = "hook_denied"


class BudgetSpent(SubagentdError):
    """A budget of the tree is used up (spec 4.8)."""

    code = "budget_exhausted"


class RequestError(SubagentdError):
    """A caller's request cannot be carried out. `errors` points at the places: `{"at": …, "message": …}`."""

    code = "bad_request"

    def __init__(
        self, message: str, *, code: str | None = None, errors: Sequence[Mapping[str, Any]] = (), **extra: Any
    ) -> None:
        super().__init__(message, code=code)
        self.errors = tuple(errors)
        self.extra = extra


class InvalidRequest(RequestError):
    """The request is understood but not acceptable."""

    code = "invalid_request"


class Unsupported(RequestError):
    """A known field, value or key that this version does not carry out yet; never silently ignored."""

    code = "unsupported"


class NotFound(RequestError):
    """Unknown, or another tenant's: the two are not told apart."""

    code = "not_found"


class Conflict(RequestError):
    """The thing is in a state that does not allow this now."""

    code = "conflict"


class Outdated(RequestError):
    """The thing was changed since the caller looked at it."""

    code = "outdated"


class Denied(RequestError):
    """A policy or a missing scope forbids it."""

    code = "denied"


class Unauthorized(RequestError):
    """No valid key or ticket."""

    code = "unauthorized"


class TooMany(RequestError):
    """A limit on things open at the same time is reached."""

    code = "too_many"
    retry_after_s = 5  # others go all the time


class Unavailable(SubagentdError):
    """The service cannot do this at the moment (store away, shutting down); nothing was started."""

    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s
