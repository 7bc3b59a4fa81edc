"""The arguments of a Python function as JSON Schema: from its type hints and its docstring (spec 7.8).

Knows how to describe and read arguments, not how to call a function. pydantic does the types.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Annotated, Any, NotRequired, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from app.agent.errors import InvalidArguments
from app.agent.tools import ToolContext
from app.tools.docstrings import documentation_of
from app.tools.results import jsonable

_MAX_PROBLEMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function takes. `context` names the parameter that receives the `ToolContext`, None: there is none."""

    schema: Mapping[str, Any]
    context: str | None
    adapter: TypeAdapter[dict[str, Any]] = field(repr=False)

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the types that the function declares. Raises `InvalidArguments`; nothing is repaired."""
        try:
            return self.adapter.validate_json(json.dumps(arguments), strict=True)
        except ValidationError as error:
            raise InvalidArguments(_problems(error)) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArguments(f"the arguments cannot be read: {error}") from None


def signature_of(fn: Callable[..., Any]) -> Signature:
    """Read a function's parameters. Raises ValueError that says which one cannot be described and why."""
    name = name_of(fn)
    try:
        hints = get_type_hints(annotated_part(fn), include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ValueError(f"function {name}: its type hints cannot be resolved: {error}") from None
    described = documentation_of(annotated_part(fn)).parameters
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    context = None
    for parameter in inspect.signature(fn).parameters.values():
        hint = _checked_hint(name, parameter, hints)
        if _is_context(hint):
            context = parameter.name
            continue
        required = parameter.default is inspect.Parameter.empty
        if not required:
            defaults[parameter.name] = parameter.default
        declared = _declared(hint, described.get(parameter.name))
        fields[parameter.name] = declared if required else NotRequired[declared]
    adapter = _adapter(name, fields)
    return Signature(schema=_schema(name, adapter, defaults), context=context, adapter=adapter)


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, of a partial's function, or of the class of a callable object."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


def annotated_part(fn: Callable[..., Any]) -> Any:
    """What carries the hints: of a partial its function, of an object its `__call__`."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


def _checked_hint(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    where = f"function {name}, parameter {parameter.name}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ValueError(f"{where}: * and ** parameters have no schema; name each parameter")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ValueError(f"{where}: arguments are passed by name, so it must not be positional-only")
    if parameter.name not in hints:
        raise ValueError(f"{where}: it has no type hint; add one, for example 'str'")
    return hints[parameter.name]


def _is_context(hint: Any) -> bool:
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(_is_context(part) for part in get_args(hint))
    return hint is ToolContext


def _declared(hint: Any, described: str | None) -> Any:
    """The hint with a description: a text inside `Annotated` comes before one from the docstring."""
    if get_origin(hint) is Annotated:
        texts = [part for part in hint.__metadata__ if isinstance(part, str)]
        if texts:
            described = texts[0]
        elif any(getattr(part, "description", None) for part in hint.__metadata__):
            return hint
    return Annotated[hint, Field(description=described)] if described else hint


def _adapter(name: str, fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    # A TypedDict and not a model: parameters may have any name, also `schema` or `_hidden`, and what the call leaves
    # out stays out, so that the function's own default applies.
    shape = cast(Any, TypedDict)("arguments", fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        return TypeAdapter(shape)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ValueError(f"function {name}: a type hint cannot be described: {str(error).splitlines()[0]}") from None


def _schema(name: str, adapter: TypeAdapter[Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        schema: dict[str, Any] = _without_titles(adapter.json_schema())
    except PydanticUserError as error:
        raise ValueError(f"function {name}: a type hint has no JSON Schema: {str(error).splitlines()[0]}") from None
    schema.setdefault("properties", {})
    for parameter, default in defaults.items():
        try:
            schema["properties"][parameter]["default"] = jsonable(to_jsonable_python(default))
        except PydanticSerializationError:  # a default of the function's own, which a caller could not send
            continue
    return schema


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes of names: they tell a model nothing."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):  # here the keys are names, not keywords
            kept[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            kept[key] = value
        elif key != "title":
            kept[key] = _without_titles(value)
    return kept


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    texts = [f"{'.'.join(str(step) for step in e['loc']) or 'arguments'}: {e['msg']}" for e in found[:_MAX_PROBLEMS]]
    return "; ".join([*texts, "and more"] if len(found) > _MAX_PROBLEMS else texts)
