"""What runs in the host: a backend with its sessions, or modules of API tools."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from types import ModuleType
from typing import Any

from ..server.app import HTTPServiceServer, RegisteredTool
from ..server.backends.base import Backend, BackendConfig
from ..server.backends.tools import get_all_api_tools, tool_config
from ..server.core.configured import Configured
from ..server.core.invoke import ArgumentsError, arguments, check_arguments, run, target
from ..server.core.schema import parameters_schema
from .errors import Refused

PROTOCOL = 1

#: The packages of an AgentFlow checkout that backends and API tools are written in.
BACKENDS = "sandbox.server.backends.resources"
TOOLS = "sandbox.server.backends.tools"


def import_plugin(name: str, package: str) -> ModuleType:
    """Imports a module. One with relative imports that lead nowhere is imported as a module of `package`.

    AgentFlow's guide has people write tools inside its own package, with `from . import register_api_tool`.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        found = importlib.util.find_spec(name.partition(".")[0])
        if found is None or found.origin is None:
            raise
        home = Path(found.origin).parent
        if found.submodule_search_locations is not None:
            home = home.parent
    parent = importlib.import_module(package)
    if str(home) not in parent.__path__:
        parent.__path__.append(str(home))
    return importlib.import_module(f"{package}.{name}")


class Plugin:
    """The tools of one host, and the sessions that their calls name."""

    kind = "tools"

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.server = HTTPServiceServer()
        # The dict of a session is the same at each of its calls: older tools keep things in it.
        self._sessions: dict[str, dict[str, Any]] = {}

    def load(self, config: dict[str, Any]) -> None:
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        tools = [_described(tool) for tool in self.server.registered.values()]
        return {"protocol": PROTOCOL, **self.identity(), "kind": self.kind, "tools": tools}

    async def warmup(self) -> None:
        """Nothing to warm up."""

    async def initialize(self, worker_id: str, config: dict[str, Any], session: dict[str, Any]) -> None:
        """Nothing to begin."""

    async def cleanup(self, worker_id: str, session_id: str, session: dict[str, Any]) -> None:
        self._sessions.pop(session_id, None)

    async def shutdown(self) -> None:
        """Nothing to end."""

    async def call(self, name: str, params: dict[str, Any], context: dict[str, Any]) -> Any:
        tool = self.server.registered.get(name)
        if tool is None:
            raise Refused(f"Tool not found: {name}", "unknown_tool")
        context = {**context, "session_info": self._session_info(context.get("session"))}
        call = arguments(tool.func, params, context)
        try:
            if isinstance(tool.func, Configured):
                check_arguments(tool.func.func, tool.func.filled(call))
            else:
                check_arguments(tool.func, call)
        except ArgumentsError as error:
            raise Refused(str(error), "arguments", "TypeError") from None
        return await run(tool.func, (), call, self.executor)

    def _session_info(self, session: dict[str, Any] | None) -> dict[str, Any] | None:
        if not session:
            return None
        kept = self._sessions.get(str(session.get("session_id")))
        if kept is None:
            # A session that was made without this plugin; it holds nothing.
            return {**session, "data": {}}
        kept.update({key: value for key, value in session.items() if key != "data"})
        return kept


class BackendPlugin(Plugin):
    kind = "backend"

    def __init__(self, executor: Executor, dotted: str) -> None:
        super().__init__(executor)
        self.dotted = dotted
        self.backend: Backend | None = None

    def load(self, config: dict[str, Any]) -> None:
        module, _, name = self.dotted.rpartition(".")
        if not module:
            raise ImportError(f"{self.dotted!r} is not of the form package.module.Class")
        kind = getattr(import_plugin(module, BACKENDS), name, None)
        if kind is None:
            raise ImportError(f"module {module} has no class {name}")
        backend = _made(kind, config)
        self.server.load_backend(backend)
        self.backend = backend

    def _loaded(self) -> Backend:
        if self.backend is None:
            raise Refused("the first request is describe", "exception", "RuntimeError")
        return self.backend

    def identity(self) -> dict[str, Any]:
        backend = self._loaded()
        return {
            "name": backend.name,
            "description": backend.description,
            "version": str(backend.version),
            "default_config": backend.get_default_config() or {},
        }

    async def warmup(self) -> None:
        await run(self._loaded().warmup, executor=self.executor)

    async def initialize(self, worker_id: str, config: dict[str, Any], session: dict[str, Any]) -> None:
        data = await run(self._loaded().initialize, (worker_id, config), executor=self.executor)
        self._sessions[str(session["session_id"])] = {**session, "data": {} if data is None else data}

    async def cleanup(self, worker_id: str, session_id: str, session: dict[str, Any]) -> None:
        info = self._session_info({**session, "session_id": session_id})
        try:
            await run(self._loaded().cleanup, (worker_id, info), executor=self.executor)
        finally:
            self._sessions.pop(session_id, None)

    async def shutdown(self) -> None:
        if self.backend is not None:
            await run(self.backend.shutdown, executor=self.executor)


class ToolsPlugin(Plugin):
    def __init__(self, executor: Executor, modules: list[str]) -> None:
        super().__init__(executor)
        self.modules = modules
        self._loaded: list[ModuleType] = []

    def load(self, config: dict[str, Any]) -> None:
        self._loaded = [import_plugin(name, TOOLS) for name in self.modules]
        for module in self._loaded:
            # Marked functions are taken besides the registered ones.
            self.server.scan_and_register(module)
        for info in get_all_api_tools().values():
            part = tool_config(config, info.config_key)
            self.server.register_api_tool(info.name, info.func, part, info.description, info.hidden)

    def identity(self) -> dict[str, Any]:
        docs = [inspect.getdoc(module) or "" for module in self._loaded]
        first_lines = [doc.partition("\n")[0] for doc in docs if doc]
        return {
            "name": ",".join(self.modules),
            "description": " ".join(first_lines),
            "version": "1.0.0",
            "default_config": {},
        }


def _made(kind: Any, config: dict[str, Any]) -> Backend:
    # Without a configuration the backend's own defaults stand, where its constructor has some.
    if not config:
        try:
            inspect.signature(kind).bind()
        except (TypeError, ValueError):
            pass
        else:
            return kind()  # type: ignore[no-any-return]
    return kind(BackendConfig(default_config=config))  # type: ignore[no-any-return]


def _described(tool: RegisteredTool) -> dict[str, Any]:
    without = tuple(_from_configuration(tool))
    return {
        "name": tool.name,
        "resource_type": tool.resource_type,
        "config_key": tool.config_key,
        "description": tool.description or "",
        "schema": tool.schema if tool.schema is not None else parameters_schema(target(tool.origin), without),
        "hidden": tool.hidden,
    }


def _from_configuration(tool: RegisteredTool) -> Iterator[str]:
    """Parameters that nobody needs to send. The configuration's values stay unsaid: some are keys."""
    if isinstance(tool.func, Configured):
        yield from tool.func.added
