"""Makes the events of a session as the journal does: numbered, timed and encoded once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.agent import events as kinds
from app.agent.events import Event, EventKind, Write
from app.agent.ids import new_id
from app.agent.runs import Run, RunStatus, Session
from app.wire import encode_payload, envelope, scope_bytes

USAGE: dict[str, Any] = {
    "input_tokens": 7,
    "output_tokens": 3,
    "cached_tokens": 0,
    "reasoning_tokens": 0,
    "model_calls": 1,
    "unpriced_calls": 0,
    "cost": {"USD": 40},
}
START = 1_800_000_000_000_000


class Facts:
    """The facts of one session, one after the other. `ts` is the clock, in µs; each event moves it on by `tick`."""

    def __init__(self, tenant: str = "default", session_id: str | None = None, *, ts: int = START, tick: int = 10):
        memory = new_id("mem")
        self.session = Session(
            id=session_id or new_id("ses"), tenant=tenant, memory_id=memory, agent="lead", created_at=ts
        )
        self.ts = ts
        self.tick = tick
        self.seq = 0
        self.ordinal = 0
        self.places: dict[str, int] = {}  # next message number of each memory
        self.turns: dict[str, int] = {}

    def beside(self) -> "Facts":
        """Another session of the tenant, which can use the same memories; its clock goes on from here."""
        other = Facts(self.session.tenant, ts=self.ts)
        other.places, other.turns = self.places, self.turns
        return other

    def event(
        self,
        scope: Session | Run,
        kind: EventKind[Any],
        payload: Mapping[str, Any],
        *,
        step: int | None = None,
        also: tuple[Write, ...] = (),
    ) -> Event:
        self.seq += 1
        self.ts += self.tick
        kept, data = encode_payload(payload)
        return Event(
            seq=self.seq,
            type=kind.name,
            ts=self.ts,
            tenant=self.session.tenant,
            session_id=self.session.id,
            run=scope if isinstance(scope, Run) else None,
            step=step,
            payload=kept,
            envelope=envelope(self.seq, kind, self.ts, scope_bytes(scope), step),
            data=data,
            also=also,
        )

    # ── the session ─────────────────────────────────────────────────────────────────────────────────────────────

    def created(self, **changes: Any) -> Event:
        payload = {
            "agent": self.session.agent,
            "memory_id": self.session.memory_id,
            "title": "Letters",
            "user": None,
            "metadata": {"team": "north"},
            "config": {"surfaces": [{"kind": "task"}], "policy": {"max_depth": 2}},
        }
        return self.event(self.session, kinds.SESSION_CREATED, payload | changes)

    def updated(self, **changes: Any) -> Event:
        return self.event(self.session, kinds.SESSION_UPDATED, changes)

    def idle(self) -> Event:
        return self.event(self.session, kinds.SESSION_IDLE, {})

    def closed(self, reason: str = "closed") -> Event:
        return self.event(self.session, kinds.SESSION_CLOSED, {"reason": reason})

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, *, parent: Run | None = None, agent: str = "lead", name: str | None = None, **fields: Any) -> Run:
        self.ordinal += 1
        memory = fields.pop("memory_id", self.session.memory_id if parent is None else new_id("mem"))
        turn = self.turns.get(memory, 0)
        self.turns[memory] = turn + 1
        path = (*parent.path, self.ordinal) if parent is not None else (self.ordinal,)
        return Run(
            id=new_id("run"),
            session_id=self.session.id,
            tenant=self.session.tenant,
            memory_id=memory,
            turn=turn,
            ordinal=self.ordinal,
            depth=parent.depth + 1 if parent is not None else 0,
            path=path,
            agent=agent,
            name=name,
            parent_id=parent.id if parent is not None else None,
            **fields,
        )

    def queued(self, run: Run, text: str = "count the letters", **changes: Any) -> Event:
        payload = {
            "memory_id": run.memory_id,
            "turn": run.turn,
            "handoff_id": run.handoff_id,
            "parent_call_id": run.parent_call_id,
            "attempt": run.attempt,
            "epoch": run.epoch,
            "input": text,
            "max_steps": 25,
            "model": "scripted:letters",
            "deadline_ms": None,
            "timeout_ms": 30_000,
        }
        return self.event(run, kinds.RUN_QUEUED, payload | changes)

    def started(self, run: Run) -> Event:
        return self.event(run, kinds.RUN_STARTED, {"model": "scripted:letters", "tools": ["read_file"]})

    def waiting(self, run: Run, reason: str = "child") -> Event:
        return self.event(run, kinds.RUN_WAITING, {"reason": reason})

    def resumed(self, run: Run, reason: str = "child") -> Event:
        return self.event(run, kinds.RUN_RESUMED, {"reason": reason})

    def again(self, run: Run) -> Run:
        """The run as the next process takes it up."""
        return replace(run, attempt=run.attempt + 1, epoch=run.epoch + 1)

    def ended(self, run: Run, status: RunStatus = RunStatus.COMPLETED, **changes: Any) -> Event:
        payload = {
            "status": status.value,
            "stop_reason": "answer",
            "output": "seven",
            "steps": 2,
            "usage": USAGE,
            "usage_total": USAGE,
            "forced": False,
            "partial": False,
            "error": None,
            "activity": [{"name": "read_file", "calls": 1, "total_ms": 4}],
            "duration_ms": 12,
            "open_tasks": [],
        }
        return self.event(run, kinds.KINDS[f"run.{status.value}"], payload | changes)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, memory: str, count: int = 1) -> int:
        place = self.places.get(memory, 1)
        self.places[memory] = place + count
        return place

    def step_started(self, run: Run, step: int) -> Event:
        return self.event(run, kinds.STEP_STARTED, {"model": "scripted:letters"}, step=step)

    def step_completed(self, run: Run, step: int, calls: int = 0) -> Event:
        payload = {"finish": "stop", "tool_calls": calls, "usage": USAGE, "duration_ms": 9}
        return self.event(run, kinds.STEP_COMPLETED, payload, step=step)

    def message(self, run: Run, role: str, text: str, *, step: int = 0, sub: int = 0, **changes: Any) -> Event:
        calls = changes.get("tool_calls")
        payload = {
            "message_id": new_id("msg"),
            "memory_id": run.memory_id,
            "memory_seq": self._place(run.memory_id, 1 + len(calls or ())),
            "turn": run.turn,
            "sub": sub,
            "role": role,
            "content": text,
            "reasoning": None,
            "tool_calls": None,
            "tokens": 11,
            "partial": None,
            "provider": None,
            "opaque": None,
        }
        return self.event(run, kinds.MESSAGE, payload | changes, step=step)

    def call(self, name: str = "read_file", arguments: str = '{"path":"a.txt"}', **more: Any) -> dict[str, Any]:
        """A call as it stands in an assistant message."""
        return {"call_id": new_id("call"), "provider_call_id": "c1", "name": name, "arguments": arguments, **more}

    def called(self, run: Run, call: Mapping[str, Any], *, step: int, sub: int = 1, **changes: Any) -> Event:
        payload = {
            "call_id": call["call_id"],
            "provider_call_id": call["provider_call_id"],
            "tool": call["name"],
            "arguments": {"path": "a.txt"},
            "sub": sub,
        }
        return self.event(run, kinds.TOOL_CALL, payload | changes, step=step)

    def call_started(self, run: Run, call: Mapping[str, Any], *, step: int, **changes: Any) -> Event:
        payload = {"call_id": call["call_id"], "tool": call["name"], "read_only": True} | changes
        return self.event(run, kinds.TOOL_START, payload, step=step)

    def result(
        self, run: Run, call: Mapping[str, Any], text: str, *, step: int, place: int, sub: int = 1, **changes: Any
    ) -> Event:
        payload = {
            "call_id": call["call_id"],
            "provider_call_id": call["provider_call_id"],
            "tool": call["name"],
            "message_id": new_id("msg"),
            "memory_id": run.memory_id,
            "memory_seq": place,
            "turn": run.turn,
            "sub": sub,
            "status": "ok",
            "is_error": False,
            "content": text,
            "duration_ms": 4,
            "length": None,
        }
        return self.event(run, kinds.TOOL_RESULT, payload | changes, step=step)

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────

    def asked(self, run: Run, call: Mapping[str, Any], approval_id: str, *, step: int = 1, **changes: Any) -> Event:
        payload = {
            "approval_id": approval_id,
            "call_id": call["call_id"],
            "tool": call["name"],
            "arguments": {"path": "a.txt"},
            "digest": "00" * 32,
            "rule": "Read",
            "scope": "settings",
            "owner": None,
            "reason": "a person is asked",
            "suggested_rule": "Read(./a.txt)",
            "expires_at": self.ts + 300_000_000,
        }
        return self.event(run, kinds.PERMISSION_REQUESTED, payload | changes, step=step)

    def answered(
        self, run: Run, call: Mapping[str, Any], approval_id: str | None, *, step: int = 1, **changes: Any
    ) -> Event:
        payload = {
            "approval_id": approval_id,
            "call_id": call["call_id"],
            "tool": call["name"],
            "digest": "00" * 32,
            "decision": "allow_session",
            "kind": "person",
            "by": "key_1",
            "rule": "Read",
            "scope": "settings",
            "owner": None,
            "reason": None,
            "arguments": None,
        }
        return self.event(run, kinds.PERMISSION_RESOLVED, payload | changes, step=step)

    # ── handoffs ────────────────────────────────────────────────────────────────────────────────────────────────

    def handoff(self, parent: Run | None, handoff_id: str, name: str = "sub_0a1b2c3d", **changes: Any) -> Event:
        payload = {
            "handoff_id": handoff_id,
            "call_id": None,
            "tool": "execute_task",
            "subagent": "scout",
            "name": name,
            "depth": parent.depth + 1 if parent is not None else 1,
            "session_mode": "new_session",
            "surface": "task",
            "background": False,
            "input": "look around",
            "purpose": None,
        }
        return self.event(parent or self.session, kinds.HANDOFF_START, payload | changes)

    def handed_back(
        self, parent: Run | None, handoff_id: str, runs: list[str], name: str = "sub_0a1b2c3d", **changes: Any
    ) -> Event:
        payload = {
            "handoff_id": handoff_id,
            "call_id": None,
            "tool": "execute_task",
            "subagent": "scout",
            "name": name,
            "status": "completed",
            "depth": parent.depth + 1 if parent is not None else 1,
            "session_mode": "new_session",
            "attempts": len(runs),
            "duration_ms": 40,
            "output": "nothing there",
            "error": None,
            "run_ids": runs,
        }
        return self.event(parent or self.session, kinds.HANDOFF_END, payload | changes)

    def noticed(self, run: Run, notice_id: str, handoff_id: str | None = None, **changes: Any) -> Event:
        payload = {
            "notice_id": notice_id,
            "kind": "message" if handoff_id is None else "task",
            "for_run": run.id,
            "memory_id": run.memory_id,
            "handoff_id": handoff_id,
            "status": None if handoff_id is None else "completed",
            "content": "It has ended.",
        }
        return self.event(self.session, kinds.NOTICE, payload | changes)

    # ── whole stories ───────────────────────────────────────────────────────────────────────────────────────────

    def tool_step(self, run: Run, step: int, text: str = "a") -> list[Event]:
        """One step with one tool call, from its start to its end."""
        call = self.call()
        begun = self.step_started(run, step)
        reply = self.message(run, "assistant", text, step=step, tool_calls=[call])
        return [
            begun,
            reply,
            self.called(run, call, step=step),
            self.call_started(run, call, step=step),
            self.result(run, call, text, step=step, place=reply.payload["memory_seq"] + 1),
            self.step_completed(run, step, 1),
        ]

    def whole_run(self, run: Run, *, steps: int = 1, text: str = "a") -> list[Event]:
        """A run from queue to end: system and task message, `steps` steps with a tool call each, the answer."""
        story = [self.queued(run, text), self.started(run)]
        if run.turn == 0:
            story.append(self.message(run, "system", "You count letters."))
        story.append(self.message(run, "user", text, sub=1))
        for step in range(1, steps + 1):
            story += self.tool_step(run, step, text)
        last = steps + 1
        story += [self.step_started(run, last), self.message(run, "assistant", text, step=last)]
        return [*story, self.step_completed(run, last), self.ended(run)]


def replaced(event: Event, why: str) -> Event:
    """The `error` event in the place of another, as the journal builds it."""
    from app.sessions.rejecting import replacement

    return replacement(event, why)
