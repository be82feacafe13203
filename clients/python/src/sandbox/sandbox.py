"""Sandbox: one worker's view of a server, with sessions, tools, batches, and a server started when there is none."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .background import BackgroundLoop
from .client import HTTPClientConfig, HTTPClientError, HTTPServiceClient
from .defaults import DEFAULT_SERVER_CONFIG, get_default_config

if TYPE_CHECKING:
    from .server_process import ServerProcess

__all__ = [
    "Sandbox", "SandboxConfig", "SandboxError", "SandboxConnectionError", "SandboxServerStartError",
    "SandboxSessionError", "DEFAULT_SERVER_CONFIG", "create_sandbox", "get_default_config",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Arguments of `execute` that belong to the request; every other one is a parameter of the tool.
_OF_THE_REQUEST = ("trace_id", "task_id", "parent")


@dataclass
class SandboxConfig:
    server_url: str = "http://localhost:18890"
    worker_id: str | None = None
    timeout: float = 60.0
    auto_start_server: bool = False
    server_config_path: str | None = None
    server_startup_timeout: float = 30.0
    server_check_interval: float = 0.5
    warmup_resources: list[str] | None = None
    retry_count: int = 3
    log_level: str = "INFO"


class SandboxError(Exception):
    """What this module raises."""


class SandboxConnectionError(SandboxError):
    """No server answers."""


class SandboxServerStartError(SandboxError):
    """The server could not be started, or did not answer in time."""


class SandboxSessionError(SandboxError):
    """A session could not be made or ended."""


class Sandbox:
    """Every method without `_sync` is async. The first call that needs the server connects by itself."""

    def __init__(
        self,
        server_url: str = "http://localhost:18890",
        worker_id: str | None = None,
        config: SandboxConfig | None = None,
        warmup_resources: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """What is given here goes before what `config` says.

        Args:
            kwargs: fields of SandboxConfig by name, and `api_key`.
        """
        self._api_key: str | None = kwargs.pop("api_key", None)
        known = {field.name for field in fields(SandboxConfig)}
        for name in kwargs.keys() - known:
            warnings.warn(f"Sandbox has no setting {name!r}", stacklevel=2)
        settings = {name: value for name, value in kwargs.items() if name in known}
        if server_url != SandboxConfig.server_url:
            settings["server_url"] = server_url
        self.config = replace(config or SandboxConfig(), **settings)
        if warmup_resources is not None:
            self.config.warmup_resources = list(warmup_resources)
        self.config.worker_id = worker_id or self.config.worker_id or f"sandbox_{uuid.uuid4().hex[:8]}"
        self.config.server_url = self.config.server_url.rstrip("/")
        logging.getLogger("sandbox").setLevel(self.config.log_level.upper())
        self._client: HTTPServiceClient | None = None
        self._is_started = False
        self._process: ServerProcess | None = None
        self._background = BackgroundLoop()

    @property
    def worker_id(self) -> str:
        return str(self.config.worker_id)

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    @property
    def is_started(self) -> bool:
        return self._is_started

    @property
    def server_url(self) -> str:
        return self.config.server_url

    @property
    def client(self) -> HTTPServiceClient:
        """The client below, for the calls that Sandbox has no method for."""
        if self._client is None:
            raise SandboxConnectionError("not connected; call start() first")
        return self._client

    # Beginning and end

    async def start(self, warmup_resources: list[str] | None = None) -> Sandbox:
        """Finds the server, or starts it, connects, and warms up what is asked for."""
        if not await self._is_healthy():
            if not self.config.auto_start_server:
                raise SandboxConnectionError(
                    f"no server answers at {self.server_url}; start one (arenite serve), or pass auto_start_server=True"
                )
            await self._start_server()
        if self._client is None:
            self._client = HTTPServiceClient(
                config=HTTPClientConfig(
                    base_url=self.server_url,
                    timeout=self.config.timeout,
                    max_retries=self.config.retry_count,
                    auto_heartbeat=False,
                    worker_id=self.worker_id,
                ),
                api_key=self._api_key,
            )
        try:
            await self._client.connect()
        except HTTPClientError as error:
            raise SandboxConnectionError(str(error)) from error
        self._is_started = True
        resources = warmup_resources if warmup_resources is not None else self.config.warmup_resources
        if resources:
            try:
                await self.warmup(resources)
            except HTTPClientError as error:
                log.warning("warmup of %s failed: %s", ", ".join(resources), error)
        return self

    async def _connected(self) -> HTTPServiceClient:
        if not self._is_started:
            await self.start()
        return self.client

    async def _is_healthy(self) -> bool:
        import httpx

        is_here = httpx.URL(self.server_url).host in ("localhost", "127.0.0.1", "::1")
        try:
            async with httpx.AsyncClient(timeout=5.0, trust_env=not is_here) as client:
                return (await client.get(f"{self.server_url}/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def _start_server(self) -> None:
        from .server_process import ServerProcess, StartError, place

        host, port = place(self.server_url)
        try:
            process = ServerProcess.start(host, port, self.config.server_config_path)
        except StartError as error:
            raise SandboxServerStartError(str(error)) from error
        self._process = process
        deadline = time.monotonic() + self.config.server_startup_timeout
        while not await self._is_healthy():
            ended = process.status()
            late = time.monotonic() >= deadline
            if ended is not None or late:
                what = f"ended with status {ended}" if ended is not None else (
                    f"did not answer within {self.config.server_startup_timeout:g} s"
                )
                words = process.tail(20)
                process.stop()
                raise SandboxServerStartError(
                    f"the server {what}; the end of its log, {process.log_path}:\n{words}"
                )
            await asyncio.sleep(self.config.server_check_interval)

    async def close(self) -> None:
        """Closes the connections. The server and the sessions stay."""
        client, self._client, self._is_started = self._client, None, False
        if client is not None:
            await client.close()

    async def shutdown_server(self, force: bool = False, cleanup_sessions: bool = True) -> dict[str, Any]:
        client = await self._connected()
        answer = await client.shutdown_server(force, cleanup_sessions)
        await self.close()
        return answer

    async def __aenter__(self) -> Sandbox:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Sandbox:
        return self.start_sync()

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    # Warmup

    async def warmup(self, resources: str | list[str] | None = None) -> dict[str, Any]:
        """All of the server's resources when none is named."""
        names = [resources] if isinstance(resources, str) else resources
        return await (await self._connected()).warmup(names)

    async def get_warmup_status(self) -> dict[str, Any]:
        return await (await self._connected()).get_warmup_status()

    # Sessions

    async def create_session(
        self, resources: str | list[str] | dict[str, dict[str, Any]], config: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A session for each type. One that is there already is as good as a new one.

        Args:
            resources: a type, several, or types with the configuration of each.
            config: that of each type when `resources` has none. `custom_name` in it is the session's name.
        """
        client, start = await self._connected(), time.perf_counter()
        sessions: dict[str, Any] = {}
        for resource_type, own in _with_configs(resources, config).items():
            sessions[resource_type] = await _create(client, resource_type, own)
        return {"create_time_ms": (time.perf_counter() - start) * 1000, **_summary(sessions)}

    async def destroy_session(self, resources: str | list[str] | None = None) -> dict[str, Any]:
        """Those of the types, or all of this worker's."""
        client, start = await self._connected(), time.perf_counter()
        if resources is None:
            names = [session["resource_type"] for session in await client.list_sessions()]
        else:
            names = [resources] if isinstance(resources, str) else list(resources)
        sessions: dict[str, Any] = {}
        for name in names:
            try:
                data = (await client.destroy_session(name)).get("data") or {}
            except HTTPClientError as error:
                sessions[name] = {"status": "error", "session_id": None, "message": str(error), "error": str(error)}
            else:
                sessions[name] = {
                    "status": "success",
                    "session_id": data.get("session_id"),
                    "session_name": data.get("session_name"),
                    "message": data.get("message"),
                }
        return {"destroy_time_ms": (time.perf_counter() - start) * 1000, **_summary(sessions)}

    async def list_sessions(self) -> list[dict[str, Any]]:
        return await (await self._connected()).list_sessions()

    async def reinitialize(self, resource_type: str, new_config: dict[str, Any] | None = None) -> dict[str, Any]:
        """A new session in place of the old one, if there was one."""
        client = await self._connected()
        old: dict[str, Any] = {}
        try:
            old = (await client.destroy_session(resource_type)).get("data") or {}
        except HTTPClientError as error:
            if error.status_code != 404:
                log.warning("the old session of %s was not destroyed: %s", resource_type, error)
        created = await _create(client, resource_type, dict(new_config or {}))
        return {
            "status": created["status"],
            "resource_type": resource_type,
            "old_session_id": old.get("session_id"),
            "old_session_name": old.get("session_name"),
            "new_session_id": created["session_id"],
            "new_session_name": created["session_name"],
            "config_applied": created["config_applied"],
            "message": created["message"],
            **({"error": created["error"]} if "error" in created else {}),
        }

    async def refresh_sessions(self, resource_type: str | None = None) -> dict[str, Any]:
        return await (await self._connected()).refresh_session(resource_type)

    # Tools

    async def execute(
        self, action: str, params: dict[str, Any] | None = None, timeout: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Runs a tool; answers its envelope.

        Args:
            kwargs: `trace_id`, `task_id` and `parent` go with the request; all others are parameters of the tool.
        """
        request = {name: kwargs.pop(name) for name in _OF_THE_REQUEST if name in kwargs}
        client = await self._connected()
        return await client.execute(action, {**(params or {}), **kwargs}, timeout, **request)

    async def batch(
        self,
        actions: list[dict[str, Any]],
        parallel: bool = False,
        stop_on_error: bool = True,
        progress: bool = False,
        chunk_size: int | None = None,
    ) -> dict[str, Any]:
        """Runs many, in as many requests as it takes, and answers one envelope. Failures don't raise.

        Args:
            actions: each `{action, params, timeout}`.
            parallel: those of one request run at the same time.
            stop_on_error: serial ones end at the first failure.
            progress: shows how far it is.
            chunk_size: actions in a request.
        """
        from .batches import run_batch

        client = await self._connected()
        return await run_batch(client, actions, parallel, stop_on_error, progress, chunk_size)

    async def get_tools(self, include_hidden: bool = False) -> list[dict[str, Any]]:
        return await (await self._connected()).list_tools(include_hidden)

    async def get_status(self) -> dict[str, Any]:
        return await (await self._connected()).get_status()

    # The same, for programs that are not async

    def _sync(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._background.run(work())

    def start_sync(self, warmup_resources: list[str] | None = None) -> Sandbox:
        return self._sync(lambda: self.start(warmup_resources))

    def warmup_sync(self, resources: str | list[str] | None = None) -> dict[str, Any]:
        return self._sync(lambda: self.warmup(resources))

    def get_warmup_status_sync(self) -> dict[str, Any]:
        return self._sync(self.get_warmup_status)

    def create_session_sync(
        self, resources: str | list[str] | dict[str, dict[str, Any]], config: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._sync(lambda: self.create_session(resources, config))

    def destroy_session_sync(self, resources: str | list[str] | None = None) -> dict[str, Any]:
        return self._sync(lambda: self.destroy_session(resources))

    def list_sessions_sync(self) -> list[dict[str, Any]]:
        return self._sync(self.list_sessions)

    def reinitialize_sync(self, resource_type: str, new_config: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._sync(lambda: self.reinitialize(resource_type, new_config))

    def refresh_sessions_sync(self, resource_type: str | None = None) -> dict[str, Any]:
        return self._sync(lambda: self.refresh_sessions(resource_type))

    def execute_sync(
        self, action: str, params: dict[str, Any] | None = None, timeout: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return self._sync(lambda: self.execute(action, params, timeout, **kwargs))

    def batch_sync(
        self,
        actions: list[dict[str, Any]],
        parallel: bool = False,
        stop_on_error: bool = True,
        progress: bool = False,
        chunk_size: int | None = None,
    ) -> dict[str, Any]:
        return self._sync(lambda: self.batch(actions, parallel, stop_on_error, progress, chunk_size))

    def get_tools_sync(self, include_hidden: bool = False) -> list[dict[str, Any]]:
        return self._sync(lambda: self.get_tools(include_hidden))

    def get_status_sync(self) -> dict[str, Any]:
        return self._sync(self.get_status)

    def shutdown_server_sync(self, force: bool = False, cleanup_sessions: bool = True) -> dict[str, Any]:
        return self._sync(lambda: self.shutdown_server(force, cleanup_sessions))

    def close_sync(self) -> None:
        self._sync(self.close)
        self._background.close()

    # Local

    def get_server_log(self, tail_lines: int = 100) -> str:
        """The last lines of the server that this object started; nothing of any other."""
        return self._process.tail(tail_lines) if self._process is not None else ""

    def get_server_config(self) -> dict[str, Any]:
        """The file that a server is started with, or what stands for it."""
        path = self.config.server_config_path
        if path is None:
            return get_default_config()
        return json.loads(Path(path).read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def save_server_config(self, config: dict[str, Any], path: str) -> None:
        Path(path).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def create_config_template(path: str) -> None:
        """Writes a configuration to begin with."""
        text = json.dumps(DEFAULT_SERVER_CONFIG, indent=2, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def create_sandbox(server_url: str = "http://localhost:18890", **kwargs: Any) -> Sandbox:
    return Sandbox(server_url=server_url, **kwargs)


def _with_configs(
    resources: str | list[str] | dict[str, dict[str, Any]], config: dict[str, Any] | None
) -> dict[str, dict[str, Any]]:
    if isinstance(resources, dict):
        return {name: dict(own or {}) for name, own in resources.items()}
    names = [resources] if isinstance(resources, str) else resources
    return {name: dict(config or {}) for name in names}


async def _create(client: HTTPServiceClient, resource_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """One entry of the answer of `create_session`. A refusal is an entry too."""
    custom_name = config.pop("custom_name", None)
    error: str | None = None
    try:
        data = (await client.create_session(resource_type, config, custom_name)).get("data") or {}
    except HTTPClientError as refused:
        data = (refused.response or {}).get("data")
        data = data if isinstance(data, dict) else {}
        error = data.get("error") or str(refused)
    exists = data.get("status") == "exists"
    if error is None and data.get("session_status", "active" if exists else None) != "active":
        error = data.get("error") or "the session is not active"
    entry = {
        "status": "error" if error else "success",
        "session_id": data.get("session_id"),
        "session_name": data.get("session_name"),
        "config_applied": config,
        "message": error or ("session exists already" if exists else "session created"),
    }
    entry.update({key: value for key, value in data.items() if key.startswith("compatibility_")})
    if error:
        entry["error"] = error
    return entry


def _summary(sessions: dict[str, Any]) -> dict[str, Any]:
    good = sum(entry["status"] == "success" for entry in sessions.values())
    status = "success" if good == len(sessions) else "partial" if good else "error"
    return {"status": status, "total": len(sessions), "success": good, "sessions": sessions}
