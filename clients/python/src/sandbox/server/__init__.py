"""What backends and tools are written with. The server itself is the `arenite` program.

The standard library is enough for everything here.
"""

from __future__ import annotations

import importlib
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# An AgentFlow checkout on the plugin path adds the modules that are not here.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from .app import HTTPServiceServer
    from .backends import Backend, BackendConfig
    from .config_loader import (
        ConfigLoader,
        ResourceConfig,
        SandboxConfig,
        ServerConfig,
        create_server_from_config,
        expand_env_vars,
        load_config,
    )
    from .core import ResourceRouter, ToolExecutor, scan_tools, tool

_WHERE = {
    "HTTPServiceServer": "app",
    "ResourceRouter": "core",
    "ToolExecutor": "core",
    "tool": "core",
    "scan_tools": "core",
    "Backend": "backends",
    "BackendConfig": "backends",
    "ConfigLoader": "config_loader",
    "load_config": "config_loader",
    "create_server_from_config": "config_loader",
    "SandboxConfig": "config_loader",
    "ServerConfig": "config_loader",
    "ResourceConfig": "config_loader",
    "expand_env_vars": "config_loader",
}

__all__ = [
    "HTTPServiceServer", "ResourceRouter", "ToolExecutor", "tool", "scan_tools", "Backend", "BackendConfig",
    "ConfigLoader", "load_config", "create_server_from_config", "SandboxConfig", "ServerConfig", "ResourceConfig",
    "expand_env_vars",
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
