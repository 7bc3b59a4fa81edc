"""Tasks in the background over HTTP: what clients see of them, when a session is over, and how one is resumed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.surface_world import World, boss, surface_world
from tests.plan import NOTICE
from tests.service import WAIT_S, agent, events_of, finished, received
from tests.strict import FINAL, log_problems
from tests.stubs.openai_stub import Answer, Request, calls, chunk, sse, text

HELPER = agent("helper", tools=["glob"])
ROUTES = "/v1/sessions/{}"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with surface_world(tmp_path) as made:
        yield made


def order(prompt: str = "Work.", **fields: Any) -> tuple[str, str]:
    """A call of `execute_task` in the background, unless it says otherwise."""
    given = {"name": "helper", "description": "do some work", "prompt": prompt, "run_in_background": True, **fields}
    return "execute_task", json.dumps(given)


def results(request: Request) -> list[str]:
    """The tool results that a request holds."""
    return [m["content"] for m in request.messages if m["role"] == "tool"]


def notices(request: Request) -> list[str]:
    """The notices that a request holds."""
    return [m["content"] for m in request.messages if m["role"] == "user" and m["content"].startswith(NOTICE)]


def ids(request: Request) -> list[str]:
    """The ids of the tasks that a request names."""
    lines = "\n".join(results(request)).splitlines()
    return [line.removeprefix("task_id: ") for line in lines if line.startswith("task_id: ")]


class Gate:
    """Answers of the helper that wait until a test lets them go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def answer(self, words: str) -> Answer:
        """That text, once the gate is open."""
        return Answer(writes=(self.open, *sse(chunk({"content": words}), chunk({}, "stop"))))


def playing(parent: Callable[[Request], Answer], child: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
    """Who answers which requests."""
    return lambda request: (parent if request.messages[0]["content"] == "You are boss." else child)(request)


async def next_turn(world: World, session: str, said: str = "And?") -> dict[str, Any]:
    """Another turn of the session, to its end."""
    started = await world.client.request("POST", f"{ROUTES.format(session)}/runs", {"input": said})
    return await finished(world.client, started["id"])


@pytest.mark.spec("9.3", "9.5", "11.3", "11.4", "11.6")
@pytest.mark.seed("002", 56, 57)
@pytest.mark.case("B055", "B089")
async def test_the_end_of_a_turn_is_not_that_of_its_session_while_tasks_go_on(world: World) -> None:
    gate = Gate()

    def parent(request: Request) -> Answer:
        if not results(request):
            return calls(order("One."), order("Two."))
        return text("I was told." if notices(request) else "")

    world.stub.decide(playing(parent, lambda request: gate.answer("Child text.")))
    body = {"agent": "boss", "agents": [boss(), HELPER]}
    session = (await world.client.request("POST", "/v1/sessions", body))["id"]
    path = ROUTES.format(session)
    started = await world.client.request("POST", f"{path}/runs", {"input": "Go."})
    whole = asyncio.create_task(received(world.client, f"{path}/events", until="idle"))
    view = await received(world.client, f"/v1/runs/{started['id']}/events")
    assert view[-1].type == "run.completed"
    named = view[-1].data["data"]["open_tasks"]
    assert len(named) == 2
    assert not whole.done()
    gate.open.set()
    async with asyncio.timeout(WAIT_S):
        frames = await whole
    kinds = [frame.type for frame in frames]
    assert (kinds[-1], kinds.count("session.idle")) == ("session.idle", 1)
    ends = [frame.data["data"] for frame in frames if frame.type == "handoff.end"]
    assert sorted(end["handoff_id"] for end in ends) == sorted(named)
    assert {(end["status"], end["output"]) for end in ends} == {("completed", "Child text.")}
    asked = len(world.of("You are boss."))
    assert (await next_turn(world, session))["output"] == "I was told."
    (message,) = notices(world.of("You are boss.")[asked])
    assert all(message.count(task) == 1 for task in named)
    assert (await next_turn(world, session))["status"] == "completed"
    assert len(notices(world.of("You are boss.")[-1])) == 1
    assert log_problems(await events_of(world.client, f"{path}/events")) == []


@pytest.mark.spec("3.2", "9.2")
@pytest.mark.case("B078")
async def test_the_outputs_of_all_tasks_are_there_in_any_order_also_in_a_later_turn(world: World) -> None:
    def parent(request: Request) -> Answer:
        known, done = ids(request), results(request)
        if not done:
            return calls(*(order(f"Part {number}.") for number in range(4)))
        if len(done) == 4 or (request.messages[-1]["content"] == "And?" and len(done) == 12):
            again = [*reversed(known), *reversed(known)] if len(done) == 4 else known
            return calls(*(("get_task_output", json.dumps({"task_id": task})) for task in again))
        return text("Done.")

    def child(request: Request) -> Answer:
        return text(f"Result of {request.messages[1]['content']}")

    run = await world.run(playing(parent, child), [boss(), HELPER])
    await next_turn(world, run["session_id"])
    told = world.told()
    outputs = [result.partition("Result:\n")[2] for result in told[4:]]
    parts = [f"Result of Part {number}." for number in range(4)]
    assert outputs == [*reversed(parts), *reversed(parts), *parts]
    events = await events_of(world.client, f"{ROUTES.format(run['session_id'])}/events")
    told_by = [len(e["data"].get("notices") or e["data"].get("acknowledges") or ()) for e in events]
    assert sum(told_by) == 4, "each end reached the parent once, in one way"


@pytest.mark.spec("5.8", "9.2", "11.3")
@pytest.mark.case("B081")
async def test_a_task_whose_model_breaks_off_is_final_for_whoever_comes_late(world: World) -> None:
    def parent(request: Request) -> Answer:
        if notices(request):
            return text("I know.")
        return text("Bye.") if results(request) else calls(order())

    broken = Answer(writes=sse(chunk({"content": "half of"}), done=False), end="reset")
    run = await world.run(playing(parent, lambda request: broken), [boss(), HELPER])
    path = ROUTES.format(run["session_id"])
    await received(world.client, f"{path}/events", until="idle")
    tree = await world.client.request("GET", f"{path}/tree")
    (child,) = tree["runs"][0]["children"]
    assert child["status"] == "failed"
    frames = await received(world.client, f"/v1/runs/{child['id']}/events")
    assert frames[-1].type == "run.failed"
    assert (await next_turn(world, run["session_id"]))["output"] == "I know."
    (message,) = notices(world.of("You are boss.")[-1])
    assert "has ended: failed." in message


@pytest.mark.spec("3.2", "9.4")
@pytest.mark.seed("002", 77, 94)
@pytest.mark.case("B083", "B084", "B085", "B086")
async def test_a_task_is_resumed_with_its_memory_and_what_is_none_starts_nobody(world: World) -> None:
    gate, wrong = Gate(), ["3f2b8f0e-8a51-4a53-9a83-0f7f4f2f6f10", "", "../ho_1"]
    elsewhere: list[str] = []

    def parent(request: Request) -> Answer:
        done, known = results(request), ids(request)
        front = {"run_in_background": False}
        if not done:
            return calls(order("Learn code=77."))
        if len(done) == 1:
            task = known[0]
            bad = [*wrong, *elsewhere]
            return calls(*(order("x", resume=each) for each in bad), order("x", resume=task), ("list_tasks", "{}"))
        if request.messages[-1]["role"] == "tool" and len(done) == 3 + len(wrong) + len(elsewhere):
            gate.open.set()
            return calls(("get_task_output", json.dumps({"task_id": known[0]})))
        if "Result:" in done[-1]:
            return calls(order("Which code?", resume=known[0], **front))
        return text(done[-1])

    def child(request: Request) -> Answer:
        if len(request.messages) > 2:
            return text(f"I had read: {request.messages[1]['content']}")
        return gate.answer("Learned.")

    other = await world.run(
        playing(lambda r: text("Bye.") if results(r) else calls(order("Elsewhere.")), lambda r: text("Fine.")),
        [boss(), HELPER],
    )
    elsewhere += ids(world.of("You are boss.")[-1])
    run = await world.run(playing(parent, child), [boss(), HELPER])
    assert run["session_id"] != other["session_id"]
    assert run["output"] == "I had read: Learn code=77."
    told = world.told()
    for result, named in zip(told[1:], [wrong[0], "empty", wrong[2], elsewhere[0], "has not ended"], strict=False):
        assert result.startswith("Error: ")
        assert named in result
    (learned, resumed) = world.of("You are helper.")
    assert [m["content"] for m in resumed.messages[1:]] == ["Learn code=77.", "Learned.", "Which code?"]
    assert learned.messages == resumed.messages[:2]
    tree = await world.client.request("GET", f"{ROUTES.format(run['session_id'])}/tree")
    assert len(tree["runs"][0]["children"]) == 2


@pytest.mark.spec("5.7", "9.5", "11.6")
@pytest.mark.case("B063", "B082")
@pytest.mark.parametrize("door", ["run", "session", "close", "delete"])
async def test_what_goes_on_in_the_background_ends_with_its_parent_or_session_and_nothing_follows(
    world: World, door: str
) -> None:
    gate = Gate()

    def parent(request: Request) -> Answer:
        return gate.answer("Bye.") if results(request) else calls(order("One."), order("Two."))

    world.stub.decide(playing(parent, lambda request: gate.answer("Late.")))
    body = {"agent": "boss", "agents": [boss(), HELPER]}
    session = (await world.client.request("POST", "/v1/sessions", body))["id"]
    path = ROUTES.format(session)
    whole = asyncio.create_task(received(world.client, f"{path}/events", **{} if door != "run" else {"until": "idle"}))
    started = await world.client.request("POST", f"{path}/runs", {"input": "Go."})
    async with asyncio.timeout(WAIT_S):
        while len(await events_of(world.client, f"{path}/events", types="step.started")) < 4:
            pass
    if door == "run":
        await world.client.request("POST", f"/v1/runs/{started['id']}/cancel")
    elif door == "session":
        await world.client.request("POST", f"{path}/cancel")
        await world.client.request("PATCH", path, {"closed": True})
    elif door == "close":
        await world.client.request("PATCH", path, {"closed": True})
    else:
        await world.client.request("DELETE", path)
    async with asyncio.timeout(WAIT_S):
        frames = await whole
    events = [frame.data for frame in frames if frame.id is not None]
    assert log_problems(events) == []
    ends = [e for e in events if e["type"] in FINAL]
    assert [e["type"] for e in ends] == ["run.cancelled"] * 3
    assert ends[-1]["depth"] == 0
    assert ends[-1]["data"]["open_tasks"] == []
