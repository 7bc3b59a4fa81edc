"""A known secret is seen in no text, whole or in pieces, and masking breaks nothing else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.masking import MASK, MIN_LENGTH, ValueMasker, secret_values
from app.wire import encode

# Few letters make overlaps, repeats and common beginnings likely; the rest is what JSON escapes, and our own mask.
LETTERS = st.sampled_from(["a", "b", "n", '"', "\\", "\n", "é", "[", "]"])
SECRETS = st.lists(st.text(LETTERS, min_size=MIN_LENGTH, max_size=12), min_size=1, max_size=3, unique=True)


@st.composite
def texts(draw: st.DrawFn, secrets: list[str]) -> str:
    """A text with secrets, parts of secrets and other things in it."""
    pieces = [
        *secrets,
        *(s[: len(s) // 2] for s in secrets),
        *(s[len(s) // 2 :] for s in secrets),
        MASK,
        "a",
        "\n",
        " ",
    ]
    return "".join(draw(st.lists(st.sampled_from(pieces), max_size=8)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], str, list[int]]:
    """Secrets, a text, and where it is cut into pieces."""
    secrets = draw(SECRETS)
    text = draw(texts(secrets))
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=8)) if text else []
    return secrets, text, sorted(cuts)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """A text cut at these places."""
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def streamed(masker: ValueMasker, parts: list[str]) -> tuple[str, str]:
    """What was shown before the end, and all."""
    stream = masker.stream()
    assert stream is not None
    shown = "".join([stream.feed(part) for part in parts])
    return shown, shown + stream.flush()


@given(cases())
@example((["abcdefgh", "abcdefghij"], "xabcdefghij", [9]))  # a secret that begins with another one
@example((["abcdefgh", "masked]ab"], "abcdefghabab", [8]))  # the mask itself looks like the beginning of a secret
@example((["aaaaaaaa"], "aaaaaaaaaaaaaaaaa", [3, 8, 12]))
@pytest.mark.spec("12.6")
def test_a_text_in_pieces_is_masked_as_if_it_had_come_whole(case: tuple[list[str], str, list[int]]) -> None:
    secrets, text, cuts = case
    masker = ValueMasker(secrets)
    assert streamed(masker, pieces(text, cuts))[1] == masker.text(text)


@given(cases())
@pytest.mark.spec("12.6")
def test_no_secret_is_shown_at_any_moment(case: tuple[list[str], str, list[int]]) -> None:
    secrets, text, cuts = case
    masker = ValueMasker(secrets)
    shown = [streamed(masker, pieces(text, cuts)[:count])[0] for count in range(len(cuts) + 2)]
    for seen in shown:
        rest = seen.replace(MASK, "\0")
        assert not [s for s in secrets if s in rest and s not in MASK]


@given(st.lists(st.text(st.sampled_from("abc"), max_size=3), max_size=30))
@pytest.mark.spec("12.6")
def test_what_is_held_back_is_shorter_than_two_secrets(parts: list[str]) -> None:
    stream = ValueMasker(["abcabcabcabc"]).stream()
    assert stream is not None
    given_chars = shown_chars = 0
    for part in parts:
        given_chars += len(part)
        piece = stream.feed(part)
        shown_chars += len(piece) + piece.count(MASK) * (12 - len(MASK))
        assert 0 <= given_chars - shown_chars < 24


@st.composite
def payloads(draw: st.DrawFn) -> tuple[list[str], dict[str, Any]]:
    """Secrets, and a payload of any shape with them in it."""
    secrets = draw(SECRETS)
    leaf = st.one_of(texts(secrets), st.none(), st.booleans(), st.integers(0, 9))
    inner = st.recursive(
        leaf, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts(secrets), x, max_size=3), max_leaves=5
    )
    return secrets, draw(st.dictionaries(st.sampled_from(["content", "arguments", "name"]), inner, max_size=3))


def strings(value: Any) -> list[str]:
    """Every text of a JSON value, names of fields included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *strings(item))]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else []


@given(payloads())
@example((["nightowl"], {"content": "line\nightowl"}))  # escaped, the line break looks like the secret's first letter
@pytest.mark.spec("12.6")
def test_a_masked_payload_stays_json_and_holds_no_secret(case: tuple[list[str], dict[str, Any]]) -> None:
    secrets, payload = case
    masker = ValueMasker(secrets)
    kept, data = masker.payload(payload, encode(payload))
    assert msgspec.json.decode(data) == kept
    for text in strings(kept):
        assert not [s for s in secrets if s in text.replace(MASK, "\0") and s not in MASK]


@given(payloads())
@pytest.mark.spec("12.6")
def test_a_payload_without_a_secret_is_the_same_object(case: tuple[list[str], dict[str, Any]]) -> None:
    _, payload = case
    masker = ValueMasker(["zzzzzzzz"])
    data = encode(payload)
    kept, masked = masker.payload(payload, data)
    assert kept is payload
    assert masked is data


@pytest.mark.spec("12.6")
def test_a_secret_inside_the_json_text_of_arguments_is_masked_in_its_escaped_form() -> None:
    secret = 'pa"ss\\wo\nrd'
    for text in (json.dumps({"key": secret}), msgspec.json.encode({"key": secret}).decode()):
        masked = ValueMasker([secret]).text(text)
        assert json.loads(masked) == {"key": MASK}
    umlaut = "schlüssel-9"
    assert ValueMasker([umlaut]).text(json.dumps({"key": umlaut})) == f'{{"key": "{MASK}"}}'


@pytest.mark.spec("12.6")
def test_without_secrets_nothing_is_held_back() -> None:
    assert ValueMasker([]).stream() is None
    assert ValueMasker(["short"]).stream() is None
    assert ValueMasker(["short"]).text("a short text") == "a short text"


@pytest.mark.spec("12.6")
def test_the_environments_secrets_are_found_by_name_and_paths_are_left_alone(tmp_path: Path) -> None:
    environment = {
        "OPENAI_API_KEY": "sk-0123456789",
        "DB_PASSWORD": "correct horse",
        "GITHUB_TOKEN": "ghp_abcdefgh",
        "SSL_KEY_FILE": "secrets/tls.key",
        "TOKEN_PATH": "var/run/token",
        "SIGNING_KEY": str(tmp_path),
        "STORAGE_KEY": "/9j4AAQSkZJRgABAQAAAQ==",  # Base64 begins so, too
        "USE_TOKENS": "true",
        "HOME": "a-long-home-directory",
    }
    assert secret_values(environment) == ["sk-0123456789", "correct horse", "ghp_abcdefgh", "/9j4AAQSkZJRgABAQAAAQ=="]


def test_a_secret_that_is_learnt_later_is_masked_from_then_on_in_texts_payloads_and_pieces() -> None:
    masker = ValueMasker(["first-secret"])
    told = {"text": "a first-secret and a later-secret"}
    assert masker.json(encode(told)) == encode({"text": f"a {MASK} and a later-secret"})
    masker.learn(["later-secret", "x"])
    assert masker.json(encode(told)) == encode({"text": f"a {MASK} and a {MASK}"})
    assert masker.text("later-secret, first-secret, x") == f"{MASK}, {MASK}, x"
    stream = masker.stream()
    assert stream is not None
    assert stream.feed("it is later-") + stream.feed("secret!") + stream.flush() == f"it is {MASK}!"
    before = masker.values
    masker.learn(["later-secret"])
    assert masker.values is before, "nothing new is no work"


def test_a_masker_without_secrets_learns_its_first_one() -> None:
    masker = ValueMasker()
    assert masker.stream() is None
    masker.learn(["later-secret"])
    assert masker.text("a later-secret") == f"a {MASK}"
