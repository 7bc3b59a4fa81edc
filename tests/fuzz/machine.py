"""Everything that clients and models can do to sessions, in any order, against a real server; after each step the
service must show what the ledger says (`ledger.py`).

Models answer when a rule lets them, so each step has one outcome.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.fuzz.keeper import BODY, Keeper
from tests.fuzz.ledger import Doing, Node, Session
from tests.stubs.openai_stub import calls, text

SESSIONS = 3
DEPTH = 3
CROWD = 12  # open runs of a session
RESTARTS = 1  # in one sequence: it costs as much as a hundred other steps
UNKNOWN = "00000000000000000000000000"
NUMBER = st.integers(min_value=0, max_value=2**16)
T = TypeVar("T")


@dataclass(frozen=True)
class _Step:
    """Something that can be done: how often beside the others, and when."""

    act: "Callable[[Service, int, int], None]"
    weight: int
    possible: "Callable[[Service], object]"


STEPS: list[_Step] = []


def step(weight: int, possible: "Callable[[Service], object]") -> "Callable[[T], T]":
    """Make a method one of the steps; its two numbers choose what it is done to, and how."""

    def listed(act: Any) -> Any:
        STEPS.append(_Step(act, weight, possible))
        return act

    return listed


def _of(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


class Service(RuleBasedStateMachine):
    """One sequence of steps. `keeper` is set by whoever runs it, and is the same for all sequences."""

    keeper: Keeper
    count = 0  # jobs of all sequences
    steps: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.restarts = 0

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, method: str, path: str, body: Any = None, *, expect: int, **query: Any) -> Any:
        """One request."""
        return self.keeper.do(self.keeper.ask(method, path, body, expect=expect, **query))

    def job(self) -> str:
        """A name for work."""
        type(self).count += 1
        return f"job-{self.count}"

    def alive(self) -> list[Session]:
        """Sessions that are not deleted."""
        return [session for session in self.sessions if not session.deleted]

    def nodes(self, wanted: Callable[[Node], bool]) -> list[Node]:
        """Runs of those sessions."""
        return [node for session in self.alive() for node in session.nodes() if wanted(node)]

    def parked(self) -> list[Node]:
        """Runs whose model is asked now."""
        return self.nodes(lambda node: node.doing is Doing.MODEL)

    def anybody(self) -> list[Node]:
        """All runs; one that is open three times, since most have ended."""
        return self.nodes(lambda node: node.open) * 2 + self.nodes(lambda node: True)

    def hirers(self) -> list[Node]:
        """Those that may delegate: deeper runs would be denied, more of them would have to wait for a place."""
        there = {session: sum(node.open for node in session.nodes()) for session in self.alive()}
        return [node for node in self.parked() if node.depth < DEPTH and there[node.session] < CROWD]

    def tasks(self) -> list[Node]:
        """Background tasks that are listed."""
        return self.nodes(lambda node: node.background and not node.removed)

    def compare(self, *sessions: Session) -> None:
        """These show what they must."""
        for session in sessions:
            self.keeper.do(self.keeper.compare(session))

    def goes_on(self, *nodes: Node | None) -> None:
        """The models of these are asked again."""
        self.keeper.do(self.keeper.goes_on(*nodes))

    def say(self, node: Node, *wanted: tuple[str, dict[str, Any]]) -> None:
        """The model of a run asks for these calls."""
        self.keeper.stage.say(node.job, calls(*((name, json.dumps(arguments)) for name, arguments in wanted)))

    # ── sessions and turns ──────────────────────────────────────────────────────────────────────────────────────

    @step(2, lambda self: len(self.alive()) < SESSIONS)
    def make_session(self, _at: int, _how: int) -> None:
        session = Session(id=self.ask("POST", "/v1/sessions", BODY, expect=201)["id"])
        self.sessions.append(session)
        self.compare(session)

    @step(5, lambda self: self.sessions)
    def start_turn(self, at: int, how: int) -> None:
        interrupt = how % 4 == 0
        session = _of(self.sessions, at)
        path, body = f"/v1/sessions/{session.id}/runs", {"input": f"{self.job()} please"}
        body |= {"on_busy": "interrupt"} if interrupt else {}
        if session.deleted or session.closed:
            self.ask("POST", path, body, expect=404 if session.deleted else 409)
            return
        busy = session.busy
        if busy is not None and not interrupt:
            self.ask("POST", path, body, expect=409)
            return
        run = self.ask("POST", path, body, expect=202)
        if busy is not None:
            busy.cancel()
        node = Node(job=body["input"].partition(" ")[0], session=session, run_id=run["id"])
        session.leads.append(node)
        self.goes_on(node)
        self.compare(session)

    @step(2, lambda self: self.sessions)
    def end_session(self, at: int, how: int) -> None:
        session = _of(self.sessions, at)
        if session.deleted:
            self.ask("POST", f"/v1/sessions/{session.id}/cancel", expect=404)
            self.ask("PATCH", f"/v1/sessions/{session.id}", {"closed": True}, expect=404)
            self.ask("DELETE", f"/v1/sessions/{session.id}", expect=404)
        elif how % 4 > 1:
            stopped = self.ask("POST", f"/v1/sessions/{session.id}/cancel", expect=200)["cancelled"]
            assert set(stopped) == {node.run_id for node in session.nodes() if node.open}
            session.cancel()
        elif how % 4 == 1:
            expect = 409 if session.closed else 200
            self.ask("PATCH", f"/v1/sessions/{session.id}", {"closed": True}, expect=expect)
            session.closed = True
            session.cancel()
        else:
            self._delete(session)
        self.compare(session)

    def _delete(self, session: Session) -> None:
        self.ask("DELETE", f"/v1/sessions/{session.id}", expect=204)
        session.deleted = True
        for node in session.nodes():
            self.ask("GET", f"/v1/runs/{node.run_id}", expect=404)
            self.ask("POST", f"/v1/runs/{node.run_id}/cancel", expect=404)
            if node.task_id:
                self.ask("GET", f"/v1/tasks/{node.task_id}", expect=404)
        for question in session.questions:
            self.ask("POST", f"/v1/permissions/{question}", {"decision": "deny"}, expect=404)

    # ── what models say ─────────────────────────────────────────────────────────────────────────────────────────

    @step(9, lambda self: self.parked())
    def answer(self, at: int, _how: int) -> None:
        node = _of(self.parked(), at)
        self.keeper.stage.say(node.job, text("done"))
        if node.told or node.news:
            if self.keeper.do(self.keeper.asked_or_ended(node)):
                node.asked()
                return
            assert not node.told, "a run that was told something has ended without having read it"
        self.goes_on(node.end("completed"))
        self.compare(node.session)

    @step(6, lambda self: self.parked())
    def call_guarded(self, at: int, _how: int) -> None:
        node = _of(self.parked(), at)
        self.say(node, ("read_file", {"path": f"{self.job()}.md"}))
        keeper, session = self.keeper, node.session
        if keeper.hasty:
            self.goes_on(node)
            session.questions[keeper.do(keeper.question_of(node, "expired"))] = "expired"
        else:
            node.doing = Doing.PERSON
            node.question = keeper.do(keeper.question_of(node, "pending"))
            session.questions[node.question] = "pending"
        self.compare(session)

    @step(8, lambda self: self.hirers())
    def delegate(self, at: int, how: int) -> None:
        node = _of(self.hirers(), at)
        below = [Node(job=self.job(), session=node.session, parent=node) for _ in range(1 + how % 3)]
        self.say(node, *(("execute_task", _order(child)) for child in below))
        node.children += below
        node.doing = Doing.CHILDREN
        self.goes_on(*below)
        self.compare(node.session)

    @step(8, lambda self: self.hirers())
    def delegate_in_the_background(self, at: int, _how: int) -> None:
        node = _of(self.hirers(), at)
        child = Node(job=self.job(), session=node.session, parent=node, background=True)
        self.say(node, ("execute_task", _order(child)))
        node.children.append(child)
        self.goes_on(node, child)
        child.task_id = self.keeper.stage.last_task(node.job)
        self.compare(node.session)

    # ── what persons say ────────────────────────────────────────────────────────────────────────────────────────

    @step(5, lambda self: any(session.questions for session in self.alive()))
    def settle(self, at: int, how: int) -> None:
        session = _of([session for session in self.alive() if session.questions], at)
        question = _of(list(session.questions), at // SESSIONS)
        decision = ("allow_once", "deny")[how % 2]  # allow_session would leave nothing to ask about
        path = f"/v1/permissions/{question}"
        if session.questions[question] != "pending":
            self.ask("POST", path, {"decision": decision}, expect=409)
            return
        self.ask("POST", path, {"decision": decision}, expect=200)
        session.questions[question] = "denied" if decision == "deny" else "allowed"
        self.goes_on(next(node for node in session.nodes() if node.question == question))
        self.compare(session)

    @step(3, lambda self: self.anybody())
    def tell(self, at: int, _how: int) -> None:
        node = _of(self.anybody(), at)
        path = f"/v1/runs/{node.run_id}/messages"
        self.ask("POST", path, {"content": "a word"}, expect=202 if node.open else 409)
        node.told = node.open

    @step(4, lambda self: self.anybody())
    def cancel_run(self, at: int, _how: int) -> None:
        node = _of(self.anybody(), at)
        wanted = {below.run_id for below in node.below() if below.open} if node.open else set()
        stopped = self.ask("POST", f"/v1/runs/{node.run_id}/cancel", expect=200)
        assert set(stopped["cancelled"]) == wanted, (stopped, wanted)
        self.goes_on(node.cancel())
        self.compare(node.session)

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────

    @step(3, lambda self: self.tasks())
    def cancel_task(self, at: int, _how: int) -> None:
        node = _of(self.tasks(), at)
        answer = self.ask("POST", f"/v1/tasks/{node.task_id}/cancel", expect=200)
        assert answer["cancelled"] is node.open, answer
        node.cancel()
        self.compare(node.session)

    @step(5, lambda self: self.tasks())
    def keep_house(self, at: int, how: int) -> None:
        node = _of(self.tasks(), at)
        if how % 3 == 0:
            shown = self.ask("GET", f"/v1/tasks/{node.task_id}/output", expect=200, block="false")
            wanted = (not node.open, "done" if node.status == "completed" else None)
            assert (shown["ended_at"] is not None, shown["result"]) == wanted, shown
        elif how % 3 == 1:
            self.ask("DELETE", f"/v1/tasks/{node.task_id}", expect=409 if node.open else 204)
            node.removed = not node.open
        else:
            ended = [task for task in self.tasks() if task.session is node.session and not task.open]
            cleared = self.ask("POST", "/v1/tasks/clear", {"session_id": node.session.id}, expect=200)["cleared"]
            assert cleared == len(ended), (cleared, len(ended))
            for task in ended:
                task.removed = True
        if node.removed:
            self.ask("GET", f"/v1/tasks/{node.task_id}", expect=404)
        self.compare(node.session)

    # ── streams, restarts, and what there is not ────────────────────────────────────────────────────────────────

    @step(2, lambda self: self.alive())
    def stream_again(self, at: int, behind: int) -> None:
        session = _of(self.alive(), at)
        self.compare(session)
        self.keeper.do(self.keeper.stream_again(session, behind % (session.cursor + 1)))

    @step(2, lambda self: self.restarts < RESTARTS and self.alive())
    def restart(self, _at: int, how: int) -> None:
        self.restarts += 1
        parked = self.parked()
        self.keeper.do(self.keeper.restart(kill=how % 2 == 0))
        for node in parked:
            told = node.told or node.news
            self.goes_on(node)
            node.news = told  # the step is asked for again, with what was told or without
        self.compare(*self.alive())

    @initialize()
    def begin(self) -> None:
        self.ask("GET", f"/v1/sessions/ses_{UNKNOWN}", expect=404)
        self.ask("POST", f"/v1/runs/run_{UNKNOWN}/cancel", expect=404)
        self.ask("POST", f"/v1/permissions/apr_{UNKNOWN}", {"decision": "deny"}, expect=404)
        self.ask("DELETE", f"/v1/tasks/ho_{UNKNOWN}", expect=404)
        self.make_session(0, 0)
        self.start_turn(0, 1)

    @rule(which=NUMBER, at=NUMBER, how=NUMBER)
    def go_on(self, which: int, at: int, how: int) -> None:
        """One step of those that are possible now: a rule for each would leave out most of them in most sequences."""
        possible = [each for each in STEPS for _ in range(each.weight) if each.possible(self)]
        chosen = _of(possible, which)
        note(f"# {chosen.act.__name__}")
        type(self).steps[chosen.act.__name__] += 1
        chosen.act(self, at, how)

    def teardown(self) -> None:
        """Nothing of this sequence is left for the next one."""
        for session in self.alive():
            self.ask("DELETE", f"/v1/sessions/{session.id}", expect=204)


def _order(child: Node) -> dict[str, Any]:
    return {
        "name": "node",
        "description": "some of the work",
        "prompt": f"{child.job} please",
        "run_in_background": child.background,
    }
