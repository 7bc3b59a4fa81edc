"""What the log may say was decided: `decision` of the events `permission.resolved` and `hook.decision`.

Knows nobody who decides; whoever records a decision, filters by one or describes them takes the names from here.
"""

from typing import Literal, get_args

# About a call. The first two by a rule, a default or an earlier answer (`permission_rules.Verdict`; `ask` decides
# nothing), the rest is how a question to a person was settled (`approvals.AnswerKind`, also `deny`).
CallDecision = Literal["allow", "deny", "allow_once", "allow_session", "expired", "cancelled", "released"]

# Of a hook: about a call, or about a subagent's start or stop.
HookOutcome = Literal["block", "mutate_input", "mutate_output", "add_context", "ask", "send_back", "failed"]

DECISIONS: tuple[str, ...] = tuple(dict.fromkeys((*get_args(CallDecision), *get_args(HookOutcome))))
