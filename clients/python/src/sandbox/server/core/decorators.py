"""`@tool`, which marks a function as a tool, and how marked functions are found again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

TOOL_MARKER = "_is_tool"
METADATA = "_tool_metadata"

#: A docstring that begins so hides its tool; older backends know no other way.
HIDDEN_PREFIX = "[HIDDEN]"


class ToolMetadata:
    def __init__(
        self,
        name: str,
        resource_type: str | None = None,
        description: str | None = None,
        hidden: bool = False,
        schema: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.resource_type = resource_type
        self.description = description
        self.hidden = hidden
        self.schema = schema

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "resource_type": self.resource_type,
            "description": self.description,
            "hidden": self.hidden,
            "schema": self.schema,
        }

    def __repr__(self) -> str:
        return f"ToolMetadata({self.name!r}, resource_type={self.resource_type!r})"


@overload
def tool(name: F) -> F: ...


@overload
def tool(
    name: str | None = None,
    *,
    resource_type: str | None = None,
    description: str | None = None,
    hidden: bool = False,
    schema: dict[str, Any] | None = None,
) -> Callable[[F], F]: ...


def tool(
    name: Any = None,
    *,
    resource_type: str | None = None,
    description: str | None = None,
    hidden: bool = False,
    schema: dict[str, Any] | None = None,
) -> Any:
    """Marks a function or method as a tool.

    Args:
        name: `type:name`, such as `demo:incr`. Without one it is the function's own name.
        resource_type: whose session the tool works in; without one it is the part of the name before the colon.
        description: what the tool does; without one it is the docstring.
        hidden: left out of lists unless asked for; it can still be called.
        schema: JSON Schema of the parameters; without one it is made of the signature.
    """

    def mark(func: F) -> F:
        shown = description
        if shown is None and func.__doc__:
            shown = func.__doc__.strip()
        metadata = ToolMetadata(
            name=name if isinstance(name, str) else func.__name__,
            resource_type=resource_type,
            description=shown,
            hidden=hidden or is_hidden_text(shown) or is_hidden_text(func.__doc__),
            schema=schema,
        )
        # The function itself is given back, not one around it: a wrong argument is then reported in its own name.
        setattr(func, TOOL_MARKER, True)
        setattr(func, METADATA, metadata)
        return func

    if callable(name):
        return mark(name)
    return mark


def is_tool(func: Callable[..., Any]) -> bool:
    return bool(getattr(func, TOOL_MARKER, False)) or isinstance(getattr(func, METADATA, None), ToolMetadata)


def get_tool_metadata(func: Callable[..., Any]) -> ToolMetadata | None:
    metadata = getattr(func, METADATA, None)
    return metadata if isinstance(metadata, ToolMetadata) else None


def scan_tools(obj: Any, prefix: str | None = None) -> dict[str, Callable[..., Any]]:
    """The tools of an object, a class or a module, by full name and in the order of their attributes' names.

    `prefix` goes before names that have no colon.
    """
    found: dict[str, Callable[..., Any]] = {}
    for attribute in dir(obj):
        # A property is not evaluated here: its code may have effects, and it is no tool.
        if attribute.startswith("__") or isinstance(inspect.getattr_static(obj, attribute, None), property):
            continue
        try:
            func = getattr(obj, attribute)
        except Exception:  # what can't be read is no tool
            continue
        if not callable(func):
            continue
        metadata = get_tool_metadata(func)
        if metadata is None:
            continue
        name = metadata.name
        if prefix and ":" not in name:
            name = f"{prefix}:{name}"
        found[name] = func
    return found


def list_tool_names(obj: Any, prefix: str | None = None) -> list[str]:
    return list(scan_tools(obj, prefix))


def is_hidden_text(text: str | None) -> bool:
    return bool(text) and str(text).lstrip().startswith(HIDDEN_PREFIX)
