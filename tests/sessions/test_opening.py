"""Sessions from requests: what is kept of one makes the same session again, and every agent that it names exists."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import AgentDefinition, Source, Surface, SurfaceKind
from app.agent.delegation import Roster
from app.agent.errors import InvalidRequest
from app.agent.policy import BudgetLimits, FilterRef, OnProblem, PolicyFields, Reaction
from app.agent.runs import Session
from app.agent.texts import CHINESE, DEFAULT
from app.boxes.workspaces import Workspaces
from app.definitions import Catalog
from app.definitions.reader import DefinitionReader
from app.definitions.toolnames import BUILT_IN
from app.sessions.opening import Opening, checked_agents, config_of
from app.sessions.requests import SessionInput

WHOLE = SessionInput(
    agent="lead",
    title="Harbour",
    user="ann",
    agents=[
        "scout",
        {"name": "lead", "description": "d", "tools": ["delegate_code_review", "ask_clerk"]},
        {"name": "reviewer", "description": "d", "tool_name": "delegate_code_review"},
    ],
    surfaces=["task", {"kind": "subagent", "heading": None, "templates": {"activity": "Log"}}],
    policy={"max_retries": 2, "input_filter": ["mask_secrets"], "on_error": {"agent": "scout"}},
    model="scripted:x",
    parallel_tool_calls=False,
    thinking=False,
    budget={"tokens": 500},
    texts={"language": "zh", "digest": "D"},
    default_subagent="reviewer",
)


def catalog() -> Catalog:
    """The library, and a tenant's agent that is a tool."""
    found = Catalog()
    found.reload()
    clerk = AgentDefinition(name="clerk", description="d", tool_name="ask_clerk", source=Source(kind="tenant"))
    found.set_tenant("t", "clerk", clerk)
    return found


def opening(root: Path, agents: Catalog | None = None) -> Opening:
    """Makes sessions of the library's agents and the tenant's."""
    return Opening(DefinitionReader(BUILT_IN, (agents or catalog()).tool_names), Workspaces(root))


def row_of(session: Session, given: SessionInput) -> dict[str, Any]:
    """What the store gives back of a session."""
    return {
        "tenant_id": session.tenant,
        "id": session.id,
        "memory_id": session.memory_id,
        "agent": session.agent,
        "created_at": session.created_at,
        "title": session.title,
        "user": session.user,
        "metadata": dict(session.metadata),
        "config": json.loads(json.dumps(config_of(given))),
        "closed_at": None,
    }


@pytest.mark.spec("14.1", "4.8", "5.9", "3.4")
def test_a_request_says_everything_about_a_session(tmp_path: Path) -> None:
    session = opening(tmp_path).new("t", WHOLE, "lead")
    assert session.agents == ("scout", "lead", "reviewer")
    assert session.surfaces == (
        Surface(kind=SurfaceKind.TASK),
        Surface(kind=SurfaceKind.SUBAGENT, templates={"activity": "Log", "heading": None}),
    )
    assert session.policy == PolicyFields(
        max_retries=2,
        input_filters=(FilterRef(name="mask_secrets"),),
        on_error=OnProblem(reaction=Reaction.AGENT, target="scout"),
    )
    assert (session.thinking, session.parallel_tool_calls, session.model) == (False, False, "scripted:x")
    assert session.budget == BudgetLimits(tokens=500)
    assert session.texts == CHINESE.replaced({"digest": "D"})
    assert session.default_subagent == "reviewer"


@pytest.mark.spec("14.1")
@pytest.mark.parametrize("given", [WHOLE, SessionInput(), SessionInput(thinking=True, texts="en", budget={})])
def test_a_session_is_the_same_when_it_is_made_again_from_its_row(tmp_path: Path, given: SessionInput) -> None:
    door = opening(tmp_path)
    session = door.new("t", given, "lead")
    assert door.again(row_of(session, given)) == session


@pytest.mark.spec("7.2", "12.7")
def test_a_session_comes_back_although_a_tool_that_it_names_is_gone(tmp_path: Path) -> None:
    session = opening(tmp_path).new("t", WHOLE, "lead")
    gone = catalog()
    gone.drop_tenant("t", "clerk")
    again = opening(tmp_path, gone).again(row_of(session, WHOLE))
    assert again.inline["lead"].tools == ("delegate_code_review", "ask_clerk")
    with pytest.raises(InvalidRequest, match="unknown tools: ask_clerk") as caught:
        opening(tmp_path, gone).new("t", WHOLE, "lead")
    assert [error["at"] for error in caught.value.errors] == ["agents[1].tools"]


@pytest.mark.spec("17.1")
def test_another_tenants_agent_is_no_tool_here(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="ask_clerk"):
        opening(tmp_path).new("other", WHOLE, "lead")


@pytest.mark.spec("5.9")
def test_a_session_without_words_of_its_own_has_the_services(tmp_path: Path) -> None:
    words = DEFAULT.replaced({"digest": "Ours:"})
    door = Opening(DefinitionReader(BUILT_IN), Workspaces(tmp_path), words)
    assert door.new("t", SessionInput(), None).texts == words
    own = door.new("t", SessionInput(texts={"heading": "H"}), None)
    assert own.texts == words.replaced({"heading": "H"})


@pytest.mark.spec("14.1")
@pytest.mark.parametrize(
    ("given", "at"),
    [
        (SessionInput(agents=["nobody"]), "agents"),
        (SessionInput(default_subagent="nobody"), "default_subagent"),
        (SessionInput(default_subagent=""), "default_subagent"),
        (SessionInput(surfaces=["task", {"kind": "subagent", "agents": ["nobody"]}]), "surfaces[1].agents"),
        (SessionInput(policy={"on_error": {"agent": "nobody"}}), "policy.on_error.agent"),
        (SessionInput(policy={"on_denied": {"agent": "nobody"}}), "policy.on_denied.agent"),
    ],
)
def test_an_agent_that_a_session_names_must_exist(tmp_path: Path, given: SessionInput, at: str) -> None:
    door, roster = opening(tmp_path), Roster(catalog())
    with pytest.raises(InvalidRequest) as caught:
        checked_agents(door.new("t", given, None), roster)
    assert caught.value.code == "unknown_agent"
    assert [error["at"] for error in caught.value.errors] == [at]
    named = json.loads(json.dumps(config_of(given)).replace('"nobody"', '"scout"'))
    right = replace(given, **{key: value for key, value in named.items() if key != "default_subagent"})
    checked_agents(door.new("t", replace(right, default_subagent="scout"), None), roster)


@pytest.mark.spec("14.1")
def test_a_session_has_at_most_two_thousand_agents(tmp_path: Path) -> None:
    inline = [{"name": f"a{number}", "description": "d"} for number in range(2_001)]
    for agents in (["scout"] * 2_001, inline):
        with pytest.raises(InvalidRequest, match=r"agents has 2,001 entries, at most 2,000 are accepted") as caught:
            opening(tmp_path).new("t", SessionInput(agents=agents), None)
        assert [error["at"] for error in caught.value.errors] == ["agents"]
    session = opening(tmp_path).new("t", SessionInput(agents=inline[:2_000]), None)
    assert len(session.inline) == 2_000


@pytest.mark.spec("14.1")
@pytest.mark.parametrize(
    ("given", "at"),
    [
        (SessionInput(surfaces=["task"] * 65), "surfaces"),
        (SessionInput(budget={"tokens": -1}), "budget.tokens"),
        (SessionInput(texts={"greeting": "x"}), "texts.greeting"),
        (SessionInput(texts="fr"), "texts"),
        (SessionInput(policy={"input_filter": "shop.filters:short"}), "policy.input_filter"),
        (SessionInput(agents=[{"name": "a", "description": "d", "runner": "shop.run:go"}]), "agents[0].runner"),
    ],
)
def test_a_wrong_part_of_a_session_is_refused_with_its_place(tmp_path: Path, given: SessionInput, at: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        opening(tmp_path).new("t", given, None)
    assert [error["at"] for error in caught.value.errors] == [at]
