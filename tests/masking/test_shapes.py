"""What looks like a secret is masked, whole or in pieces, and what does not is left as it is."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.ids import new_id
from app.masking import MASK, ValueMasker
from app.masking.masker import MAX_HELD
from app.masking.patterns import read_pattern
from app.masking.shapes import NAMES, patterns_of
from app.settings_rules import Masking
from app.wire import encode
from tests.service import ROOT

BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 3)
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\nMzEfYyjiWA4R4/M2bS1GB4t7NXp98C3=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = {
    "provider_key": [
        "sk-live-0123456789abcdef",
        "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8x_Z",
        "sk-ant-api03-a1B2c3D4e5F6g7H8-i9J0",
    ],
    "own_key": ["sk_sub_0Aq3b5_6c7d8e9f0a1b2c3", "tk_sub_0Aq3b5_6c7d8e9f0a1b2c3"],
    "stripe": ["sk_live_4eC39HqLyjWDarjtT1zdp7dc", "rk_test_4eC39HqLyjWDarjtT1zdp7dc"],
    "webhook_secret": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    "github": [f"ghp_{'a1B2' * 9}", f"gho_{'a1B2' * 9}", f"github_pat_{'a1B2_' * 12}"],
    "gitlab": ["glpat-a1B2c3D4e5F6g7H8i9J0"],
    "aws_key_id": ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"],
    "google": [f"AIza{'Sy4_b' * 7}"],
    "slack": ["xoxb-123456789012-1234567890123-a1B2c3D4e5F6g7H8i9J0"],
    "huggingface": [f"hf_{'aBcD1' * 7}"],
    "npm": [f"npm_{'a1B2c3' * 6}"],
    "pypi": [f"pypi-{'AgEIcHlwaS5vcmc' * 5}"],
    "jwt": [JWT],
    "private_key": [PEM, PEM.replace("\n", "\r\n"), PEM.replace(" RSA", ""), PEM.rpartition("\nMzE")[0]],
}
INSIDE = {  # the name of a form, what stands before the secret, the secret, and what stands after it
    "bearer": ("Authorization: Bearer ", "mF_9.B5f-4.1JqM0aaaa", "\r\n"),
    "basic": ("authorization: basic ", "QWxhZGRpbjpvcGVuIHNlc2FtZQ==", ""),
    "api_key_header": ('{"X-Api-Key": "', "a1b2c3d4e5f6a7b8c9d0", '"}'),
    "url_password": ("postgresql+psycopg://ann:", "c0rrect-horse", "@db:5432/x"),
    "aws_secret": ('aws_secret_access_key = "', "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", '"'),
}
CASES = [(name, "", secret, "") for name, secrets in SECRETS.items() for secret in secrets]
CASES += [(name, *parts) for name, parts in INSIDE.items()]
MASKER = ValueMasker((), patterns_of())


def in_pieces(masker: ValueMasker, text: str, *cuts: int) -> str:
    """A text as a reader of its pieces sees it."""
    stream = masker.stream()
    assert stream is not None
    ends = [*sorted(cuts), len(text)]
    shown = [stream.feed(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return "".join([*shown, stream.flush()])


def test_there_is_a_case_for_every_form() -> None:
    assert {name for name, *_ in CASES} == set(NAMES)


@pytest.mark.spec("12.6")
@pytest.mark.parametrize(("name", "before", "secret", "after"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_a_secret_is_masked_by_its_form_wherever_it_stands_and_wherever_it_is_cut(
    name: str, before: str, secret: str, after: str
) -> None:
    masker = ValueMasker((), patterns_of([name]))
    text = f"So it is: {before}{secret}{after} and so on."
    expected = f"So it is: {before}{MASK}{after} and so on."
    assert masker.text(text) == expected
    for cut in range(len(text) + 1):
        assert in_pieces(masker, text, cut) == expected
    assert in_pieces(masker, text, *range(len(text))) == expected
    payload = {"content": f'"quoted"\n{before}{secret}{after}', text: [{"deep": text}]}
    kept, data = masker.payload(payload, encode(payload))
    assert secret not in str(kept)
    assert json.loads(data) == kept
    # as arguments of a call, which are JSON in JSON: after an escape a word has no edge
    inner = json.dumps({"text": f"x\n{before}{secret}{after}\n"})
    assert json.dumps(secret)[1:-1] not in masker.text(inner)
    assert masker.json(encode({"arguments": inner})) == encode({"arguments": masker.text(inner)})


@pytest.mark.spec("12.6")
def test_a_private_key_is_masked_in_an_output_with_line_numbers_and_in_one_that_was_cut() -> None:
    numbered = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(PEM.splitlines(), 1))
    for text in (numbered, numbered[: len(numbered) // 2]):
        masked = MASKER.text(text)
        assert "MIIE" not in masked
        assert "hkiG9w0" not in masked
    assert MASKER.text(f"{PEM}\nAnd a word after it.") == f"{MASK}\nAnd a word after it."


ORDINARY = [
    "task-management-system-overview-of-2024",
    "sk-learn-based-classification-pipelines-2024",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "The bearer internationalization of certificates; basic understanding of authentication.",
    "postgresql://{user}:{password}@{host}/{name} and https://$USER:$PASS@host and mysql://user:password@host/db",
    "http://example.org:8080/path@version and http://[::1]:8080/ and a://b:c/d@e",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "api_key = settings.models.openai_api_key_of_the_profile",
    "AKIA is a prefix, ghp_ as well, eyJ begins a JSON object in Base64: eyJhIjoxfQ",
    "risk-assessment-0123456789abcdef, desk-0123456789abcdefghij",
    str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    hashlib.sha256(b"x").hexdigest(),
    hashlib.sha1(b"x").hexdigest(),
    "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
]


@pytest.mark.spec("12.6")
@pytest.mark.parametrize("kind", ["ses", "run", "mem", "msg", "call", "art", "apr", "key", "req", "ho"])
def test_our_own_ids_are_left_as_they_are(kind: str) -> None:
    for own in (new_id(kind) for _ in range(50)):
        assert MASKER.text(own) == own


@pytest.mark.spec("12.6")
@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_hashes_and_ids_are_left_as_they_are(text: str) -> None:
    assert MASKER.text(text) == text
    assert in_pieces(MASKER, text, *range(len(text))) == text


def sources() -> Iterator[Path]:
    """Code, prose and lock files: what agents read all day."""
    for pattern in ("app/**/*.py", "docs/*.md", "*.md", "agents/*.md", "*.toml", "*.lock"):
        yield from sorted(ROOT.glob(pattern))


@pytest.mark.spec("12.6")
def test_this_repository_has_nothing_in_it_that_would_be_masked() -> None:
    texts = {path: path.read_text() for path in sources()}
    assert len(texts) > 100
    assert [path for path, text in texts.items() if MASKER.text(text) != text] == []


@given(st.data())
@pytest.mark.spec("12.6")
def test_texts_of_secrets_and_their_beginnings_in_any_pieces_are_masked_as_if_they_had_come_whole(
    data: st.DataObject,
) -> None:
    parts = [f"{before}{secret}{after}" for _, before, secret, after in CASES if len(secret) < 80]
    parts += [part[: len(part) // 2] for part in parts] + [
        "value-secret",
        "value-",
        " ",
        "\n",
        "\\n",
        "中",
        "a",
        "@",
        "://",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=6)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    masker = ValueMasker(["value-secret"], patterns_of(NAMES, ["ACME-[0-9]{6}", "(?i)中é[a-z]{4}"]))
    assert in_pieces(masker, text, *cuts) == masker.text(text)


OTHERWISE = [  # how the same letters may be written where case does not count, and parts of them
    str.upper,
    str.lower,
    str.swapcase,
    lambda text: text.replace("s", "\u017f").replace("k", "\u212a"),
    lambda text: text[len(text) // 3 :],
]
FORMS = [f"{before}{secret}{after}" for _, before, secret, after in CASES if len(secret) < 80]
FORMS += ["ticket:k1234", "Ticket:\u212a4711", "abcxxy", "defhxxxy", "kasukasu", "zbkws", "123-45-6789", "aaabbbab"]
FORMS += ["kasper-\u017fauber-9", "kasper-%C5%BFauber-9"]
FORMS += [change(form) for form in FORMS for change in OTHERWISE]
# Short texts are first looked at in a faster way, if every pattern has a word that is sure to be there: the last has
# none.
OWNS = [(), (r"(?i)ticket:[ks]\d{4}", r"(?:abc|def[gh])x{2,3}y", r"(?:kasu){2}|z[^a]kws"), (r"\d{3}-\d{2}-\d{4}",)]
MASKERS = [ValueMasker(("kasper-\u017fauber-9", "aaabbbab"), patterns_of(own=own)) for own in OWNS]
FILL = "\n" + " " * 5_000


@given(
    st.sampled_from(MASKERS),
    st.lists(st.sampled_from([*FORMS, " ", "\n", "_", "-", "s", "k", "\\", '"', "中"]), max_size=5).map("".join),
)
@pytest.mark.spec("12.6")
def test_a_short_text_is_masked_as_it_is_in_a_long_one(masker: ValueMasker, text: str) -> None:
    masked_alike(masker, text)


@pytest.mark.spec("12.6")
def test_every_form_is_masked_in_a_short_text_as_it_is_in_a_long_one_however_it_is_written() -> None:
    for masker in MASKERS:
        for form in FORMS:
            masked_alike(masker, form)


def masked_alike(masker: ValueMasker, text: str) -> None:
    """Asserts that a text and a payload are masked as they are where much that is harmless stands beside them."""
    assert masker.text(text) == masker.text(text + FILL).removesuffix(FILL)
    payload = {"content": text, "more": [{text: text}]}
    filled = {**payload, "fill": FILL}
    kept, data = masker.payload(payload, encode(payload))
    assert {**kept, "fill": FILL} == masker.payload(filled, encode(filled))[0]
    assert masker.json(encode(payload)) == data


@pytest.mark.spec("12.6", "11.5")
def test_a_secret_behind_an_underscore_that_was_already_shown_is_masked() -> None:
    github = "github_pat_" + "a1B2_" * 12
    text = f"sk_live_4eC39HqLyjWDarjtT1zdp7dc{github}{github}sk-live-0123456789abcdef"
    assert in_pieces(MASKER, text) == MASKER.text(text)


@pytest.mark.spec("12.6", "11.5")
def test_a_secret_at_whose_end_another_may_begin_is_still_known_by_what_stands_before_it() -> None:
    text = '{"X-Api-Key": "a1bwhsec_MfKQ9r8GKYqrTaws_secret_access_key = "wJalrXUt'
    assert "MfKQ9r8G" not in MASKER.text(text)
    for cut in range(len(text)):
        assert in_pieces(MASKER, text, cut) == MASKER.text(text)


@pytest.mark.spec("12.6", "11.5")
def test_what_only_begins_like_a_secret_is_shown_at_the_next_word_and_nothing_waits_for_ever() -> None:
    stream = MASKER.stream()
    assert stream is not None
    assert stream.feed("the sk") == "the "
    assert stream.feed("-learn package") == "sk-learn package"
    shown = stream.feed(" eyJ") + stream.feed("a" * MAX_HELD)
    assert shown == f" {MASK}"  # a piece that is longer than any secret is not kept in memory
    assert stream.feed(" and on.") == " and on."


@pytest.mark.spec("12.6")
def test_a_block_that_only_its_provider_reads_is_left_out_whole_when_it_holds_a_secret() -> None:
    secret = "sk-live-0123456789abcdef"
    clean = {"signature": "c2lnbmF0dXJl"}
    payload = {
        "content": "x",
        "opaque": {"blocks": [{"thinking": f"it is {secret}"}]},
        "tool_calls": [{"name": "a", "opaque": {"x": secret}}, {"name": "b", "opaque": clean}],
    }
    kept, data = MASKER.payload(payload, encode(payload))
    assert kept == {"content": "x", "tool_calls": [{"name": "a"}, {"name": "b", "opaque": clean}]}
    assert json.loads(data) == kept


# ── what operators write ────────────────────────────────────────────────────────────────────────────────────────────

OWN = [
    (r"[0-9]{4}-[0-9]{4}", "no. 1234-5678.", f"no. {MASK}."),
    (r"\b[A-Z]{2}\d{6}\b", "AB123456 but not XAB1234567", f"{MASK} but not XAB1234567"),
    (r"pin: (\d+)!", "pin: 123! pin: ?", f"pin: {MASK}! pin: ?"),
    (r"(?i)geheim=\S+", "GEHEIM=abc d", f"{MASK} d"),
    (r"(?s)<s>.*?</s>", "a <s>x\ny</s> b </s>", f"a {MASK} b </s>"),
    (r"é中[^\"]{2}x|ab+cd?e", 'é中"1x é中ß1x abbbce', f'é中"1x {MASK} {MASK}'),
    (r"(?:a|bc){2,3}\W;", "xbcbca+; a;", f"x{MASK} a;"),
    (r"tab\there\\n\"q", 'tab\there\\n"q', MASK),
]


@pytest.mark.spec("12.6")
@pytest.mark.parametrize(("pattern", "text", "expected"), OWN, ids=range(len(OWN)))
def test_a_pattern_of_an_operator_finds_the_same_in_texts_pieces_and_json(
    pattern: str, text: str, expected: str
) -> None:
    masker = ValueMasker((), patterns_of((), [pattern]))
    assert masker.text(text) == expected
    for cut in range(len(text)):
        assert in_pieces(masker, text, cut) == expected
    assert in_pieces(masker, text, *range(len(text))) == expected
    assert json.loads(masker.json(encode({"a": [text]}))) == {"a": [expected]}


@pytest.mark.spec("12.6", "16.5")
@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "no pattern"),
        ("abc", "fewer than 4"),
        (".*", "fewer than 4"),
        ("(?<=key: )[a-z]{9}", "look-around"),
        (r"(abcd)\1", "references"),
        ("^abcd$", "anchors"),
        ("(?m)abcd", "flags"),
        ("a{4}" * 300, "characters"),
        ("(?:(?:abcd){999}){999}", "linear time"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_pattern(pattern)
    with pytest.raises(ValueError, match=why):
        Masking(patterns=[pattern])


@pytest.mark.spec("12.6", "16.5")
def test_known_forms_can_be_switched_off_one_by_one_and_all_at_once() -> None:
    text = "sk-live-0123456789abcdef AKIAIOSFODNN7EXAMPLE"
    left = Masking(without=["aws_key_id"])
    assert ValueMasker((), patterns_of(left.known)).text(text) == f"{MASK} AKIAIOSFODNN7EXAMPLE"
    assert Masking(without=["all"]).known == ()
    assert Masking().known == NAMES
    with pytest.raises(ValueError, match="no form named aws; known are: all, provider_key"):
        Masking(without=["aws"])
