"""Sessions at hand are bounded in number and in weight; whoever was used last stays."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.definition import AgentDefinition, Source
from app.agent.runs import Session
from app.sessions.kept import KeptSessions, weight_of
from tests.plan import task
from tests.world import world

PLAIN = Session(id="ses_0", tenant="default", memory_id="mem_0", agent="lead", created_at=1)


def test_those_that_were_used_longest_ago_make_room_by_number_and_by_weight() -> None:
    kept = KeptSessions(3, 10 * weight_of(PLAIN))
    for name in ("a", "b", "c"):
        kept.keep(name, replace(PLAIN, id=name))
    assert kept.get("a") is not None
    kept.keep("d", None)
    assert [name for name in "abcd" if name in kept] == ["a", "c", "d"]
    assert kept.get("d") is None
    heavy = replace(PLAIN, id="e", metadata={"text": "x" * (9 * weight_of(PLAIN))})
    kept.keep("e", heavy)
    assert [name for name in "abcde" if name in kept] == ["e"], "the last one stays, whatever it weighs"
    kept.keep("e", PLAIN)
    kept.keep("a", PLAIN)
    assert len(kept) == 2


def test_the_weight_grows_with_what_a_session_was_made_with() -> None:
    agent = AgentDefinition(name="a", description="d", prompt="p" * 50_000, source=Source(kind="inline"))
    odd = replace(agent, prompt="", metadata={"more": "x" * 60_000}, input_schema={"description": "y" * 70_000})
    assert weight_of(replace(PLAIN, inline={"a": agent})) > 50_000
    assert weight_of(replace(PLAIN, inline={"a": odd})) > 130_000


@pytest.mark.spec("14.1")
async def test_an_idle_session_that_makes_room_leaves_nothing_of_its_agents_in_memory(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for number in range(3):
            session = await w.session(agents=[w.node(), w.node(f"only-here-{number}")])
            await w.finished(await w.turn(session, task("done")))
            await w.until(session, "session.idle")
        w.sessions._known.keep("ses_x", replace(PLAIN, metadata={"text": "x" * (65 << 20)}))
        await w.journal.flush()
        gc.collect()
        left = {each.name for each in gc.get_objects() if isinstance(each, AgentDefinition)}
        assert not left & {"only-here-0", "only-here-1"}, "the last one may be in the hands of what has just ended"
