"""Arenite's client for AgentFlow's API, and what plugins in Python are written with.

Nothing is imported before it is used: the plugin host runs under a system's python3, which has neither httpx nor
pydantic. The client needs httpx, `sandbox.protocol` needs pydantic, and `sandbox.server` and `sandbox.host` need
nothing but the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import HTTPClientConfig, HTTPClientError, HTTPServiceClient, create_client, quick_execute
    from .defaults import DEFAULT_SERVER_CONFIG, get_default_config
    from .protocol import (
        BaseMessage,
        ExecuteBatchRequest,
        ExecuteRequest,
        HTTPEndpoints,
        InitBatchRequest,
        InitResourceRequest,
        MessageType,
        SessionCreateRequest,
        SessionDestroyRequest,
    )
    from .result_formatter import (
        BashResult,
        BrowserResult,
        CodeExecutionResult,
        RAGSearchResult,
        ResultFormatter,
        ToolResult,
        VisitResult,
        VMResult,
        WebSearchResult,
        format_tool_result,
    )
    from .sandbox import (
        Sandbox,
        SandboxConfig,
        SandboxConnectionError,
        SandboxError,
        SandboxServerStartError,
        create_sandbox,
    )
    from .server import HTTPServiceServer, ResourceRouter, ToolExecutor, create_server_from_config

__version__ = "0.1.0"

_MODULES = {
    "protocol": (
        "MessageType", "HTTPEndpoints", "BaseMessage", "ExecuteRequest", "ExecuteBatchRequest", "SessionCreateRequest",
        "SessionDestroyRequest", "InitResourceRequest", "InitBatchRequest",
    ),
    "server": ("HTTPServiceServer", "ToolExecutor", "ResourceRouter", "create_server_from_config"),
    "client": ("HTTPServiceClient", "HTTPClientConfig", "HTTPClientError", "quick_execute", "create_client"),
    "sandbox": (
        "Sandbox", "SandboxConfig", "SandboxError", "SandboxConnectionError", "SandboxServerStartError",
        "create_sandbox",
    ),
    "defaults": ("DEFAULT_SERVER_CONFIG", "get_default_config"),
    "result_formatter": (
        "ToolResult", "BashResult", "CodeExecutionResult", "VMResult", "BrowserResult", "WebSearchResult",
        "VisitResult", "RAGSearchResult", "ResultFormatter", "format_tool_result",
    ),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "MessageType", "HTTPEndpoints", "BaseMessage", "ExecuteRequest", "ExecuteBatchRequest", "SessionCreateRequest",
    "SessionDestroyRequest", "InitResourceRequest", "InitBatchRequest", "HTTPServiceServer", "ToolExecutor",
    "ResourceRouter", "create_server_from_config", "HTTPServiceClient", "HTTPClientConfig", "HTTPClientError",
    "quick_execute", "create_client", "Sandbox", "SandboxConfig", "SandboxError", "SandboxConnectionError",
    "SandboxServerStartError", "DEFAULT_SERVER_CONFIG", "create_sandbox", "get_default_config", "ToolResult",
    "BashResult", "CodeExecutionResult", "VMResult", "BrowserResult", "WebSearchResult", "VisitResult",
    "RAGSearchResult", "ResultFormatter", "format_tool_result",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
