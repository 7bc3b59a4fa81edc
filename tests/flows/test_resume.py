"""A stream that is cut anywhere and taken up again with `Last-Event-ID` loses nothing and repeats nothing."""

import asyncio
import json
import random
from pathlib import Path

import aiohttp
import pytest

from tests.service import WAIT_S, agent, events_of, finished, script, serving

CUTS = 100
PLAY = """
defaults: {chunks: 12, delay_ms: 5}
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: left, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: right, task: "two"}}
      - {text: "Both are done, and this is the final answer of the one who asked them."}
  - when: {system_contains: "You are left"}
    turns:
      - {text: "I look at once.", calls: [{tool: glob, arguments: {pattern: "*"}}]}
      - {text: "I look again.", calls: [{tool: glob, arguments: {pattern: "**"}}]}
      - {text: "The left answer, which takes a while to say."}
  - when: {system_contains: "You are right"}
    turns:
      - {text: "So do I.", calls: [{tool: glob, arguments: {pattern: "a*"}}]}
      - {text: "The right answer, which takes a while as well."}
"""
BODY = {
    "agent": "boss",
    "agents": [
        agent("boss", mode="primary", tools=["dispatch_subagent"]),
        agent("left", tools=["glob"]),
        agent("right", tools=["glob"]),
    ],
    "input": "Go.",
}


class CutReader:
    """Reads a stream in pieces: each connection is cut after a random number of events."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.events: list[tuple[int, bytes]] = []
        self.texts: dict[tuple[int, int, str], str] = {}
        self.cuts = 0

    async def read(self) -> None:
        """Until the server says 204."""
        async with aiohttp.ClientSession() as http, asyncio.timeout(WAIT_S):
            while await self._once(http):
                self.cuts += 1

    async def _once(self, http: aiohttp.ClientSession) -> bool:
        cursor = self.events[-1][0] if self.events else 0
        left = self.random.randint(1, 9)
        async with http.get(self.url, headers={"Last-Event-ID": str(cursor)}) as answer:
            if answer.status == 204:
                return False
            assert answer.status == 200
            buffer = b""
            async for chunk in answer.content.iter_any():
                *frames, buffer = (buffer + chunk).split(b"\n\n")
                for frame in frames:
                    if self._take(frame):
                        left -= 1
                    if left == 0:
                        answer.close()
                        return True
        return True

    def _take(self, frame: bytes) -> bool:
        lines = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line and not line.startswith(b":"))
        if b"data" not in lines:
            return False
        if b"id" in lines:
            self.events.append((int(lines[b"id"]), lines[b"data"]))
            return True
        data = json.loads(lines[b"data"])
        kind = lines[b"event"].decode()
        if kind == "text.snapshot":
            self.texts[data["run"], data["step"], data["of"]] = data["text"]
        elif kind == "text.delta":
            known = self.texts.get((data["run"], data["step"], kind), "")
            # a piece starts where the text so far ends: nothing was lost or doubled between snapshot and deltas
            assert data["at"] == len(known), (data, known)
            self.texts[data["run"], data["step"], kind] = known + data["text"]
        return True


@pytest.mark.spec("11.1", "11.2", "11.3", "11.5")
async def test_a_hundred_cut_streams_of_two_parallel_subagents_are_the_same_as_the_pages(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        cuts = seed = texts = 0
        while cuts < CUTS:
            started = await asyncio.gather(*(client.request("POST", "/v1/runs", BODY) for _ in range(4)))
            readers = []
            for run in started:
                session = f"/v1/sessions/{run['session_id']}"
                readers.append((session, CutReader(f"{service.url}{session}/events?until=idle", seed := seed + 1)))
            await asyncio.gather(*(reader.read() for _, reader in readers))
            for session, reader in readers:
                cuts += reader.cuts
                pages = await events_of(client, f"{session}/events")
                assert [number for number, _ in reader.events] == list(range(1, len(pages) + 1))
                assert [json.loads(data) for _, data in reader.events] == pages
                texts += len(reader.texts)
        assert texts > 0, "no reader was there while something was said"


@pytest.mark.spec("11.1", "11.3")
async def test_who_joins_within_a_step_gets_the_text_so_far_and_then_the_rest(tmp_path: Path) -> None:
    play = """
agents:
  - turns: [{text: "0123456789abcdefghij", chunks: 20, delay_ms: 30}]
"""
    async with serving(tmp_path, env=script(tmp_path, play)) as service, service.client() as client:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])], "input": "count"}
        started = await client.request("POST", "/v1/runs", body)
        path = f"/v1/runs/{started['id']}/events"
        seen = 0
        async for frame in client.events(path):
            if frame.type == "text.delta":
                seen += 1
                if seen == 5:
                    break
        snapshot, rest = None, []
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(path):
                if frame.type == "text.snapshot":
                    assert not rest
                    snapshot = frame.data
                elif frame.type == "text.delta":
                    rest.append(frame.data)
        assert snapshot is not None
        assert len(snapshot["text"]) == snapshot["at"] >= 5
        assert snapshot["text"] + "".join(piece["text"] for piece in rest) == "0123456789abcdefghij"
        assert rest[0]["at"] == snapshot["at"]


@pytest.mark.spec("11.3")
async def test_a_view_that_has_ended_answers_204_and_a_cursor_beyond_the_head_is_reset(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", BODY)
        await finished(client, started["id"])
        path = f"{service.url}/v1/runs/{started['id']}/events"
        pages = await events_of(client, f"/v1/runs/{started['id']}/events")
        end = pages[-1]["id"]
        async with aiohttp.ClientSession() as http:
            async with http.get(path, headers={"Last-Event-ID": str(end)}) as answer:
                assert answer.status == 204
            async with http.get(path, params={"after": str(end - 1)}) as answer:
                assert f"id: {end}\n" in await answer.text()
            session = f"{service.url}/v1/sessions/{started['session_id']}/events"
            async with http.get(session, params={"until": "idle"}, headers={"Last-Event-ID": "99999"}) as answer:
                # a cursor of another database: told to begin anew, then everything up to the end
                assert answer.status == 200
                async with asyncio.timeout(WAIT_S):
                    whole = await answer.read()
                assert whole.index(b"event: stream.reset") < whole.index(b"id: 1\n")
                assert whole.rstrip().split(b"\n\n")[-1].split(b"\n")[1] == b"event: session.idle"
            async with http.get(session, headers={"Last-Event-ID": "99999"}) as answer:
                text = b""
                async with asyncio.timeout(WAIT_S):
                    async for chunk in answer.content.iter_any():
                        text += chunk
                        if b"session.idle" in text:
                            break
                assert b"event: stream.reset" in text
                assert text.index(b"stream.reset") < text.index(b"id: 1\n")
            async with http.get(path, headers={"Last-Event-ID": "x7"}) as answer:
                assert answer.status == 400
                assert (await answer.json())["code"]


@pytest.mark.spec("11.3")
async def test_filtered_frames_carry_the_id_before_them(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", BODY)
        await finished(client, started["id"])
        path = f"/v1/sessions/{started['session_id']}/events"
        only = [f async for f in client.events(path, until="idle", types="handoff.start,handoff.end,session.idle")]
        assert [f.type for f in only if f.id] == ["handoff.start"] * 2 + ["handoff.end"] * 2 + ["session.idle"]
        ids = [f.id for f in only]
        assert [f.data["prev"] for f in only] == [0, *ids[:-1]]
        deep = [f async for f in client.events(path, until="idle", depth=1) if f.id is not None and f.type]
        assert {f.data["depth"] for f in deep} == {1}
        quiet = [f async for f in client.events(path, until="idle", deltas="false")]
        assert all(f.id is not None for f in quiet)
