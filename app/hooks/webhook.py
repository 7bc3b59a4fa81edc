"""A hook behind HTTP: one signed POST, whose answer is the verdict.

Knows nothing of addresses and limits of the network, which `net` guards.
"""

import re
import time
from dataclasses import dataclass, field

from app.agent.hooks import PROCEED, HookCall, HookFailure, HookPoint, Matcher, OnFailure, Verdict
from app.agent.ids import new_id
from app.hooks.verdict import payload_of, verdict_of
from app.net.outgoing import Outgoing, OutgoingError
from app.net.signing import signed_headers

_JSON = re.compile(r"application/([\w.+-]+\+)?json")


@dataclass(slots=True, kw_only=True)
class WebhookHook:
    """Asks `url`. Not asked a second time: whoever waits for a guard waits long enough for one answer."""

    name: str
    url: str = field(repr=False)
    key: bytes = field(repr=False)
    outgoing: Outgoing = field(repr=False)
    points: frozenset[HookPoint]
    matcher: Matcher | None = None
    timeout_s: float = 30.0
    on_failure: OnFailure | None = None
    kind: str = field(default="webhook", init=False)

    async def call(self, call: HookCall) -> Verdict:
        """Ask it. Raises `HookFailure`; an empty answer lets things go on."""
        body = payload_of(call)
        headers = signed_headers(self.key, new_id("msg"), int(time.time()), body)
        try:
            answer = await self.outgoing.post(self.url, body, headers, timeout_s=self.timeout_s)
        except OutgoingError as error:
            raise HookFailure(str(error)) from None
        if not answer.body:
            return PROCEED
        if not _JSON.fullmatch(answer.content_type):
            raise HookFailure(f"its answer is {answer.content_type[:60]}, not application/json")
        return verdict_of(answer.body)
