"""Background tasks over HTTP: begun, fetched with and without waiting, listed, cancelled, removed, kept for a time."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from app.sessions.tasks import HOUR_US
from tests.flows.paused import calling, execute, let_go, played, question, session_of, statuses, worker
from tests.service import WAIT_S, Service, events_of, finished, received, serving

FIELDS = {
    "task_id", "session_id", "parent_run_id", "agent", "name", "status", "result", "error", "run_ids", "attempts",
    "created_at", "started_at", "ended_at",
}  # fmt: skip


async def begun(client: Client, task: str, **fields: Any) -> dict[str, Any]:
    """A task in the background."""
    body = {"agent": worker(), "task": task, "background": True, **fields}
    started: dict[str, Any] = await client.request("POST", "/v1/delegations", body)
    return started


async def output(client: Client, task_id: str, **query: Any) -> dict[str, Any]:
    """What a task has to say, waiting for it."""
    given: dict[str, Any] = await client.request("GET", f"/v1/tasks/{task_id}/output", **query)
    return given


async def refused(client: Client, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
    """Status and code of the problem that a request ends in."""
    with pytest.raises(ServiceError) as problem:
        await client.request(method, path, body, **query)
    return problem.value.status, problem.value.problem["code"]


async def listed(client: Client, **query: Any) -> list[str]:
    """The ids in the list, page by page."""
    found: list[str] = []
    cursor = None
    while True:
        page = await client.page("/v1/tasks", **query, **({"cursor": cursor} if cursor else {}))
        found += [item["task_id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return found


@pytest.mark.spec("9.2", "14.9", "14.10")
@pytest.mark.seed("002", 68)
async def test_a_task_answers_at_once_and_its_result_is_null_until_it_has_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                f"{service.url}/v1/delegations", json={"agent": worker(), "task": "wait", "background": True}
            ) as answer,
        ):
            assert answer.status == 202
            task = await answer.json()
            path = answer.headers["location"]
        assert path == f"/v1/tasks/{task['task_id']}"
        assert task["handoff_id"] == task["task_id"]
        assert task["run_ids"] == [task["run_id"]]
        await question(client, task["session_id"])
        open_one = await client.request("GET", path)
        assert open_one.keys() == FIELDS
        assert (open_one["status"], open_one["result"], open_one["error"]) == ("running", None, None)
        assert (open_one["ended_at"], open_one["attempts"]) == (None, 1)
        assert open_one["started_at"] >= open_one["created_at"]
        for query in ({"block": "false"}, {"timeout_ms": 0}, {"timeout_ms": 50}):
            seen = await output(client, task["task_id"], **query)
            assert (seen["status"], seen["result"], seen["note"]) == ("running", None, None), query
        waiting = asyncio.create_task(output(client, task["task_id"]))
        await let_go(client, task["session_id"])
        ended = await waiting
        assert (ended["status"], ended["result"], ended["error"]) == ("completed", "wait", None)
        assert ended["ended_at"] >= ended["started_at"]
        whole = await client.request("GET", f"/v1/delegations/{task['task_id']}")
        assert (whole["output"], whole["status"]) == ("wait", "completed")


@pytest.mark.spec("9.2", "14.10")
async def test_a_wait_that_is_too_long_is_lowered_and_one_below_zero_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        task = await begun(client, "x")
        long = await output(client, task["task_id"], timeout_ms=600_001)
        assert (long["status"], long["result"]) == ("completed", "x")
        assert long["note"] == "timeout_ms 600001 was lowered to 600000, the most that is allowed"
        path = f"/v1/tasks/{task['task_id']}/output"
        for query in ({"timeout_ms": -1}, {"timeout_ms": "soon"}, {"block": "perhaps"}, {"wait": 5}):
            assert (await refused(client, "GET", path, **query)) == (422, "invalid_request"), query


@pytest.mark.spec("9.2", "14.10")
@pytest.mark.case("B078")
@pytest.mark.seed("002", 69, 91)
async def test_the_outputs_of_many_tasks_can_be_fetched_in_any_order_and_again_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        tasks = [(await begun(client, f"part {n}", agent="worker", session_id=session))["task_id"] for n in range(4)]
        for _ in range(2):
            assert [(await output(client, task))["result"] for task in reversed(tasks)] == [
                f"part {n}" for n in (3, 2, 1, 0)
            ]
        turn = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "x"})
        await finished(client, turn["id"])
        assert (await output(client, tasks[0]))["result"] == "part 0"
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        assert [(await output(client, task))["result"] for task in tasks] == [f"part {n}" for n in range(4)]
        assert await listed(client) == tasks[::-1]


@pytest.mark.spec("9.1", "14.9")
@pytest.mark.seed("002", 68)
async def test_a_definition_may_say_that_its_tasks_run_in_the_background_and_a_call_says_the_last_word(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        quiet = worker(background=True)
        by_itself = await client.request("POST", "/v1/delegations", {"agent": quiet, "task": "x"})
        assert (await output(client, by_itself["task_id"]))["result"] == "x"
        waited = await client.request("POST", "/v1/delegations", {"agent": quiet, "task": "y", "background": False})
        assert waited["output"] == "y"
        assert await listed(client) == [by_itself["task_id"]]
        assert await refused(client, "GET", f"/v1/tasks/{waited['handoff_id']}") == (404, "not_found")


@pytest.mark.spec("4.1", "14.9")
async def test_a_denied_task_is_a_403_and_never_a_task(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        for fields in ({"policy": {"max_depth": 0}}, {"permissions": {"deny": ["Agent(worker)"]}}):
            with pytest.raises(ServiceError) as denied:
                await begun(client, "x", **fields)
            assert (denied.value.status, denied.value.problem["code"]) == (403, "handoff_denied")
            assert await refused(client, "GET", f"/v1/tasks/{denied.value.problem['handoff_id']}") == (404, "not_found")
        assert await listed(client) == []
        instead = await begun(client, "x", policy={"max_depth": 0, "on_denied": {"answer": "Not now."}})
        ended = await output(client, instead["task_id"])
        assert (ended["status"], ended["result"], ended["run_ids"]) == ("fallback", "Not now.", [])


@pytest.mark.spec("9.2", "14.10")
async def test_the_list_is_newest_first_in_pages_and_narrowed_by_session_status_and_agent(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client, agents=[worker(), worker("other")])
        mine = [await begun(client, f"{n}", agent="worker", session_id=session) for n in range(5)]
        others = [await begun(client, "x", agent="other", session_id=session), await begun(client, "fail", max_steps=1)]
        everything = [task["task_id"] for task in (*mine, *others)][::-1]
        for task in everything:
            await output(client, task)
        assert await listed(client) == await listed(client, limit=2) == everything
        assert await listed(client, session_id=session, limit=3) == everything[1:]
        assert await listed(client, agent="other") == [others[0]["task_id"]]
        assert await listed(client, status="failed") == [others[1]["task_id"]]
        assert await listed(client, status="completed", session_id=session, agent="worker") == everything[2:]
        assert await listed(client, status="running") == []
        failed = await client.request("GET", f"/v1/tasks/{others[1]['task_id']}")
        assert (failed["result"], failed["error"]["code"]) == (None, "broken")
        unknown = {"session_id": "ses_00000000000000000000000000"}
        assert await refused(client, "GET", "/v1/tasks", **unknown) == (404, "not_found")
        assert await refused(client, "GET", "/v1/tasks", status="denied") == (422, "invalid_request")
        assert await refused(client, "GET", "/v1/tasks", cursor="nonsense") == (422, "invalid_cursor")


@pytest.mark.spec("9.2", "14.10")
async def test_a_cancel_ends_a_task_once_and_says_whether_it_did(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        task = await begun(client, "wait")
        await question(client, task["session_id"])
        path = f"/v1/tasks/{task['task_id']}/cancel"
        answers = await asyncio.gather(*(client.request("POST", path) for _ in range(3)))
        assert sorted(answer["cancelled"] for answer in answers) == [False, False, True]
        assert {answer["status"] for answer in answers} == {"cancelled"}
        assert await statuses(client, task["run_id"]) == ["cancelled"]
        again = await client.request("POST", path)
        assert (again["status"], again["cancelled"], again["result"]) == ("cancelled", False, None)
        done = await begun(client, "x")
        await output(client, done["task_id"])
        late = await client.request("POST", f"/v1/tasks/{done['task_id']}/cancel")
        assert (late["status"], late["cancelled"], late["result"]) == ("completed", False, "x")


@pytest.mark.spec("9.2", "14.10")
@pytest.mark.seed("002", 69)
async def test_a_task_that_was_removed_is_in_no_list_and_the_log_keeps_it(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        task = await begun(client, "wait", agent="worker", session_id=session, name="north")
        kept = await begun(client, "y", agent="worker", session_id=session)
        path = f"/v1/tasks/{task['task_id']}"
        await question(client, session)
        assert await refused(client, "DELETE", path) == (409, "task_running")
        await let_go(client, session)
        await output(client, task["task_id"])
        await output(client, kept["task_id"])
        assert await client.request("DELETE", path) is None
        for method, where in (("GET", path), ("GET", f"{path}/output"), ("POST", f"{path}/cancel"), ("DELETE", path)):
            assert await refused(client, method, where) == (404, "task_removed")
        assert await listed(client) == [kept["task_id"]]
        assert (await client.request("GET", f"/v1/delegations/{task['task_id']}"))["output"] == "wait"
        looked = calling({"tool": "list_tasks", "arguments": {}},
                         {"tool": "get_task_output", "arguments": {"task_id": task["task_id"]}})  # fmt: skip
        turn = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": looked})
        shown = (await finished(client, turn["id"]))["output"]
        assert shown.split("\n") == [
            f"- {kept['task_id']} worker ({kept['name']}): Completed",
            f"Error: there is no task '{task['task_id']}' in this session.",
        ]
        for resume in (task["task_id"], "north", "/north/"):
            body = {"task": "x", "resume": resume, "session_id": session}
            assert await refused(client, "POST", "/v1/delegations", body) == (404, "task_gone")
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        assert await listed(client) == [kept["task_id"]]
        await client.request("DELETE", f"/v1/sessions/{session}")
        assert await listed(client) == []
    with sqlite3.connect(service.database) as db:
        assert db.execute("SELECT count(*) FROM cleared_tasks").fetchone() == (0,)


@pytest.mark.spec("9.2", "14.10")
@pytest.mark.seed("002", 69, 91)
async def test_clearing_takes_what_has_ended_and_leaves_what_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        for n in range(3):
            await output(client, (await begun(client, f"{n}", agent="worker", session_id=session))["task_id"])
        elsewhere = await begun(client, "x")
        await output(client, elsewhere["task_id"])
        going = await begun(client, "wait", agent="worker", session_id=session)
        await question(client, session)
        clear = "/v1/tasks/clear"
        assert await client.request("POST", clear, {"session_id": session, "older_than_s": 3600}) == {"cleared": 0}
        assert await client.request("POST", clear, {"session_id": session}) == {"cleared": 3}
        assert await listed(client) == [going["task_id"], elsewhere["task_id"]]
        async with aiohttp.ClientSession() as http, http.post(service.url + clear) as bare:
            assert await bare.json() == {"cleared": 1}
        assert await client.request("POST", clear, {}) == {"cleared": 0}
        assert await listed(client) == [going["task_id"]]
        for body in ({"older_than_s": -1}, {"older_than_s": "x"}, {"all": True}):
            assert await refused(client, "POST", clear, body) == (422, "invalid_request")
        unknown = {"session_id": "ses_00000000000000000000000000"}
        assert await refused(client, "POST", clear, unknown) == (404, "not_found")
        await client.request("POST", f"/v1/tasks/{going['task_id']}/cancel")


@pytest.mark.spec("9.2", "14.10")
@pytest.mark.case("B078")
async def test_a_task_is_listed_for_the_time_that_is_set_and_says_that_it_expired_afterwards(tmp_path: Path) -> None:
    env = {**played(tmp_path), "SUBAGENTD_TASKS__RETENTION_H": "2"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        session = await session_of(client)
        old, new = [(await begun(client, text, agent="worker", session_id=session))["task_id"] for text in "ab"]
        await output(client, old)
        await output(client, new)
    with sqlite3.connect(service.database) as db:
        db.execute("UPDATE handoffs SET ended_at = ended_at - ? WHERE id = ?", (2 * HOUR_US + 1_000_000, old))
        db.execute("UPDATE handoffs SET ended_at = ended_at - ? WHERE id = ?", (1 * HOUR_US, new))
    async with serving(tmp_path, env=env) as service, service.client() as client:
        assert await listed(client) == [new]
        with pytest.raises(ServiceError) as expired:
            await output(client, old)
        assert (expired.value.status, expired.value.problem["code"]) == (404, "task_expired")
        assert "more than 2 hours ago (tasks.retention_h)" in str(expired.value)
        assert (await client.request("GET", f"/v1/delegations/{old}"))["output"] == "a"
        body = {"task": "x", "resume": old}
        assert await refused(client, "POST", "/v1/delegations", body) == (404, "task_gone")
        assert await client.request("POST", "/v1/tasks/clear", {}) == {"cleared": 1}


async def tree_of_tasks(client: Client) -> tuple[str, list[str]]:
    """A turn that began a task, which began a task that waits; the session, and the ids of both tasks."""
    session = await session_of(client, policy={"max_depth": 2})
    inner = execute("wait deep down")
    await client.request("POST", f"/v1/sessions/{session}/runs", {"input": calling(execute(calling(inner)))})
    await question(client, session)
    return session, (await listed(client))[::-1]


@pytest.mark.spec("9.2", "9.5", "14.10")
@pytest.mark.case("B082")
async def test_what_a_task_has_begun_is_seen_and_cancelled_from_outside_when_the_task_has_ended(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session, (outer, inner) = await tree_of_tasks(client)
        assert (await output(client, outer))["status"] == "completed"
        assert await listed(client, status="running") == [inner]
        shown = await client.request("GET", f"/v1/tasks/{inner}")
        assert shown["parent_run_id"] == (await client.request("GET", f"/v1/tasks/{outer}"))["run_ids"][0]
        stopped = await client.request("POST", f"/v1/tasks/{inner}/cancel")
        assert (stopped["status"], stopped["cancelled"]) == ("cancelled", True)
        assert (await client.request("GET", f"/v1/sessions/{session}"))["status"] == "idle"


@pytest.mark.spec("9.5", "11.3")
@pytest.mark.case("B055", "B089")
async def test_the_end_of_a_turn_is_not_the_end_of_its_session_while_tasks_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        path = f"/v1/sessions/{session}"
        both = calling(execute("wait"), execute("quick"))
        turn = await client.request("POST", f"{path}/runs", {"input": both})
        ended = await finished(client, turn["id"])
        watching = asyncio.create_task(received(client, f"{path}/events", until="idle"))
        await question(client, session)
        assert (await client.request("GET", path))["status"] == "active"
        await let_go(client, session)
        frames = await watching
        kinds = [frame.type for frame in frames if frame.id]
        assert (kinds[-1], kinds.count("session.idle")) == ("session.idle", 1)
        ends = [frame.data["run_id"] for frame in frames if frame.type == "run.completed"]
        assert len(ends) == 3
        assert ends.index(turn["id"]) < 2
        open_tasks = next(f.data["data"]["open_tasks"] for f in frames if f.data.get("run_id") == turn["id"]
                          and f.type == "run.completed")  # fmt: skip
        assert set(open_tasks) <= set(await listed(client, session_id=session))
        assert ended["status"] == "completed"
        assert {(await output(client, task))["result"] for task in await listed(client)} == {"wait", "quick"}


@pytest.mark.spec("13.4", "14.4", "14.8")
async def test_what_a_task_used_after_its_parent_had_ended_is_in_the_sum_of_its_parent(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session, (outer, inner) = await tree_of_tasks(client)
        await output(client, outer)
        (turn,) = (await client.page(f"/v1/sessions/{session}/runs"))["items"]
        await finished(client, turn["id"])
        await let_go(client, session)
        await output(client, inner)
        tree = await client.request("GET", f"/v1/sessions/{session}/tree")
        (root,) = tree["runs"]
        (child,), calls = root["children"], []
        (grandchild,) = child["children"]
        for node in (root, child, grandchild):
            shown = await client.request("GET", f"/v1/runs/{node['id']}")
            assert shown["usage_total"] == node["usage_total"]
            assert shown["usage"] == node["usage"]
            calls.append((node["usage"]["model_calls"], node["usage_total"]["model_calls"]))
        assert calls == [(2, 6), (2, 4), (2, 2)]
        assert tree["usage_total"] == root["usage_total"]
        (listed_turn,) = (await client.page(f"/v1/sessions/{session}/runs"))["items"]
        assert listed_turn["usage_total"] == root["usage_total"]
        delegation = await client.request("GET", f"/v1/delegations/{outer}")
        assert delegation["usage_total"] == child["usage_total"]


@pytest.mark.spec("9.3", "14.10")
async def test_who_fetches_an_output_over_http_takes_no_notice_away_from_the_model(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        turn = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": calling(execute("wait"))})
        await finished(client, turn["id"])
        await let_go(client, session)
        (task,) = await listed(client)
        assert (await output(client, task))["result"] == "wait"
        later = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "What came of it?"})
        told = (await finished(client, later["id"]))["output"]
        assert told.count(f"the background task {task}") == 1


@pytest.mark.spec("9.2", "11.2")
@pytest.mark.case("B079")
async def test_a_task_never_reads_running_when_the_run_that_answered_it_reads_completed(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        for _ in range(20):
            task = await begun(client, "x")
            async with asyncio.timeout(WAIT_S):
                while True:
                    run = await client.request("GET", f"/v1/runs/{task['run_id']}")
                    shown = await client.request("GET", f"/v1/tasks/{task['task_id']}")
                    if run["status"] == "completed":
                        assert (shown["status"], shown["result"]) == ("completed", "x")
                        break
                    assert shown["result"] is None or shown["status"] == "completed"


@pytest.mark.spec("9.2", "11.4", "11.5")
@pytest.mark.case("B166")
async def test_a_task_can_be_watched_and_goes_on_when_the_watcher_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        body = {"agent": worker(), "task": "wait", "background": True}
        headers = {"Accept": "text/event-stream"}
        async with aiohttp.ClientSession(headers=headers) as http, asyncio.timeout(WAIT_S):
            async with http.post(f"{service.url}/v1/delegations", json=body) as answer:
                assert answer.status == 200
                await answer.content.readuntil(b"event: permission.requested")
            (task,) = await listed(client)
            shown = await client.request("GET", f"/v1/tasks/{task}")
            await let_go(client, shown["session_id"])
            assert (await output(client, task))["result"] == "wait"
            async with http.get(f"{service.url}/v1/delegations/{task}/events") as answer:
                kinds = [line for line in (await answer.text()).split("\n") if line.startswith("event: ")]
        assert (kinds[0], kinds[-1]) == ("event: handoff.start", "event: handoff.end")


@pytest.mark.spec("9.2", "11.3")
@pytest.mark.case("B081")
async def test_a_task_whose_model_breaks_off_while_nobody_looks_has_failed_for_whoever_comes_later(
    tmp_path: Path,
) -> None:
    play = 'def reply(request):\n    return {"text": "half an ans", "cut": True}\n'
    env = {**played(tmp_path), "SUBAGENTD_LOOP__RETRIES": "1", "SUBAGENTD_LOOP__BACKOFF_MS": "1"}
    (tmp_path / "scripts" / "paused.py").write_text(play)
    async with serving(tmp_path, env=env) as service, service.client() as client:
        task = await begun(client, "x")
        ended = await output(client, task["task_id"])
        assert (ended["status"], ended["result"]) == ("failed", None)
        frames = await received(client, f"/v1/runs/{task['run_id']}/events")
        assert frames[-1].type == "run.failed"
        assert (await client.request("GET", f"/v1/sessions/{task['session_id']}"))["status"] == "idle"


@pytest.mark.spec("14.17")
@pytest.mark.seed("002", 69, 82, 91)
async def test_open_tasks_are_counted_and_the_service_ends_them_when_it_ends(tmp_path: Path) -> None:
    env = {**played(tmp_path), "SUBAGENTD_HTTP__GRACE_S": "0.1", "SUBAGENTD_RECOVERY__MODE": "interrupt"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        assert await gauge(service) == 0
        tasks = [await begun(client, f"wait {number}") for number in range(30)]
        for task in tasks:
            await question(client, task["session_id"])
        assert await gauge(service) == 30
        assert len(await listed(client, status="running", limit=7)) == 30
        await let_go(client, tasks[0]["session_id"])
        await output(client, tasks[0]["task_id"])
        assert await gauge(service) == 29
    async with serving(tmp_path, env=env) as service, service.client() as client:
        assert await gauge(service) == 0
        assert await listed(client, status="running") == []
        assert len(await listed(client)) == 30


async def gauge(service: Service) -> int:
    """How many tasks the service says are open."""
    async with aiohttp.ClientSession() as http, http.get(f"{service.url}/metrics") as answer:
        text = await answer.text()
    return next(int(float(line.split()[1])) for line in text.split("\n") if line.startswith("subagentd_tasks_open "))


@pytest.mark.spec("11.2", "14.9")
async def test_a_task_is_in_the_store_when_its_id_is_given_out(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path), check_log=False) as service, service.client() as client:
        task = await begun(client, "wait")
        await service.kill()
        await service.start()
        async with service.client() as after:
            shown = await after.request("GET", f"/v1/tasks/{task['task_id']}")
            assert shown["run_ids"] == [task["run_id"]]
            again = await events_of(after, f"/v1/sessions/{task['session_id']}/events")
            assert [e["type"] for e in again][:3] == ["session.created", "handoff.start", "run.queued"]
