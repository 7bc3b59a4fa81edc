"""Every error over HTTP is a problem (RFC 9457): what is wrong, where, and nothing that is nobody's business."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.agent.decisions import DECISIONS
from tests.api.conftest import body, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN = "/v1/runs"
UNKNOWN = "run_00000000000000000000000000"
JSON = "application/json"


def checked(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem in an answer, which has the form that all have."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"].startswith("/problems/")
    assert problem["title"]
    assert problem["detail"]
    assert (problem["status"], problem["code"]) == (status, code), problem
    return problem


@pytest.mark.spec("14.1", "14.3", "14.7", "14.8")
@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/nothing", None, 404, "not_found"),
        ("GET", f"{RUN}/{UNKNOWN}", None, 404, "not_found"),
        ("GET", f"{RUN}/{UNKNOWN}/events", None, 404, "not_found"),
        ("GET", "/v1/runs/", None, 404, "not_found"),
        ("PUT", RUN, "{}", 405, "method_not_allowed"),
        ("POST", RUN, "{", 400, "malformed_json"),
        ("POST", RUN, '{"input": "\\q"}', 400, "malformed_json"),
        ("POST", RUN, "[" * 100_000, 400, "malformed_json"),
        ("POST", RUN, '{"input": "x", "max_steps": ' + "9" * 5000 + "}", 400, "malformed_json"),
        ("POST", RUN, "[]", 422, "invalid_request"),
        ("POST", RUN, '"x"', 422, "invalid_request"),
        ("POST", RUN, "", 422, "invalid_request"),
        ("POST", RUN, "{}", 422, "invalid_request"),
        ("POST", RUN, '{"input": "x", "agent": "nobody"}', 422, "unknown_agent"),
        ("POST", RUN, '{"input": "x", "model": "nobody:x"}', 422, "unknown_model"),
        ("POST", RUN, '{"input": "x", "workspace": "../.."}', 422, "no_workspace"),
        ("POST", RUN, '{"input": "x", "workspace": "' + "x" * 5000 + '"}', 422, "no_workspace"),
        ("POST", RUN, '{"input": "x", "workspace": "\\ud800"}', 422, "no_workspace"),
        ("POST", RUN, '{"input": "x", "on_busy": {}}', 422, "invalid_request"),
        ("POST", RUN, '{"input": "x", "on_busy": [[]]}', 422, "invalid_request"),
        ("GET", "/v1/sessions?limit=0", None, 422, "invalid_request"),
        ("GET", "/v1/sessions?limit=501", None, 422, "invalid_request"),
        ("GET", "/v1/sessions?limit=many", None, 422, "invalid_request"),
        ("GET", "/v1/sessions?cursor=nonsense", None, 422, "invalid_cursor"),
        ("GET", "/v1/audit?since=yesterday", None, 422, "invalid_request"),
        ("GET", "/v1/sessions?limti=5", None, 422, "invalid_request"),
        ("GET", "/v1/audit?text=x", None, 422, "invalid_request"),
    ],
)
async def test_a_wrong_request_gets_a_problem_with_its_code(
    http: httpx.AsyncClient, method: str, path: str, content: str | None, status: int, code: str
) -> None:
    headers = {"content-type": JSON} if content is not None else {}
    problem = checked(await http.request(method, path, content=content, headers=headers), status, code)
    assert "errors" in problem or status in (400, 404, 405) or code.startswith("unknown")


@pytest.mark.spec("14.3", "14.7", "14.9")
@pytest.mark.parametrize(
    ("fields", "at", "code"),
    [
        ({"thinking": {"type": "enabled"}}, "thinking", "invalid_request"),
        ({"budget": {"tokens": 0}}, "budget.tokens", "invalid_request"),
        ({"budget": {"stars": 5}}, "budget.stars", "invalid_request"),
        ({"permissions": {"allow": ["Bash(ls"]}}, "permissions.allow[0]", "invalid_request"),
        ({"permissions": {"default": "maybe"}}, "permissions.default", "invalid_request"),
        ({"permissions": {"grant": ["Bash"]}}, "permissions.grant", "invalid_request"),
        ({"texts": {"greeting": "Hello"}}, "texts.greeting", "invalid_request"),
        ({"texts": "fr"}, "texts", "invalid_request"),
        ({"output_schema": {"type": 5}}, "output_schema", "invalid_request"),
        ({"default_subagent": "nobody"}, "default_subagent", "unknown_agent"),
        ({"webhook": "https://example.org"}, "webhook", "webhook_refused"),
        ({"on_busy": "wait"}, "on_busy", "invalid_request"),
        (
            {"surfaces": [{"kind": "dispatch", "templates": {"heading": "x"}}]},
            "surfaces[0].templates.heading",
            "invalid_request",
        ),
        ({"surfaces": ["telepathy"]}, "surfaces[0]", "invalid_request"),
        ({"policy": {"max_retries": -1}}, "policy.max_retries", "invalid_request"),
        ({"policy": {"on_error": "fall_back"}}, "policy.on_error", "invalid_request"),
        ({"policy": {"input_filter": "os:system"}}, "policy.input_filter", "invalid_request"),
        ({"policy": {"max_deepth": 2}}, "policy.max_deepth", "invalid_request"),
        ({"inptu": "x"}, "inptu", "invalid_request"),
        ({"input": 5}, "input", "invalid_request"),
        ({"max_steps": "5"}, "max_steps", "invalid_request"),
        ({"max_steps": 0}, "max_steps", "invalid_request"),
        ({"max_steps": 201}, "max_steps", "invalid_request"),
        ({"deadline_ms": -1}, "deadline_ms", "invalid_request"),
        ({"agents": [7]}, "agents[0]", "invalid_request"),
        ({"agents": [{"name": "x"}]}, "agents[0].description", "invalid_request"),
        (
            {"agents": [{"name": "x", "description": "d", "runner": "os:system"}]},
            "agents[0].runner",
            "invalid_request",
        ),
    ],
)
async def test_a_field_is_refused_by_its_name_and_later_ones_are_told_apart(
    http: httpx.AsyncClient, fields: dict[str, Any], at: str, code: str
) -> None:
    problem = checked(await http.post(RUN, json={"input": "x", **fields}), 422, code)
    assert [error["at"] for error in problem["errors"]] == [at]
    assert at in problem["detail"]


async def test_a_body_with_any_number_of_faults_gets_a_short_answer(http: httpx.AsyncClient) -> None:
    unknown = {f"field{number}": 1 for number in range(3000)}
    answer = await http.post(RUN, json={"input": "x", **unknown})
    problem = checked(answer, 422, "invalid_request")
    assert len(problem["errors"]) == 50
    assert "2999 more" in problem["detail"]


@pytest.mark.spec("14.9")
@pytest.mark.parametrize(("field", "value"), [("background", "yes"), ("resume", True), ("resume", ""), ("agent", None)])
async def test_a_wrong_field_of_a_delegation_is_named(http: httpx.AsyncClient, field: str, value: object) -> None:
    answer = await http.post("/v1/delegations", json={"agent": "scout", "task": "x", field: value})
    assert checked(answer, 422, "invalid_request")["errors"][0]["at"] == field


@pytest.mark.spec("14.9")
async def test_a_delegation_in_a_session_cannot_change_that_session(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={})).json()
    answer = await http.post(
        "/v1/delegations", json={"agent": "scout", "task": "x", "session_id": session["id"], "user": "somebody else"}
    )
    assert "user" in checked(answer, 422, "invalid_request")["detail"]


@pytest.mark.spec("14.7")
async def test_a_key_of_another_request_is_a_problem_with_its_place(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "of a problem"}
    assert (await http.post(RUN, json=body("quick"), headers=headers)).status_code == 202
    answer = await http.post(RUN, json=body("quick", "Ho"), headers=headers)
    assert checked(answer, 422, "idempotency_key_reused")["errors"][0]["at"] == "Idempotency-Key"


@pytest.mark.spec("14.1")
@pytest.mark.parametrize("name", ["metadata", "policy", "surfaces", "agents"])
async def test_a_value_that_is_nested_too_deep_is_refused_and_breaks_nothing(
    http: httpx.AsyncClient, name: str
) -> None:
    deep = json.loads('{"a":' * 800 + "1" + "}" * 800)
    value = [deep] if name in ("surfaces", "agents") else deep
    problem = checked(await http.post(RUN, json={"input": "x", name: value}), 422, "invalid_request")
    assert problem["errors"][0]["at"].startswith(name)


async def test_texts_that_no_store_takes_are_cleaned_and_never_a_fault(http: httpx.AsyncClient) -> None:
    text = '{"input": "a\\u0000b\\ud800c", "title": "\\ud83d", "metadata": {"k\\u0000": NaN}}'
    answer = await http.post(RUN, content=text, headers={"content-type": JSON})
    assert answer.status_code == 202, answer.text
    run = (await http.get(f"{RUN}/{answer.json()['id']}", params={"wait_ms": 5000})).json()
    assert run["input"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert run["status"] == "completed"
    for path in ("/v1/runs/%00", "/v1/runs/%ff%fe", "/v1/sessions/%F0%9F%98%80"):
        checked(await http.get(path), 404, "not_found")


@pytest.mark.spec("17.3")
async def test_a_body_must_say_that_it_is_json(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await http.post(RUN, content='{"input": "x"}', headers={"content-type": kind})
        assert kind.partition(";")[0] in checked(answer, 415, "unsupported_media_type")["detail"]
    fine = await http.post(RUN, json=body("quick"), headers={"content-type": "Application/JSON; charset=utf-8"})
    assert fine.status_code == 202


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (RUN, "POST"),
        ("/v1/sessions", "GET, HEAD, POST"),
        ("/v1/sessions/ses_x", "DELETE, GET, HEAD, PATCH"),
        ("/v1/permissions/apr_x", "GET, HEAD, POST"),
        ("/v1/agents/a/b", "DELETE, GET, HEAD, PUT"),
        ("/v1/agents/reload", "DELETE, GET, HEAD, POST, PUT"),
        ("/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_names_all_that_the_path_takes(http: httpx.AsyncClient, path: str, allowed: str) -> None:
    answer = await http.request("TRACE", path)
    assert answer.headers["allow"] == allowed
    assert f"takes {allowed}, not TRACE" in checked(answer, 405, "method_not_allowed")["detail"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/audit?role=user&role=tool", "role"),
        ("/v1/tasks?limit=1&status=completed&limit=2", "limit"),
        (f"{RUN}/{UNKNOWN}/events?after=1&after=1", "after"),
        ("/v1/sessions?cursor=x&cursor=y", "cursor"),
        (f"{RUN}/{UNKNOWN}?wait_ms=0&wait_ms=", "wait_ms"),
    ],
)
async def test_a_parameter_that_comes_twice_is_refused_by_its_name(
    http: httpx.AsyncClient, path: str, name: str
) -> None:
    problem = checked(await http.get(path), 422, "invalid_request")
    assert [error["at"] for error in problem["errors"]] == [name]
    assert "2 times" in problem["detail"]


MESSAGE_FILTERS = "agent role tool since until text order"


@pytest.mark.spec("12.4")
@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/audit", f"{MESSAGE_FILTERS} session_id run_id decision"),
        ("/v1/audit/export", f"{MESSAGE_FILTERS} session_id run_id decision"),
        (f"/v1/sessions/{UNKNOWN}/messages", MESSAGE_FILTERS),
        (f"{RUN}/{UNKNOWN}/messages", MESSAGE_FILTERS),
        ("/v1/permissions", "session_id status"),
        ("/v1/tasks", "session_id status agent"),
    ],
)
async def test_an_empty_filter_is_refused_and_not_taken_for_none(
    http: httpx.AsyncClient, path: str, names: str
) -> None:
    for name in names.split():
        problem = checked(await http.get(path, params={name: ""}), 422, "invalid_request")
        assert [error["at"] for error in problem["errors"]] == [name]
        assert "leave it out" in problem["detail"] or name in ("role", "order", "status", "decision"), problem


@pytest.mark.spec("12.4")
async def test_a_text_that_is_too_long_is_told_by_its_characters(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/audit", params={"text": "查" * 1000})).status_code == 200
    problem = checked(await http.get("/v1/audit", params={"text": "查" * 1001}), 422, "invalid_request")
    assert [error["at"] for error in problem["errors"]] == ["text"]
    assert "at most 1000 characters" in problem["detail"]


@pytest.mark.spec("12.4")
@pytest.mark.parametrize("name", ["session_id", "run_id"])
async def test_a_session_or_run_that_there_is_not_is_no_empty_answer(http: httpx.AsyncClient, name: str) -> None:
    kind = name.removesuffix("_id")
    for path in (
        "/v1/audit",
        "/v1/audit?decision=any",
        "/v1/audit?text=x",
        "/v1/audit/export",
        "/v1/audit/export?decision=any",
    ):
        for value in ("ses_none", UNKNOWN, "\0", "%"):
            query = {**dict(httpx.URL(path).params), name: value}
            problem = checked(await http.get(path.partition("?")[0], params=query), 404, "not_found")
            assert problem["detail"] == f"there is no {kind} {value!r}"


@pytest.mark.spec("12.4")
@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit/export"])
async def test_a_decision_that_nobody_can_make_is_refused_with_those_that_there_are(
    http: httpx.AsyncClient, path: str
) -> None:
    for name in ("denied", "Deny", "deny ", "none"):
        problem = checked(await http.get(path, params={"decision": name}), 422, "invalid_request")
        assert [error["at"] for error in problem["errors"]] == ["decision"]
        assert all(f"'{each}'" in problem["detail"] for each in ("any", *DECISIONS)), problem
    for name in ("any", *DECISIONS):
        assert (await http.get(path, params={"decision": name})).status_code == 200


@pytest.mark.spec("12.4")
@pytest.mark.parametrize(
    "value", ["20261201", "2026", "1767225600.5", "2026-01-01T00:00:00", "2026-01-01T00:00:00+01:00"]
)
async def test_a_time_that_is_not_of_rfc_3339_is_refused_with_what_to_write(
    http: httpx.AsyncClient, value: str
) -> None:
    for name in ("since", "until"):
        answer = await http.get(f"/v1/audit?{name}={value}")  # a + that is not written as %2B is a space
        problem = checked(answer, 422, "invalid_request")
        assert [error["at"] for error in problem["errors"]] == [name]
        assert "write 2026-01-31T08:00:00Z or" in problem["detail"]


async def test_a_parameter_that_is_a_list_may_come_twice(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/permissions?explain=Read&agent=lead&agent=scout")
    assert answer.status_code == 200, answer.text


@pytest.mark.case("B137")
async def test_an_unforeseen_error_gives_an_id_and_keeps_its_text_for_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(tmp_path) as running:

        async def broken() -> None:
            raise RuntimeError("postgresql://admin:hunter2@db/secrets cannot be reached")

        running.app.add_api_route("/v1/broken", broken)
        with caplog.at_level(logging.ERROR):
            async with running.client() as http:
                problem = checked(await http.get("/v1/broken"), 500, "internal_error")
        assert "hunter2" not in json.dumps(problem)
        assert problem["request_id"].startswith("req_")
        assert any(problem["request_id"] in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.spec("12.3")
async def test_while_nothing_can_be_stored_nothing_is_started_and_the_client_is_told_to_come_back(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        running.services.journal._commit.failed = "the disk is full"
        for path, sent in (
            (RUN, {"agent": "lead", "input": "x"}),
            ("/v1/sessions", {}),
            ("/v1/delegations", {"agent": "lead", "task": "x"}),
            (f"{RUN}/{UNKNOWN}/resume", {}),
            (f"{RUN}/{UNKNOWN}/messages", {"content": "x"}),
            ("/v1/tasks/clear", {}),
        ):
            answer = await http.post(path, json=sent)
            assert "disk is full" in checked(answer, 503, "store_unavailable")["detail"]
            assert int(answer.headers["retry-after"]) >= 1
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert int(ready.headers["retry-after"]) >= 1
        assert ready.json()["checks"]["journal"] == "the disk is full"
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        running.services.journal._commit.failed = None
        assert (await http.get("/readyz")).json()["ready"] is True
