"""What counts as a final answer: JSON that satisfies a schema, or a digest where a model gives no text.

Knows no model and no run.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.messages import Message, Role
from app.agent.texts import Texts
from app.agent.tools import SchemaChecker

DIGEST_CHARS = 500  # of each collected result …
DIGEST_RESULTS = 8  # … of which the newest are kept
_FENCE = "```"


def json_answer(text: str, schema: Mapping[str, Any], checker: SchemaChecker) -> tuple[str, str | None]:
    """The JSON text of an answer and None, or the text and what is wrong with it. A code fence around the whole answer
    is taken off, since many models cannot leave it out; nothing else is guessed."""
    body = _unfenced(text.strip())
    try:
        value = json.loads(body, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        return text, f"it is no JSON ({error})"
    problem = checker.check(schema, value)
    return (body, None) if problem is None else (text, problem)


def _unfenced(text: str) -> str:
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and "\n" in text):
        return text
    head, _, rest = text.partition("\n")
    return rest.rstrip("`").strip() if head.strip("`").strip().lower() in ("", "json") else text


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def digest(messages: Sequence[Message], texts: Texts) -> str:
    """The newest collected results, when a model gave no final text."""
    results = [m for m in messages if m.role is Role.TOOL and m.content.strip()]
    if not results:
        return texts.no_digest
    lines = "\n".join(f"- {_short(m.content)}" for m in results[-DIGEST_RESULTS:])
    return f"{texts.digest}\n{lines}"


def _short(text: str) -> str:
    return text if len(text) <= DIGEST_CHARS else text[:DIGEST_CHARS] + " …"
