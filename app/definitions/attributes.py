"""How the plain keys of an agent definition are read: names, numbers, choices, schemas, and what it remembers.

Knows neither spellings nor the keys with a form of their own (tools, surfaces, policies, budgets).
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from app.agent.definition import (
    MAX_STEPS,
    MAX_TOOL_NAME,
    AgentMode,
    Inherit,
    InheritKind,
    SessionMode,
    SessionScope,
    normalised,
)
from app.definitions.reading import Reading, as_flag, as_integer, as_names, as_real, as_text, is_flag, is_unset, shown
from app.definitions.schemas import object_problem, schema_of, schema_problem
from app.definitions.toolnames import AGENT, mapped

MAX_NAME = 128
MAX_TOKENS = 10_000_000
MAX_INHERITED = 200  # texts of the caller that a subagent may be given
_DEFAULT = "the default applies"
_Choice = TypeVar("_Choice", bound=StrEnum)

_COUNT = re.compile(r"[0-9]{1,3}", re.ASCII)
_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def read_name(reading: Reading, key: str, value: Any) -> str | None:
    """What others call the agent: one line."""
    name = as_text(reading, key, value)
    if name is not None and "\n" in name and not reading.strict:  # a broken head may have put more lines behind it
        reading.remark(key, f"only the first line of {key} is used")
        name = name.split("\n", 1)[0].strip()
    if name is None:
        return None
    if len(name) > MAX_NAME:
        reading.error(key, f"{key} must have 1 to {MAX_NAME} characters, this one has {len(name)}")
    elif _NO_NAME.search(name):
        reading.error(key, f"{key} contains control characters: {shown(name)}")
    return name


def read_prompt(reading: Reading, key: str, value: Any) -> str | None:
    """The system prompt, white space kept."""
    return as_text(reading, key, value, strip=False)


def read_mode(reading: Reading, key: str, value: Any) -> AgentMode | None:
    """primary, subagent or all."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in AgentMode.__members__.values():
        return AgentMode(text)
    reading.warn(key, f"{key} must be primary, subagent or all, not {shown(value)}", "subagent applies")
    return None


def read_model(reading: Reading, key: str, value: Any) -> str | None:
    """`provider:model` or a profile; `inherit` is the same as none."""
    text = as_text(reading, key, value)
    if text is None or text.lower() == "inherit":
        return None
    if " " in text:
        reading.remark(key, f"{key} {text!r} looks like a display name; a run needs `provider:model` or a profile")
    return text


def read_temperature(reading: Reading, key: str, value: Any) -> float | None:
    """From 0 to 2."""
    return as_real(reading, key, value, 0, 2, _DEFAULT)


def read_effort(reading: Reading, key: str, value: Any) -> str | None:
    """How much a model is to think: text, or a number that some providers take."""
    return as_text(reading, key, str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def read_max_tokens(reading: Reading, key: str, value: Any) -> int | None:
    """Of one answer."""
    return as_integer(reading, key, value, 1, MAX_TOKENS, _DEFAULT)


def read_max_steps(reading: Reading, key: str, value: Any) -> int | None:
    """Model calls before an answer is forced."""
    return as_integer(reading, key, value, 1, MAX_STEPS, _DEFAULT)


def read_parallel(reading: Reading, key: str, value: Any) -> bool | None:
    """Whether the calls of a turn may run side by side."""
    return as_flag(reading, key, value, _DEFAULT)


def read_abort_siblings(reading: Reading, key: str, value: Any) -> bool | None:
    """Whether a call that fails ends those that run beside it."""
    return as_flag(reading, key, value, _DEFAULT)


def read_background(reading: Reading, key: str, value: Any) -> bool | None:
    """Whether tasks of the agent run in the background, and whether they outlive a run that was stopped."""
    return as_flag(reading, key, value, "false")


def read_tool_choice(reading: Reading, key: str, value: Any) -> str | None:
    """auto, none, required, or the tool of the first step."""
    text = as_text(reading, key, value)
    if text is None:
        return None
    if text.lower() in ("auto", "none", "required", "any"):
        return "required" if text.lower() == "any" else text.lower()
    name = mapped(text, reading.known_tools)
    if name == AGENT or len(name) > MAX_TOOL_NAME or not name.replace("-", "_").isidentifier():
        what = "name the delegation tool itself, such as dispatch_subagent" if name == AGENT else shown(text)
        reading.warn(key, f"{key} must be auto, none, required or the name of a tool ({what})", "the model chooses")
        return None
    return name


def read_tool_name(reading: Reading, key: str, value: Any) -> str | None:
    """The name of the agent's own tool."""
    text = as_text(reading, key, value)
    if text is None:
        return None
    name = normalised(text)
    if not 1 <= len(name) <= MAX_TOOL_NAME:
        reading.error(key, f"{key} must have 1 to {MAX_TOOL_NAME} of the characters a-z, 0-9 and _, not {shown(text)}")
        return None
    if name != text:
        reading.warn(key, f"{key} may hold a-z, 0-9 and _, such as {name!r}, not {shown(text)}", f"{name!r} is used")
    return name


def read_input_schema(reading: Reading, key: str, value: Any) -> Mapping[str, Any] | None:
    """The fields of the agent's tool: a JSON Schema of an object."""
    return _schema(reading, key, value, object_problem, "a JSON Schema of an object")


def read_output_schema(reading: Reading, key: str, value: Any) -> Mapping[str, Any] | None:
    """What the final answer is to satisfy: any JSON Schema."""
    return _schema(reading, key, value, schema_problem, "a JSON Schema")


def _schema(
    reading: Reading, key: str, value: Any, problem_of: Callable[[Any], str | None], what: str
) -> Mapping[str, Any] | None:
    schema = reading.plain(value)
    if isinstance(schema, str):
        schema = schema_of(schema)
    problem = problem_of(schema)
    if problem is not None:
        reading.error(key, f"{key} must be {what}, as a map or as JSON text: {problem}")
        return None
    return dict(schema)


def read_agents(reading: Reading, key: str, value: Any) -> tuple[str, ...] | None:
    """Whom the agent may ask; `*` is everybody."""
    names = as_names(reading, key, value)
    return None if names == ("*",) else names


def read_thinking(reading: Reading, key: str, value: Any) -> bool | None:
    """on or off; also true and false."""
    flag = value if isinstance(value, bool) else is_flag(value) if isinstance(value, str) else None
    if flag is None:
        reading.warn(key, f"{key} must be on or off, not {shown(value)}", "that of the parent run applies")
    return flag


# ── what an agent remembers, and what it is told (spec 4.9, 2.5) ────────────────────────────────────────────────


def read_session_mode(reading: Reading, key: str, value: Any) -> tuple[SessionMode | None, SessionScope | None] | None:
    """The mode, or a map of `mode` and `scope`."""
    if not isinstance(value, dict):
        mode = _choice(reading, key, value, SessionMode, SessionMode.NEW)
        return None if mode is None else (mode, None)
    for name in value:
        if name not in ("mode", "scope"):
            reading.error(f"{key}.{name}", f"{key}.{name} is no field of a session mode; there are mode and scope")
    mode, scope = value.get("mode"), value.get("scope")
    return (
        None if is_unset(mode) else _choice(reading, f"{key}.mode", mode, SessionMode, SessionMode.NEW),
        None if is_unset(scope) else read_session_scope(reading, f"{key}.scope", scope),
    )


def read_session_scope(reading: Reading, key: str, value: Any) -> SessionScope | None:
    """Who shares the memory."""
    return _choice(reading, key, value, SessionScope, SessionScope.SESSION)


def _choice(reading: Reading, key: str, value: Any, choices: type[_Choice], otherwise: _Choice) -> _Choice | None:
    """One of a few words; `otherwise` is what holds in a file that has another one, the narrowest."""
    text = value.strip().lower().replace("-", "_") if isinstance(value, str) else ""
    if text in choices.__members__.values():
        return choices(text)
    words = [choice.value for choice in choices]
    reading.warn(
        key,
        f"{key} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}",
        f"{otherwise.value} applies",
    )
    return None


def read_inherit_context(reading: Reading, key: str, value: Any) -> Inherit | None:
    """`none`, `last:<n>` or `summary`."""
    text = value.strip().lower() if isinstance(value, str) else ""
    kind, colon, count = text.partition(":")
    if not colon and kind in (InheritKind.NONE.value, InheritKind.SUMMARY.value):
        return Inherit(kind=InheritKind(kind))
    if kind == InheritKind.LAST.value and _COUNT.fullmatch(count.strip()) and 1 <= int(count) <= MAX_INHERITED:
        return Inherit(kind=InheritKind.LAST, count=int(count))
    reading.warn(
        key,
        f"{key} must be none, summary or last:<n> with n from 1 to {MAX_INHERITED}, not {shown(value)}",
        "none applies",
    )
    return None
