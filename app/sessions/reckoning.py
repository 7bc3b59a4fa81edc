"""What of budgets was used before a process went away, as far as rows and log tell.

Knows neither what the budgets allow nor how anything goes on.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from app.agent.messages import NO_USAGE, Usage
from app.agent.runs import Session
from app.sessions.closing import Left

Row = Mapping[str, Any]


def spent_by(left: Left, tops: Iterable[Row]) -> Mapping[str, int]:
    """What the trees under these runs have used, by the kinds of a budget; `wall_ms` is that of the runs themselves."""
    own = list(tops)
    ordinals = {row["ordinal"] for row in own}
    below = [row for row in left.rows if ordinals.intersection(row["path"])]
    total = sum((left.used(row) for row in below), NO_USAGE)
    inner = {row["handoff_id"] for row in below if row["ordinal"] not in ordinals}
    return {
        "model_calls": total.model_calls,
        "tokens": _tokens(total),
        "cost_micros": max(total.cost.values(), default=0) + total.estimated_micros,
        "tool_calls": sum(left.tool_calls[row["id"]] for row in below),
        "delegations": len(inner),
        "wall_ms": sum(left.worked_ms(row) for row in own),
    }


def spent_in(left: Left, session: Session) -> Mapping[str, int]:
    """What the open runs of a session have used, in addition to what its rows tell."""
    used = sum((trace.usage for trace in left.traces.values()), NO_USAGE)
    currency = session.budget.currency if session.budget is not None else ""
    return {
        "model_calls": used.model_calls,
        "tokens": _tokens(used),
        "cost_micros": used.cost.get(currency, 0) + used.estimated_micros,
        "wall_ms": sum(left.worked_ms(row) for row in left.open_runs if row["parent_id"] is None),
    }


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens + usage.estimated_tokens
