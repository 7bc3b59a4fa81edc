"""What request bodies become: every field reaches the service, and what they refuse is refused here."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.api.schemas.requests import DelegationBody, OneShotBody, RunBody, SessionBody
from app.sessions.requests import DelegationInput, RunInput, SessionInput

SESSION: dict[str, Any] = {
    "agent": "lead",
    "title": "t",
    "user": "ann",
    "metadata": {"a": 1},
    "agents": ["scout"],
    "surfaces": ["task", {"kind": "subagent"}],
    "policy": {"max_retries": 1},
    "model": "scripted:x",
    "workspace": "w",
    "parallel_tool_calls": False,
    "budget": {"tokens": 5},
    "texts": {"language": "zh"},
    "default_subagent": "scout",
}
SCHEMA = {"type": "array"}


@pytest.mark.spec("14.1", "14.7")
def test_every_field_of_a_session_reaches_the_service() -> None:
    wanted = SessionInput(**SESSION, thinking=False)
    assert SessionBody.model_validate({**SESSION, "thinking": "off"}).session() == wanted
    once = OneShotBody.model_validate({**SESSION, "thinking": "off", "input": "x", "output_schema": SCHEMA})
    assert once.session() == wanted
    assert once.run() == RunInput(input="x", output_schema=SCHEMA)
    assert SessionBody().session() == SessionInput()


@pytest.mark.spec("14.3")
def test_every_field_of_a_turn_reaches_the_service() -> None:
    data = {"input": "x", "max_steps": 3, "deadline_ms": 5, "output_schema": SCHEMA, "budget": {"tool_calls": 1}}
    assert RunBody.model_validate({**data, "on_busy": "reject"}).run() == RunInput(**data)  # type: ignore[arg-type]


@pytest.mark.spec("14.9")
def test_every_field_of_a_delegation_reaches_the_service() -> None:
    data: dict[str, Any] = {
        "agent": "scout",
        "task": "x",
        "context": "c",
        "name": "n",
        "tools": ["read_file"],
        "max_steps": 3,
        "timeout_ms": 4,
        "deadline_ms": 5,
        "policy": {"max_retries": 1},
        "model": "scripted:x",
        "output_schema": SCHEMA,
        "budget": {"tokens": 5},
        "session_key": "k",
    }
    own: dict[str, Any] = {"user": "ann", "metadata": {"a": 1}, "workspace": "w", "texts": "en"}
    assert DelegationBody.model_validate({**data, **own, "thinking": "on"}).delegation() == DelegationInput(
        **data, **own, thinking=True
    )
    there = DelegationBody.model_validate({**data, "session_id": "ses_1"}).delegation()
    assert there == DelegationInput(**data, session_id="ses_1")
    for field, value in own.items():
        with pytest.raises(ValidationError, match=f"{field}: only a new session takes these"):
            DelegationBody.model_validate({**data, field: value, "session_id": "ses_1"})


@pytest.mark.spec("14.1", "14.9")
@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": True},
        {"thinking": "maybe"},
        {"budget": 5},
        {"budget": [5]},
        {"texts": 5},
        {"texts": ["en"]},
        {"default_subagent": 5},
        {"default_subagent": "x" * 501},
    ],
)
def test_fields_of_a_wrong_kind_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SessionBody.model_validate(fields)


def test_objects_that_are_nested_too_deep_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"a": deep}
    for fields in ({"budget": deep}, {"texts": deep}, {"policy": deep}):
        with pytest.raises(ValidationError, match="nested deeper"):
            SessionBody.model_validate(fields)
    with pytest.raises(ValidationError, match="nested deeper"):
        RunBody.model_validate({"input": "x", "output_schema": deep})


def test_what_comes_later_is_still_told_apart() -> None:
    assert SessionBody.later == frozenset()
    assert RunBody.later == frozenset()
    assert OneShotBody.later == frozenset()
    assert DelegationBody.later == frozenset()
    for body in (SessionBody, RunBody, OneShotBody, DelegationBody):
        assert body.later.isdisjoint(body.model_fields)
