"""API tools for the tests of the host, one of each sort."""

from __future__ import annotations

from typing import Any

from sandbox.server.backends.error_codes import ErrorCode
from sandbox.server.backends.tools import register_api_tool
from sandbox.server.backends.tools.base_tool import BaseApiTool, ToolBusinessError
from sandbox.server.core import tool


class Search(BaseApiTool):
    """Searches."""

    def __init__(self) -> None:
        super().__init__("web:look", "websearch")

    async def execute(self, query: str, top: int = 3, **kwargs: Any) -> Any:
        """Looks for something.

        Args:
            query: what to look for.
        """
        key = self.get_config("serper_api_key")
        if not key:
            raise ToolBusinessError("SERPER_API_KEY not configured")
        if query == "limit":
            raise ToolBusinessError("too many", ErrorCode.INVALID_INPUT, {"limit": 1})
        if query == "dict":
            return {"result": "text", "warning": "slow"}
        if query == "crash":
            raise OSError("disk gone")
        return [query, top, key, sorted(kwargs)]


register_api_tool("web:look", config_key="websearch", description="Search the web")(Search())


@register_api_tool("strict")
class Strict(BaseApiTool):
    """Takes exactly one parameter."""

    async def execute(self, only: str) -> str:  # type: ignore[override]
        return only


@register_api_tool("adds", config_key="sums")
def adds(a: int, b: int, scale: int = 1) -> dict[str, Any]:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return {"code": 0, "message": "success", "data": (a + b) * scale}


@register_api_tool("shows", config_key="sums")
async def shows(config: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    return {"code": 0, "message": "success", "data": {"config": config, "kwargs": sorted(kwargs)}}


@register_api_tool("secret")
def secret() -> dict[str, Any]:
    """[HIDDEN] Says nothing."""
    return {"code": 0, "message": "success", "data": None}


@tool("marked:one")
def marked() -> dict[str, Any]:
    """A marked function of a module."""
    return {"code": 0, "message": "success", "data": 1}
