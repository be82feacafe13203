"""One tool as models are told of it: `{name, description, parameters: [{name, type, description, required}]}`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def needs(name: str, type: str, description: str, array_type: str | None = None) -> Schema:
    """A parameter that must be given. `array_type` is what a list holds."""
    return _parameter(name, type, description, True, array_type)


def takes(name: str, type: str, description: str, array_type: str | None = None) -> Schema:
    """A parameter that may be left out."""
    return _parameter(name, type, description, False, array_type)


def _parameter(name: str, type: str, description: str, required: bool, array_type: str | None) -> Schema:
    inner = {"array_type": array_type} if array_type else {}
    return {"name": name, "type": type, **inner, "description": description, "required": required}


def entry(name: str, description: str, *parameters: Schema) -> Schema:
    return {"name": name, "description": description, "parameters": list(parameters)}
