"""The surface `task`: `execute_task` and the three tools that look after what it started (spec 3.2).

Knows no other surface.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.errors import InvalidRequest, SubagentdError
from app.agent.orders import Delegator, ResumePoint, TaskState
from app.agent.ports import Masker
from app.agent.returned import fitting, neutralised
from app.agent.runs import HandoffStatus
from app.agent.surfaces import (
    ERROR,
    NAME,
    DelegationTool,
    SurfaceParts,
    SurfaceTool,
    allowed_agents,
    delegation_spec,
    further_fields,
    further_parameters,
    matching,
    nullable,
    texts_of,
    with_agents,
    with_work_order,
)
from app.agent.texts import filled
from app.agent.tools import Interrupt, ToolContext, ToolResult, ToolSpec

EXECUTE_TASK = "execute_task"
GET_TASK_OUTPUT = "get_task_output"
CANCEL_TASK = "cancel_task"
LIST_TASKS = "list_tasks"

WAIT_MS = 30_000
MOST_WAIT_MS = 600_000
WAIT_INTERRUPTED = f"{ERROR}the wait was interrupted; the task goes on by itself."
STATUS_CHARS = 200  # of an error in a line of its own; the whole stands below it


def task_tools(
    by: Delegator, parts: SurfaceParts, surface: Surface, agents: Sequence[AgentDefinition]
) -> list[SurfaceTool]:
    """`execute_task` with its three companions, which are of no use where it is not to be seen."""
    execute = ExecuteTaskTool(by, parts, surface, agents)
    if not execute.permitted:
        return [execute]
    return [
        execute,
        TaskOutputTool(by, parts, surface),
        CancelTaskTool(by, parts, surface),
        ListTasksTool(by, parts, surface),
    ]


class ExecuteTaskTool(DelegationTool):
    """`execute_task(name, description, prompt, resume?, run_in_background?, subagent_name?)`."""

    kind = SurfaceKind.TASK

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface, agents: Sequence[AgentDefinition]) -> None:
        super().__init__(by, parts, surface)
        self._agents = {agent.name: agent for agent in agents}
        allowed = allowed_agents(by, EXECUTE_TASK, agents)
        self.permitted = bool(allowed)
        self._shown = allowed or list(agents)
        listing = "\n".join(as_xml(agent, parts.masker) for agent in self._shown)
        self.spec = delegation_spec(
            EXECUTE_TASK,
            with_work_order(with_agents(self._texts.execute_task, listing), self._texts),
            {
                "name": {"type": "string", "description": "Which agent."},
                "description": {"type": "string", "description": "What it is about, in 3 to 5 words, for people."},
                "prompt": {"type": "string", "description": "The complete work order."},
                "resume": {
                    "type": "string",
                    "description": "An earlier task to go on with: its id (ho_…), that of its run, or its name.",
                },
                "run_in_background": {
                    "type": "boolean",
                    "description": "True returns a task id at once; else the call waits for the result.",
                },
                "subagent_name": NAME,
                **further_parameters(self._shown),
            },
            ("name", "description", "prompt"),
            error_prefix=ERROR,
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Delegate; the result is the subagent's answer as text."""
        wanted = arguments["name"]
        agent = matching(wanted, self._agents)
        if agent is None:
            names = ", ".join(sorted(shown.name for shown in self._shown))
            return _refused(f"there is no agent {wanted[:80]!r}. Valid names: {names}.")
        point = None
        if arguments.get("resume") is not None:
            try:
                point = await self._resumed(agent, arguments["resume"])
            except SubagentdError as error:
                return _refused(f"{error.message}; nothing was started.")
        order = self._order(
            agent,
            context,
            task=arguments["prompt"],
            name=arguments.get("subagent_name") or (point.name if point is not None else None),
            purpose=arguments["description"],
            resume=point,
            detached=agent.detached,
            **further_fields(arguments, self._agents.values()),
        )
        wanted = arguments.get("run_in_background")
        background = agent.background if wanted is None else wanted
        if not background or self._by.policy.denial(EXECUTE_TASK, self._by.child_depth, agent.name) is not None:
            return await self._carried_out(order)
        task = self._parts.handoffs.background(self._by, await self._parts.handoffs.prepared(self._by, order))
        return ToolResult(content=filled(self._texts.task_started, task_id=task.id))

    async def _resumed(self, agent: AgentDefinition, wanted: str) -> ResumePoint:
        if not wanted.strip():
            raise InvalidRequest("resume is empty: leave it out to begin anew, or name a task")
        point = await self._parts.handoffs.open.resume_point(self._by.session, wanted)
        if point.agent != agent.name:
            raise InvalidRequest(
                f"task {point.task_id} is one of the agent {point.agent!r}, not of {agent.name!r}: call execute_task "
                f"with name={point.agent!r}"
            )
        return point


class _Companion:
    """A tool that looks after tasks. It starts nobody, so the policy of handoffs does not ask about it."""

    spec: ToolSpec

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface) -> None:
        self.means = SurfaceKind.TASK.value
        self.permitted = True
        self._by = by
        self._parts = parts
        self._texts = texts_of(by.session.texts, surface)

    def _shown(self, state: TaskState, note: str) -> str:
        """A task in the form of spec 3.2; its text is a child's."""
        head = f"Task ID: {state.task_id}\nStatus: {self._status(state)}"
        label, text = ("Result", state.result) if state.result is not None else ("Error", state.error)
        if text is None:
            return "\n\n".join(part for part in (head, note) if part)

        def render(kept: str) -> str:
            return "\n\n".join(part for part in (head, f"{label}:\n{kept}", note) if part)

        masked = self._parts.masker.text(text)
        return render(fitting(render, masked, self._parts.limit.max_chars, state.task_id, self._texts))

    def _status(self, state: TaskState) -> str:
        """In the words of spec 3.2, on one line."""
        status = state.status
        if status is HandoffStatus.RUNNING:
            return "Running"
        if status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK):
            return "Completed"
        if status is HandoffStatus.CANCELLED:
            return "Cancelled"
        if status is HandoffStatus.TIMED_OUT:
            return "Failed: timed out"
        if status is HandoffStatus.INTERRUPTED:
            return f'Failed: interrupted, resume with execute_task(resume="{state.task_id}")'
        reason = " ".join(self._parts.masker.text(state.error or status.value).split())
        return f"Failed: {neutralised(reason, self._texts)[:STATUS_CHARS]}"


class TaskOutputTool(_Companion):
    """`get_task_output(task_id, block=true, timeout=30000)`."""

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface) -> None:
        super().__init__(by, parts, surface)
        properties = {
            "task_id": {"type": "string", "description": "The id of the task (ho_…)."},
            "block": {"type": "boolean", "description": "Wait for its end.", "default": True},
            "timeout": {
                "type": "integer",
                "description": f"How long to wait, in milliseconds, at most {MOST_WAIT_MS}.",
                "default": WAIT_MS,
            },
        }
        self.spec = _companion_spec(GET_TASK_OUTPUT, self._texts.get_task_output, properties, reads=True)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """The state of a task, and its result once it has ended."""
        task_id, block, timeout_ms = arguments["task_id"], arguments.get("block"), arguments.get("timeout")
        timeout_ms = WAIT_MS if timeout_ms is None else timeout_ms
        if timeout_ms < 0:
            return _refused(f"timeout is {timeout_ms}: send 0 to {MOST_WAIT_MS} milliseconds.")
        note = ""
        if timeout_ms > MOST_WAIT_MS:
            note = f"(timeout {timeout_ms} was lowered to {MOST_WAIT_MS} ms, the most that is allowed)"
            timeout_ms = MOST_WAIT_MS
        handoffs, session = self._parts.handoffs, self._by.session
        state = await handoffs.open.task(session, task_id)
        if state is None:
            return _unknown(task_id)
        waits = block is not False and not handoffs.open.works_on(context.run, task_id)  # nobody waits for the own end
        if state.status is HandoffStatus.RUNNING and waits:
            left = context.remaining_s()
            wait_s = timeout_ms / 1000 if left is None else min(timeout_ms / 1000, left)
            if not await handoffs.open.ended(task_id, wait_s):
                return _refused(_not_ended(task_id, wait_s, note))
            state = await handoffs.open.task(session, task_id) or state
        if state.status is HandoffStatus.RUNNING:
            note = "\n\n".join(part for part in ("Task still running...", note) if part)
        return ToolResult(content=self._shown(state, note), fetched=task_id if state.ended else None)


class CancelTaskTool(_Companion):
    """`cancel_task(task_id)`."""

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface) -> None:
        super().__init__(by, parts, surface)
        properties = {"task_id": {"type": "string", "description": "The id of the task (ho_…)."}}
        self.spec = _companion_spec(CANCEL_TASK, self._texts.cancel_task, properties, reads=False)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """End a task and everything below it."""
        task_id = arguments["task_id"]
        handoffs, session = self._parts.handoffs, self._by.session
        state = await handoffs.open.task(session, task_id)
        if state is None:
            return _unknown(task_id)
        if handoffs.open.works_on(context.run, task_id):
            return _refused(f"task {task_id} is one that you work on: end your part by giving your answer.")
        if not await handoffs.open.cancel(session, task_id):
            state = await handoffs.open.task(session, task_id) or state
            if state.status is HandoffStatus.RUNNING:
                return _refused(f"task {task_id} could not be cancelled now; it is between two attempts. Try again.")
            note = "It had already ended; nothing was cancelled."
            told = task_id if state.result is None else None  # a result is not shown here: the notice says it
            return ToolResult(content=f"Task ID: {task_id}\nStatus: {self._status(state)}\n\n{note}", fetched=told)
        return ToolResult(content=f"Task ID: {task_id}\nStatus: Cancelled", fetched=task_id)


class ListTasksTool(_Companion):
    """`list_tasks()`."""

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface) -> None:
        super().__init__(by, parts, surface)
        self.spec = _companion_spec(LIST_TASKS, self._texts.list_tasks, {}, reads=True)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """One line for each background task of the session."""
        states = await self._parts.handoffs.open.tasks(self._by.session)
        lines = [f"- {state.task_id} {state.agent} ({state.name}): {self._status(state)}" for state in states]
        return ToolResult(content="\n".join(lines) or "There are no background tasks in this session.")


def _companion_spec(name: str, description: str, properties: Mapping[str, Any], *, reads: bool) -> ToolSpec:
    required = [key for key in properties if key == "task_id"]
    schema = {"type": "object", "properties": dict(properties), "required": required}
    accepted = {key: value if key in required else nullable(value) for key, value in properties.items()}
    return ToolSpec(
        name=name,
        description=description,
        parameters={**schema, "additionalProperties": False},
        accepts={**schema, "properties": accepted},
        waits=reads,
        error_prefix=ERROR,
        cancelled_text=WAIT_INTERRUPTED if reads else "",
        read_only=reads,
        concurrency_safe=reads,
        poller=reads,
        timeout_ms=0,  # a wait has its own bound
        # what is cancelled is awaited, as everywhere
        interrupt=Interrupt.CANCEL if reads else Interrupt.BLOCK,
    )


def _refused(problem: str) -> ToolResult:
    return ToolResult(content=ERROR + problem, is_error=True, status="error")


def _unknown(task_id: str) -> ToolResult:
    return _refused(f"there is no task {task_id[:80]!r} in this session.")


def _not_ended(task_id: str, wait_s: float, note: str) -> str:
    said = f"task {task_id} did not end within {int(wait_s * 1000)} ms; it goes on. Ask again later."
    return f"{said} {note}" if note else said


# ── agents as XML ───────────────────────────────────────────────────────────────────────────────────────────────

# Names that every edition of XML 1.0 has, so that every reader takes them: Latin letters and Chinese characters.
_STARTS = "A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0131\u4e00-\u9fa5"
_XML_NAME = re.compile(f"[{_STARTS}][{_STARTS}\\-.0-9\u00b7]*")
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OURS = ("name", "description")


def as_xml(agent: AgentDefinition, masker: Masker) -> str:
    """An agent with its metadata as the element `task_agent` (spec 3.2). Keys that are no XML names are left out,
    nested values are JSON, secrets are masked."""
    values: dict[str, Any] = {"name": agent.name, "description": agent.description}
    for key, value in agent.metadata.items():
        name = masker.text(str(key))
        if name not in _OURS and _XML_NAME.fullmatch(name):
            values[name] = value
    lines = [f"  <{name}>{_content(value, masker)}</{name}>" for name, value in values.items()]
    return "\n".join(["<task_agent>", *lines, "</task_agent>"])


def _content(value: Any, masker: Masker) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    clean = _NO_XML.sub("\ufffd", masker.text(text))
    return html.escape(clean, quote=False).replace("\r", "&#13;")
