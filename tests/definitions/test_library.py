"""The agents that come with the service and those of the demo: complete, bounded, and understood by small models."""

from pathlib import Path

import pytest

from app.agent.definition import AgentDefinition, AgentMode, Surface, SurfaceKind, tool_name_of
from app.definitions import Catalog
from app.definitions.toolnames import is_delegation

DEMO = Path(__file__).parents[2] / "agents"
READ_ONLY = {"read_file", "grep", "glob"}


def agents(*directories: Path, library: bool = True) -> dict[str, AgentDefinition]:
    catalog = Catalog(directories) if library else Catalog(directories, library=None)
    catalog.reload()
    report = catalog.report("default")
    assert report.broken == ()
    assert all("switched off on this server" in problem.message for problem in report.problems)
    return {agent.name: agent for agent in report.agents}


@pytest.mark.spec("10.4")
@pytest.mark.parametrize(
    ("name", "alias", "tools"),
    [
        ("lead", None, READ_ONLY | {"Agent"}),
        ("scout", "xiaohuangmen", READ_ONLY),
        ("reviewer", "sili_suitang", READ_ONLY),
        ("researcher", "dongchang_tanshi", READ_ONLY | {"web_fetch"}),
        ("checker", "shangbao_dianbu", READ_ONLY | {"run_command"}),
        (
            "builder",
            "neiguan_yingzao",
            READ_ONLY | {"run_command", "web_fetch", "load_skill", "write_file", "edit_file"},
        ),
    ],
)
def test_the_library_has_each_role_with_its_tools(name: str, alias: str | None, tools: set[str]) -> None:
    agent = agents()[name]
    assert set(agent.tools or ()) == tools
    assert agent.metadata.get("alias") == alias
    assert agent.source.kind == "library"
    assert len(agent.prompt) > 500
    assert tool_name_of(agent) == f"subagent_{name}"


@pytest.mark.spec("10.4")
@pytest.mark.seed("003", 118)
def test_only_the_lead_of_the_library_delegates() -> None:
    library = agents()
    assert [name for name, agent in library.items() if agent.mode is not AgentMode.SUBAGENT] == ["lead"]
    assert [name for name, agent in library.items() if any(map(is_delegation, agent.tools or ()))] == ["lead"]
    assert library["lead"].surfaces is None


def test_the_demo_has_a_lead_with_two_subagents() -> None:
    demo = agents(DEMO, library=False)
    lead, reader, finder = demo["demo-lead"], demo["demo-reader"], demo["demo-finder"]
    assert lead.mode is AgentMode.PRIMARY
    assert (lead.tools, lead.agents) == (("Agent",), ("demo-reader", "demo-finder"))
    assert lead.surfaces == (Surface(kind=SurfaceKind.DISPATCH),)
    assert (lead.tool_choice, lead.max_steps, lead.temperature) == ("dispatch_subagent", 2, 0)
    assert (reader.tools, reader.tool_choice, reader.max_steps) == (("read_file",), "read_file", 2)
    assert (finder.tools, finder.tool_choice, finder.max_steps) == (("glob", "grep"), "glob", 2)


def test_prompts_of_the_demo_fit_a_very_small_model() -> None:
    for agent in agents(DEMO, library=False).values():
        assert len(agent.prompt.encode()) < 1600  # some 400 tokens: it reads 140 in a second
