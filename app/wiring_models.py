"""The part of the composition root about models, the texts that they are told, and what must appear in no sink."""

import os
from collections.abc import Mapping
from typing import Any

from app.agent.texts import LANGUAGES, Texts
from app.llm.catalog import Models
from app.llm.profile import Profile
from app.masking import secret_values
from app.settings import ModelProfile, Settings
from app.settings_secrets import header_secrets, url_secrets
from app.wiring_hooks import hook_secrets
from app.wiring_mcp import mcp_secrets


def secrets_of(settings: Settings) -> list[str]:
    """Every value that must appear in no sink."""
    models = settings.models
    own = [settings.http.key, settings.audit.key, models.openai_api_key, models.anthropic_api_key]
    found = [secret.get_secret_value() for secret in own if secret is not None]
    for url in (settings.store.url, models.openai_base_url, models.anthropic_base_url):
        found += url_secrets(url or "")
    for profile in models.profiles.values():
        found += [os.environ.get(profile.api_key_env or "", ""), *url_secrets(profile.base_url or "")]
        found += header_secrets(profile.headers)
    return [*found, *hook_secrets(settings), *mcp_secrets(settings), *secret_values(os.environ)]


def texts_of(settings: Settings) -> Texts:
    """What the service says to models."""
    return LANGUAGES[settings.texts.language].replaced(settings.texts.replace)


def models_of(settings: Settings) -> Models:
    """The models by their names. Raises ValueError for a profile whose key is not there."""
    given = settings.models
    return Models(
        default=given.default,
        profiles={name: _profile(name, profile, os.environ) for name, profile in given.profiles.items()},
        openai_base_url=given.openai_base_url,
        openai_api_key=given.openai_api_key.get_secret_value() if given.openai_api_key else None,
        anthropic_base_url=given.anthropic_base_url,
        anthropic_api_key=given.anthropic_api_key.get_secret_value() if given.anthropic_api_key else None,
        scripts_dir=given.scripts,
    )


def _profile(name: str, given: ModelProfile, environment: Mapping[str, str]) -> Profile:
    fields: dict[str, Any] = given.model_dump(exclude={"api_key_env", "base_url"}, exclude_none=True)
    key = environment.get(given.api_key_env or "", "")
    if given.api_key_env and not key:
        raise ValueError(f"models.profiles.{name}: the environment variable {given.api_key_env} is not set")
    return Profile(name=name, base_url=given.base_url or "", api_key=key, **fields)
