"""The documentation is true: every real answer fits its model, and the event schemas fit every real frame."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from app.agent.events import KINDS
from tests.api.conftest import body, in_process
from tests.api.test_sse import SSE, ended_run, frames_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMPTY = ("/v1/keys", "/v1/skills")  # of a service without keys and skills


async def openapi(http: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await http.get("/openapi.json")).json()
    return document


def strict(schema: Any) -> Any:
    """A schema that takes no field which it does not name: what is answered is to be documented."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if closed.get("additionalProperties") is True and "properties" in closed:
        closed["additionalProperties"] = False
    return closed


async def test_whatever_may_come_with_a_body_says_that_the_body_may_be_refused(http: httpx.AsyncClient) -> None:
    paths = (await openapi(http))["paths"]
    found = {method: [path for path in paths if method in paths[path]] for method in ("post", "put", "patch")}
    for method, path in ((method, path) for method, given in found.items() for path in given):
        assert {"413", "415"} <= paths[path][method]["responses"].keys(), (method, path)
    answer = await http.post("/v1/agents/reload", content="x", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert all(found.values())


SESSION = {
    "thinking": "on",
    "budget": {"tokens": 100_000, "max_concurrent": 2},
    "texts": {"language": "en", "heading": "[Result]"},
    "default_subagent": "scout",
    "surfaces": ["task", {"kind": "subagent", "heading": None, "templates": {"activity": "Log"}}],
    "policy": {
        "max_retries": 1,
        "deadline_ms": 1000,
        "on_denied": {"answer": "Not now."},
        "on_error": {"agent": "scout"},
        "input_filter": ["mask_secrets", {"cut_context": 2000}, {"inject": {"team": "a"}}],
        "budget": {"model_calls": 9},
    },
}
NO_JSON = ("/metrics", "/v1/sessions/{session_id}/export", "/v1/audit/export", "/v1/artifacts/{artifact_id}")
OPEN = {"Session", "Agent", "Model", "Problem"}  # what was configured, or what a model is, stands beside the fields


def check(document: Mapping[str, Any], operation: Mapping[str, Any], answer: httpx.Response) -> None:
    """The answer fits what is said of it."""
    said = operation["responses"][str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    schemas = {
        name: schema if name in OPEN else strict(schema) for name, schema in document["components"]["schemas"].items()
    }
    whole = {**said[kind]["schema"], "components": {"schemas": schemas}}
    jsonschema_rs.Draft202012Validator(whole).validate(answer.json())


async def asked(http: httpx.AsyncClient, session_id: str) -> str:
    """Wait until a session's stream has shown a question; its id."""
    async with http.stream("GET", f"/v1/sessions/{session_id}/events", headers=SSE) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and "approval_id" in line:
                return str(json.loads(line[6:])["data"]["approval_id"])
    raise AssertionError("the stream ended before a question")


@pytest.mark.spec(
    "14.1",
    "14.2",
    "14.4",
    "14.6",
    "14.7",
    "14.8",
    "14.9",
    "14.10",
    "14.11",
    "14.12",
    "14.14",
    "14.15",
    "14.16",
    "14.17",
)
async def test_every_answer_is_documented_to_the_last_field(http: httpx.AsyncClient) -> None:
    document = await openapi(http)
    run = await ended_run(http)
    delegated = (await http.post("/v1/delegations", json={"agent": "scout", "task": "x"})).json()
    await http.put("/v1/agents/mine", json={"description": "d", "prompt": "p"})
    asking = (await http.post("/v1/runs", json=body("asker"))).json()
    task = {"agent": "scout", "task": "x", "background": True}
    slow = (await http.post("/v1/runs", json=body("slow"))).json()
    values = {
        "run_id": run["id"],
        "session_id": run["session_id"],
        "handoff_id": delegated["handoff_id"],
        "name": "mine",
        "permission_id": await asked(http, asking["session_id"]),
        "task_id": (await http.post("/v1/delegations", json=task)).json()["task_id"],
    }
    tried = set()
    for path, operations in document["paths"].items():
        operation = operations.get("get")
        if operation is None or path in NO_JSON:
            continue
        url = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], path)
        answer = await http.get(url, headers={"accept": "application/json"})
        assert answer.status_code == 200, (url, answer.text)
        check(document, operation, answer)
        if "items" in answer.json():
            assert answer.json()["items"] or path in EMPTY, f"{path} shows nothing to check"
        tried.add(path)
    assert len(tried) >= 20
    writes: list[tuple[str, str, Any]] = [
        ("POST", "/v1/runs", body("quick")),
        ("POST", "/v1/sessions", {"title": "t", "metadata": {"a": [1]}, "policy": {"max_depth": None}}),
        ("POST", "/v1/sessions", SESSION),
        ("POST", "/v1/sessions/{session_id}/runs", {"input": "again"}),
        ("PATCH", "/v1/sessions/{session_id}", {"title": "new"}),
        ("POST", "/v1/permissions/{permission_id}", {"decision": "deny", "message": "No."}),
        ("POST", "/v1/permissions/{permission_id}", {"decision": "deny"}),  # settled by now
        ("POST", "/v1/sessions/{session_id}/cancel", None),
        ("POST", "/v1/runs/{run_id}/cancel", None),
        ("POST", "/v1/delegations", {"agent": "scout", "task": "x"}),
        ("POST", "/v1/delegations", task),
        ("POST", "/v1/delegations", {"resume": delegated["handoff_id"], "task": "x"}),
        ("POST", "/v1/runs/{run_id}/resume", {}),
        ("POST", "/v1/runs/{run_id}/messages", {"content": "Too late."}),
        ("POST", "/v1/tasks/{task_id}/cancel", None),
        ("POST", "/v1/tasks/clear", {"session_id": None, "older_than_s": 5}),
        ("PUT", "/v1/agents/{name}", {"description": "d", "prompt": "p"}),
        ("POST", "/v1/agents/reload", None),
        ("POST", "/v1/tickets", {"run_id": run["id"]}),
        ("POST", "/v1/runs", {"input": "x", "thinking": {}}),
        ("GET", "/v1/runs/{run_id}", {}),
    ]
    for method, path, sent in writes:
        url = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], path)
        answer = await http.request(method, url, json=sent)
        check(document, document["paths"][path][method.lower()], answer)
    told = await http.post(f"/v1/runs/{slow['id']}/messages", json={"content": "Hurry."})
    assert told.status_code == 202
    check(document, document["paths"]["/v1/runs/{run_id}/messages"]["post"], told)
    explained = await http.get("/v1/permissions", params={"explain": "Read(notes.md)", "agent": "scout"})
    assert explained.status_code == 200, explained.text
    check(document, document["paths"]["/v1/permissions"]["get"], explained)
    unknown = await http.get("/v1/runs/unknown")
    check(document, document["paths"]["/v1/runs/{run_id}"]["get"], unknown)


@pytest.mark.spec("17.2")
async def test_the_document_says_what_needs_a_key_and_names_every_operation(http: httpx.AsyncClient) -> None:
    document = await openapi(http)
    scheme = document["components"]["securitySchemes"]["key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    operations = [(path, method, op) for path, ops in document["paths"].items() for method, op in ops.items()]
    for path, _, operation in operations:
        assert bool(operation["security"]) == (path.startswith("/v1/") or path == "/metrics"), path
        assert operation["description"]
        assert operation["tags"]
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(names) == len(set(names)) >= 30
    text = str(document)
    referenced = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert referenced <= document["components"]["schemas"].keys()


@pytest.mark.spec("14.1", "14.3", "14.9", "4.1", "4.8")
async def test_what_a_request_may_hold_is_documented_to_the_last_field(http: httpx.AsyncClient) -> None:
    schemas = (await openapi(http))["components"]["schemas"]

    def valid(body: str, value: Any) -> bool:
        whole = {**schemas[body], "components": {"schemas": schemas}}
        return bool(jsonschema_rs.Draft202012Validator(whole).is_valid(value))

    order = {
        "agent": "scout",
        "task": "x",
        "thinking": "off",
        "session_key": "k",
        "output_schema": {"type": "array"},
        "budget": {"tokens": None, "cost_micros": 5, "currency": "EUR"},
        "texts": "zh",
    }
    assert valid("SessionBody", SESSION)
    assert valid("OneShotBody", {**SESSION, "input": "x", "output_schema": {"type": "object"}})
    assert valid("RunBody", {"input": "x", "output_schema": {}, "budget": {"wall_ms": 5}, "on_busy": "interrupt"})
    assert not valid("RunBody", {"input": "x", "on_busy": "wait"})
    assert valid("DelegationBody", order)
    assert valid("DelegationBody", {"task": "x", "resume": "ho_1", "background": True})
    assert valid("ResumeBody", {"input": None, "timeout_ms": 5})
    assert not valid("MessageBody", {"content": ""})
    assert not valid("ClearBody", {"older_than_s": -1})
    for field, wrong in (
        ("thinking", "maybe"),
        ("budget", {"token": 5}),
        ("budget", {"tokens": 0}),
        ("texts", {"headings": "x"}),
        ("texts", "fr"),
        ("surfaces", ["telepathy"]),
        ("surfaces", [{"kind": "task", "only": []}]),
        ("policy", {"on_denied": {"model": "x"}}),
        ("policy", {"input_filter": "shop.filters:short"}),
        ("policy", {"max_retries": -1}),
    ):
        assert not valid("SessionBody", {**SESSION, field: wrong}), (field, wrong)


@pytest.mark.spec("14.15")
async def test_lists_come_in_parts_that_join_to_the_whole(http: httpx.AsyncClient) -> None:
    for path in ("/v1/agents", "/v1/tools", "/v1/models", "/v1/sessions"):
        whole = (await http.get(path, params={"limit": 500})).json()["items"]
        assert len(whole) >= 3
        joined: list[Any] = []
        cursor = None
        while True:
            page = (await http.get(path, params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
            assert len(page["items"]) <= 2
            joined += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        assert joined == whole, path
        assert (await http.get(path, params={"cursor": "nonsense"})).json()["code"] == "invalid_cursor"


@pytest.mark.spec("11.6", "14.15")
async def test_every_frame_fits_the_schema_that_is_served(http: httpx.AsyncClient) -> None:
    schemas = (await http.get("/v1/events/schema")).json()
    assert schemas["events"].keys() == KINDS.keys()
    envelope = jsonschema_rs.Draft202012Validator(schemas["envelope"])
    payloads = {name: jsonschema_rs.Draft202012Validator(kind["schema"]) for name, kind in schemas["events"].items()}
    seen = set()
    for name in ("boss", "steady", "looker"):
        order = {"agent": body(name)["agents"][["boss", "quick", "looker", "slow", "steady"].index(name)], "task": "x"}  # type: ignore[index]
        for path, sent in (("/v1/runs", body(name)), ("/v1/delegations", order)):
            answer = await http.post(path, json=sent, headers=SSE)
            for frame in frames_of(answer.text):
                if frame["event"] is None:
                    continue
                seen.add(frame["event"])
                durable = frame["id"] is not None
                assert schemas["events"][frame["event"]]["durable"] is durable
                if durable:
                    envelope.validate(frame["data"])
                    assert frame["data"]["v"] == schemas["events"][frame["event"]]["v"]
                payloads[frame["event"]].validate(frame["data"]["data"] if durable else frame["data"])
    assert {"run.completed", "message", "tool.result", "handoff.end", "subagent.stop", "text.delta"} <= seen
    with pytest.raises(jsonschema_rs.ValidationError):
        payloads["run.completed"].validate({"status": "completed"})


@pytest.mark.spec("14.17")
async def test_the_page_about_the_api_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as closed:
        assert (await closed.get("/docs")).status_code == 404
    async with in_process(tmp_path, http={"docs": True}) as running, running.client() as http:
        page = await http.get("/docs")
        assert page.status_code == 200
        assert "/openapi.json" in page.text


@pytest.mark.spec("14.1", "14.3", "14.7", "14.9")
async def test_every_route_that_starts_work_takes_an_idempotency_key_and_no_other_does(http: httpx.AsyncClient) -> None:
    taking = {
        f"{method} {path}"
        for path, operations in (await openapi(http))["paths"].items()
        for method, operation in operations.items()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    }
    starting = {"/v1/sessions", "/v1/sessions/{session_id}/runs", "/v1/runs", "/v1/delegations"}
    starting.add("/v1/runs/{run_id}/resume")
    assert taking == {f"post {path}" for path in starting}
