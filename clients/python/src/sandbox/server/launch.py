"""From what is registered in Python to a running `arenite` that loads the same."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..server_process import ServerProcess

if TYPE_CHECKING:
    from .app import HTTPServiceServer


def run(server: HTTPServiceServer, host: str, port: int) -> None:
    process = ServerProcess.start(host, port, configuration(server), log=None, plugin_path=os.pathsep.join(_paths()))
    try:
        process.wait()
    finally:
        process.stop()


def configuration(server: HTTPServiceServer) -> dict[str, Any]:
    """The lines for the configuration file.

    Raises:
        RuntimeError: a backend or tool can't be found again by its name, since it was made inside a function or in
            the program that runs, or has a function of its own that no module registers.
    """
    resources: dict[str, Any] = {}
    for name in server.list_backends():
        backend = server.get_backend(name)
        assert backend is not None
        resources[name] = {
            "enabled": backend.config.enabled,
            "description": backend.config.description or backend.description,
            "backend_class": _dotted(type(backend), f"backend {name!r}"),
            "config": backend.config.default_config,
        }
    modules: list[str] = []
    apis: dict[str, Any] = {}
    for tool in server.registered.values():
        if tool.backend is not None:
            continue
        if not tool.is_api:
            raise RuntimeError(
                f"tool {tool.name!r} belongs to no backend, and arenite loads tools by module; "
                "put it in a Backend, or register it with @register_api_tool in a module"
            )
        owner = tool.origin if inspect.isroutine(tool.origin) else type(tool.origin)
        module = _importable(owner.__module__, f"tool {tool.name!r}")
        if module not in modules:
            modules.append(module)
        if tool.config_key:
            apis[tool.config_key] = tool.config
    text: dict[str, Any] = {
        "server": {"title": server.title, "description": server.description, "session_ttl": server.session_ttl},
        "resources": resources,
        "warmup": {"enabled": bool(server.warmup_resources), "resources": server.warmup_resources},
    }
    if modules:
        text["plugins"] = [{"modules": modules, "path": _paths()}]
        text["apis"] = apis
    return text


def _paths() -> list[str]:
    """Where this program finds its modules, without the standard library: the plugin host's Python has its own."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")}
    own = [entry for entry in sys.path if entry not in standard and not entry.endswith(".zip")]
    return [str(Path(entry or ".").resolve()) for entry in own]


def _dotted(kind: type, what: str) -> str:
    module = importlib.import_module(_importable(kind.__module__, what))
    if getattr(module, kind.__qualname__, None) is not kind:
        raise RuntimeError(
            f"{what}: class {kind.__qualname__} is not found in module {kind.__module__}; "
            "define it at the module's top level, so that arenite can load it"
        )
    return f"{kind.__module__}.{kind.__qualname__}"


def _importable(module: str, what: str) -> str:
    if module == "__main__":
        raise RuntimeError(f"{what} is defined in the program that runs; move it to a module that can be imported")
    return module
