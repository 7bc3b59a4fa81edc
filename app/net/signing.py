"""Signatures of webhooks as Standard Webhooks has them: HMAC-SHA256 over id, time and body, scheme `v1`.

Knows nothing of what is sent, or when it is sent again.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

PREFIX = "whsec_"
MIN_KEY_BYTES = 24  # the bounds of the specification
MAX_KEY_BYTES = 64


def key_of(secret: str) -> bytes:
    """The key in a secret `whsec_<base64>`; the prefix may be missing. Raises ValueError without repeating it."""
    text = secret.strip().removeprefix(PREFIX)
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the secret is not {PREFIX} and base64 after it") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"the secret holds {len(key)} bytes; it must hold {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,<base64>`; `timestamp` in seconds since 1970."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def signed_headers(key: bytes, message_id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """The three headers of a message. `message_id` stays the same when it is sent again, `timestamp` does not."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, message_id, timestamp, body),
    }
