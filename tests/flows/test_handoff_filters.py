"""Input filters over HTTP: what a child's model is sent, whose filters there are; and what no policy may say."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.client import ServiceError
from tests.flows.test_handoff_policy import OTHER, TOKEN, definition, operated, run_of
from tests.service import serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text


@pytest.mark.spec("4.2", "12.6")
@pytest.mark.seed("000", 37)
async def test_what_a_childs_model_is_sent_is_masked_cut_and_added_to(tmp_path: Path) -> None:
    def decide(request: Request) -> Answer:
        if request.messages[0]["content"] != "You are boss.":
            return text("done")
        order = {"task": f"log in with {TOKEN}", "context": "long " * 9}
        return text("end") if request.messages[-1]["role"] == "tool" else calls(("subagent_helper", json.dumps(order)))

    async with OpenAIStub() as stub:
        stub.decide(decide)
        env = {**operated(tmp_path), "OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test"}
        async with (
            serving(tmp_path, env={**env, "SUBAGENTD_MODEL": "openai:test"}) as service,
            service.client() as client,
        ):
            filters = ["mask_secrets", {"cut_context": 9}, {"inject": {"region": "EU"}}]
            run = await run_of(client, policy={"input_filter": filters})
            assert run["output"] == "end"
        (sent,) = [r.messages[1]["content"] for r in stub.requests if r.messages[0]["content"] == "You are helper."]
        assert sent.startswith("log in with [masked]\n\nContext:\nlong long\n")
        assert sent.endswith("\n\nregion: EU")


@pytest.mark.spec("4.2", "4.6", "10.1")
@pytest.mark.seed("000", 37, 38)
async def test_filters_of_an_operator_are_found_by_import_path_in_files_and_by_no_client(tmp_path: Path) -> None:
    agents = definition(tmp_path, "loud", "tools: []", "handoff: {input_filter: ['own_things:shout']}")
    definition(tmp_path, "broken", "tools: []", "handoff: {input_filter: ['own_things:broken'], on_error: report}")
    env = {**operated(tmp_path), "SUBAGENTD_MODEL": "scripted:echo"}
    async with serving(tmp_path, "--agents", agents, env=env, check_log=False) as service, service.client() as client:
        loud = await client.request("POST", "/v1/delegations", {"agent": "loud", "task": "fine"})
        assert loud["status"] == "completed"
        assert "FINE" in loud["output"]
        broken = await client.request("POST", "/v1/delegations", {"agent": "broken", "task": "fine"})
        assert (broken["status"], broken["attempts"], broken["run_id"]) == ("failed", 0, None)
        assert broken["error"]["code"] == "input_filter_failed"
        assert "no such row" not in broken["error"]["message"], "which is for the operator's log"
        assert "no such row" in service.log
        body = {"agent": "loud", "task": "fine", "policy": {"input_filter": ["own_things:shout"]}}
        with pytest.raises(ServiceError) as refused:
            await client.request("POST", "/v1/delegations", body)
        assert refused.value.status == 422


# ── what cannot be meant ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.1", "4.2")
async def test_a_policy_that_cannot_be_meant_is_refused_with_its_place(tmp_path: Path) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_retries": -1}, "policy.max_retries"),
        ({"timeout_ms": -1}, "policy.timeout_ms"),
        ({"on_error": "shrug"}, "policy.on_error"),
        ({"on_error": {"agent": "nobody"}}, "policy.on_error.agent"),
        ({"on_denied": {"model": "scripted:echo"}}, "policy.on_denied.model"),
        ({"input_filter": ["unheard_of"]}, "policy.input_filter[0]"),
        ({"retries": 1}, "policy.retries"),
    )
    async with serving(tmp_path, env=operated(tmp_path)) as service, service.client() as client:
        for policy, at in wrong:
            with pytest.raises(ServiceError) as refused:
                await client.request("POST", "/v1/sessions", {"agents": [OTHER], "policy": policy})
            assert refused.value.status == 422
            assert [error["at"] for error in refused.value.problem["errors"]] == [at]
