"""API tools: functions with a configuration of their own and no backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.decorators import is_hidden_text
from .base_tool import UNKNOWN_RESOURCE, UNKNOWN_TOOL, BaseApiTool

if TYPE_CHECKING:
    from ...app import HTTPServiceServer

# An AgentFlow checkout on the plugin path adds its tools, such as `websearch`.
__path__ = extend_path(__path__, __name__)

__all__ = [
    "register_api_tool", "get_api_tool", "get_all_api_tools", "list_api_tools", "get_required_config_keys",
    "register_all_tools", "APIToolInfo",
]

T = TypeVar("T")


@dataclass
class APIToolInfo:
    name: str
    func: Callable[..., Any]
    config_key: str | None = None
    description: str | None = None
    hidden: bool = False


_tools: dict[str, APIToolInfo] = {}


def register_api_tool(
    name: str, *, config_key: str | None = None, description: str | None = None, hidden: bool = False
) -> Callable[[T], T]:
    """Registers a function, or an instance or subclass of BaseApiTool.

    Args:
        name: `type:name` or a plain name. A tool with a plain name has no session.
        config_key: the key of the configuration's `apis` that the tool gets.
        description: what it does; without one it is the docstring.
        hidden: left out of lists unless asked for.
    """

    def register(given: T) -> T:
        func: Any = given
        if isinstance(given, type) and issubclass(given, BaseApiTool):
            func = given()
        if isinstance(func, BaseApiTool):
            if func.tool_name == UNKNOWN_TOOL:
                func.tool_name = name
            if func.resource_type == UNKNOWN_RESOURCE:
                func.resource_type = config_key or name.partition(":")[0]
            text = description or _own_doc(func)
        else:
            text = description or (getattr(func, "__doc__", None) or "").strip()
        _tools[name] = APIToolInfo(name, func, config_key, text or None, hidden or is_hidden_text(text))
        return given

    return register


def _own_doc(instance: BaseApiTool) -> str:
    """The docstring of `execute`, else that of the class; not what is written on BaseApiTool."""
    for own, base in ((type(instance).execute, BaseApiTool.execute), (type(instance), BaseApiTool)):
        if own.__doc__ and own.__doc__ != base.__doc__:
            return own.__doc__.strip()
    return ""


def get_api_tool(name: str) -> APIToolInfo | None:
    return _tools.get(name)


def get_all_api_tools() -> dict[str, APIToolInfo]:
    return dict(_tools)


def list_api_tools(include_hidden: bool = False) -> list[str]:
    return [name for name, info in _tools.items() if include_hidden or not info.hidden]


def get_required_config_keys() -> list[str]:
    return sorted({info.config_key for info in _tools.values() if info.config_key})


def register_all_tools(server: HTTPServiceServer, apis_config: dict[str, Any]) -> list[str]:
    """Gives the server every registered tool, each with its part of the configuration; answers their names."""
    for info in _tools.values():
        server.register_api_tool(
            info.name, info.func, tool_config(apis_config, info.config_key), info.description, info.hidden
        )
    return list(_tools)


def tool_config(apis: dict[str, Any], config_key: str | None) -> dict[str, Any]:
    """A tool's part of `apis`. Keys that begin with an underscore are comments."""
    part = apis.get(config_key) if config_key else None
    if not isinstance(part, dict):
        return {}
    return {key: value for key, value in part.items() if not key.startswith("_")}
