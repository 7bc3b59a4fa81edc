"""A hook behind HTTP: one signed POST, whose answer is the verdict.

Knows nothing of addresses and limits of the network, which `net` guards.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.agent.hooks import PROCEED, HookCall, HookFailure, HookPoint, Matcher, OnFailure, Verdict
from app.agent.ids import new_id
from app.hooks.verdict import payload_of, verdict_of
from app.masking import MASK
from app.net.outgoing import Outgoing, OutgoingError
from app.net.signing import signed_headers
from app.wire import encode

_JSON = re.compile(r"application/([\w.+-]+\+)?json")


@dataclass(slots=True, kw_only=True)
class WebhookHook:
    """Asks `url`. Not asked a second time: whoever waits for a guard waits long enough for one answer.

    What it is told leaves this machine, so `mask` takes secrets out of it; what it changes must not bring the mask in.
    """

    name: str
    url: str = field(repr=False)
    key: bytes = field(repr=False)
    outgoing: Outgoing = field(repr=False)
    points: frozenset[HookPoint]
    matcher: Matcher | None = None
    timeout_s: float = 30.0
    on_failure: OnFailure | None = None
    mask: Callable[[bytes], bytes] = field(default=bytes, repr=False)
    kind: str = field(default="webhook", init=False)

    async def call(self, call: HookCall) -> Verdict:
        """Ask it. Raises `HookFailure`; an empty answer lets things go on."""
        whole = payload_of(call)
        body = self.mask(whole)
        headers = signed_headers(self.key, new_id("msg"), int(time.time()), body)
        try:
            answer = await self.outgoing.post(self.url, body, headers, timeout_s=self.timeout_s)
        except OutgoingError as error:
            raise HookFailure(str(error)) from None
        if not answer.body:
            return PROCEED
        if not _JSON.fullmatch(answer.content_type):
            raise HookFailure(f"its answer is {answer.content_type[:60]}, not application/json")
        verdict = verdict_of(answer.body)
        if body != whole and verdict.arguments is not None and MASK.encode() in encode(verdict.arguments):
            raise HookFailure(
                "it changed arguments of which it had seen a secret masked: the call would not be the same"
            )
        return verdict
