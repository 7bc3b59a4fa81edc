"""May this tool run with these arguments: what a child takes over of its ancestors, and which rule decided (spec 8).

Knows neither how rules are written (`definitions/rules.py`) nor how a command line is read (`CommandParser`).

Who wins: the strictest verdict over all parts of a call and over the policies of the run and all its ancestors; inside
one policy deny beats ask beats allow. An allow rule with a pattern closes its tool: what none of them covers is asked.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app.agent.permission_rules import (
    COMMAND,
    UNKNOWN,
    WRITERS,
    PatternKind,
    PermissionRule,
    PermissionRules,
    Scope,
    Verdict,
    allows,
    covers,
    leads_to,
    lies_in,
    restricts,
    rule_for,
    surely_restricts,
)
from app.agent.permission_subjects import (
    CommandParser,
    CommandPart,
    Means,
    ParsedCommand,
    Subject,
    WriteTarget,
    subjects_of,
)
from app.agent.rule_patterns import ANY_NAME, Screen, means_any, screen
from app.agent.tools import ToolSpec

__all__ = [
    "CommandParser", "CommandPart", "Decision", "DecisionKind", "Explanation", "Means", "ParsedCommand",
    "PermissionPolicy", "PermissionRule", "PermissionRules", "Scope", "Verdict", "WriteTarget",
]  # fmt: skip

_SHOWN = 200  # characters of an argument in a reason
_STRICTNESS = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
_Ruled = tuple[tuple[PermissionRule, Scope], ...]
_FILE_TOOLS = ("read_file", "write_file")  # stand for all that read and write, see `covers`
_SCREENED = 8  # rules of a tool from which on they are looked through together
_MAX_FINDINGS = 200  # that an explanation shows


class DecisionKind(StrEnum):
    """By what a call was decided: a rule of the run's own policy, no rule, an ancestor's policy, or an earlier answer
    of a person that holds for the session."""

    RULE = "rule"
    DEFAULT = "default"
    CEILING = "ceiling"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What holds for a call, and why. `owner` is the agent whose policy decided; `rule` its text, empty for none.

    `suggested_rule` would allow this call and its likes for the session; None where no single rule could say it.
    """

    verdict: Verdict
    kind: DecisionKind
    reason: str
    owner: str = ""
    rule: str = ""
    scope: Scope | None = None
    suggested_rule: PermissionRule | None = None

    @property
    def by_default(self) -> bool:
        """No rule is about it, not even one that closes its tool: the default of a scope decided."""
        return not self.rule and self.scope is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision with what each part of the call gave under each policy, the run's own first; of very many the
    strictest."""

    decision: Decision
    findings: tuple[Decision, ...]


_OPEN = Explanation(
    decision=Decision(verdict=Verdict.ALLOW, kind=DecisionKind.DEFAULT, reason="no rule is about this tool"),
    findings=(),
)


class PermissionPolicy:
    """What a run may do: its own policy under the ceiling of all its ancestors' (spec 8.1). Immutable."""

    __slots__ = ("_layers", "_open")

    def __init__(
        self, owner: str, scopes: Sequence[PermissionRules] = (), under: Sequence[Sequence[PermissionRules]] = ()
    ) -> None:
        """`owner` names the agent in the record. `under`: groups of `scopes`, each of which holds whatever the others
        allow (spec 10.5). An empty policy allows everything."""
        layers = [tuple(scopes), *(tuple(each) for each in under if each)]
        self._layers: tuple[_Layer, ...] = tuple(_Layer(owner=owner, scopes=each) for each in layers)
        self._open: dict[tuple[str, bool], bool] = {}

    def inherit(
        self, owner: str, definition: PermissionRules | None = None, *, trusted: bool = True
    ) -> "PermissionPolicy":
        """The policy of a child: what server, tenant and session say for all, the child's own definition, and this
        whole policy as its ceiling. `trusted` False: the definition came over the API (spec 10.5)."""
        shared = [scope for scope in self._layers[0].scopes if scope.scope is not Scope.DEFINITION]
        widens = definition is not None and not trusted and definition.allows_anything
        under = [scope for scope in shared if widens and scope.scope is not Scope.SESSION]
        child = PermissionPolicy(owner, [*shared, *([definition] if definition else [])], under=[under])
        own = child._layers[0]
        above = (one for one in self._layers if not one.own_limit and one.scopes != own.scopes)
        # the same rules twice say nothing new: a chain of delegations stays as long as there are different agents
        child._layers = tuple(dict.fromkeys((*child._layers, *above)))
        return child

    def limited(self, rules: PermissionRules) -> "PermissionPolicy":
        """This policy under one more, whatever other scopes allow: the patterns of the agent's own whitelist, which
        grants no call of their tools that they do not mean. Like the whitelist they bind this run alone and are no
        ceiling for its children (spec 7.2)."""
        own = self._layers[0]
        policy = PermissionPolicy(own.owner)
        policy._layers = (*self._layers, _Layer(owner=own.owner, scopes=(rules,), own_limit=True))
        return policy

    def decide(self, spec: ToolSpec, arguments: Any, means: Means) -> Decision:
        """Whether a call may run. `arguments` are validated; no side effects, the same answer for the same call."""
        return self.explain(spec, arguments, means).decision

    def explain(self, spec: ToolSpec, arguments: Any, means: Means) -> Explanation:
        """The decision with everything that led to it (spec 8.5)."""
        if self.is_open(spec) and not spec.ask:
            return _OPEN
        return self._judged(subjects_of(spec, arguments, means), means.answers, spec)

    def starting(self, tool: str, agent: str, answers: Sequence[PermissionRule] = ()) -> Decision:
        """Whether an agent may stand in for another; `tool` is the name of the tool that would start it."""
        return self._judged([_agent(tool, agent)], answers).decision

    def ordered(self, tool: str, agent: str) -> Decision:
        """The same for an agent that a caller names itself, as no call of a model. Whoever orders that has decided,
        where no rule speaks and the default is to ask; there is nothing that could wait for an answer to a rule."""
        found = self._judged([_agent(tool, agent)], ())
        strict = [
            each
            for each in found.findings
            if each.verdict is Verdict.DENY or (each.verdict is Verdict.ASK and not each.by_default)
        ]
        return max(strict, key=lambda each: _STRICTNESS[each.verdict], default=_OPEN.decision)

    def opening(self, spec: ToolSpec, place: str, answers: Sequence[PermissionRule] = ()) -> Decision:
        """Whether a call may read what it has opened; `place` is what that really is, relative to the workspace."""
        if self.is_open(spec):
            return _OPEN.decision
        subject = Subject(tool=spec.name, shown=place, kind=PatternKind.PATH, exact=(place,), loose=(place,))
        return self._judged([subject], answers).decision

    def _judged(
        self, subjects: Sequence[Subject], answers: Sequence[PermissionRule], spec: ToolSpec | None = None
    ) -> Explanation:
        findings: list[Decision] = []
        for depth, layer in enumerate(self._layers):
            for subject in subjects:
                found = _answered(layer.judge(subject), subject, answers)
                if depth and found.kind is not DecisionKind.ANSWER and layer.owner != self._layers[0].owner:
                    found = replace(found, kind=DecisionKind.CEILING)
                findings.append(found)
        if spec is not None and spec.ask and not any(_speaks(found) for found in findings):
            asked = _suspicious(spec, self._layers[0].owner)
            findings[:0] = [_answered(asked, each, answers) for each in subjects]
        if not findings:
            return _OPEN
        decision = max(findings, key=lambda found: _STRICTNESS[found.verdict])
        shown = findings
        if len(findings) > _MAX_FINDINGS:
            shown = sorted(findings, key=lambda found: -_STRICTNESS[found.verdict])[:_MAX_FINDINGS]
        return Explanation(decision=_with_one_suggestion(decision, findings), findings=tuple(shown))

    def hides(self, spec: ToolSpec) -> bool:
        """Whether a model is not shown the tool: a deny without a pattern is about it (spec 8.4)."""
        return any(
            rule.effect is Verdict.DENY and rule.pattern is None
            for layer in self._layers
            for rule, _ in layer.about(spec.name, spec.delegation)
        )

    def conceals(
        self, spec: ToolSpec, path: str, answers: Sequence[PermissionRule] = (), approved: str | None = None
    ) -> bool:
        """Whether a search leaves out what it comes across: reading it is not simply allowed, nor has a person allowed
        it for the session or this very search (`approved`: of which directory). Paths are relative to the workspace and
        resolved."""
        concealed = self.concealing(spec, answers, approved)
        return concealed is not None and concealed(path)

    def concealing(
        self, spec: ToolSpec, answers: Sequence[PermissionRule] = (), approved: str | None = None
    ) -> Callable[[str], bool] | None:
        """`conceals` for many paths; None where nothing is concealed. Of a command: what it may not read."""
        tool = _FILE_TOOLS[0] if spec.name == COMMAND else spec.name
        if self.is_open(spec):
            return None
        denied, asked = self._patterns(tool, Verdict.DENY), self._patterns(tool, Verdict.ASK)
        if not denied and not asked:
            return None

        is_denied, is_asked = means_any(denied), means_any(asked)

        def lifted(path: str) -> bool:
            allowed = approved is not None and lies_in(path, approved)
            return allowed or any(leads_to(rule, tool, path) for rule in answers)

        return lambda path: is_denied(path) or (is_asked(path) and not lifted(path))

    def protecting(self, spec: ToolSpec) -> Callable[[str], bool] | None:
        """Which paths no command may change, whatever it is; None where that is nothing. A question about writing is
        no denial: it is put for a file that a command names."""
        denied = () if spec.name != COMMAND or self.is_open(spec) else self._patterns(_FILE_TOOLS[1], Verdict.DENY)
        return means_any(denied) if denied else None

    def _patterns(self, tool: str, effect: Verdict) -> tuple[str, ...]:
        """The patterns of all rules about a tool with this effect."""
        ruled = (rule for layer in self._layers for rule, _ in layer.about(tool, False))
        found = (rule.pattern for rule in ruled if rule.effect is effect and rule.pattern is not None)
        return tuple(dict.fromkeys(found))

    def is_open(self, spec: ToolSpec) -> bool:
        """Whether every call of a tool is allowed, whatever its arguments."""
        key = (spec.name, spec.delegation)
        if key not in self._open:
            self._open[key] = all(layer.is_open(spec) for layer in self._layers)
        return self._open[key]


def under_whitelist(
    policy: PermissionPolicy | None, owner: str, names: Collection[str], limits: Sequence[PermissionRule]
) -> PermissionPolicy | None:
    """The policy of a run whose whitelist holds `names`, some of them by patterns only (`limits`, with what the agent
    is denied by pattern). None where nobody has set a rule."""
    if not limits:
        return policy
    by_pattern = {rule.tool for rule in limits if rule.effect is Verdict.ALLOW}
    whole = [PermissionRule(effect=Verdict.ALLOW, tool=name) for name in names if name not in by_pattern]
    rules = PermissionRules(scope=Scope.DEFINITION, rules=(*limits, *whole), default=Verdict.DENY)
    return (policy or PermissionPolicy(owner)).limited(rules)


def _speaks(found: Decision) -> bool:
    """Whether an operator's rule allows a call of a tool that is asked about otherwise. Agents and sessions have no say
    in it: they would allow what nobody has looked at."""
    return found.verdict is Verdict.ALLOW and found.scope in (Scope.SERVER, Scope.TENANT) and bool(found.rule)


def _suspicious(spec: ToolSpec, owner: str) -> Decision:
    rule = PermissionRule(effect=Verdict.ALLOW, tool=spec.name)
    return Decision(
        verdict=Verdict.ASK, kind=DecisionKind.DEFAULT, reason=spec.ask, owner=owner, suggested_rule=rule
    )  # fmt: skip


def under_whitelists(
    policy: PermissionPolicy | None, owner: str, names: Collection[str], sets: Iterable[Sequence[PermissionRule]]
) -> PermissionPolicy | None:
    """The same for several whitelists that bind a run, each by its own patterns."""
    for limits in dict.fromkeys(tuple(each) for each in sets):
        policy = under_whitelist(policy, owner, names, limits)
    return policy


def of_child(
    above: PermissionPolicy | None, owner: str, definition: PermissionRules | None, *, trusted: bool
) -> PermissionPolicy | None:
    """The policy of a child under that of whoever delegates; None where nobody has set a rule."""
    if above is not None:
        return above.inherit(owner, definition, trusted=trusted)
    return None if definition is None else PermissionPolicy(owner, [definition])


def _agent(tool: str, agent: str) -> Subject:
    names, shown = (agent,), f"{tool} for {agent}"
    return Subject(tool=tool, shown=shown, kind=PatternKind.AGENT, exact=names, loose=names, delegation=True)


def _answered(found: Decision, subject: Subject, answers: Sequence[PermissionRule]) -> Decision:
    """A question that a person answered before is not asked again; a denial stays one."""
    if found.verdict is Verdict.ASK:
        for rule in answers:
            if covers(rule, subject.tool, subject.delegation) and allows(rule, subject.kind, subject.exact):
                reason = f"a person allowed {rule} for this session"
                kind = DecisionKind.ANSWER
                return replace(
                    found, verdict=Verdict.ALLOW, kind=kind, reason=reason, scope=Scope.SESSION, rule=str(rule)
                )
    return found


def _with_one_suggestion(decision: Decision, findings: Sequence[Decision]) -> Decision:
    """A question of which several parts are the reason is not settled by one rule."""
    asked = {found.suggested_rule for found in findings if found.verdict is Verdict.ASK}
    settled = decision.verdict is Verdict.ASK and len(asked) == 1
    return decision if settled or decision.suggested_rule is None else replace(decision, suggested_rule=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The whole policy of one agent, without its ancestors."""

    owner: str
    scopes: tuple[PermissionRules, ...]
    own_limit: bool = False  # binds this run and not its children
    found: dict[tuple[str, bool], _Ruled] = field(default_factory=dict, compare=False, repr=False)
    screens: dict[str, tuple[Screen, frozenset[int]]] = field(default_factory=dict, compare=False, repr=False)

    def about(self, tool: str, delegation: bool) -> _Ruled:
        """The rules about a tool, with who set them."""
        found = self.found.get((tool, delegation))
        if found is None:
            every = ((rule, one.scope) for one in self.scopes for rule in one.rules)
            found = self.found[tool, delegation] = tuple(pair for pair in every if covers(pair[0], tool, delegation))
        return found

    def default(self, rules: _Ruled) -> tuple[Verdict, Scope | None]:
        """What holds where none of the rules about a tool speaks, and who said so. What a whitelist names without a
        pattern, or not at all, is not its patterns' business."""
        if self.own_limit and all(rule.effect is not Verdict.ALLOW for rule, _ in rules):
            return Verdict.ALLOW, None
        said = [(one.default, one.scope) for one in self.scopes if one.default is not None]
        return max(said, key=lambda pair: _STRICTNESS[pair[0]], default=(Verdict.ALLOW, None))

    def is_open(self, spec: ToolSpec) -> bool:
        """Whether every call of the tool is allowed, so that nobody needs to look at its arguments."""
        rules = self.about(spec.name, spec.delegation)
        if spec.name == COMMAND:
            reading, writing = (self.about(tool, False) for tool in _FILE_TOOLS)
            if any(rule.effect is not Verdict.ALLOW for rule, _ in (*reading, *writing)):
                return False
            if any(rule.pattern is not None for rule, _ in writing) and not self._grants_all_commands():
                return False
        if not rules:
            return self.default(rules)[0] is Verdict.ALLOW
        return all(rule.effect is Verdict.ALLOW and rule.pattern is None for rule, _ in rules)

    def judge(self, subject: Subject) -> Decision:
        """What holds for one subject. What a restriction may be about, or may not, is asked, unless the box sees to
        it."""
        every = self.about(subject.tool, subject.delegation)
        rules = self._near(subject, every)
        doubt: Decision | None = None
        for effect in (Verdict.DENY, Verdict.ASK):
            for rule, scope in rules:
                if rule.effect is not effect or (subject.by_pattern and rule.pattern is None):
                    continue
                # one doubt is enough, only a rule that surely speaks of it can say more
                judged = restricts if doubt is None and not subject.hidden else surely_restricts
                hit = judged(rule, subject.kind, subject.loose)
                if hit and subject.sure:
                    why = f"{_shown(subject)} falls under the rule {rule}"
                    return self._found(effect, why, subject, rule, scope)
                if hit is not False and doubt is None and not subject.hidden:
                    why = f"it cannot be told whether {_shown(subject)} falls under the rule {rule}"
                    doubt = self._found(Verdict.ASK, why, subject, rule, scope)
        allowed = self._without_restrictions(subject, rules, every)
        return allowed if doubt is None or allowed.verdict is Verdict.DENY else doubt

    def _near(self, subject: Subject, rules: _Ruled) -> _Ruled:
        """Those of the rules about a tool that could speak of a subject: a line of many words under many rules is
        judged without holding each against each."""
        if len(rules) < _SCREENED or subject.kind not in (PatternKind.COMMAND, PatternKind.PATH):
            return rules
        if subject.tool not in self.screens:
            whole = frozenset(at for at, (rule, _) in enumerate(rules) if rule.pattern is None)
            self.screens[subject.tool] = screen(subject.kind, tuple(rule.pattern or "" for rule, _ in rules)), whole
        near, whole = self.screens[subject.tool]
        texts = dict.fromkeys((*subject.exact, *subject.loose))
        return tuple(rules[at] for at in sorted(whole.union(*map(near.hits, texts))))

    def _without_restrictions(self, subject: Subject, rules: _Ruled, every: _Ruled) -> Decision:
        """`rules`: those of `every`, the rules about the tool, that could speak of the subject."""
        for rule, scope in rules:
            if rule.effect is Verdict.ALLOW and allows(rule, subject.kind, subject.exact):
                return self._found(Verdict.ALLOW, f"the rule {rule} allows {_shown(subject)}", subject, rule, scope)
        default, by = self.default(every)
        if subject.limits_only or (subject.tool in WRITERS and subject.derived and self._grants_all_commands()):
            return self._found(Verdict.ALLOW, f"no rule is against {_shown(subject)}", subject)
        if default is Verdict.DENY:
            return self._found(default, f"no rule allows {_shown(subject)}", subject, None, by)
        allowing = [rule for rule, _ in every if rule.effect is Verdict.ALLOW]
        if any(rule.pattern is not None for rule in allowing):
            listed = ", ".join(str(rule) for rule in allowing[:5])
            return self._found(Verdict.ASK, f"{_shown(subject)} is not among what is allowed: {listed}", subject)
        if subject.tool in WRITERS and subject.derived and self._closes_commands():
            return self._found(Verdict.ASK, f"no rule allows {_shown(subject)}", subject)
        if subject.derived and not subject.exact:
            return self._found(Verdict.ASK, f"{_shown(subject)} cannot be judged before it runs", subject)
        return self._found(default, f"no rule is about {_shown(subject)}", subject, None, by)

    def _grants_all_commands(self) -> bool:
        return any(rule.effect is Verdict.ALLOW and rule.pattern is None for rule, _ in self.about(COMMAND, False))

    def _closes_commands(self) -> bool:
        """Whether only some commands are allowed. A file that one of them is sent into is no part of that allowance."""
        return any(rule.effect is Verdict.ALLOW and rule.pattern is not None for rule, _ in self.about(COMMAND, False))

    def _found(
        self,
        verdict: Verdict,
        reason: str,
        subject: Subject,
        rule: PermissionRule | None = None,
        scope: Scope | None = None,
    ) -> Decision:
        asked = verdict is Verdict.ASK
        return Decision(
            verdict=verdict,
            kind=DecisionKind.DEFAULT if rule is None else DecisionKind.RULE,
            reason=reason,
            owner=self.owner,
            rule="" if rule is None else str(rule),
            scope=scope,
            suggested_rule=rule_for(subject.tool, subject.kind, subject.exact) if asked else None,
        )


def _shown(subject: Subject) -> str:
    text = subject.shown.replace(UNKNOWN, "…").replace(ANY_NAME, "…")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
