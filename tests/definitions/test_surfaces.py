"""The surfaces of a definition or session: kinds, agents, and the texts that each of them may replace."""

from typing import Any

import pytest

from app.agent.definition import Surface, SurfaceKind
from app.agent.errors import InvalidRequest
from app.agent.texts import TEXT_NAMES
from app.definitions import Severity
from app.definitions.reader import DefinitionReader
from app.definitions.surfaces import TEMPLATES
from app.definitions.toolnames import BUILT_IN
from tests.definitions.world import NAMED, loaded, read

READER = DefinitionReader(BUILT_IN)


@pytest.mark.spec("10.1", "14.1")
@pytest.mark.parametrize(
    ("lines", "surfaces"),
    [
        ("surfaces: dispatch", (Surface(kind=SurfaceKind.DISPATCH),)),
        ("surfaces: dispatch, per-agent", (Surface(kind=SurfaceKind.DISPATCH), Surface(kind=SurfaceKind.PER_AGENT))),
        ("surfaces: [per_agent]", (Surface(kind=SurfaceKind.PER_AGENT),)),
        ("surfaces: [task, subagent]", (Surface(kind=SurfaceKind.TASK), Surface(kind=SurfaceKind.SUBAGENT))),
        ("surfaces: [{kind: dispatch, agents: [a]}]", (Surface(kind=SurfaceKind.DISPATCH, agents=("a",)),)),
        ("surfaces: [task, task]", (Surface(kind=SurfaceKind.TASK),)),
        ("surfaces: []", ()),
        ("surfaces:", None),
        (
            "surfaces:\n- kind: task\n  templates:\n    execute_task: |-\n      Start one of these.\n      {agents}",
            (Surface(kind=SurfaceKind.TASK, templates={"execute_task": "Start one of these.\n{agents}"}),),
        ),
        (
            "surfaces: [{kind: subagent, heading: '[Result]', templates: {conclusion: off, activity: }}]",
            (
                Surface(
                    kind=SurfaceKind.SUBAGENT,
                    templates={"heading": "[Result]", "conclusion": None, "activity": None},
                ),
            ),
        ),
        (
            "surfaces: [{kind: subagent, heading: 'off'}]",
            (Surface(kind=SurfaceKind.SUBAGENT, templates={"heading": "off"}),),
        ),
        ("surfaces: [{kind: dispatch, templates: {dispatch: }}]", (Surface(kind=SurfaceKind.DISPATCH),)),
    ],
)
def test_surfaces_are_kinds_or_maps(lines: str, surfaces: tuple[Surface, ...] | None) -> None:
    assert loaded(NAMED + lines).surfaces == surfaces


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("surfaces: [nonsense]", "surfaces[0]"),
        ("surfaces: {kind: dispatch}", "surfaces"),
        ("surfaces: [{agents: [a]}]", "surfaces[0]"),
        ("surfaces: [{kind: dispatch, agents: {a: b}}]", "surfaces[0].agents"),
        ("surfaces: [{kind: dispatch, only: [a]}]", "surfaces[0].only"),
        ("surfaces: [{kind: dispatch, templates: [a]}]", "surfaces[0].templates"),
        ("surfaces: [{kind: dispatch, templates: {execute_task: x}}]", "surfaces[0].templates.execute_task"),
        ("surfaces: [{kind: dispatch, heading: x}]", "surfaces[0].heading"),
        ("surfaces: [task, {kind: task, templates: {list_tasks: ''}}]", "surfaces[1].templates.list_tasks"),
        ("surfaces: [{kind: task, templates: {list_tasks: [a]}}]", "surfaces[0].templates.list_tasks"),
        ("surfaces: [{kind: subagent, heading: a, templates: {heading: b}}]", "surfaces[0].heading"),
    ],
)
def test_a_surface_that_cannot_be_read_keeps_the_agent_out(lines: str, key: str) -> None:
    parsed = read(NAMED + lines)
    assert parsed.definition is None
    assert [problem.key for problem in parsed.problems if problem.severity is Severity.ERROR] == [key]


@pytest.mark.spec("3.2", "3.4", "14.1")
def test_every_text_of_a_surface_may_be_replaced_over_the_api_and_headings_switched_off() -> None:
    every = {kind: dict.fromkeys(names, f"The {kind.value}.") for kind, names in TEMPLATES.items()}
    data = [{"kind": kind.value, "templates": texts} for kind, texts in every.items()]
    assert READER.surfaces(data, "surfaces") == tuple(Surface(kind=k, templates=t) for k, t in every.items())
    for off in (None, False, "", "  "):
        (surface,) = READER.surfaces([{"kind": "subagent", "heading": off}], "surfaces")
        assert surface.templates == {"heading": None}
    (kept,) = READER.surfaces([{"kind": "subagent", "heading": "off"}], "surfaces")
    assert kept.templates == {"heading": "off"}


@pytest.mark.spec("14.1")
@pytest.mark.parametrize(
    ("data", "at", "word"),
    [
        (["telepathy"], "surfaces[0]", "dispatch, per_agent, subagent, task"),
        ([{"kind": "per_agent", "heading": "x"}], "surfaces[0].heading", "per_agent"),
        ([{"kind": "subagent", "templates": {"subagent": False}}], "surfaces[0].templates.subagent", "must be text"),
        ([{"kind": "subagent", "templates": {"subagent": " "}}], "surfaces[0].templates.subagent", "description"),
        ([{"kind": "subagent", "heading": True}], "surfaces[0].heading", "must be text"),
        ([{"kind": "subagent", "heading": 5}], "surfaces[0].heading", "must be text"),
        ([{"kind": "task", "template": {}}], "surfaces[0].template", "templates"),
    ],
)
def test_a_wrong_surface_over_the_api_is_refused_with_its_place(data: list[Any], at: str, word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READER.surfaces(data, "surfaces")
    assert [error["at"] for error in caught.value.errors] == [at]
    assert word in caught.value.message


def test_the_texts_of_surfaces_are_texts_of_the_service() -> None:
    named = [name for names in TEMPLATES.values() for name in names]
    assert set(named) <= TEXT_NAMES
    assert len(named) == len(set(named))
    assert set(TEMPLATES) == set(SurfaceKind)
