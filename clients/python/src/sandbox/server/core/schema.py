"""JSON Schema of a tool's parameters, made of its signature, its type hints and its docstring."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from .invoke import INJECTED

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", bytes: "string"}
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Set)
_OBJECTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Params)\s*:\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\(([^)]*)\))?\s*:\s*(.*)$")


def parameters_schema(func: Callable[..., Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the server adds to a call, and what `without` names, is left out."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return schema
    hints = _hints(func)
    described = parameter_texts(inspect.getdoc(func) or "")
    required = []
    for name, parameter in parameters.items():
        if name in INJECTED or name in without or name == "self":
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            continue
        entry = type_schema(hints.get(name, Any))
        if not entry and name not in hints and type(parameter.default) in _PLAIN:
            entry = {"type": _PLAIN[type(parameter.default)]}
        if name in described:
            entry["description"] = described[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None and _is_json(parameter.default):
            entry["default"] = parameter.default
        schema["properties"][name] = entry
    if required:
        schema["required"] = required
    return schema


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(func)
    except Exception:  # a name that exists for type checkers only; the other parameters keep theirs
        return {
            name: hint
            for name, hint in getattr(func, "__annotations__", {}).items()
            if not isinstance(hint, str)
        }


def type_schema(hint: Any) -> dict[str, Any]:
    if hint is Any or hint is None or hint is inspect.Parameter.empty:
        return {}
    if hint is type(None):
        return {"type": "null"}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        entry = type_schema(inner[0])
        texts = [text for text in inner[1:] if isinstance(text, str)]
        if texts:
            entry["description"] = texts[0]
        return entry
    if origin is typing.Literal:
        return _choice(list(inner))
    if origin is typing.Union or origin is types.UnionType:
        return _union(inner)
    if hint in _LISTS or origin in _LISTS:
        items = type_schema(inner[0]) if inner and inner[0] is not Ellipsis else {}
        return {"type": "array", "items": items}
    if hint in _OBJECTS or origin in _OBJECTS:
        value = type_schema(inner[1]) if len(inner) == 2 else {}
        return {"type": "object", "additionalProperties": value} if value else {"type": "object"}
    if isinstance(hint, type):
        return _class(hint)
    return {}


def _class(hint: type) -> dict[str, Any]:
    if issubclass(hint, enum.Enum):
        return _choice([member.value for member in hint])
    if callable(getattr(hint, "model_json_schema", None)):
        return dict(hint.model_json_schema())  # type: ignore[attr-defined]
    if typing.is_typeddict(hint):
        properties = {name: type_schema(inner) for name, inner in typing.get_type_hints(hint).items()}
        return {"type": "object", "properties": properties, "required": sorted(getattr(hint, "__required_keys__", ()))}
    for plain, name in _PLAIN.items():
        if issubclass(hint, plain):
            return {"type": name}
    return {}


def _union(inner: tuple[Any, ...]) -> dict[str, Any]:
    # Null is not spoken of: models that see it send it, and leaving the parameter out says the same.
    kinds = [type_schema(kind) for kind in inner if kind is not type(None)]
    if len(kinds) == 1:
        return kinds[0]
    return {} if {} in kinds else {"anyOf": kinds}


def _choice(values: list[Any]) -> dict[str, Any]:
    kinds = {_PLAIN.get(type(value)) for value in values}
    entry: dict[str, Any] = {"enum": values}
    if len(kinds) == 1 and (kind := kinds.pop()):
        entry["type"] = kind
    return entry


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, enum.Enum)


def parameter_texts(doc: str) -> dict[str, str]:
    """What a Google-style docstring says of each parameter."""
    texts: dict[str, str] = {}
    lines = iter(doc.splitlines())
    for line in lines:
        if _SECTION.match(line.strip()):
            break
    indent: int | None = None
    current: str | None = None
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        indent = depth if indent is None else indent
        entry = _ENTRY.match(line.strip())
        if depth <= indent and entry:
            current = entry.group(1)
            texts[current] = entry.group(3).strip()
        elif current is not None:
            texts[current] = f"{texts[current]} {line.strip()}".strip()
    return texts
