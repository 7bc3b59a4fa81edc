"""Events of a log as the service writes them: sessions of several tenants side by side, of all sizes, one of them long.

Everything is drawn from one seed but ids. Left out are `step.started`, `step.completed` and `tool.start`, of which no
question of the audit trail knows: they would take a quarter of the space. Knows no database.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from app.agent import events as kinds
from app.agent.events import Event, EventKind, Write
from app.agent.ids import new_id
from app.agent.runs import Run, RunStatus, Session
from app.wire import encode_payload, envelope, scope_bytes
from bench.texts import Texts
from tests.store.facts import START, Facts

TENANTS = {"t1": 70, "t2": 20, "t3": 10}  # of a hundred sessions
LARGEST = "t1"
LEADS = {f"lead_{number}": 12 - number for number in range(1, 11)} | {"clerk": 6}
SUBAGENTS = {f"scout_{number}": 10 - number for number in range(1, 9)} | {"critic": 3}
TALKERS = frozenset({"clerk", "critic"})  # they have no tools
RARE_AGENT, RARE_TOOL = "auditor", "export_ledger"  # one run, one call of many thousands
TOOLS = {"read_file": 30, "grep": 20, "glob": 12, "run_command": 8, "web_fetch": 6, "edit_file": 4, "note": 1}
CALLS = {1: 6, 2: 2, 3: 1, 4: 1}  # of a step: how many, how often
STEPS = {0: 1, 1: 2, 2: 3, 4: 4, 7: 2}  # with calls, of a run
SIZES = {(4, 30): 60, (30, 200): 30, (200, 1_000): 9, (1_000, 4_000): 1}  # messages of a session
BESIDE = 40  # sessions that go on side by side
TICK_US = 1_000
LONGEST = 110_000  # messages of the long session, in a log that has three times as many


class Drawing:
    """Draws by weights: what stands in a map, as often as it says."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._known: dict[int, tuple[list[Any], list[int]]] = {}
        self.chance = random.random
        self.between = random.randint

    def one(self, of: Mapping[Any, int]) -> Any:
        """One key."""
        known = self._known.get(id(of))
        if known is None:
            total, sums = 0, []
            for weight in of.values():
                total += weight
                sums.append(total)
            known = self._known[id(of)] = (list(of), sums)
        return self._random.choices(known[0], cum_weights=known[1])[0]


class Story(Facts):
    """One session, a turn after the other."""

    def __init__(self, draw: Drawing, texts: Texts, ts: int, wanted: int, tenant: str | None = None) -> None:
        super().__init__(tenant or draw.one(TENANTS), ts=ts, tick=TICK_US)
        self.draw = draw
        self.texts = texts
        self.wanted = wanted
        self.told = 0  # messages so far
        self.agent = draw.one(LEADS)
        self._scopes: dict[str, bytes] = {}
        self._notices: list[str] = []  # that the next turn tells
        self._out: list[Event] = []

    def event(
        self,
        scope: Session | Run,
        kind: EventKind[Any],
        payload: Mapping[str, Any],
        *,
        step: int | None = None,
        also: tuple[Write, ...] = (),
    ) -> Event:
        """As `Facts.event`, with what the envelopes of a run share made once."""
        self.seq += 1
        self.ts += self.tick
        shared = self._scopes.get(scope.id)
        if shared is None:
            shared = self._scopes[scope.id] = scope_bytes(scope)
        kept, data = encode_payload(payload)
        event = Event(
            seq=self.seq,
            type=kind.name,
            ts=self.ts,
            tenant=self.session.tenant,
            session_id=self.session.id,
            run=scope if isinstance(scope, Run) else None,
            step=step,
            payload=kept,
            envelope=envelope(self.seq, kind, self.ts, shared, step),
            data=data,
            also=also,
        )
        self._out.append(event)
        if kind is kinds.MESSAGE or kind is kinds.TOOL_RESULT:
            self.told += 1
        return event

    @property
    def over(self) -> bool:
        """Whether all was said."""
        return self.told >= self.wanted

    def turn(self) -> list[Event]:
        """The events of the next turn, from its run to the idle session."""
        self._out, self._scopes = [], {}
        if self.seq == 0:
            self.created(title=self.texts.short(), user=f"user_{self.draw.between(1, 500)}", agent=self.agent)
        agent = RARE_AGENT if self.draw.chance() < 0.00005 else self.agent
        run = self.run(agent=agent)
        self._run(run, subagents=3)
        self.idle()
        if self.over and self.draw.chance() < 0.2:
            self.closed()
        return self._out

    def _run(self, run: Run, *, subagents: int) -> None:
        """A run from its queue to its end; `subagents`: levels that may still be below it."""
        task = self.texts.text()
        self.queued(run, task)
        self.started(run)
        if run.turn == 0:
            self.message(run, "system", f"You are {run.agent}. {self.texts.short()}")
        self.message(run, "user", task, sub=1, notices=self._notices or None)
        self._notices = []
        step = 0
        if run.agent not in TALKERS:
            for step in range(1, self.draw.one(STEPS) + 1):
                self._step(run, step)
            if subagents and self.draw.chance() < 0.12:
                step += 1
                self._delegate(run, step, subagents - 1)
        answer = self.texts.text()
        self.message(run, "assistant", answer, step=step + 1, tokens=len(answer) // 3)
        failed = self.draw.chance() < 0.03
        error = {"code": "model_failed", "message": "the model did not answer"} if failed else None
        self.ended(run, RunStatus.FAILED if failed else RunStatus.COMPLETED, output=answer, error=error, steps=step + 1)

    def _step(self, run: Run, step: int) -> None:
        calls = [self._asked_for() for _ in range(self.draw.one(CALLS))]
        reply = self.message(run, "assistant", self.texts.short(), step=step, tool_calls=calls)
        for sub, call in enumerate(calls, 1):
            self._call(run, call, step, sub, reply.payload["memory_seq"] + sub)

    def _asked_for(self) -> dict[str, Any]:
        tool = RARE_TOOL if self.draw.chance() < 0.00002 else self.draw.one(TOOLS)
        return self.call(tool, f'{{"path":"{self.texts.path()}"}}')

    def _call(self, run: Run, call: dict[str, Any], step: int, sub: int, place: int) -> None:
        """One call: most run; some are refused, asked about, or wrong."""
        luck = self.draw.chance()
        more: dict[str, Any] = {"step": step, "sub": sub, "place": place}
        if luck < 0.08:  # what could not be read was never taken up
            wrong = {"status": "invalid_arguments", "is_error": True, "arguments": call["arguments"]}
            self.result(run, call, self.texts.short(), **more, **wrong)
            return
        self.called(run, call, step=step, sub=sub, arguments=kinds_json(call["arguments"]))
        if luck < 0.16:
            denied = luck < 0.10
            rule = {"decision": "deny" if denied else "allow", "kind": "rule", "by": None}
            self.answered(run, call, None, step=step, **rule)
            if denied:
                self.result(run, call, "A rule forbids this.", **more, status="denied", is_error=True)
                return
        elif luck < 0.164 and self._person(run, call, step) in ("deny", "expired"):
            self.result(run, call, "Nobody allowed this.", **more, status="denied", is_error=True)
            return
        elif luck < 0.1642:
            self._hook(run, call, step)
        self.result(run, call, self.texts.text(), **more)

    def _person(self, run: Run, call: dict[str, Any], step: int) -> str:
        """A question and its answer."""
        approval_id = new_id("apr")
        self.asked(run, call, approval_id, step=step)
        said = str(self.draw.one(_ANSWERS))
        kind, by = ("timeout", None) if said == "expired" else ("person", "key_1")
        self.answered(run, call, approval_id, step=step, decision=said, kind=kind, by=by)
        return said

    def _hook(self, run: Run, call: dict[str, Any], step: int) -> None:
        payload = {
            "hook": "guard", "kind": "webhook", "point": "pre_tool_use", "decision": "mutate_input", "reason": None,
            "effect": None, "tool": call["name"], "call_id": call["call_id"], "duration_ms": 7, "digest": "00" * 32,
            "arguments": {"path": "b.txt"},
        }  # fmt: skip
        self.event(run, kinds.HOOK_DECISION, payload, step=step)

    def _delegate(self, run: Run, step: int, below: int) -> None:
        """A step whose one call starts a subagent, in the background now and then."""
        call = self.call("execute_task", '{"task":"look around"}')
        reply = self.message(run, "assistant", self.texts.short(), step=step, tool_calls=[call])
        self.called(run, call, step=step, arguments={"task": "look around"})
        agent, name, handoff_id = self.draw.one(SUBAGENTS), f"sub_{self.draw.between(0, 2**32):08x}", new_id("ho")
        background = self.draw.chance() < 0.1
        given = {"call_id": call["call_id"], "subagent": agent}
        self.handoff(run, handoff_id, name, **given, background=background)
        child = self.run(parent=run, agent=agent, name=name, handoff_id=handoff_id, parent_call_id=call["call_id"])
        place = reply.payload["memory_seq"] + 1
        if background:
            self.result(run, call, f"Task {handoff_id} goes on.", step=step, place=place)
        self.event(child, kinds.SUBAGENT_START, {"agent": agent, "name": name, "prompt": "look around"})
        self._run(child, subagents=below)
        stopped = {"agent": agent, "name": name, "result": "done", "steps": 2, "is_error": False, "status": "completed"}
        self.event(child, kinds.SUBAGENT_STOP, stopped)
        self.handed_back(run, handoff_id, [child.id], name, **given)
        if background:
            notice_id = new_id("ntc")
            self.noticed(run, notice_id, handoff_id)
            self._notices.append(notice_id)
        else:
            self.result(run, call, self.texts.text(), step=step, place=place)


_ANSWERS = {"allow_once": 60, "allow_session": 20, "deny": 15, "expired": 5}


def kinds_json(arguments: str) -> dict[str, Any]:
    """What stands in the text of a call's arguments."""
    return {"path": arguments[9:-2]}


def stories(count: int, seed: int = 1) -> Iterator[list[Event]]:
    """The turns of a log of about `count` messages, in the order of their events' times."""
    random = Random(seed)
    draw, texts = Drawing(random), Texts(random)
    ts, written = START, 0
    long = Story(draw, texts, ts, max(count // 80, min(count // 3, LONGEST)), LARGEST)
    beside: list[Story] = []
    while written < count:
        if long.told * count < long.wanted * written or not written:
            story = long
        else:
            if len(beside) < BESIDE:
                low, high = draw.one(SIZES)
                beside.append(Story(draw, texts, ts, draw.between(low, high)))
            at = draw.between(0, len(beside) - 1)
            story = beside[at]
        before, story.ts = story.told, ts
        yield story.turn()
        ts, written = story.ts, written + story.told - before
        if story is not long and story.over:
            beside[at] = beside[-1]
            beside.pop()
