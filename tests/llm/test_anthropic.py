"""Models of Anthropic by name and by profile: where they answer, with which key, and that it is never told."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.agent.chat import ChatRequest, Delta, Prices
from app.agent.errors import InvalidRequest, ModelError
from app.llm.anthropic import AnthropicChat
from app.llm.catalog import Models
from app.llm.profile import Profile
from app.settings import TOML_FILE, load, sources
from app.wiring_models import models_of, secrets_of
from tests.llm.anthropic_world import AnthropicWorld, anthropic_world
from tests.llm.asking import GLOB, KEY, TASK, ask
from tests.stubs.anthropic_stub import message, refusal, words

pytestmark = pytest.mark.spec("13.3")
HERE = "http://127.0.0.1:1"


@pytest.fixture
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SUBAGENTD_MODEL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / TOML_FILE


def profile(**fields: Any) -> Profile:
    return Profile(**{"name": "claude", "provider": "anthropic", "model": "m-1", **fields})


async def test_names_without_a_profile_go_to_the_configured_endpoint(world: AnthropicWorld) -> None:
    models = Models(default="anthropic:big", anthropic_base_url=world.stub.base_url, anthropic_api_key=KEY)
    world.stub.script(message(words("one")), message(words("two")))
    assert (await ask(models.resolve(None))).reply.text == "one"
    assert (await ask(models.resolve("anthropic:small"))).reply.text == "two"
    assert [request.body["model"] for request in world.stub.requests] == ["big", "small"]
    assert {request.headers["x-api-key"] for request in world.stub.requests} == {KEY}
    await models.close()


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_an_address_is_taken_with_and_without_the_version(world: AnthropicWorld, tail: str) -> None:
    world.stub.script(message(words("ok")))
    await ask(world.model(base_url=world.stub.base_url + tail))
    assert world.stub.requests[0].path == "/v1/messages"


async def test_headers_of_a_profile_are_sent_and_come_before_our_own(world: AnthropicWorld) -> None:
    headers = {"anthropic-beta": "b-1", "Authorization": "Bearer token-of-a-gateway"}
    request = await world.sent(profile={"headers": headers, "api_key": ""})
    assert (request.headers["anthropic-beta"], request.headers["authorization"]) == ("b-1", headers["Authorization"])
    assert "x-api-key" not in request.headers


async def test_a_key_that_a_server_repeats_is_not_told(world: AnthropicWorld) -> None:
    world.stub.script(refusal(401, "authentication_error", f"bad key {KEY}"))
    with pytest.raises(ModelError) as caught:
        await world.model().stream(ChatRequest(messages=TASK), list[Delta]().append)
    assert "bad key [masked]" in caught.value.message


@pytest.mark.parametrize(
    ("configured", "given", "address", "key"),
    [
        ({}, {"api_key": "own"}, "https://api.anthropic.com", "own"),
        ({"anthropic_api_key": KEY}, {}, "https://api.anthropic.com", KEY),
        ({"anthropic_base_url": HERE, "anthropic_api_key": KEY}, {}, HERE, KEY),
        ({"anthropic_base_url": HERE, "anthropic_api_key": KEY}, {"api_key": "own"}, HERE, "own"),
        # the key of one address never goes to another
        ({"anthropic_api_key": KEY}, {"base_url": HERE}, HERE, ""),
    ],
)
def test_a_profile_without_an_address_is_for_the_configured_one(
    configured: dict[str, Any], given: dict[str, str], address: str, key: str
) -> None:
    found = Models(profiles={"claude": profile(**given)}, **configured).profile("claude")
    assert (found.base_url, found.api_key) == (address, key)


def test_without_a_key_a_model_of_anthropic_says_what_to_set() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Models().resolve("anthropic:claude-x")
    assert caught.value.code == "model_unavailable"
    assert "ANTHROPIC_API_KEY" in caught.value.message
    entry = next(entry for entry in Models(default="anthropic:claude-x").listing() if entry["default"])
    assert (entry["provider"], entry["available"]) == ("anthropic", False)
    assert isinstance(Models(anthropic_base_url=HERE).resolve("anthropic:claude-x"), AnthropicChat)


@pytest.mark.parametrize("name", [None, "nobody:x"])
def test_who_names_no_model_that_there_is_is_told_of_anthropic(name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="anthropic:<model>"):
        Models().resolve(name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base_url": "example.org"}, "base_url 'example.org' is no http"),
        ({"tool_mode": "json_envelope"}, "unknown tool_mode 'json_envelope'; use one of native"),
        ({"thinking_style": "enable_thinking"}, "unknown thinking_style .*; use one of none, thinking_type, adaptive"),
    ],
)
def test_a_profile_refuses_what_the_dialect_does_not_have(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile(**fields)


@pytest.mark.spec("13.4")
@pytest.mark.parametrize(
    ("fields", "marked"),
    [
        ({"base_url": "https://api.anthropic.com"}, True),
        ({"base_url": "https://api.anthropic.com/v1"}, True),
        ({"base_url": "https://api.anthropic.com.example.org"}, False),
        ({"base_url": HERE}, False),
        ({"base_url": HERE, "cache": True}, True),
        ({"base_url": "https://api.anthropic.com", "cache": False}, False),
    ],
)
async def test_the_cache_is_asked_for_at_the_provider_itself_and_where_a_profile_says_so(
    world: AnthropicWorld, fields: dict[str, Any], marked: bool
) -> None:
    model = AnthropicChat(profile(**fields), world.transport)
    model._url = world.stub.base_url + "/v1/messages"  # what is asked is the address that the profile has
    world.stub.script(message(words("ok")))
    await ask(model, tools=(GLOB,))
    assert (b"cache_control" in world.stub.requests[0].raw) is marked


def test_a_model_has_the_prices_of_its_profile(world: AnthropicWorld) -> None:
    assert world.model(input_price=3, cached_price=1, output_price=15).prices == Prices(input=3, cached=1, output=15)
    assert world.model().prices is None


@pytest.mark.spec("16.5")
def test_the_variables_of_anthropic_are_settings_and_its_key_is_a_secret(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://user:pass-of-the-url@127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    settings = load()
    rows = {row["name"]: row for row in sources(settings, {})}
    assert rows["models.anthropic_base_url"]["source"] == rows["models.anthropic_api_key"]["source"] == "environment"
    assert KEY not in json.dumps(list(rows.values())) and "pass-of-the-url" not in json.dumps(list(rows.values()))
    monkeypatch.delenv("ANTHROPIC_API_KEY")  # what the environment holds is masked in any case
    assert {KEY, "pass-of-the-url"} <= set(secrets_of(settings))
    found = models_of(settings).profile("anthropic:claude-x")
    assert (found.base_url, found.api_key) == ("http://user:pass-of-the-url@127.0.0.1:1", KEY)


@pytest.mark.spec("16.5")
def test_a_profile_of_anthropic_can_be_written_in_the_file(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN_VALUE", KEY)
    alone.write_text(
        "[models.profiles.claude]\nprovider = 'anthropic'\nmodel = 'm-1'\napi_key_env = 'MY_OWN_VALUE'\n"
        "cache = false\nthinking_style = 'adaptive'\n"
    )
    settings = load()
    found = models_of(settings).profile("claude")
    assert (found.base_url, found.api_key) == ("https://api.anthropic.com", KEY)
    assert (found.cache, found.thinking_style) == (False, "adaptive")
    assert KEY in secrets_of(settings)
