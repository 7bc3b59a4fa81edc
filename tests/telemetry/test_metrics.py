"""What a scraper reads is what happened."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.agent.events import Event
from app.agent.runs import Run
from app.telemetry.metrics import DURATIONS, Metrics
from tests.api.conftest import in_process


def samples(text: bytes) -> dict[str, float]:
    """Every sample by name and labels."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def event(kind: str, payload: dict[str, Any], depth: int = 0) -> Event:
    run = Run(
        id="run_1", session_id="ses_1", tenant="t", memory_id="mem_1", turn=0, ordinal=1, depth=depth, path=(1,),
        agent="a",
    )  # fmt: skip
    return Event(seq=1, type=kind, ts=0, tenant="t", session_id="ses_1", run=run, step=None, payload=payload)


def ended(status: str, depth: int, duration_ms: int) -> Event:
    usage = {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 2, "reasoning_tokens": 1, "model_calls": 2}
    payload = {"status": status, "duration_ms": duration_ms, "forced": status == "completed", "usage": usage}
    return event(f"run.{status}", payload, depth)


@pytest.mark.spec("14.17")
def test_events_become_counts_by_what_they_were() -> None:
    metrics = Metrics()
    metrics.observe([event("tool.result", {"status": "ok"}), event("tool.result", {"status": "denied"})])
    metrics.observe(
        [event("handoff.end", {"status": "completed"}), ended("completed", 1, 300), ended("failed", 0, 70_000)]
    )
    found = samples(metrics.text({"open_streams": 4, "store_failures_total": 2, "store_up": 1}))
    assert found["subagentd_events_total{type=tool.result}"] == 2
    assert found["subagentd_tool_calls_total{status=denied}"] == 1
    assert found["subagentd_handoffs_total{status=completed}"] == 1
    assert found["subagentd_runs_total{level=subagent,status=completed}"] == 1
    assert found["subagentd_runs_total{level=root,status=failed}"] == 1
    assert found["subagentd_tokens_total{kind=input}"] == 14
    assert found["subagentd_tokens_total{kind=reasoning}"] == 2
    assert found["subagentd_model_calls_total{}"] == 4
    assert found["subagentd_forced_answers_total{}"] == 1
    assert found["subagentd_run_duration_seconds_sum{level=root}"] == 70
    assert found["subagentd_run_duration_seconds_bucket{le=0.25,level=subagent}"] == 0
    assert found["subagentd_run_duration_seconds_bucket{le=0.5,level=subagent}"] == 1
    assert found["subagentd_run_duration_seconds_bucket{le=+Inf,level=root}"] == 1
    assert found["subagentd_open_streams{}"] == 4
    assert found["subagentd_store_failures_total{}"] == 2
    assert found["process_cpu_seconds_total{}"] > 0


def test_a_duration_on_a_bound_belongs_to_it_and_none_is_lost() -> None:
    metrics = Metrics()
    metrics.observe([ended("completed", 0, int(bound * 1000)) for bound in DURATIONS] + [ended("completed", 0, 10**8)])
    found = samples(metrics.text({}))
    for number, bound in enumerate(DURATIONS, start=1):
        assert found[f"subagentd_run_duration_seconds_bucket{{le={bound:g},level=root}}"] == number
    assert found["subagentd_run_duration_seconds_count{level=root}"] == len(DURATIONS) + 1


@pytest.mark.spec("14.17", "13.4")
async def test_the_figures_of_a_run_are_those_that_the_run_says_of_itself(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        started = (await http.post("/v1/runs", json={"input": "hello"})).json()
        run = (await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 5000})).json()
        answer = await http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        found = samples(answer.content)
        events = (
            await http.get(f"/v1/sessions/{started['session_id']}/events", headers={"accept": "application/json"})
        ).json()["items"]
    assert found["subagentd_tokens_total{kind=input}"] == run["usage"]["input_tokens"] > 0
    assert found["subagentd_runs_total{level=root,status=completed}"] == 1
    assert found["subagentd_runs_in_flight{}"] == 0
    assert found["subagentd_store_up{}"] == 1
    for event_type in {item["type"] for item in events}:
        count = sum(item["type"] == event_type for item in events)
        assert found[f"subagentd_events_total{{type={event_type}}}"] == count
