"""Delegation tools over real handoffs whose runs end as a test says: no model, no store.

desk = Desk(done("The answer."))
result = await desk.call("dispatch_subagent", agent_type="helper", task="Work.")
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.delegation import Delegation, delegation_tools
from app.agent.filters import InputFilters
from app.agent.handoff import Handoffs
from app.agent.messages import Message, Role, ToolCall
from app.agent.notices import Notices
from app.agent.orders import Delegator, Pacing
from app.agent.policy import HandoffPolicy
from app.agent.runs import Failure, Run, RunOutcome, RunRequest, RunStatus, Session, StopReason, ToolActivity
from app.agent.surfaces import SurfaceParts
from app.agent.tools import OutputLimit, Tool, ToolContext, ToolResult, validated
from app.masking import ValueMasker
from app.tools.schema import JsonSchemaChecker

WAIT_S = 10.0

SESSION = Session(id="ses_1", tenant="default", memory_id="mem_1", agent="boss", created_at=0)
SAID = (Message(role=Role.USER, content="What was said before."),)
PARENT = Run(
    id="run_parent", session_id="ses_1", tenant="default", memory_id="mem_1", turn=0, ordinal=1, depth=0, path=(1,),
    agent="boss",
)  # fmt: skip


def agent(name: str = "helper", **fields: Any) -> AgentDefinition:
    """A definition."""
    return AgentDefinition(name=name, **{"description": f"The {name}.", **fields})


def done(text: str, **fields: Any) -> RunOutcome:
    """A run that ended with an answer."""
    return RunOutcome(
        **{"status": RunStatus.COMPLETED, "stop_reason": StopReason.ANSWER, "output": text, "steps": 2, **fields}
    )


def capped(text: str) -> RunOutcome:
    """A run that ended at its step limit."""
    return done(text, stop_reason=StopReason.MAX_STEPS, forced=True, partial=True)


def failed(message: str, so_far: str = "") -> RunOutcome:
    """A run that a provider ended."""
    error = Failure(code="model_error", message=message)
    return done(so_far, status=RunStatus.FAILED, stop_reason=StopReason.ERROR, partial=True, error=error)


def used(*names: str) -> tuple[ToolActivity, ...]:
    """The activity of a run that used these tools twice each."""
    return tuple(ToolActivity(name=name, calls=2, total_ms=30) for name in names)


class FreeSeat:
    """A place at a shared memory that nobody else wants."""

    turn = 0

    def __init__(self, memory_id: str) -> None:
        self.memory_id = memory_id

    async def opened(self) -> None:
        """It is."""

    def leave(self) -> None:
        """Nobody waits for it."""


class Runs:
    """The door to runs: each ends as said, the last saying holds; None: it goes on until it is cancelled."""

    def __init__(self, *outcomes: RunOutcome | None) -> None:
        self.requests: list[RunRequest] = []
        self.above: dict[str, tuple[str, ...]] = {}  # of a run: those above it, from the root
        self._outcomes = outcomes
        self._ended = asyncio.Event()

    def launch(self, request: RunRequest) -> Run:
        """Take the request."""
        self.requests.append(request)
        number = len(self.requests)
        return replace(PARENT, id=f"run_{number}", depth=request.depth, ordinal=number + 1, path=(1, number + 1))

    def name(self, session: Session, wanted: str | None) -> str:
        """The wanted name."""
        return wanted or "sub_00000000"

    def person(self, run: Run, asked: bool) -> None:
        """Nobody is asked."""

    def lineage(self, run: Run) -> tuple[str, ...]:
        """What a test says."""
        return self.above.get(run.id, ())

    def seat(
        self, tenant: str, memory_id: str, parent: Run | None, *, alone: bool = False, again: bool = False
    ) -> "FreeSeat":
        """A place that nobody has to wait for."""
        return FreeSeat(memory_id)

    def keep(self, session: Session) -> AbstractContextManager[None]:
        """It is kept anyway."""
        return nullcontext()

    def is_open(self, run_id: str) -> bool:
        """Whoever delegates is there."""
        return True

    def heir(self, run_id: str) -> str | None:
        """Every run answers for itself."""
        return run_id

    def open_tasks(self, run: Run) -> Sequence[str]:
        """Nobody asks."""
        return ()

    async def reap(self, run: Run) -> None:
        """Nobody fails."""

    async def wait(self, run_id: str) -> RunOutcome:
        """The outcome, at once or when the run is cancelled."""
        number = int(run_id.removeprefix("run_"))
        outcome = self._outcomes[min(number, len(self._outcomes)) - 1]
        if outcome is not None:
            return outcome
        async with asyncio.timeout(WAIT_S):
            await self._ended.wait()
        return done("half", status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, partial=True)

    async def cancel(self, run_id: str, *, status: RunStatus = RunStatus.CANCELLED) -> tuple[str, ...]:
        """End what goes on."""
        self._ended.set()
        return (run_id,)


class Notes:
    """A recorder that keeps what it is told, and the rows of handoffs that have ended."""

    def __init__(self) -> None:
        self.payloads: list[tuple[str, Mapping[str, Any]]] = []
        self.rows: dict[str, Mapping[str, Any]] = {}
        self.background: set[str] = set()
        self._started: asyncio.Queue[str] = asyncio.Queue()

    def record(self, scope: Any, kind: Any, payload: Any, *, step: int | None = None, also: Any = ()) -> Any:
        """Keep a fact."""
        self.payloads.append((kind.name, payload))
        if kind.name == "handoff.start":
            if payload["background"]:
                self.background.add(payload["handoff_id"])
            self._started.put_nowait(payload["handoff_id"])
        if kind.name == "handoff.end":
            wanted = {"name": payload["name"], "status": payload["status"], "output": payload["output"]}
            row = {"session_id": SESSION.id, "agent": payload["subagent"], "error": payload.get("error"), **wanted}
            background = payload["handoff_id"] in self.background
            row |= {"id": payload["handoff_id"], "background": background, "run_ids": payload["run_ids"]}
            self.rows[payload["handoff_id"]] = row | {"session_scope": None}

    def emit(self, run: Any, kind: Any, step: int, text: str, call_id: str | None = None) -> None:
        """Nobody watches."""

    async def committed(self, event: Any) -> None:
        """It is."""

    async def secured(self, session_id: str) -> None:
        """It is."""

    async def room(self, session_id: str, *, taken_up: bool = False) -> None:
        """There is."""

    async def handoff(self, tenant: str, handoff_id: str) -> Mapping[str, Any] | None:
        """The row of a handoff that has ended."""
        return self.rows.get(handoff_id)

    async def handoffs(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """All rows."""
        return list(self.rows.values())

    async def removed(self, tenant: str, session_id: str, names: Collection[str]) -> str | None:
        """None is."""
        return None

    async def handoff_runs(self, tenant: str, handoff_id: str) -> Sequence[Mapping[str, Any]]:
        """The runs of one."""
        row = self.rows[handoff_id]
        return [{"id": run, "agent": row["agent"], "memory_id": f"mem_of_{handoff_id}"} for run in row["run_ids"]]

    async def started(self) -> str:
        """Wait for the next handoff; its id."""
        async with asyncio.timeout(WAIT_S):
            return await self._started.get()


class Desk:
    """What one run can delegate with."""

    def __init__(
        self,
        *outcomes: RunOutcome | None,
        surface: Surface | SurfaceKind = SurfaceKind.DISPATCH,
        agents: Sequence[AgentDefinition] = (agent(),),
        policy: HandoffPolicy | None = None,
        session: Session = SESSION,
        limit: int = 16_000,
        secrets: Sequence[str] = (),
        default: AgentDefinition | None = None,
        run: Run = PARENT,
    ) -> None:
        self.runs, self.notes, self.limit = Runs(*outcomes), Notes(), limit
        masker = ValueMasker(secrets)
        filters = InputFilters(masker, _nothing)
        self.handoffs = Handoffs(
            self.runs, self.notes, filters, records=self.notes, notices=Notices(self.notes, self.runs.heir),
            masker=masker, pacing=Pacing(backoff_ms=0),
        )  # fmt: skip
        self.parts = SurfaceParts(
            handoffs=self.handoffs, masker=masker, limit=OutputLimit(max_chars=limit, head_chars=10, tail_chars=5)
        )
        self.by = Delegator(
            session=session, run=run, policy=policy or HandoffPolicy(), surfaces=(), model=None,
            parallel_tool_calls=True, find={each.name: each for each in agents}.get, history=lambda: SAID,
        )  # fmt: skip
        self.delegation = self.offer(surface, agents=agents, default=default)

    def offer(
        self,
        *surfaces: Surface | SurfaceKind,
        agents: Sequence[AgentDefinition] = (agent(),),
        disallowed: Sequence[str] = (),
        default: AgentDefinition | None = None,
    ) -> Delegation:
        """The tools of these surfaces."""
        wanted = [each if isinstance(each, Surface) else Surface(kind=each) for each in surfaces]
        return delegation_tools(self.by, self.parts, wanted, agents, disallowed, default)

    def tool(self, name: str) -> Tool:
        """One of the tools."""
        return next(tool for tool in self.delegation.tools if tool.spec.name == name)

    async def call(
        self, name: str, /, primary: Callable[[], Awaitable[ToolResult]] | None = None, **arguments: Any
    ) -> ToolResult:
        """A call as a run makes it: validated against the tool's own schema."""
        return await self.raw(name, arguments, primary)

    async def raw(
        self, name: str, arguments: Any, primary: Callable[[], Awaitable[ToolResult]] | None = None
    ) -> ToolResult:
        """A call with arguments as a model sends them: an object, or a text as it is."""
        tool = self.tool(name)
        given = call_of(name, arguments)
        assert self.by.run is not None
        context = ToolContext(
            session=self.by.session, run=self.by.run, step=1, call_id="call_1", workspace=Path(), deadline=None,
            progress=lambda _: None, primary=primary,
        )  # fmt: skip
        async with asyncio.timeout(WAIT_S):
            return await tool.call(validated(tool.spec, given, JsonSchemaChecker()), context)


def _nothing(path: str) -> Callable[..., Any]:
    raise ValueError(path)


def call_of(name: str, arguments: Any) -> ToolCall:
    """The call of a model."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(call_id="call_1", name=name, raw=raw, arguments=None if isinstance(arguments, str) else arguments)
