"""Which tools an agent has below others, as people are shown it: the same that its runs are given."""

import pytest

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.permission_rules import PermissionRule, Verdict
from app.agent.policy import PolicyFields, ToolInherit
from app.agent.tools import ToolRegistry
from app.sessions.grants import Grants
from tests.agent.probes import Probe, echo

pytestmark = pytest.mark.spec("7.2", "14.14")
ORDINARY = ToolRegistry(
    [Probe(name, echo, read_only=True, built_in=name == "read_file") for name in ("read_file", "grep", "run")]
)
INTERSECT = PolicyFields(inherit_tools=ToolInherit.INTERSECT)
GIT = (PermissionRule(effect=Verdict.ALLOW, tool="run", pattern="git *"),)


def agent(name: str, *tools: str, **fields: object) -> AgentDefinition:
    return AgentDefinition(name=name, description="", tools=tools, **fields)  # type: ignore[arg-type]


def heir(name: str) -> AgentDefinition:
    return AgentDefinition(name=name, description="")


def test_the_parents_whitelist_is_no_ceiling_unless_somebody_says_so() -> None:
    lead, worker = agent("lead", "Agent", "read_file"), agent("worker", "read_file", "grep", "Agent")
    assert Grants(ORDINARY).of([lead, worker]).names == ("read_file", "grep", "Agent")
    assert Grants(ORDINARY, ToolInherit.INTERSECT).of([lead, worker]).names == ("read_file", "Agent")
    assert Grants(ORDINARY).of([lead, worker], policy=INTERSECT).names == ("read_file", "Agent")
    strict = agent("lead", "Agent", "read_file", policy=INTERSECT)
    assert Grants(ORDINARY).of([strict, worker]).names == ("read_file", "Agent")
    assert Grants(ORDINARY, ToolInherit.INTERSECT).of([worker]).names == ("read_file", "grep", "Agent")


def test_it_holds_for_all_that_stand_below() -> None:
    lineage = [agent("lead", "Agent", "grep", policy=INTERSECT), agent("middle", "Agent", "read_file", "grep"),
               agent("leaf", "read_file", "grep")]  # fmt: skip
    assert Grants(ORDINARY).of(lineage).names == ("grep",)
    assert Grants(ORDINARY).of(lineage[1:]).names == ("read_file", "grep")


def test_who_names_no_tools_has_those_of_its_parent_or_the_built_in_ones() -> None:
    assert Grants(ORDINARY).of([heir("alone")]).names == ("read_file",)
    found = Grants(ORDINARY).of([agent("lead", "Agent", "run", limits=GIT), heir("heir")])
    assert (found.names, found.limits) == (("run",), (GIT,))


def test_patterns_of_those_above_bind_only_under_a_ceiling() -> None:
    lineage = [agent("lead", "Agent", "run", limits=GIT), agent("worker", "run")]
    assert Grants(ORDINARY).of(lineage).limits == ((),)
    assert Grants(ORDINARY, ToolInherit.INTERSECT).of(lineage).limits == (GIT, ())


def test_a_way_to_delegate_that_leads_to_nobody_is_none() -> None:
    lead = agent("lead", "Agent", agents=("worker",), surfaces=(Surface(kind=SurfaceKind.PER_AGENT),))
    worker, names = agent("worker", "subagent_leaf", "Agent"), {"subagent_leaf": ("leaf",)}
    assert Grants(ORDINARY).of([lead, worker], names).delegation == ("subagent_leaf", "Agent")
    assert Grants(ORDINARY, ToolInherit.INTERSECT).of([lead, worker], names).delegation == ("Agent",)
