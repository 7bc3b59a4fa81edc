"""The thinking switch on the wire: each endpoint is told in its own way, and nothing is said unasked."""

from typing import Any

import pytest

from app.llm.profile import THINKING_STYLES
from tests.llm.asking import READ, World, ask
from tests.stubs.openai_stub import text

FIELDS = {"enable_thinking", "chat_template_kwargs", "thinking", "reasoning_effort"}
ENVELOPE = {"tool_mode": "json_envelope"}
NATIVE = {"tool_mode": "native"}


async def said(world: World, style: str, profile: dict[str, Any], **request: Any) -> dict[str, Any]:
    """What a request says about reasoning."""
    answer = '{"answer": "ok"}' if profile == ENVELOPE else "ok"
    world.stub.script(text(answer))
    asked = await ask(world.model(thinking_style=style, **profile), tools=(READ,), **request)
    assert asked.reply.text == "ok"
    return {key: value for key, value in world.stub.requests[-1].body.items() if key in FIELDS}


@pytest.mark.spec("13.3")
@pytest.mark.parametrize("profile", [NATIVE, ENVELOPE])
@pytest.mark.parametrize(
    ("style", "on", "off"),
    [
        ("none", {}, {}),
        ("enable_thinking", {"enable_thinking": True}, {"enable_thinking": False}),
        (
            "chat_template_kwargs",
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ("thinking_type", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        ("reasoning_effort", {}, {"reasoning_effort": "none"}),
    ],
)
async def test_thinking_is_switched_in_the_way_that_the_endpoint_understands(
    world: World, profile: dict[str, Any], style: str, on: dict[str, Any], off: dict[str, Any]
) -> None:
    assert await said(world, style, profile, thinking=True) == on
    assert await said(world, style, profile, thinking=False) == off


@pytest.mark.spec("13.3")
@pytest.mark.parametrize("profile", [NATIVE, ENVELOPE])
@pytest.mark.parametrize("style", THINKING_STYLES)
async def test_without_a_word_about_thinking_nothing_is_sent(world: World, profile: dict[str, Any], style: str) -> None:
    assert await said(world, style, profile) == {}
    assert await said(world, style, profile, effort="low") == {"reasoning_effort": "low"}


@pytest.mark.spec("13.3")
async def test_an_effort_holds_while_thinking_is_on_and_yields_when_effort_is_the_switch(world: World) -> None:
    assert await said(world, "reasoning_effort", NATIVE, thinking=True, effort="high") == {"reasoning_effort": "high"}
    assert await said(world, "reasoning_effort", NATIVE, thinking=False, effort="high") == {"reasoning_effort": "none"}
    assert await said(world, "enable_thinking", NATIVE, thinking=True, effort="high") == {
        "enable_thinking": True,
        "reasoning_effort": "high",
    }
