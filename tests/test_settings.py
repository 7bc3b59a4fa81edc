"""Settings: which source wins, the flat twins, what is refused, and that no secret is shown."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from app.agent.chat import Prices
from app.agent.orders import Pacing
from app.agent.texts import DEFAULT_LANGUAGE, LANGUAGES, TEXT_NAMES
from app.cli.admin import check_agents
from app.llm.profile import THINKING_STYLES, Profile
from app.masking import MASK, ValueMasker
from app.settings import TOML_FILE, ModelProfile, Settings, load, sources, unknown_variables
from app.wiring_models import secrets_of
from app.wiring_tools import tool_names

TOOLS = """
def weather(city: str) -> str:
    \"\"\"The weather of a city.

    Args:
        city: Its name.
    \"\"\"
    return city
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith(("SUBAGENTD_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)


def write_toml(text: str) -> None:
    Path(TOML_FILE).write_text(text)


def shown(settings: Settings, given: Mapping[str, Any] | None = None) -> dict[str, tuple[Any, str]]:
    return {row["name"]: (row["value"], row["source"]) for row in sources(settings, given or {})}


@pytest.mark.spec("16.5")
def test_an_argument_beats_the_environment_that_beats_the_file_that_beats_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load().http.port == 8080
    write_toml("[http]\nport = 1001\nhost = 'localhost'\n")
    assert load().http.port == 1001
    monkeypatch.setenv("SUBAGENTD_HTTP__PORT", "1002")
    assert load().http.port == 1002
    settings = load(http={"port": 1003})
    assert (settings.http.port, settings.http.host) == (1003, "localhost")


@pytest.mark.spec("16.5")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SUBAGENTD_HOST", "::1", ("http.host", "::1")),
        ("SUBAGENTD_PORT", "9000", ("http.port", 9000)),
        ("SUBAGENTD_DB", "other.db", ("store.url", "other.db")),
        ("SUBAGENTD_AGENTS", os.pathsep.join(["one", "two"]), ("agents", ["one", "two"])),
        ("SUBAGENTD_MODEL", "local:small", ("models.default", "local:small")),
        ("SUBAGENTD_WORKSPACE", "desk", ("tools.workspace", "desk")),
        ("SUBAGENTD_KEY", "k" * 16, ("http.key", "**********")),
        ("SUBAGENTD_STORE__LINGER_MS", "7.5", ("store.linger_ms", 7.5)),
        ("SUBAGENTD_HTTP__HOSTS", '["a.example"]', ("http.hosts", ["a.example"])),
        ("SUBAGENTD_DEFAULT_AGENT", "scout", ("default_agent", "scout")),
        ("SUBAGENTD_DEFAULT_SUBAGENT", "scout", ("default_subagent", "scout")),
        ("SUBAGENTD_HANDOFF__BACKOFF_MS", "250", ("handoff.backoff_ms", 250)),
        ("SUBAGENTD_TEXTS__LANGUAGE", "zh", ("texts.language", "zh")),
        ("SUBAGENTD_TEXTS__REPLACE", '{"heading": "[Result]"}', ("texts.replace.heading", "[Result]")),
        ("OPENAI_BASE_URL", "http://localhost:1/v1", ("models.openai_base_url", "http://localhost:1/v1")),
    ],
)
def test_every_setting_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: tuple[str, Any]
) -> None:
    monkeypatch.setenv(name, value)
    assert shown(load())[expected[0]] == (expected[1], "environment")
    assert unknown_variables() == []


@pytest.mark.spec("16.5")
def test_the_flat_twin_of_the_key_is_the_bootstrap_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBAGENTD_KEY", "a bootstrap key of the test")
    key = load().http.key
    assert key is not None
    assert key.get_secret_value() == "a bootstrap key of the test"
    monkeypatch.setenv("SUBAGENTD_KEY", "short")
    with pytest.raises(ValidationError, match="shorter than 16"):
        load()


@pytest.mark.spec("16.3")
def test_each_setting_is_listed_with_the_place_that_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    write_toml("default_agent = 'scout'\n[models.profiles.'v1.5']\nmodel = 'm'\n[http]\nport = 1\n")
    monkeypatch.setenv("SUBAGENTD_PORT", "2")
    monkeypatch.setenv("SUBAGENTD_HTTP__DOCS", "true")
    given = {"http": {"host": "localhost"}}
    found = shown(load(**given), given)
    assert found["http.host"] == ("localhost", "argument")
    assert found["http.port"] == (2, "environment")
    assert found["http.docs"] == (True, "environment")
    assert found["default_agent"] == ("scout", TOML_FILE)
    assert found["models.profiles.v1.5.model"] == ("m", TOML_FILE)
    assert found["models.profiles.v1.5.idle_s"] == (120.0, "default")
    assert found["limits.max_steps"] == (200, "default")


@pytest.mark.spec("16.5")
@pytest.mark.parametrize(
    "text", ["prot = 1\n", "[http]\nprot = 1\n", "[models.profiles.a]\nmodel = 'm'\nbase = 'x'\n", "[webhook]\n"]
)
def test_an_unknown_key_in_the_file_is_refused(text: str) -> None:
    write_toml(text)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        load()


@pytest.mark.spec("16.5")
def test_an_unknown_variable_is_named_and_an_unknown_one_in_a_known_group_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUBAGENTD_PROT", "1")
    load()
    assert unknown_variables() == ["SUBAGENTD_PROT"]
    monkeypatch.setenv("SUBAGENTD_HTTP__PROT", "1")
    with pytest.raises(ValidationError, match=r"http\.prot"):
        load()


@pytest.mark.spec("16.5")
def test_without_settings_handoffs_are_paced_as_the_kernel_does_it() -> None:
    assert load().handoff.model_dump() == asdict(Pacing())


@pytest.mark.spec("16.5")
@pytest.mark.parametrize(
    ("name", "value"), [("backoff_ms", -1), ("max_backoff_ms", 3_600_001), ("deadline_ms", 0), ("max_retries", 1)]
)
def test_a_pace_of_handoffs_that_cannot_be_kept_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValidationError, match=rf"handoff\.{name}"):
        load(handoff={name: value})


@pytest.mark.spec("16.5")
def test_who_gets_a_delegation_without_a_name_is_a_setting() -> None:
    assert load().default_subagent == "researcher"
    write_toml("default_subagent = 'scout'\n")
    assert load().default_subagent == "scout"


@pytest.mark.spec("16.5")
def test_the_texts_can_be_set_to_each_language_that_there_is_and_to_no_other() -> None:
    assert load().texts.model_dump() == {"language": DEFAULT_LANGUAGE, "replace": {}}
    assert [load(texts={"language": language}).texts.language for language in LANGUAGES] == list(LANGUAGES)
    with pytest.raises(ValidationError, match=r"texts\.language"):
        load(texts={"language": "fr"})


@pytest.mark.spec("16.5")
def test_a_text_is_replaced_by_its_name_and_a_name_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    write_toml("[texts]\nlanguage = 'en'\nreplace = {heading = '', digest = 'So far:'}\n")
    assert load().texts.replace == {"heading": "", "digest": "So far:"}
    with pytest.raises(ValidationError, match=r"texts\.replace\s.*no text 'headline'; there are activity, ") as caught:
        load(texts={"replace": {"headline": "x"}})
    assert all(name in str(caught.value) for name in TEXT_NAMES)


# ── model profiles ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.3")
def test_every_field_of_a_profile_is_one_of_the_models_own() -> None:
    named = set(ModelProfile.model_fields) - {"api_key_env"}  # names the variable that the key is read from
    assert named <= {field.name for field in fields(Profile)}
    assert get_args(ModelProfile.model_fields["thinking_style"].annotation) == THINKING_STYLES


@pytest.mark.spec("13.3")
def test_prices_and_the_way_of_thinking_are_settings_of_a_profile() -> None:
    write_toml(
        "[models.profiles.fast]\nprovider = 'scripted'\nmodel = 'echo'\ninput_price = 150000\ncached_price = 75000\n"
        "cache_write_price = 170000\n"
        "output_price = 600000\ncurrency = 'EUR'\nthinking_style = 'enable_thinking'\n"
    )
    given = load().models.profiles["fast"]
    profile = Profile(name="fast", **given.model_dump(exclude={"api_key_env", "base_url"}))
    assert profile.prices == Prices(input=150_000, cached=75_000, output=600_000, currency="EUR")
    assert (profile.cache_write_price, profile.thinking_style) == (170_000, "enable_thinking")


@pytest.mark.spec("13.3")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_price", -1),
        ("cache_write_price", -1),
        ("output_price", 0.5),
        ("currency", "usd"),
        ("thinking_style", "on"),
    ],
)
def test_a_price_or_a_style_that_there_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=rf"models\.profiles\.fast\.{name}"):
        load(models={"profiles": {"fast": {"model": "m", name: value}}})


# ── secrets ─────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "hunter2-hunter2"


@pytest.mark.spec("16.3")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"postgresql://bob:{SECRET}@db:5432/x", "postgresql://bob:***@db:5432/x"),
        (f"postgresql://bob:a/{SECRET}@db/x?a=b@c", "postgresql://bob:***@db/x?a=b@c"),
        (f"postgresql+psycopg://bob@corp:{SECRET}@db/x", "postgresql+psycopg://bob@corp:***@db/x"),
        (f"postgresql://db/x?user=bob&password={SECRET}", "postgresql://db/x?user=bob&password=***"),
        (f"https://bob:a@{SECRET}@host:1/v1", "https://bob:***@host:1/v1"),
        (f"HTTPS://:{SECRET}@host/v1", "HTTPS://:***@host/v1"),
        (f"https://host/v1?api_key={SECRET}", "https://host/v1?api_key=***"),
        ("postgresql://bob@db/x", "postgresql://bob@db/x"),
        ("http://host:8080/at/@home", "http://host:8080/at/@home"),
        ("sqlite:///data/my.db", "sqlite:///data/my.db"),
    ],
)
def test_the_password_in_a_url_is_not_shown(url: str, expected: str) -> None:
    profiles = {"own": {"model": "m", "base_url": url}}
    found = shown(load(store={"url": url}, models={"profiles": profiles, "openai_base_url": url}))
    for name in ("store.url", "models.profiles.own.base_url", "models.openai_base_url"):
        assert found[name][0] == expected


@pytest.mark.spec("16.3")
def test_keys_and_secret_headers_are_not_shown_and_harmless_ones_are() -> None:
    secret_names = ("Authorization", "x-api-key", "X-Auth-Token", "Client-Secret", "Cookie", "X-Auth")
    headers = {**dict.fromkeys(secret_names, f"Bearer {SECRET}"), "X-Title": "subagentd", "X-Author": "the authors"}
    settings = load(
        http={"key": SECRET * 2},
        audit={"key": SECRET},
        models={"openai_api_key": SECRET, "profiles": {"own": {"model": "m", "headers": headers}}},
    )
    found = shown(settings)
    assert SECRET not in str(found)
    assert [found[f"models.profiles.own.headers.{name}"][0] for name in secret_names] == ["***"] * len(secret_names)
    assert found["models.profiles.own.headers.X-Title"][0] == "subagentd"
    assert found["models.profiles.own.headers.X-Author"][0] == "the authors"


@pytest.mark.spec("16.3")
def test_what_settings_hold_is_masked_in_every_sink_and_harmless_headers_are_not() -> None:
    headers = {"Authorization": "Bearer tok-123456", "X-Api-Key": "api-123456", "X-Title": "subagentd"}
    profiles = {
        "own": {"model": "m", "base_url": "https://u:url-123456@h/v1", "headers": headers},
        "two": {"model": "m", "headers": {"Proxy-Authorization": "Basic YmFzaWM6MTIz"}},
    }
    masker = ValueMasker(
        secrets_of(load(store={"url": "postgresql://bob:pass%2Fword-1@db/x"}, models={"profiles": profiles}))
    )
    for secret in ("tok-123456", "api-123456", "url-123456", "YmFzaWM6MTIz", "pass%2Fword-1", "pass/word-1"):
        assert masker.text(f"it is {secret}.") == f"it is {MASK}."
    plain = "subagentd: Bearer and Basic by bob at db, https://u@h/v1"
    assert masker.text(plain) == plain


# ── what hangs on settings ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("10.2", "16.3")
def test_the_names_of_tools_hold_the_operators_own_and_a_wrong_path_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_weather_tools.py").write_text(TOOLS)
    monkeypatch.syspath_prepend(tmp_path)
    assert tool_names(load(tools={"functions": ["own_weather_tools:weather"]})) == {
        *tool_names(load()),
        "weather",
    }
    with pytest.raises(ValueError, match="own_weather_tools:wether"):
        tool_names(load(tools={"functions": ["own_weather_tools:wether"]}))


@pytest.mark.spec("10.2", "16.3")
def test_checking_agents_knows_the_operators_own_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_checked_tools.py").write_text(TOOLS)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "a.md").write_text("---\nname: a\ndescription: A.\ntools: [weather, read_file]\n---\nYou are a.\n")
    assert check_agents(load(agents=[folder], tools={"functions": ["own_checked_tools:weather"]}), as_json=False) == 0
    assert "weather" not in capsys.readouterr().out
    check_agents(load(agents=[folder]), as_json=False)
    assert "there is no tool of the name weather; it is granted if an agent" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        check_agents(load(tools={"functions": ["own_checked_tools:nothing"]}), as_json=False)
    assert ended.value.code == 2
    assert "own_checked_tools:nothing" in capsys.readouterr().err
