"""What has to hold after every fault, whatever it was: one end, a history that is accepted, all of it on record.

Knows no fault.
"""

from collections.abc import Mapping
from typing import Any

from tests.flows.depths import FINAL, Met
from tests.strict import log_problems

DELTAS = {"text.delta": "content", "reasoning.delta": "reasoning"}


def holds(met: Met) -> None:
    """The four things that hold after every case, and what the case says by itself."""
    _one_end(met)
    _goes_on(met)
    _on_record(met)
    _as_the_case_says(met)


def _one_end(met: Met) -> None:
    """(a) Exactly one terminal event and one final state, the same wherever it is asked for."""
    problems = log_problems(met.events)
    assert not problems, problems
    for run in (met.run, met.root, met.later):
        (end,) = [e for e in met.events if e.get("run_id") == run["id"] and e["type"] in FINAL]
        assert (end["type"], end["data"]["status"]) == (f"run.{run['status']}", run["status"])
    seen = [f.data["data"]["status"] for f in met.frames if f.type in FINAL and f.data["run_id"] == met.run["id"]]
    assert seen == [met.run["status"]]
    stored = [{k: v for k, v in f.data.items() if k != "prev"} for f in met.frames if f.id is not None]
    assert stored == list(met.events[: len(stored)]), "what was seen is what is kept"


def _goes_on(met: Met) -> None:
    """(b) The stored history is sent again in a second turn, and accepted."""
    assert met.later["status"] == "completed", met.later
    assert len(met.again) >= len(met.case.again or (1,))
    sent = met.again[0].raw
    assert len(sent) > len(met.requests[0].raw), "the memory lasts"


def _on_record(met: Met) -> None:
    """(d) What a client saw is in the log, or was taken back."""
    seen: dict[tuple[int, int, str], str] = {}
    for frame in met.frames:
        data = frame.data
        if frame.type.endswith(".delta"):
            key = (data["run"], data["step"], frame.type + data.get("call", ""))
            assert data["at"] == len(seen.get(key, "")), frame
            seen[key] = seen.get(key, "") + data["text"]
        elif frame.type == "step.retried":
            taken = {key: value for key, value in seen.items() if key[:2] == (data["run"], data["step"])}
            assert sorted(map(len, taken.values())) == sorted(w["length"] for w in data["data"]["withdrawn"])
            seen = {key: value for key, value in seen.items() if key not in taken}
    for row in _replies(met):
        place = (row["run"], row["step"])
        shown = [seen.pop((*place, kind), "") for kind in DELTAS]
        kept = [row["data"].get(key) or "" for key in DELTAS.values()]
        if met.case.moved and row["run_id"] == met.run["id"]:
            said = kept[1] + kept[0]  # the reasoning came first, whatever it was taken for
            assert said in (shown[0] + shown[1], shown[1] + shown[0])
            shown = kept
        assert shown == kept, f"step {place}: {shown} {kept}"
        for call in row["data"].get("tool_calls") or ():
            assert seen.pop((*place, "tool.arguments.delta" + call["call_id"]), "") == call["arguments"]
    if met.run["status"] == "failed":  # of a call that never became whole there is no record, and nothing ran
        seen = {key: value for key, value in seen.items() if not key[2].startswith("tool.arguments.delta")}
    assert seen == {}, "seen by the client, and on no record"


def _replies(met: Met) -> list[Mapping[str, Any]]:
    last = met.frames[-1].id or 0
    return [e for e in met.events if e["id"] <= last and e["type"] == "message" and e["data"]["role"] == "assistant"]


def _as_the_case_says(met: Met) -> None:
    case = met.case
    assert met.run["status"] == case.status, met.run
    assert met.run["depth"] == met.depth
    assert case.told in met.told or case.told in str(met.run.get("error")), met.told
    assert len(met.requests) == len(case.answers), f"{len(met.requests)} requests"
    calls = [(data["tool"], data["arguments"]) for data in met.own("tool.call")]
    assert calls == list(case.ran), calls
    results = sorted(met.own("tool.result"), key=lambda data: (data["turn"], data["memory_seq"]))
    assert [data["status"] for data in results] == [status for status, _ in case.results], results
    for data, (_, part) in zip(results, case.results, strict=True):
        assert part in data["content"], data
    assert len(met.own("step.retried")) == case.retried, met.own("step.retried")
    if case.check is not None:
        case.check(met)
