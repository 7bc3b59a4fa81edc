"""Reasoning in Anthropic's dialect: how it is switched on, how much of it, and where it would be refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.agent.messages import ToolCall
from tests.llm.anthropic_world import NAME, AnthropicWorld, anthropic_world
from tests.llm.asking import GLOB, READ, TASK, assistant, result, user

pytestmark = pytest.mark.spec("13.3")
BUDGET = {"type": "enabled", "budget_tokens": 8192}


@pytest.fixture
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as made:
        yield made


@pytest.mark.parametrize(
    ("fields", "budget", "bound"),
    [
        ({}, 8192, 16_384),  # on top of our own bound, which is meant for the answer
        ({"effort": "low"}, 2048, 10_240),
        ({"effort": "high"}, 16_384, 24_576),
        ({"effort": "3000"}, 3000, 11_192),
        ({"effort": "5"}, 1024, 9216),
        ({"effort": "a lot"}, 8192, 16_384),
        ({"max_tokens": 4000}, 3000, 4000),  # out of a bound that somebody set
        ({"max_tokens": 20_000, "effort": "low"}, 2048, 20_000),
    ],
)
async def test_thinking_is_switched_on_with_a_budget_that_leaves_room_for_the_answer(
    world: AnthropicWorld, fields: dict[str, Any], budget: int, bound: int
) -> None:
    body = (await world.sent(thinking=True, temperature=0.2, **fields)).body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert body["max_tokens"] == bound
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("profile", "fields"),
    [
        ({}, {}),
        ({}, {"effort": "high"}),
        ({}, {"thinking": False}),
        ({}, {"thinking": True, "max_tokens": 1300}),  # too short to think in
        ({}, {"thinking": True, "tools": (READ,), "tool_choice": "required"}),  # either, not both
        ({"model": "claude-opus-4-7"}, {"thinking": True, "tools": (READ,), "tool_choice": "read_file"}),
    ],
)
async def test_thinking_is_left_out_where_nobody_asked_or_it_would_be_refused(
    world: AnthropicWorld, profile: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert "thinking" not in (await world.sent(profile=profile, **fields)).body


async def test_a_turn_of_tool_calls_that_began_without_thinking_goes_on_without(world: AnthropicWorld) -> None:
    one = ToolCall(call_id="call_1", name="glob", raw="{}", arguments={})
    history = (*TASK, assistant("", one, provider=NAME), result(one, "x"))
    assert "thinking" not in (await world.sent(history, tools=(GLOB,), thinking=True)).body
    later = (*history, assistant("done", provider=NAME), user("go on"))
    assert (await world.sent(later, tools=(GLOB,), thinking=True)).body["thinking"] == BUDGET


@pytest.mark.parametrize(
    ("model", "style", "thinking", "temperature"),
    [
        ("claude-3-7-sonnet-20250219", "none", BUDGET, 0.2),
        ("claude-sonnet-4-20250514", "none", BUDGET, 0.2),
        ("claude-haiku-4-5-20251001", "none", BUDGET, 0.2),
        ("claude-opus-4-6", "none", {"type": "adaptive"}, 0.2),
        ("claude-opus-4-7", "none", {"type": "adaptive"}, None),
        ("claude-opus-5", "none", {"type": "adaptive"}, None),
        ("claude-opus-4-6", "thinking_type", BUDGET, 0.2),
        ("other-model", "adaptive", {"type": "adaptive"}, 0.2),
    ],
)
async def test_each_model_is_told_to_think_in_the_way_that_it_accepts(
    world: AnthropicWorld, model: str, style: str, thinking: dict[str, Any], temperature: float | None
) -> None:
    profile = {"model": model, "thinking_style": style}
    assert (await world.sent(profile=profile, thinking=True)).body["thinking"] == thinking
    assert (await world.sent(profile=profile, temperature=0.2)).body.get("temperature") == temperature


async def test_a_model_without_a_budget_is_told_its_effort_in_words(world: AnthropicWorld) -> None:
    profile = {"thinking_style": "adaptive"}
    body = (await world.sent(profile=profile, thinking=True, effort="high")).body
    assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    assert (await world.sent(profile=profile, effort="minimal")).body["output_config"] == {"effort": "low"}
    assert "output_config" not in (await world.sent(profile=profile, effort="3000")).body
    assert "output_config" not in (await world.sent(effort="high")).body


async def test_thinking_is_switched_off_in_words_only_where_the_profile_asks_for_them(world: AnthropicWorld) -> None:
    body = (await world.sent(profile={"thinking_style": "thinking_type"}, thinking=False)).body
    assert body["thinking"] == {"type": "disabled"}
