"""The main job over real HTTP: a parent delegates to two subagents that read real files; everything is kept."""

from pathlib import Path

import pytest

from tests.service import agent, events_of, finished, received, script, serving

PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - text: "I ask two."
        calls:
          - {tool: dispatch_subagent, arguments: {agent_type: reader, task: "Read a.txt", purpose: "for people"}}
          - tool: dispatch_subagent
            arguments: {agent_type: finder, task: "Find text files", subagent_name: "Finder One"}
      - {text: "Reader: {{ result[0] }} Finder: {{ result[1] }}", chunks: 3}
  - when: {system_contains: "You are reader"}
    turns:
      - {calls: [{tool: read_file, arguments: {path: a.txt}}]}
      - {text: "It says {{ lines(result[0])[0] }}."}
  - when: {system_contains: "You are finder"}
    turns:
      - {calls: [{tool: glob, arguments: {pattern: "*.txt"}}, {tool: grep, arguments: {pattern: hello}}]}
      - {text: "Found {{ lines(result[0])[0] }}."}
"""
AGENTS = [agent("reader", tools=["read_file"]), agent("finder", tools=["glob", "grep"])]
BOSS = agent("boss", mode="primary", tools=["dispatch_subagent"])
BODY = {"agent": "boss", "agents": [BOSS, *AGENTS], "input": "Look around."}


@pytest.mark.spec("3.3", "3.5", "4.6", "5.1", "6.5", "11.1", "12.2", "14.7", "14.8")
async def test_a_parent_with_two_subagents_answers_and_leaves_a_complete_log(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello world\n")
        started = await client.request("POST", "/v1/runs", BODY)
        frames = await received(client, f"/v1/runs/{started['id']}/events")
        run = await finished(client, started["id"])
        assert run["status"] == "completed"
        assert run["output"] == "Reader: It says hello world. Finder: Found a.txt."
        assert run["stop_reason"] == "answer"

        durable = [frame for frame in frames if frame.id is not None]
        assert durable[-1].type == "run.completed"
        assert [{k: v for k, v in f.data.items() if k != "prev"} for f in durable] == await events_of(
            client, f"/v1/runs/{started['id']}/events"
        )

        session = f"/v1/sessions/{started['session_id']}"
        everything = await events_of(client, f"{session}/events")
        assert [event["id"] for event in everything] == list(range(1, len(everything) + 1))
        assert everything[0]["type"] == "session.created"
        assert everything[-1]["type"] == "session.idle"

        tree = await client.request("GET", f"{session}/tree")
        (root,) = tree["runs"]
        assert [child["agent"] for child in root["children"]] == ["reader", "finder"]
        assert root["children"][1]["name"] == "Finder_One"
        assert all(child["depth"] == 1 for child in root["children"])
        assert root["usage_total"]["model_calls"] == 2 + 2 + 2


@pytest.mark.spec("2.1", "12.2", "12.4")
async def test_the_child_sees_its_prompt_and_task_only_and_the_parent_one_result_each(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello world\n")
        started = await client.request("POST", "/v1/runs", BODY)
        await finished(client, started["id"])
        page = await client.page(f"/v1/sessions/{started['session_id']}/messages", order="oldest", limit=100)
        rows = page["items"]
        reader = [row for row in rows if row["agent"] == "reader"]
        assert [row["role"] for row in reader] == ["system", "user", "assistant", "tool", "assistant"]
        assert [row["content"] for row in reader][:2] == ["You are reader.", "Read a.txt"]
        assert [(row["turn"], row["step"], row["sub"]) for row in reader] == [
            (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 0),
        ]  # fmt: skip
        boss = sorted((row for row in rows if row["agent"] == "boss"), key=lambda row: row["memory_seq"])
        assert [row["role"] for row in boss] == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert [row["content"] for row in boss if row["role"] == "tool"] == [
            "It says hello world.",
            "Found a.txt.",
        ]
        assert all(row["is_subagent"] is (row["agent"] != "boss") for row in rows)


@pytest.mark.spec("6.6", "3.5")
async def test_the_events_of_a_subagent_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello world\n")
        started = await client.request("POST", "/v1/runs", BODY)
        await finished(client, started["id"])
        events = await events_of(client, f"/v1/runs/{started['id']}/events")
        reader = [e["type"] for e in events if e.get("agent") == "reader"]
        assert reader == [
            "run.queued", "run.started", "subagent.start", "message", "message",
            "step.started", "message", "tool.call", "tool.start", "tool.result", "step.completed",
            "step.started", "message", "step.completed", "subagent.stop", "run.completed",
        ]  # fmt: skip
        boss = [e["type"] for e in events if e.get("agent") == "boss"]
        assert boss[:6] == ["run.queued", "run.started", "message", "message", "step.started", "message"]
        starts = [e for e in events if e["type"] == "handoff.start"]
        ends = [e for e in events if e["type"] == "handoff.end"]
        assert len(starts) == len(ends) == 2
        assert starts[0]["data"]["purpose"] == "for people"
        assert all(e["data"]["attempts"] == 1 and e["data"]["status"] == "completed" for e in ends)
        # both were under way at the same time: the second started before the first ended
        assert starts[1]["id"] < min(e["id"] for e in ends)
