"""HTTPServiceServer: a registry of backends and tools, with AgentFlow's methods.

It runs tools in this process, for the tests of backends, and it is what `Backend.bind_server` and the plugin host get.
To serve HTTP, `run` starts the `arenite` program with a configuration that names what is registered here.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .backends.base import Backend
from .backends.tools import get_api_tool
from .core.configured import configured
from .core.decorators import get_tool_metadata, is_hidden_text, scan_tools
from .core.invoke import run
from .core.resource_router import ResourceRouter
from .core.tool_executor import ToolExecutor

log = logging.getLogger(__name__)


@dataclass
class RegisteredTool:
    """What is known of a tool. `func` is called, and `origin` is what was registered."""

    name: str
    func: Callable[..., Any]
    origin: Callable[..., Any]
    resource_type: str | None
    description: str
    hidden: bool = False
    schema: dict[str, Any] | None = None
    config_key: str | None = None
    config: dict[str, Any] | None = None
    is_api: bool = False
    backend: str | None = None

    def listed(self) -> dict[str, Any]:
        return {
            "name": self.name.partition(":")[2] or self.name,
            "full_name": self.name,
            "resource_type": self.resource_type,
            "stateless": self.resource_type is None,
            "description": self.description,
        }


class HTTPServiceServer:
    def __init__(
        self,
        host: str = "0.0.0.0",
        port: int = 8080,
        title: str = "HTTP Service Server",
        description: str = "Independent HTTP Service with JSON protocol",
        version: str = "1.0.0",
        enable_cors: bool = True,
        session_ttl: int = 300,
        warmup_resources: list[str] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.title = title
        self.description = description
        self.version = version
        self.enable_cors = enable_cors
        self.session_ttl = session_ttl
        self.warmup_resources = list(warmup_resources or [])
        self.registered: dict[str, RegisteredTool] = {}
        self.resource_router = ResourceRouter(session_ttl=session_ttl)
        self._funcs: dict[str, Callable[..., Any]] = {}
        self._index: dict[str, list[str]] = {}
        self._types: dict[str, str] = {}
        self._backends: dict[str, Backend] = {}
        self._warm: set[str] = set()
        self._warming: dict[str, asyncio.Lock] = {}
        self._registering: str | None = None
        self._executor = ToolExecutor(
            self._funcs, self._index, self._types, self.resource_router, self._warm_before_call
        )

    # Tools

    def register_tool(self, name: str, func: Callable[..., Any], resource_type: str | None = None) -> None:
        """The function's `@tool` mark, if it has one, gives what is not named here."""
        metadata = get_tool_metadata(func)
        if resource_type is None:
            resource_type = metadata.resource_type if metadata else None
        if resource_type is None:
            resource_type = name.partition(":")[0] if ":" in name else None
        description = metadata.description if metadata else None
        if description is None:
            description = (getattr(func, "__doc__", None) or "").strip()
        self._add(
            RegisteredTool(
                name,
                func,
                func,
                resource_type,
                description,
                hidden=metadata.hidden if metadata else is_hidden_text(description),
                schema=metadata.schema if metadata else None,
                backend=self._registering,
            )
        )

    def register_api_tool(
        self,
        name: str,
        func: Callable[..., Any],
        config: dict[str, Any],
        description: str | None = None,
        hidden: bool = False,
    ) -> None:
        if description is None:
            description = (getattr(func, "__doc__", None) or "").strip()
        resource_type = name.partition(":")[0] if ":" in name else None
        info = get_api_tool(name)
        self._add(
            RegisteredTool(
                name,
                configured(func, config or {}),
                func,
                resource_type,
                description,
                hidden or is_hidden_text(description),
                config_key=info.config_key if info else None,
                config=dict(config or {}),
                is_api=True,
            )
        )

    def _add(self, tool: RegisteredTool) -> None:
        self.registered[tool.name] = tool
        self._funcs[tool.name] = tool.func
        if tool.resource_type:
            self._types[tool.name] = tool.resource_type
        else:
            self._types.pop(tool.name, None)
        simple = tool.name.partition(":")[2] or tool.name
        names = self._index.setdefault(simple, [])
        if tool.name not in names:
            names.append(tool.name)

    def scan_and_register(self, obj: Any, prefix: str | None = None) -> list[str]:
        """Registers the marked functions of an object, and answers their names."""
        found = scan_tools(obj, prefix)
        for name, func in found.items():
            self.register_tool(name, func)
        return list(found)

    def list_tools(self, include_hidden: bool = False) -> list[dict[str, Any]]:
        return [tool.listed() for tool in self.registered.values() if include_hidden or not tool.hidden]

    def get_tool_info(self, name: str) -> dict[str, Any] | None:
        found, _ = self._executor.resolve(name)
        return self.registered[found].listed() if found else None

    async def execute(self, action: str, params: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return await self._executor.execute(action, params, **kwargs)

    async def execute_batch(self, actions: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        return await self._executor.execute_batch(actions, **kwargs)

    # Backends

    def load_backend(self, backend: Backend) -> list[str]:
        """Its resource type, its marked tools, and what its `bind_server` registers; answers the tools' names."""
        before = set(self.registered)
        self._backends[backend.name] = backend
        self._registering = backend.name
        try:
            self.resource_router.register_resource_type(
                backend.name, backend.initialize, backend.cleanup, backend.get_default_config()
            )
            self.scan_and_register(backend, prefix=backend.name)
            backend.bind_server(self)
        finally:
            self._registering = None
        return [name for name in self.registered if name not in before]

    def register_resource_type(
        self,
        resource_type: str,
        initializer: Callable[..., Any] | None = None,
        cleaner: Callable[..., Any] | None = None,
        default_config: dict[str, Any] | None = None,
    ) -> None:
        self.resource_router.register_resource_type(resource_type, initializer, cleaner, default_config)

    def get_backend(self, name: str) -> Backend | None:
        return self._backends.get(name)

    def list_backends(self) -> list[str]:
        return list(self._backends)

    async def warmup_backend(self, backend_name: str) -> bool:
        good, _ = await self.warmup_backend_with_error(backend_name)
        return good

    async def warmup_backend_with_error(self, backend_name: str) -> tuple[bool, str | None]:
        """Whether it is warm now, and if not, why."""
        backend = self._backends.get(backend_name)
        if backend is None:
            return False, f"Backend not found: {backend_name}. Available backends: {list(self._backends)}"
        async with self._warming.setdefault(backend_name, asyncio.Lock()):
            if backend_name in self._warm:
                return True, None
            try:
                await run(backend.warmup)
            except Exception as error:  # reported by name
                return False, f"Warmup exception: {error}\n{traceback.format_exc()}"
            self._warm.add(backend_name)
        return True, None

    async def warmup_backends_with_errors(self, backend_names: list[str] | None = None) -> dict[str, Any]:
        """All of them when none is named. A failure doesn't keep the others from starting."""
        names = list(backend_names or self._backends)
        outcomes = await asyncio.gather(*(self.warmup_backend_with_error(name) for name in names))
        results = {name: good for name, (good, _) in zip(names, outcomes)}
        errors = {name: error for name, (_, error) in zip(names, outcomes) if error}
        answer: dict[str, Any] = {
            "status": "partial_error" if errors else "success",
            "results": results,
            "summary": self.get_warmup_status()["summary"],
        }
        if errors:
            answer["errors"] = errors
        return answer

    async def ensure_backend_warmed_up(self, backend_name: str) -> bool:
        return backend_name in self._warm or await self.warmup_backend(backend_name)

    async def _warm_before_call(self, resource_type: str) -> None:
        # A type without a backend, such as that of an API tool, has nothing to warm up.
        if resource_type in self._backends:
            await self.ensure_backend_warmed_up(resource_type)

    def get_warmup_status(self) -> dict[str, Any]:
        total, warm = len(self._backends), len(self._warm)
        return {
            "backends": {name: {"loaded": True, "warmed_up": name in self._warm} for name in self._backends},
            "summary": {"total": total, "warmed_up": warm, "pending": total - warm},
        }

    # HTTP

    def create_app(self) -> Any:
        """An ASGI application over the tools registered here, for tests that speak HTTP without a port."""
        from .asgi import Application

        return Application(self)

    def run(self, **kwargs: Any) -> None:
        """Starts `arenite` on `host` and `port` with what is registered here, and waits for its end.

        Raises:
            RuntimeError: something here can't be named in a configuration file, or there is no `arenite` program.
        """
        from .launch import run

        run(self, host=kwargs.get("host") or self.host, port=kwargs.get("port") or self.port)
