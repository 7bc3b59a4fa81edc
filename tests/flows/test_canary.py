"""Secrets put in wherever something can be put in, at every depth, are found in nothing that is written or sent."""

import asyncio
import base64
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.net.loopback import Loopback, loopback, says
from tests.service import ROOT, WAIT_S, Service, agent, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, call_chunk, chunk, refusal, stream, usage_chunk

CONFIGURED = "configured-canary-7f3a"  # the key of a model
HEADER = "header-canary-91ab"  # in a header that is sent to the model
ENVIRONMENT = 'env canary "q" \\ äö & 77'  # with everything that is escaped somewhere
SIGNING = f"whsec_{base64.b64encode(b'c' * 32).decode()}"
SHAPED = "sk-live-5haped0canary1234"
IN_FILE = f"ghp_{'f1leCanary' * 4}"
OWN_FORM = "ACME-204817-kqzw"
IN_URL = "urlCanary-42x"
CANARIES = (CONFIGURED, HEADER, ENVIRONMENT, SIGNING, SHAPED, IN_FILE, OWN_FORM, IN_URL)
ALL = f"a {CONFIGURED}, b {HEADER}, c {ENVIRONMENT}, d {SIGNING}, e\n{SHAPED}, f {IN_FILE}, g {OWN_FORM}, h "
ALL += f"postgres://someone:{IN_URL}@db.example/x, i %3D{SHAPED}, {base64.b64encode(CONFIGURED.encode()).decode()}."
TOOLS = '''
import json
from pathlib import Path

from app.agent.errors import ToolError
from app.agent.tools import ToolContext
from app.tools.function import tool

ALL = json.loads((Path(__file__).parent / "all.json").read_text())


@tool(name="leak")
def leak(text: str, context: ToolContext) -> str:
    """Says it all, in progress and result."""
    for letter in ALL:
        context.progress(letter)
    return ALL * 400 + text


@tool(name="refuse")
def refuse(text: str) -> str:
    """Does not do it."""
    raise ToolError(f"refused: {ALL}")


@tool(name="boom")
def boom(text: str) -> str:
    """Breaks."""
    raise RuntimeError(f"broken: {ALL}")


@tool(name="barred")
def barred(text: str) -> str:
    """Is never run."""
    return text


@tool(name="guarded")
def guarded(text: str) -> str:
    """A person is asked before it."""
    return text
'''
NAMES = ("leak", "refuse", "boom", "barred", "guarded")


def forms(canary: str) -> set[str]:
    """How a canary may be found."""
    raw = canary.encode()
    inner = [base64.b64encode(bytes(n) + raw + bytes(3)).decode()[4:][: len(raw) - 4] for n in range(3)]
    return {
        canary,
        json.dumps(canary)[1:-1],
        json.dumps(canary, ensure_ascii=False)[1:-1],
        quote(canary, safe=""),
        *inner,
    }


FORMS = {form: canary for canary in CANARIES for form in forms(canary)}


def leaks(sinks: Mapping[str, str]) -> list[tuple[str, str]]:
    """Which canaries are where, with what stands around them."""
    found = []
    for name, text in sinks.items():
        for form in FORMS:
            at = text.find(form)
            if at >= 0:
                found.append((name, text[max(0, at - 80) : at + len(form) + 20]))
    return found


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


def works(request: Request) -> Answer:
    """Each agent calls all its tools, and its subagents; then it says it all, letter by letter."""
    name = re.match(r"You are (\w+)", request.messages[0]["content"])
    assert name is not None
    if name[1] == "broken":
        return refusal(400, {"message": f"no: {ALL}", "type": "invalid_request_error"})
    if any(message["role"] == "tool" for message in request.messages):
        said = [chunk({"reasoning_content": letter}) for letter in ALL]
        said += [chunk({"content": letter}) for letter in ALL]
        return stream(*said, chunk({}, "stop"), usage_chunk(9, 9))
    wanted: list[tuple[str, dict[str, Any]]] = [(tool, {"text": ALL}) for tool in NAMES]
    wanted.append(("read_file", {"path": "secrets.env"}))
    wanted.append((f"tool {SHAPED}", {SHAPED: [CONFIGURED]}))
    below = {"one": ["two", "broken"], "two": ["three"]}.get(name[1], [])
    wanted += [
        ("dispatch_subagent", {"agent_type": who, "task": f"go on, {ALL}", "name": f"a {CONFIGURED}"}) for who in below
    ]
    pieces: list[dict[str, Any]] = []
    for index, (tool, arguments) in enumerate(wanted):
        text = json.dumps(arguments)
        pieces.append(call_chunk(index, id=f"call_{index}", type="function", name=tool, arguments=""))
        pieces += [call_chunk(index, arguments=text[at : at + 5]) for at in range(0, len(text), 5)]
    return stream(*pieces, chunk({}, "tool_calls"), usage_chunk(9, 9))


# ── the client ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def followed(http: aiohttp.ClientSession, url: str, session_id: str) -> str:
    """Everything that a stream sends until the session is idle; questions are answered on the way."""
    told, answered = b"", 0
    async with http.get(f"{url}/v1/sessions/{session_id}/events?until=idle") as stream_:
        async for piece in stream_.content.iter_any():
            told += piece
            asked = re.findall(rb'"type":"permission.requested".*?"approval_id":"(\w+)"', told)
            for approval_id in asked[answered:]:
                deny = {"decision": "deny", "message": ALL}
                allow = {"decision": "allow_once", "arguments": {"text": f"other {ALL}"}}
                async with http.post(
                    f"{url}/v1/permissions/{approval_id.decode()}", json=allow if answered % 2 else deny
                ) as answer:
                    assert answer.status == 200, await answer.text()
                answered += 1
    assert answered == 3, told[-3000:]
    return told.decode()


def joined(told: str) -> str:
    """What the deltas of each text come to."""
    texts: defaultdict[tuple[Any, ...], str] = defaultdict(str)
    for kind, data in re.findall(r"event: (\S+)\ndata: (.*)", told):
        if kind in ("text.delta", "reasoning.delta", "arguments.delta", "tool.progress"):
            piece = json.loads(data)
            texts[kind, piece["run"], piece["step"], piece.get("call")] += piece["text"]
    assert {kind for kind, *_ in texts} >= {"text.delta", "reasoning.delta", "tool.progress"}
    return "\n".join(texts.values())


async def pages(http: aiohttp.ClientSession, url: str, session_id: str, runs: list[str]) -> dict[str, str]:
    """What the service answers about it."""
    session = f"/v1/sessions/{session_id}"
    paths = [session, "/v1/sessions", f"{session}/messages", f"{session}/runs", f"{session}/tree", f"{session}/events"]
    paths += [
        f"{session}/export",
        f"{session}/export?format=csv",
        "/v1/permissions",
        "/v1/audit",
        "/v1/audit?format=csv",
    ]
    paths += ["/metrics", "/v1/agents", "/v1/tools", "/readyz"]
    for run in runs:
        paths += [f"/v1/runs/{run}", f"/v1/runs/{run}/messages", f"/v1/runs/{run}/events"]
    found = {}
    for path in paths:
        async with http.get(url + path, headers={"Accept": "application/json, text/csv, */*"}) as answer:
            found[path] = await answer.text()
            assert answer.status in (200, 400, 422), (path, answer.status, found[path])
    return found


def stored(service: Service) -> dict[str, str]:
    """The files of the database, and every value in it."""
    found = {path.name: path.read_bytes().decode("utf-8", "replace") for path in service.folder.glob("service.db*")}
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True) as database:
        # what the text index is made of stands in tables of its own; it has no rows itself
        real = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        for (table,) in database.execute(real).fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"'):
                texts = (v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in row)
                found[f"table {table}"] = found.get(f"table {table}", "") + "\n".join(texts) + "\n"
    return found


def settings(folder: Path, base_url: str, bar: Loopback, watch: Loopback) -> dict[str, str]:
    """The environment of the service."""
    (folder / "leaking_tools.py").write_text(TOOLS)
    (folder / "all.json").write_text(json.dumps(ALL))
    (folder / "workspace").mkdir(exist_ok=True)
    (folder / "workspace" / "secrets.env").write_text(f"TOKEN={IN_FILE}\nOTHER={OWN_FORM}\n")
    profile = {"model": "m", "base_url": base_url, "api_key_env": "MODEL_ACCESS", "headers": {"X-Api-Key": HEADER}}
    entry = {"kind": "webhook", "secret_env": "HOOK_ACCESS"}
    points = ["OnSubagentStart", "PostToolUse", "OnSubagentStop"]
    hooks = [
        {**entry, "name": "bar", "url": bar.url, "points": ["PreToolUse"], "matcher": "barred"},
        {**entry, "name": "watch", "url": watch.url, "points": points, "on_failure": "allow"},
    ]
    return {
        "PYTHONPATH": f"{ROOT}:{folder}",
        "MODEL_ACCESS": CONFIGURED,
        "HOOK_ACCESS": SIGNING,
        "SOME_TOKEN": ENVIRONMENT,
        "SUBAGENTD_MODELS__PROFILES": json.dumps({"stub": profile}),
        "SUBAGENTD_MODEL": "stub",
        "SUBAGENTD_LOOP__RETRIES": "0",
        "SUBAGENTD_MASKING__PATTERNS": json.dumps(["ACME-[0-9]{6}-[a-z]{4}"]),
        "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps([f"leaking_tools:{name}" for name in NAMES]),
        "SUBAGENTD_HOOKS__HOSTS": json.dumps([bar.host, watch.host]),
        "SUBAGENTD_HOOKS__ENTRIES": json.dumps(hooks),
        "SUBAGENTD_PERMISSIONS__RULES__ASK": '["guarded"]',
        "SUBAGENTD_HTTP__ACCESS_LOG": "true",
        "SUBAGENTD_DEBUG__RECORD_MODEL_IO": "true",
    }


def body() -> dict[str, Any]:
    """A session that has canaries in all its fields, and a turn."""
    tools = [*NAMES, "read_file"]
    return {
        "agent": "one",
        "agents": [
            {**agent(name, tools=[*tools, *more]), "prompt": f"You are {name}. {ALL}", "description": f"The {ALL}"}
            for name, more in (("one", ["Agent"]), ("two", ["Agent"]), ("three", []), ("broken", []))
        ],
        "surfaces": ["dispatch"],
        "policy": {"max_depth": 2},
        "title": f"About {OWN_FORM} {SHAPED}",
        "user": CONFIGURED,
        "metadata": {SHAPED: {"deep": [ENVIRONMENT]}},
        "input": ALL,
    }


async def problems(http: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """What the service answers to requests that it does not carry out."""
    found = {}
    asked = [
        ("/v1/runs", {"agent": CONFIGURED, "input": ALL}),
        ("/v1/delegations", {"agent": SHAPED, "task": ALL}),
        ("/v1/runs", {"input": 1, SHAPED: 2}),
        (f"/v1/runs/{SHAPED}/cancel", {}),
        (f"/nowhere/{quote(ENVIRONMENT, safe='')}", {}),
    ]
    for path, sent in asked:
        async with http.post(url + path, json=sent) as answer:
            assert answer.status in (404, 422), path
            found[f"problem {path} {sent}"[:200]] = await answer.text()
    return {f"problem {index}": text for index, text in enumerate(found.values())}


@pytest.mark.spec("12.6", "17.2", "11.5", "12.4")
@pytest.mark.case("B137")
async def test_a_canary_put_in_everywhere_is_found_in_no_stream_page_table_log_or_webhook(tmp_path: Path) -> None:
    blocks = says({"decision": "block", "reason": f"no, {ALL}"})
    async with OpenAIStub() as stub, loopback(blocks) as bar, loopback(says({})) as watch:
        stub.decide(works)
        env = settings(tmp_path, stub.base_url, bar, watch)
        async with serving(tmp_path, env=env, check_log=False) as service, aiohttp.ClientSession() as http:
            async with asyncio.timeout(WAIT_S), service.client() as client:
                run = await client.request("POST", "/v1/runs", body())
                told = await followed(http, service.url, run["session_id"])
                direct = {"agent": agent(f"own {SHAPED}", tools=[]), "task": ALL, "name": SHAPED}
                delegated = await client.request("POST", "/v1/delegations", direct)
                ids = list(dict.fromkeys(re.findall(r'"run_id":"(\w+)"', told)))
                runs = [await client.request("GET", f"/v1/runs/{run_id}") for run_id in ids]
            assert {item["depth"] for item in runs} == {0, 1, 2}
            sinks = await pages(http, service.url, run["session_id"], ids)
            sinks |= await problems(http, service.url)
            sinks |= {"start": json.dumps(run), "delegation": json.dumps(delegated, ensure_ascii=False)}
            sinks |= {"stream": told, "deltas": joined(told)}
            sinks |= {f"running {name}": text for name, text in stored(service).items()}
        sinks |= stored(service)
        sinks["log"] = service.log
        sinks["webhooks"] = "\n".join(request.body.decode() for request in [*bar.requests, *watch.requests])
        asked = [json.dumps(request.messages, ensure_ascii=False) for request in stub.requests]
    assert leaks(sinks) == []
    silent = {name for name in ("stream", "deltas", "log", "webhooks", "table events") if "[masked]" not in sinks[name]}
    assert not silent  # else nothing was tried there
    by_state = {(item["agent"], item["status"]) for item in runs}
    assert by_state == {("one", "completed"), ("two", "completed"), ("three", "completed"), ("broken", "failed")}
    assert CONFIGURED in asked[0]  # a model is told what a person wrote, while the process lives …
    assert IN_FILE not in "".join(m["content"] for r in stub.requests for m in r.messages if m["role"] == "tool")
