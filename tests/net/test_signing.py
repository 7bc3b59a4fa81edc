"""Signatures of webhooks: the example of the specification, and secrets that are none."""

import base64

import pytest

from app.net.signing import key_of, signature, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
EXPECTED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.spec("6.3")
def test_the_published_example_of_standard_webhooks_has_this_signature() -> None:
    for secret in (SECRET, SECRET.removeprefix("whsec_"), f" {SECRET}\n"):
        assert signature(key_of(secret), *MESSAGE) == EXPECTED


@pytest.mark.spec("6.3")
def test_the_headers_carry_what_was_signed() -> None:
    headers = signed_headers(key_of(SECRET), *MESSAGE)
    assert headers == {
        "webhook-id": MESSAGE[0],
        "webhook-timestamp": "1614265330",
        "webhook-signature": EXPECTED,
    }


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("size", [0, 23, 65])
def test_a_secret_of_a_size_outside_the_bounds_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"holds {size} bytes"):
        key_of("whsec_" + base64.b64encode(b"k" * size).decode())


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("secret", ["whsec_not base64!", "whsec_hunter2", "päss" * 12])
def test_a_text_that_is_no_secret_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="not whsec_ and base64") as caught:
        key_of(secret)
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None
