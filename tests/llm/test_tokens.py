"""Counting tokens: exact where a vocabulary is known, estimated elsewhere, corrected by what models report."""

import sys

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.tokens import likely_tokens
from app.llm import local, tokens
from app.llm.catalog import MAX_INSTANCES, Models
from app.llm.local import LocalServer
from app.llm.profile import Profile
from app.llm.tokens import PIECE_CHARS, ModelCounter, vocabulary

pytestmark = pytest.mark.spec("5.4")
splintr = pytest.mark.skipif(not ModelCounter("o200k_base").exact, reason="splintr-rs is not installed")

ENGLISH = "The survey of the northern field goes on, and nothing of note was found there today."
CHINESE = "你好，世界！北方田野的测量仍在继续，今天没有发现任何值得注意的东西。"
CODE = "def area(width: float, height: float) -> float:\n    return round(width * height, 2)\n"
JSON = '{"id": "call_01", "arguments": {"path": "src/app.py", "lines": [10, 25], "ok": true}}'


@splintr
@pytest.mark.seed("004", 176)
@pytest.mark.parametrize(
    ("text", "cl100k", "o200k"),
    [  # as OpenAI's own examples of tiktoken have them
        ("tiktoken is great!", 6, 6),
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 9, 8),
    ],
)
def test_published_examples_of_openais_vocabularies_are_counted_as_published(
    text: str, cl100k: int, o200k: int
) -> None:
    assert ModelCounter("cl100k_base").count(text) == cl100k
    assert ModelCounter("o200k_base").count(text) == o200k


GOLDEN = {
    "o200k_base": (18, 24, 23, 33),
    "cl100k_base": (18, 39, 23, 33),
    "llama3": (18, 26, 23, 33),
    "qwen3": (18, 18, 23, 36),
    "deepseek_v3": (18, 19, 23, 33),
    "mistral_v1": (18, 35, 27, 38),
    "mistral_v3": (18, 25, 23, 36),
    "glm4": (18, 19, 23, 33),
}


@splintr
@pytest.mark.seed("004", 176)
@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_counts_of_english_chinese_code_and_json_stay_what_they_are(name: str) -> None:
    counter = ModelCounter(name)
    assert tuple(counter.count(text) for text in (ENGLISH, CHINESE, CODE, JSON)) == GOLDEN[name]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-5.1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("ft:gpt-4o-2024-08-06:org::id", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama3"),
        ("llama2:7b", "llama2"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen3"),
        ("qwen3:8b", "qwen3"),
        ("Qwen/Qwen3.5-9B", None),
        ("deepseek-chat", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama3"),
        ("deepseek-coder-6.7b", None),
        ("glm-4.5-air", "glm4"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral_v2"),
        ("open-mistral-nemo", "mistral_v3"),
        ("phi-4", "phi4"),
        ("phi-4-mini", None),
        ("llama-4-scout", None),
        ("claude-sonnet-4-5", None),
        ("smollm2", None),
        ("o1000", None),
        ("", None),
    ],
)
def test_a_model_is_counted_by_a_vocabulary_only_where_it_is_known_to_be_its_own(
    model: str, expected: str | None
) -> None:
    assert vocabulary(model) == expected


@splintr
def test_every_vocabulary_that_a_name_leads_to_can_be_loaded() -> None:
    for _, name in tokens._VOCABULARIES:
        counter = ModelCounter(name)
        assert counter.exact, name
        assert 10 <= counter.count(ENGLISH) <= 30, name


@splintr
@pytest.mark.case("B144")
@pytest.mark.parametrize("name", ["<|endoftext|>", "<|im_start|>", "<|eot_id|>", "[INST]", "</s>"])
@pytest.mark.parametrize("vocabulary", ["o200k_base", "cl100k_base", "qwen3", "llama3", "deepseek_v3", "mistral_v1"])
def test_the_name_of_a_special_token_is_counted_as_the_plain_text_that_it_is(vocabulary: str, name: str) -> None:
    counter = ModelCounter(vocabulary)
    assert counter.count(name) > 1
    assert counter.count(f"Say {name} twice.") > counter.count("Say twice.") + 1


@pytest.mark.case("B144")
@pytest.mark.parametrize("name", ["o200k_base", "llama2", "no_such_vocabulary", None])
def test_nothing_makes_the_counter_raise(name: str | None) -> None:
    counter = ModelCounter(name)
    for odd in ("\ud800 alone", "\x00" * 50, "a" * 200_000, "\U0001f9d1‍\U0001f680" * 500, " " * 70_000):
        assert counter.count(odd) > 0
    assert counter.count("") == 0


@given(st.text(st.characters()))
def test_no_text_makes_it_raise_and_only_the_empty_one_counts_nothing(text: str) -> None:
    for name in ("o200k_base", None):
        assert (ModelCounter(name).count(text) > 0) == (text != "")


def test_without_the_package_everything_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    tokens._tokeniser.cache_clear()
    try:
        counter = ModelCounter("o200k_base")
        assert not counter.exact
        assert counter.count(ENGLISH) == likely_tokens(ENGLISH)
    finally:
        tokens._tokeniser.cache_clear()


@splintr
def test_a_text_of_several_pieces_counts_as_much_as_the_whole() -> None:
    counter = ModelCounter("o200k_base")
    pieces = list(tokens._pieces(f"{ENGLISH} " * 5000))
    assert len(pieces) > 3 and max(map(len, pieces)) <= PIECE_CHARS
    assert "".join(pieces) == f"{ENGLISH} " * 5000
    once = counter.count(f"{ENGLISH} " * 700)
    assert counter.count(f"{ENGLISH} " * 7000) == pytest.approx(10 * once, rel=0.001)
    assert list(tokens._pieces("x" * (2 * PIECE_CHARS + 1)))[2] == "x", "a text without any border is cut as it is"


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, CODE, JSON])
def test_the_estimate_is_near_what_a_vocabulary_says(text: str) -> None:
    many = text * 20
    exact = ModelCounter("o200k_base")
    if exact.exact:
        assert likely_tokens(many) == pytest.approx(exact.count(many), rel=0.3)
    assert 20 * 12 <= likely_tokens(many) <= 20 * 45


# ── correction ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("true", [0.7, 1.0, 1.4, 2.5])
def test_after_five_reports_the_error_is_at_most_five_percent(true: float) -> None:
    counter = ModelCounter(None)
    for turn in range(1, 6):
        counted = 300 * turn
        counter.learn(counted, round(counted * true))
    assert 5000 * counter.ratio == pytest.approx(5000 * true, rel=0.05)


def test_reports_that_cannot_be_true_move_little_and_one_odd_report_is_smoothed() -> None:
    counter = ModelCounter(None)
    for odd in (0, -5):
        counter.learn(1000, odd)
    counter.learn(10, 400)  # of so short a request the most is the endpoint's own
    assert counter.ratio == 1.0
    counter.learn(1000, 1_000_000)
    assert counter.ratio <= 2.0
    for _ in range(6):
        counter.learn(1000, 1000)
    assert counter.ratio == pytest.approx(1.0, abs=0.02)
    for _ in range(50):
        counter.learn(1_000_000, 1)
    assert counter.ratio >= 0.5


def test_the_counter_of_a_model_is_the_same_each_time_and_chosen_by_what_its_endpoint_calls_it() -> None:
    profile = Profile(name="fast", provider="openai", model="gpt-4o", base_url="http://127.0.0.1:1/v1")
    models = Models(profiles={"fast": profile})
    counter = models.counter("fast")
    counter.learn(1000, 1200)
    assert models.counter("fast") is counter
    assert models.counter("openai:gpt-4o") is not counter
    assert counter.exact == ModelCounter("o200k_base").exact
    assert not models.counter("scripted:demo").exact
    assert not models.counter("runner:own:function").exact, "what is no model is estimated"


def test_counters_of_names_from_callers_do_not_pile_up() -> None:
    models = Models(openai_base_url="http://127.0.0.1:1/v1")
    first = models.counter("openai:0")
    for number in range(MAX_INSTANCES + 5):
        models.counter(f"openai:{number + 1}")
    assert models.counter("openai:0") is not first


@pytest.mark.slow
@pytest.mark.skipif(local.missing() is not None, reason="the local model is not installed")
async def test_the_local_models_own_tokeniser_is_met_within_five_percent_after_five_turns() -> None:
    server = LocalServer()
    port, key = await server.address()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:

            async def true(text: str) -> int:
                async with client.post(f"http://127.0.0.1:{port}/tokenize", json={"content": text}) as answer:
                    return len((await answer.json())["tokens"])

            counter, said = ModelCounter(None), ENGLISH * 4
            for turn in range(5):
                said += f" Turn {turn}. {ENGLISH} {CODE}{JSON}\n"
                counter.learn(counter.count(said), await true(said))
            said += f" Turn 6. {ENGLISH} {CODE}{JSON}\n"
            assert counter.count(said) * counter.ratio == pytest.approx(await true(said), rel=0.05)
    finally:
        await server.close()
