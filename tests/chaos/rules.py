"""The rules that are asked of the log of each session, one function for each, and what they mean here.

Each gives its violations as sentences. `evidence` is everything that was recorded, `session` one session of it. An
attempt is one time that a process has taken a run up; a restart that goes on with a run raises it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from app.store.chain import Head, digest, link, seal
from tests.chaos.evidence import EFFECTS, Evidence, Logged, Session
from tests.chaos.plans import named, tag_of
from tests.chaos.server import AUDIT_KEY
from tests.strict import AT_REST, FINAL, log_problems

GOES_ON_US = 20_000_000  # after the last start
MAX_ATTEMPTS = 5  # processes that may have begun a run, the service's own setting


def c1_what_was_seen_is_stored(evidence: Evidence, session: Session) -> list[str]:
    """Every event with an id that any client got is in the log with the same bytes."""
    stored = {event.seq: event for event in session.events}
    found = []
    for seq, digests in evidence.received.get(session.id, {}).items():
        event = stored.get(seq)
        if event is None:
            found.append(f"event {seq} of {session.id} was seen and is not stored")
        elif event.raw is not None and digests != {event.sent}:
            found.append(f"event {seq} of {session.id} was seen with other bytes than are stored")
    return found


def c2_numbers_have_no_gap(evidence: Evidence, session: Session) -> list[str]:
    """The ids of a session are 1..n in the log, and what one view shows over all its connections is all of it, in
    order, each once."""
    numbers = [event.seq for event in session.events]
    found = []
    if numbers != list(range(1, len(numbers) + 1)) or session.row["next_seq"] != len(numbers) + 1:
        found.append(f"{session.id} has the ids {_spans(numbers)}, its row goes on with {session.row['next_seq']}")
    for view in evidence.views.get(session.id, ()):
        due = _due(session, view.path, view.ids[-1])
        if view.ids != due:
            found.append(f"{view.client} saw {_spans(view.ids)} of {view.path}, there are {_spans(due)}")
        found += [f"frame {one} of {view.path} names another frame before it than {view.client} saw"
                  for one in view.breaks]  # fmt: skip
        if view.healed:
            found.append(f"{view.client} was shown gaps or repeats {view.healed} times")
    return found


def _due(session: Session, path: str, upto: int) -> list[int]:
    """The ids that a view leads to."""
    run = path.removeprefix("/v1/runs/").removesuffix("/events") if path.startswith("/v1/runs/") else None
    within = session.below(run) if run in session.queued else None
    return [e.seq for e in session.events if e.seq <= upto and (within is None or e.run in within)]


def _spans(numbers: list[int]) -> str:
    """Numbers as people write them: 1-4, 6."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in spans[:20]) or "nothing"


def c4_one_end(evidence: Evidence, session: Session) -> list[str]:
    """A run is queued once, then has at most one terminal event, and nothing follows it; its row says the same."""
    found = []
    state: dict[str, str] = {}
    for event in session.events:
        run = event.run
        if run is None:
            continue
        if (event.type == "run.queued") == (run in state):
            found.append(f"{event.type} ({event.seq} of {session.id}) where {run} is {state.get(run, 'unknown')}")
        elif state.get(run, "") in FINAL:
            found.append(f"{event.type} ({event.seq} of {session.id}) follows the end of {run}, {state[run]}")
        if event.type in FINAL or event.type == "run.queued":
            state[run] = event.type
    for run, last in state.items():
        row = evidence.runs.get(run)
        told = last.removeprefix("run.") if last in FINAL else None
        if row is None or (row["status"] if row["ended_at"] else None) != told:
            found.append(f"the log of {run} says {told or 'nothing of an end'}, its row {row and row['status']}")
    return found


def c5_nothing_is_stranded(evidence: Evidence, session: Session) -> list[str]:
    """No run is open that no process works on: where runs are interrupted, each that a dead process left open has ended
    when the next one is ready; where they are continued, each that the last process found open does something within
    20 s. In the end nothing at all is open."""
    found = []
    ends = {e.run: e.ts for e in session.events if e.type in FINAL}
    found += [f"{run} is open at the end" for run in session.queued if run not in ends]
    boots = [boot for boot in evidence.boots[1:] if boot.ready is not None]
    for boot in boots[-1:] if evidence.abilities["recovery"] == "continue" else boots:
        left = [run for run, e in session.queued.items() if e.ts < boot.start <= ends.get(run, 2**62)]
        if not left:
            continue
        if evidence.abilities["recovery"] == "continue":
            awake = {e.run for e in session.events if boot.start <= e.ts <= boot.start + GOES_ON_US}
            found += [f"{run} did nothing within 20 s of start {boot.number}" for run in left if run not in awake]
        else:
            found += [
                f"{run} was left open by a dead process and still was when start {boot.number} was ready"
                for run in left
                if ends.get(run, 2**62) > (boot.ready or 0)
            ]
    return found


def what_is_left_goes_on(evidence: Evidence, session: Session) -> list[str]:
    """Where runs are continued, one ends as interrupted only when it, or a run above it, was begun by as many processes
    that went away as the service allows."""
    if evidence.abilities["recovery"] != "continue":
        return []
    again = Counter(e.run for e in session.events if e.type == "run.resumed" and e.data["reason"] == "restart")
    found = []
    for event in session.events:
        run: str | None = event.run if event.type == "run.interrupted" else None
        lineage = []
        while run is not None:
            lineage.append(again[run])
            run = session.queued[run].head.get("parent_run_id")
        if lineage and max(lineage) < MAX_ATTEMPTS - 1:
            found.append(f"{event.run} was interrupted, and with those above it taken up {max(lineage)} times only")
    return found


def nothing_follows_the_last_idle(evidence: Evidence, session: Session) -> list[str]:
    """A session that is at rest says so last: behind its last `session.idle` nothing stands but what leaves it idle.
    Whoever follows it until then would wait for ever."""
    behind = {e.seq: e.type for e in session.events if e.type not in AT_REST}
    if all(kind != "session.idle" for kind in behind.values()):
        return [f"{session.id} worked and was never idle"] if behind else []
    last = max(seq for seq, kind in behind.items() if kind == "session.idle")
    return [f"{kind} ({seq} of {session.id}) follows the last idle" for seq, kind in behind.items() if seq > last]


def parents_are_told(evidence: Evidence, session: Session) -> list[str]:
    """A notice is told once at most: by a message or by the result that it belongs to. It is told when the run that
    answers for it, the nearest one that is open, asks its model for two more steps and completes."""
    told: Counter[str] = Counter()
    steps: dict[str, set[tuple[int, int]]] = defaultdict(set)
    ends = {e.run: e for e in session.events if e.type in FINAL}
    for event in session.events:
        told.update(event.data.get("notices") or () if event.type == "message" else ())
        told.update(event.data.get("acknowledges") or () if event.type == "tool.result" else ())
        if event.type == "step.started" and event.run is not None:
            steps[event.run].add((event.head["step"], event.seq))
    found = [f"notice {notice} was told {times} times" for notice, times in told.items() if times > 1]
    for event in session.events:
        if event.type != "notice" or told[event.data["notice_id"]]:
            continue
        run: str | None = event.data["for_run"]
        while run in ends and ends[run].seq < event.seq:
            run = session.queued[run].head.get("parent_run_id") if run in session.queued else None
        later = {step for step, seq in steps.get(run or "", ()) if seq > event.seq}
        if run in ends and ends[run].type == "run.completed" and len(later) > 1:
            found.append(
                f"notice {event.data['notice_id']} was never told to {run}, which took {len(later)} more steps"
            )
    return found


def c6_no_call_starts_twice(evidence: Evidence, session: Session) -> list[str]:
    """A call starts at most once in an attempt, one with side effects at most once at all. The witness says what really
    ran: nothing with an effect without a stored start, none twice, and no result of something that did not run."""
    started: Counter[tuple[str, int]] = Counter()
    ever: Counter[str] = Counter()
    real = evidence.ran
    found = []
    for event, attempt, _ in session.attempts:
        data = event.data
        if event.type == "tool.start":
            started[data["call_id"], attempt] += 1
            if not (data["read_only"] or data.get("delegation")):
                ever[data["call_id"]] += 1
        elif event.type == "tool.result" and data["tool"] in (*EFFECTS, "look") and data["call_id"] not in real:
            found += [f"call {data['call_id']} ({data['tool']}) has a result and never ran"] * (data["status"] == "ok")
    found += [f"call {call} starts {n} times in attempt {at}" for (call, at), n in started.items() if n > 1]
    found += [f"call {call} has side effects and starts {n} times" for call, n in ever.items() if n > 1]
    asked = {call for call, _ in started}
    for call in asked & real.keys():
        kinds = Counter(kind for kind, _ in real[call])
        tries = Counter(real[call])
        found += [f"call {call} ({kind}) ran {n} times" for kind, n in kinds.items() if kind in EFFECTS and n > 1]
        # what only reads is done again by each process, also by one that dies before its attempt is stored
        found += [
            f"call {call} ran {n} times in attempt {at}" for (k, at), n in tries.items() if n > 1 and k in EFFECTS
        ]
    runs = {event.run or "" for event in session.events}
    loose = [call for run in runs & evidence.ran_in.keys() for call in evidence.ran_in[run] - asked]
    return found + [f"call {call} ran without a stored start" for call in loose if real[call][0][0] in EFFECTS]


def c7_children_end_first(evidence: Evidence, session: Session) -> list[str]:
    """A child's end precedes that of its parent, unless it is a background task."""
    ends = {e.run: e.seq for e in session.events if e.type in FINAL}
    found = []
    for run, queued in session.queued.items():
        parent = queued.head.get("parent_run_id")
        if parent not in ends or queued.data.get("handoff_id") in session.background:
            continue
        if ends.get(run, 2**62) > ends[parent]:
            found.append(f"{parent} ends before its child {run}")
    return found


def c8_budgets_hold(evidence: Evidence, session: Session) -> list[str]:
    """Under a limit of model calls neither the model was asked nor the log counts more often than that; and with or
    without one the model was never asked without a step in the log that says so: it is stored first, whatever ends the
    process."""
    found = []
    trees = {run: tag for run, e in session.queued.items() if (tag := _tag(e)) is not None}
    for tag in set(trees.values()):
        below = set().union(*(session.below(run) for run, own in trees.items() if own == tag))
        asked, limit = len(evidence.model_calls[tag]), evidence.limits.get(tag)
        begun = sum(e.run in below and _asks(e) for e in session.events)
        if asked > begun:
            found.append(f"{session.id}: the model was asked {asked} times in {begun} steps of {tag}")
        if limit is None:
            continue
        counted = sum(
            e.data["usage_total"]["model_calls"] for e in session.events if e.type in FINAL and e.run in trees
        )
        for what, many in (("the model was asked", asked), ("the log counts", counted)):
            if many > limit:
                found.append(f"{session.id}: {what} {many} times under a limit of {limit}")
    return found


def _asks(event: Logged) -> bool:
    """Whether a call of a model follows: not at once after what a restart has withdrawn."""
    return event.type == "step.started" or (event.type == "step.retried" and event.data["code"] != "restart")


def _tag(queued: Logged) -> str | None:
    """The tree that a root run belongs to."""
    if queued.head.get("parent_run_id"):
        return None
    name = named(queued.data["input"])
    return None if name is None else tag_of(name)


def c11_tenants_do_not_meet(evidence: Evidence, session: Session) -> list[str]:
    """Whoever saw an event of a session belongs to its tenant, and every event of it says the same tenant."""
    tenant = session.row["tenant_id"]
    found = [f"event {e.seq} of {session.id} belongs to {e.tenant}" for e in session.events if e.tenant != tenant]
    strangers = {view.client for view in evidence.views.get(session.id, ()) if view.tenant != tenant}
    return found + [f"{client} saw events of {session.id}, which belongs to {tenant}" for client in strangers]


def c12_processes_do_not_interleave(evidence: Evidence, session: Session) -> list[str]:
    """Attempt and epoch of a run never fall along the ids, nor does the process that an event was made in; a run that
    works in two processes has two attempts; its row ends with the last of both."""
    found = []
    last: dict[str, tuple[int, int]] = {}
    worked: dict[str, tuple[int, int]] = {}
    boots: dict[str, int] = defaultdict(int)
    for event, attempt, epoch in session.attempts:
        run = event.run or ""
        boot = evidence.boot_at(event.ts)
        where = f"{event.type} ({event.seq} of {session.id})"
        if boot is None:
            found.append(f"{where} was made while no process lived")
        elif boot < boots[run]:
            found.append(f"{where} was made in process {boot}, after one that was made in {boots[run]}")
        boots[run] = max(boots[run], boot or 0)
        before = last.get(run, (0, 0))
        if attempt < before[0] or epoch < before[1]:
            found.append(f"{where} has attempt {attempt}, epoch {epoch}, after {before}")
        last[run] = attempt, epoch
        if event.type in ("step.started", "tool.start"):
            if run in worked and worked[run][0] == attempt and worked[run][1] != boot:
                found.append(f"{where}: attempt {attempt} works in two processes")
            worked[run] = attempt, boot or 0
    for run, known in last.items():
        row = evidence.runs.get(run, {})
        if (row.get("attempt"), row.get("epoch")) != known:
            found.append(f"{run} ends with attempt and epoch {known}, its row says {row.get('attempt')}")
    return found


# ── beyond C1 to C12 ────────────────────────────────────────────────────────────────────────────────────────────────


def pairs_are_complete(evidence: Evidence, session: Session) -> list[str]:
    """Handoffs, subagents, calls and questions that begin also end, each once, when nothing is open any more."""
    found = _pairs(session.events, "handoff.start", "handoff.end", "handoff_id")
    found += _pairs(session.events, "permission.requested", "permission.resolved", "approval_id")
    asked = Counter(
        call["call_id"] for e in session.events if e.type == "message" for call in e.data.get("tool_calls") or ()
    )
    results = Counter(e.data["call_id"] for e in session.events if e.type == "tool.result")
    found += [f"call {call} was asked for {n} times" for call, n in asked.items() if n > 1]
    found += [f"call {call} has {results[call]} results" for call in asked | results if results[call] != 1]
    found += [f"there is a result for call {call}, which nobody asked for" for call in results.keys() - asked.keys()]
    standing: Counter[str] = Counter()
    stops: Counter[str] = Counter()
    attempts: dict[str, int] = {}
    for event, attempt, _ in session.attempts:
        run = event.run or ""
        attempts[run] = attempt
        standing[run] += event.type == "subagent.start"
        stops[run] += event.type == "subagent.stop"
    for run, starts in standing.items():
        if starts > attempts[run] or stops[run] != min(starts, 1):
            found.append(
                f"{run} has {starts} subagent.start and {stops[run]} subagent.stop in {attempts[run]} attempts"
            )
    return found


def _pairs(events: Iterable[Logged], begin: str, end: str, key: str) -> list[str]:
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for event in events:
        if event.type in (begin, end) and event.data.get(key):
            (begun if event.type == begin else ended)[event.data[key]] += 1
    return [
        f"{name} has {begun[name]} {begin} and {ended[name]} {end}"
        for name in begun | ended
        if (begun[name], ended[name]) != (1, 1)
    ]


def the_log_is_true(evidence: Evidence, session: Session) -> list[str]:
    """What every log must satisfy (`tests.strict.log_problems`): usage adds up, memories are in order, the session is
    idle when it says so. Of sessions without a continued run and without background tasks."""
    if session.background or any(attempt > 1 for _, attempt, _ in session.attempts):
        return []
    evidence.strictly += 1
    found = log_problems([{**event.head, "data": event.data} for event in session.events])
    return [f"{session.id}: {problem}" for problem in found]


def the_chain_holds(evidence: Evidence, session: Session) -> list[str]:
    """Each event's hash follows from the one before, and the sealed head is the last one."""
    head = Head(1, bytes(32))
    found = []
    for event in session.events:
        if event.raw is not None and digest(event.raw) != event.digest:
            found.append(f"the data of event {event.seq} of {session.id} is not what was hashed")
        if link(head.hash, event.envelope, event.digest) != event.hash:
            found.append(f"the hash of event {event.seq} of {session.id} does not follow from the one before")
        head = Head(event.seq + 1, event.hash)
    if session.row["head_hash"] != head.hash or session.row["head_mac"] != seal(AUDIT_KEY.encode(), head):
        found.append(f"the head of {session.id} is not its last event")
    return found


SESSION_RULES = {
    "C1": c1_what_was_seen_is_stored,
    "C2": c2_numbers_have_no_gap,
    "C4": c4_one_end,
    "C5": c5_nothing_is_stranded,
    "C6": c6_no_call_starts_twice,
    "C7": c7_children_end_first,
    "C8": c8_budgets_hold,
    "C11": c11_tenants_do_not_meet,
    "C12": c12_processes_do_not_interleave,
    "goes on": what_is_left_goes_on,
    "idle": nothing_follows_the_last_idle,
    "told": parents_are_told,
    "pairs": pairs_are_complete,
    "log": the_log_is_true,
    "chain": the_chain_holds,
}
