"""Which models there are: profiles from settings, and `provider:model` names for the rest.

Knows every provider of this package and no settings file; its values are given to it plainly.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.agent.chat import ChatModel
from app.agent.errors import InvalidRequest, SubagentdError
from app.llm import local
from app.llm.anthropic import ANTHROPIC_URL, AnthropicChat, is_anthropic
from app.llm.http import Transport
from app.llm.local import LocalChat, local_profile
from app.llm.openai import OpenAIChat
from app.llm.profile import Profile
from app.llm.script_files import ScriptFiles
from app.llm.scripted import ScriptedChat
from app.llm.tokens import ModelCounter, vocabulary

OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_HOST = "https://api.openai.com/"
_BY_NAME = ("openai:", "anthropic:")  # any model of theirs can be named
MAX_INSTANCES = 256  # names may come from callers: what is kept of them is bounded
# OpenAI's reasoning models refuse `max_tokens` and any temperature but their own; other servers use the names freely.
_OPENAI_REASONING = re.compile(r"(o\d|gpt-5)(-|\.|$)")
_SET_ONE = (
    "set one with --model, with SUBAGENTD_MODEL=provider:model (openai:<model> with OPENAI_API_KEY or, for a server of "
    "your own, OPENAI_BASE_URL; anthropic:<model> with ANTHROPIC_API_KEY; local:smollm2; scripted:demo), or name a "
    "model in the agent or request"
)


class Models:
    """The model catalog (`ModelCatalog`). Instances are made at first use and shared; `close` ends what they hold."""

    def __init__(
        self,
        *,
        default: str | None = None,
        profiles: Mapping[str, Profile] | None = None,
        openai_base_url: str | None = None,
        openai_api_key: str | None = None,
        anthropic_base_url: str | None = None,
        anthropic_api_key: str | None = None,
        scripts_dir: Path | None = None,
    ) -> None:
        self._default = default or None
        self._openai_base_url = openai_base_url or ""
        self._openai_api_key = openai_api_key or ""
        self._anthropic_base_url = anthropic_base_url or ANTHROPIC_URL
        self._anthropic_api_key = anthropic_api_key or ""
        self._profiles = {name: self._completed(profile) for name, profile in (profiles or {}).items()}
        self._scripts = ScriptFiles(scripts_dir)
        self._transport = Transport()
        self._instances: OrderedDict[str, ChatModel] = OrderedDict()
        self._counters: OrderedDict[str, ModelCounter] = OrderedDict()
        self._local: dict[str, LocalChat] = {}  # each holds a process: never dropped, few by construction

    def resolve(self, name: str | None) -> ChatModel:
        """See `ModelCatalog`. Codes: `no_model`, `unknown_model`, `model_unavailable` (known, but cannot run here),
        `invalid_script`."""
        wanted = name or self._default
        if wanted is None:
            raise InvalidRequest(f"no model is configured: {_SET_ONE}", code="no_model")
        model = self._instances.get(wanted) or self._local.get(wanted)
        if model is None:
            model = self._made(self._profile(wanted))
            if isinstance(model, LocalChat):
                self._local[wanted] = model
            else:
                self._instances[wanted] = model
                if len(self._instances) > MAX_INSTANCES:
                    self._instances.popitem(last=False)
        return model

    def profile(self, name: str | None) -> Profile:
        """What is configured about a model: its window, prices and limits. Raises as `resolve` does."""
        wanted = name or self._default
        if wanted is None:
            raise InvalidRequest(f"no model is configured: {_SET_ONE}", code="no_model")
        return self._profile(wanted)

    def counter(self, name: str) -> ModelCounter:
        """See `ModelCatalog`. What it has learned is kept as long as its model is."""
        counter = self._counters.get(name)
        if counter is None:
            try:
                model = self._profile(name).model
            except SubagentdError:  # what is no model here has no vocabulary either
                model = ""
            counter = self._counters[name] = ModelCounter(vocabulary(model))
            if len(self._counters) > MAX_INSTANCES:
                self._counters.popitem(last=False)
        self._counters.move_to_end(name)
        return counter

    def listing(self) -> Sequence[Mapping[str, Any]]:
        """What can be named: `name`, `provider`, `model`, `tool_mode`, `context_window`, `prices`, `default`,
        `available` and, if not, `reason`. Never a key."""
        found = dict(self._profiles)
        found["local:smollm2"] = local_profile("local:smollm2", "smollm2")
        for script in self._scripts.names():
            found[f"scripted:{script}"] = Profile(name=f"scripted:{script}", provider="scripted", model=script)
        if self._default is not None and self._default.startswith(_BY_NAME) and self._default not in found:
            found[self._default] = self._profile(self._default)
        return [self._entry(profile) for _, profile in sorted(found.items())]

    async def close(self) -> None:
        """End child processes and connections."""
        for model in self._local.values():
            await model.close()
        self._local.clear()
        self._instances.clear()
        await self._transport.close()

    def _profile(self, name: str) -> Profile:
        if name in self._profiles:
            return self._profiles[name]
        provider, colon, model = name.partition(":")
        if colon and model:
            if provider == "openai":
                return self._openai(name, model)
            if provider == "anthropic":
                return self._completed(Profile(name=name, provider="anthropic", model=model))
            if provider == "scripted":
                return Profile(name=name, provider="scripted", model=model)
            if provider == "local" and model in local.MODELS:
                return local_profile(name, model)
        raise InvalidRequest(
            f"unknown model {name!r}: there are {', '.join(self._known())}; add a profile for it, or correct the name",
            code="unknown_model",
        )

    def _openai(self, name: str, model: str) -> Profile:
        url = self._openai_base_url or OPENAI_URL
        profile = Profile(name=name, provider="openai", model=model, base_url=url, api_key=self._openai_api_key)
        if url.startswith(_OPENAI_HOST) and _OPENAI_REASONING.match(model):
            return replace(profile, max_tokens_key="max_completion_tokens", send_temperature=False)
        return profile

    def _completed(self, profile: Profile) -> Profile:
        """A profile of Anthropic without an address is for the configured one; a key only goes to its own address."""
        if profile.provider != "anthropic" or profile.base_url:
            return profile
        key = profile.api_key or self._anthropic_api_key
        return replace(profile, base_url=self._anthropic_base_url, api_key=key)

    def _made(self, profile: Profile) -> ChatModel:
        reason = _unavailable(profile)
        if reason is not None:
            raise InvalidRequest(f"model {profile.name!r} cannot be used: {reason}", code="model_unavailable")
        if profile.provider == "openai":
            return OpenAIChat(profile, self._transport)
        if profile.provider == "anthropic":
            return AnthropicChat(profile, self._transport)
        if profile.provider == "scripted":
            return ScriptedChat(profile.name, self._scripts.load(profile.model), profile.prices, profile.context_window)
        return LocalChat(profile, self._transport)

    def _known(self) -> list[str]:
        scripts = [f"scripted:{name}" for name in self._scripts.names()]
        own = [f"local:{name}" for name in local.MODELS]
        return [*sorted(self._profiles), *(f"{provider}<model>" for provider in _BY_NAME), *own, *scripts]

    def _entry(self, profile: Profile) -> Mapping[str, Any]:
        reason = _unavailable(profile)
        entry: dict[str, Any] = {
            "name": profile.name,
            "provider": profile.provider,
            "model": profile.model,
            "tool_mode": profile.tool_mode,
            "context_window": profile.context_window,
            "prices": asdict(profile.prices) if profile.prices else None,
            "default": profile.name == self._default,
            "available": reason is None,
        }
        return entry if reason is None else {**entry, "reason": reason}


def _unavailable(profile: Profile) -> str | None:
    if profile.provider == "local":
        return local.missing()
    if profile.provider == "openai" and profile.base_url.startswith(_OPENAI_HOST) and not profile.api_key:
        return "it has no API key; set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none"
    if profile.provider == "anthropic" and is_anthropic(profile.base_url) and not profile.api_key:
        return "it has no API key; set ANTHROPIC_API_KEY (a profile: api_key_env), or the base URL of another server"
    return None
