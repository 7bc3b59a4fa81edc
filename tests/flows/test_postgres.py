"""The main job on PostgreSQL: the same events, rows and restart as on SQLite."""

from pathlib import Path

import pytest

from tests.flows.test_main_job import BODY, PLAY
from tests.service import Service, events_of, finished, received, script, serving

pytestmark = pytest.mark.postgres


@pytest.mark.spec("12.1", "12.2", "12.3")
async def test_the_main_job_runs_and_is_kept_on_postgresql_too(empty_postgres_url: str, tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY), where=empty_postgres_url) as service:
        (service.workspace / "a.txt").write_text("hello world\n")
        async with service.client() as client:
            started = await client.request("POST", "/v1/runs", BODY)
            frames = await received(client, f"/v1/runs/{started['id']}/events")
            run = await finished(client, started["id"])
            assert run["output"] == "Reader: It says hello world. Finder: Found a.txt."
            path = f"/v1/sessions/{started['session_id']}"
            events = await events_of(client, f"{path}/events")
            assert [event["id"] for event in events] == list(range(1, len(events) + 1))
            assert frames[-1].type == "run.completed"
        await service.kill()
        await service.start()
        async with service.client() as client:
            assert await events_of(client, f"{path}/events") == events
            rows = (await client.page(f"{path}/messages", order="oldest", limit=100))["items"]
            assert len(rows) == 6 + 5 + 6
            second = await client.request("POST", f"{path}/runs", {"input": "Look again."})
            assert (await finished(client, second["id"]))["status"] == "completed"


@pytest.mark.spec("12.3")
async def test_a_second_server_on_the_same_database_refuses_to_start(empty_postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with serving(tmp_path / "one", env=script(tmp_path, PLAY), where=empty_postgres_url):
        second = Service(tmp_path / "two", env=script(tmp_path, PLAY))
        second.where = empty_postgres_url
        with pytest.raises(AssertionError, match="in use by another server"):
            await second.start()
        assert await second.ended() == 2
