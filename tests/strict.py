"""Checks that know nothing of how the service works: a history that strict providers take, a log that tells the truth.

Both are written from the contract alone, so that a mistake of the service is not repeated here.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from app.agent.messages import Message, Role

SAME = ("tool", "subagent", "name", "depth", "call_id", "session_mode")  # of a handoff, at its start and its end
FINAL = {"run.completed", "run.failed", "run.cancelled", "run.timed_out", "run.interrupted"}
AT_REST = {"session.created", "session.updated", "session.closed"}  # these leave a session as idle as it was
Event = Mapping[str, Any]


def history_problem(messages: Sequence[Message]) -> str | None:
    """Why the strictest provider would refuse this history, or None."""
    used: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}] ({message.role})"
        if message.role is Role.TOOL:
            if not waiting or message.tool_call_id != waiting[0]:
                return f"{where}: a result for {message.tool_call_id!r} where {waiting[:1]} is due"
            waiting.pop(0)
            if not message.content.strip():
                return f"{where}: an empty result"
            continue
        if waiting:
            return f"{where}: {waiting} have no result"
        if message.role is Role.SYSTEM and at:
            return f"{where}: not the first"
        if not message.content.strip() and not message.tool_calls:
            return f"{where}: empty"
        for call in message.tool_calls:
            if not call.call_id or call.call_id in used:
                return f"{where}: the call id {call.call_id!r} is empty or was used before"
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call.name):
                return f"{where}: no function can be named {call.name!r}"
            if call.arguments is None:
                return f"{where}: the arguments of {call.call_id} are no object"
            used.add(call.call_id)
            waiting.append(call.call_id)
    return f"{waiting} have no result at the end" if waiting else None


def log_problems(events: Sequence[Event], *, quiet: bool = True) -> list[str]:
    """What the log of one session says that cannot be true. `quiet`: nothing is under way in it any more."""
    found = [f"event {at} has the id {e['id']}" for at, e in enumerate(events, 1) if e["id"] != at]
    found += _runs(events, quiet)
    found += _calls(events, quiet)
    found += _pairs(events, "handoff.start", "handoff.end", lambda e: str(e["data"]["handoff_id"]))
    found += _pairs(events, "subagent.start", "subagent.stop", lambda e: str(e["run_id"]))
    found += _handoffs(events)
    found += _notices(events, quiet)
    found += _usage(events)
    found += _idle(events, quiet)
    found += _memories(events)
    return found


def _runs(events: Sequence[Event], quiet: bool) -> list[str]:
    found: list[str] = []
    open_runs: dict[str, str | None] = {}
    ended: set[str] = set()
    tasks = _Tasks()
    for event in events:
        found += tasks.problems(event)
        run, kind = event.get("run_id"), event["type"]
        if run is None:
            continue
        if run in ended:
            found.append(f"{kind} ({event['id']}) follows the end of {run}")
        if kind == "run.queued":
            open_runs[run] = event.get("parent_run_id")
        elif run not in open_runs and run not in ended:
            found.append(f"{kind} ({event['id']}) comes before {run} was queued")
        if kind in FINAL:
            ended.add(run)
            open_runs.pop(run, None)
            waited_for = (c for c, parent in open_runs.items() if parent == run and c not in tasks.behind)
            found += [f"{run} ends while its child {c} is open" for c in waited_for]
    return found + ([f"{run} is open" for run in open_runs] if quiet else [])


class _Tasks:
    """Background tasks as far as the log has been read. `behind`: runs that nobody waits for."""

    def __init__(self) -> None:
        self.behind: set[str] = set()
        self._open: dict[str, Event] = {}
        self._parents: dict[str, str | None] = {}
        self._detached: set[str] = set()  # runs
        self._handoffs: dict[str, str] = {}

    def problems(self, event: Event) -> list[str]:
        """Take one event in."""
        kind, data = event["type"], event["data"]
        if kind == "handoff.start" and data.get("background"):
            self._open[data["handoff_id"]] = event
        elif kind == "handoff.end":
            self._open.pop(data["handoff_id"], None)
        elif kind == "run.queued":
            self._queued(event)
        return self._at_an_end(event) if kind in FINAL and kind != "run.interrupted" else []

    def _queued(self, event: Event) -> None:
        run, data = event["run_id"], event["data"]
        self._parents[run] = event.get("parent_run_id")
        if data.get("background"):
            self.behind.add(run)
            begun = self._open.get(data["handoff_id"])
            if begun is not None and begun["data"].get("detached"):
                self._detached.add(run)

    def _at_an_end(self, event: Event) -> list[str]:
        """A run says which tasks it leaves behind, and only one that completed leaves any that are not detached."""
        run, data = event["run_id"], event["data"]
        left = {task for task, begun in self._open.items() if run in self._above(begun.get("run_id"))}
        found = []
        if set(data.get("open_tasks") or ()) != left:
            found.append(f"{run} ends and says that {data.get('open_tasks')} go on, not {left}")
        if event["type"] == "run.completed":
            return found
        owned = [t for t in left if not self._open[t]["data"].get("detached")]
        tied = [t for t in owned if run in self._above(self._open[t].get("run_id"), tied=True)]
        return found + [f"{event['type']} of {run} comes before the end of its task {task}" for task in tied]

    def _above(self, run: str | None, *, tied: bool = False) -> list[str]:
        found: list[str] = []
        while run is not None:
            found.append(run)
            run = None if tied and run in self._detached else self._parents.get(run)
        return found


def _notices(events: Sequence[Event], quiet: bool) -> list[str]:
    """Each end of a task is stated once to whoever began it, and each notice is told once, or acknowledged."""
    begun: dict[str, str | None] = {}
    stated: Counter[str] = Counter()
    told: Counter[str] = Counter()
    posted: set[str] = set()
    found: list[str] = []
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "handoff.start" and data.get("background"):
            begun[data["handoff_id"]] = event.get("run_id")
        elif kind == "notice":
            posted.add(data["notice_id"])
            if data["kind"] == "task":
                stated[data["handoff_id"]] += 1
        elif kind == "handoff.end" and data["status"] == "interrupted":
            begun.pop(data["handoff_id"], None)  # by a process that was killed, which could tell nobody
        for notice in [*(data.get("notices") or ()), *(data.get("acknowledges") or ())]:
            told[notice] += 1
            if notice not in posted:
                found.append(f"{kind} ({event['id']}) tells {notice}, which was not posted before")
    found += [f"the end of task {task} is stated {n} times" for task, n in stated.items() if n > 1]
    found += [f"notice {notice} is told {n} times" for notice, n in told.items() if n > 1]
    due = [task for task, run in begun.items() if run is not None] if quiet else []
    return found + [f"the end of task {task} was never stated" for task in due if not stated[task]]


def _calls(events: Sequence[Event], quiet: bool) -> list[str]:
    asked: Counter[str] = Counter()
    called: Counter[str] = Counter()
    results: Counter[str] = Counter()
    started: Counter[tuple[str, int]] = Counter()
    attempts: Counter[str] = Counter()  # a process that takes a run up may start a call once more
    for event in events:
        data, kind = event["data"], event["type"]
        if kind == "run.resumed" and data["reason"] == "restart":
            attempts[event["run_id"]] += 1
        elif kind == "message":
            asked.update(c["call_id"] for c in data.get("tool_calls") or ())
        elif kind == "tool.call":
            called[data["call_id"]] += 1
        elif kind == "tool.start":
            started[(data["call_id"], attempts[event["run_id"]])] += 1
        elif kind == "tool.result":
            results[data["call_id"]] += 1
    found = [f"call {c} has {n} {what}" for what, many in (("tool.call", called), ("tool.result", results),
             ("tool.start", started)) for c, n in many.items() if n > 1]  # fmt: skip
    begun = {call for call, _ in started}
    due = {*called, *begun, *asked} if quiet else {*called, *begun}
    found += [f"call {c} has no result" for c in due - set(results)]
    return found + [f"a result for {c}, which nobody asked for" for c in set(results) - set(asked)]


def _pairs(events: Sequence[Event], begin: str, end: str, key: Any) -> list[str]:
    found: list[str] = []
    begun: dict[str, bool] = {}
    for event in events:
        if event["type"] == begin:
            if key(event) in begun:
                found.append(f"a second {begin} of {key(event)}")
            begun[key(event)] = False
        elif event["type"] == end:
            if begun.get(key(event)) is not False:
                found.append(f"{end} of {key(event)} has no open {begin}")
            begun[key(event)] = True
    return found + [f"{begin} of {name} has no {end}" for name, closed in begun.items() if not closed]


def _handoffs(events: Sequence[Event]) -> list[str]:
    ends = {e["run_id"]: e["id"] for e in events if e["type"] in FINAL}
    starts = {e["data"]["handoff_id"]: e for e in events if e["type"] == "handoff.start"}
    found: list[str] = []
    for event in events:
        if event["type"] != "handoff.end":
            continue
        data = event["data"]
        begun = starts.get(data["handoff_id"])
        if begun is None:
            continue  # which is found as a pair that is none
        if any(begun["data"].get(name) != data.get(name) for name in SAME):
            found.append(f"handoff {data['handoff_id']} ends as another than it began")
        by = begun.get("run_id")
        over = ends.get(str(by), event["id"]) < event["id"]  # nothing is said of a run that has ended
        if event.get("run_id") != (None if over and begun["data"].get("background") else by):
            found.append(f"handoff {data['handoff_id']} ends in another run than it began")
        found += [
            f"handoff.end {event['id']} before its run {r}" for r in data["run_ids"] if ends.get(r, 0) > event["id"]
        ]
        if len(data["run_ids"]) - data["attempts"] not in _runs_beyond_attempts(data):
            found.append(f"handoff {data['handoff_id']}: {data['attempts']} attempts, runs {data['run_ids']}")
    return found


def _runs_beyond_attempts(data: Mapping[str, Any]) -> set[int]:
    """A fallback that is carried out by a run is no attempt; one that did not succeed may not have come to its run."""
    if (data.get("fallback") or {}).get("kind") not in ("agent", "model"):
        return {0}
    return {1} if data["status"] == "fallback" else {0, 1}


def _usage(events: Sequence[Event]) -> list[str]:
    own: dict[str, Counter[str]] = {}
    total: dict[str, Counter[str]] = {}
    parents: dict[str, str | None] = {}
    steps: dict[str, Counter[str]] = {}
    answered: Counter[str] = Counter()
    below: dict[str, Counter[str]] = {}
    for event in events:
        run = event.get("run_id", "")
        if event["type"] == "step.completed":
            steps.setdefault(run, Counter()).update(_amounts(event["data"]["usage"]))
            answered[run] += 1
        elif event["type"] == "run.queued":
            parents[run] = event.get("parent_run_id")
        elif event["type"] in FINAL:
            own[run], total[run] = _amounts(event["data"]["usage"]), _amounts(event["data"]["usage_total"])
            above = parents.get(run)
            while above in total:  # it has ended: what is used after that counts for the nearest one that is open
                above = parents.get(above)
            below.setdefault(above or "", Counter()).update(total[run])
    found: list[str] = []
    for run, counted in total.items():
        due, used = Counter(own[run]), steps.get(run, Counter())
        due.update(below.get(run, Counter()))
        found += [f"{run}: {t} is {counted[t]}, not {due[t]}" for t in {*counted, *due} if counted[t] != due[t]]
        found += [f"{run}: its steps used more {t} than it says" for t in used if used[t] > own[run][t]]
        if own[run]["model_calls"] < answered[run]:
            found.append(f"{run}: {own[run]['model_calls']} model calls in {answered[run]} completed steps")
    return found


def _amounts(usage: Mapping[str, Any]) -> Counter[str]:
    """Everything that a usage counts; money by its currency."""
    counted = Counter({name: amount for name, amount in usage.items() if name != "cost"})
    counted.update({f"cost in {currency}": micros for currency, micros in usage["cost"].items()})
    return counted


def _idle(events: Sequence[Event], quiet: bool) -> list[str]:
    """`session.idle` stands exactly where the last open run or delegation of a session has ended, and behind what was
    told then."""
    found: list[str] = []
    open_things: set[str] = set()
    due = closed = False
    for event in events:
        kind, data = event["type"], event["data"]
        if closed and kind != "session.closed":
            found.append(f"{kind} ({event['id']}) follows session.closed")
        if kind == "session.idle":
            if open_things:
                found.append(f"idle at {event['id']} while {open_things} are open")
            elif not due:
                found.append(f"idle at {event['id']} though nothing was started since the last one")
            due = False
        elif kind in ("run.queued", "handoff.start"):
            open_things.add(event["run_id"] if kind == "run.queued" else data["handoff_id"])
            due = True
        elif kind in FINAL or kind == "handoff.end":
            open_things.discard(event["run_id"] if kind in FINAL else data["handoff_id"])
        elif kind not in AT_REST:
            due = True
        closed = closed or kind == "session.closed"
    return found + (["the session never became idle"] if quiet and due else [])


def _memories(events: Sequence[Event]) -> list[str]:
    """Order in a memory is (turn, step, sub), and that of its message numbers; one run follows another."""
    places: dict[str, list[tuple[int, tuple[int, int, int], str]]] = {}
    for event in events:
        if event["type"] in ("message", "tool.result"):
            data = event["data"]
            place = (data["turn"], event.get("step", 0), data["sub"])
            places.setdefault(data["memory_id"], []).append((data["memory_seq"], place, event["run_id"]))
    found: list[str] = []
    for memory, known in places.items():
        known.sort()
        if len({seq for seq, _, _ in known}) < len(known):
            found.append(f"{memory}: a number is used twice")
        order = [place for _, place, _ in known]
        if order != sorted(set(order)):
            found.append(f"{memory}: the places are not in order: {order}")
        blocks = Counter(run for run, _ in groupby(run for _, _, run in known))
        found += [f"{memory}: {run} speaks {times} times, others between" for run, times in blocks.items() if times > 1]
    return found
