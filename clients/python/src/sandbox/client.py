"""HTTPServiceClient: AgentFlow's API, call by call. Needs httpx."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

#: Seconds that an answer may come later than the tool's own time ends, so that the server's word on it is heard.
SLACK = 5.0


@dataclass
class HTTPClientConfig:
    base_url: str = "http://localhost:8080"
    timeout: float = 60.0
    max_retries: int = 3
    retry_delay: float = 1.0
    auto_heartbeat: bool = True
    heartbeat_interval: float = 30.0
    worker_id: str | None = None


class HTTPClientError(Exception):
    """The server refused, or could not be asked. `response` is its answer, where there is one."""

    def __init__(
        self, message: str, status_code: int | None = None, response: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.response = response


class HTTPServiceClient:
    """Async. One instance may be used from several event loops; each has connections of its own."""

    def __init__(
        self,
        base_url: str = "http://localhost:8080",
        worker_id: str | None = None,
        timeout: float = 60.0,
        config: HTTPClientConfig | None = None,
        *,
        api_key: str | None = None,
    ) -> None:
        """With a `config`, what it says goes; else the other arguments.

        Args:
            api_key: sent as `Authorization: Bearer`; without one, what ARENITE_API_KEY says.
        """
        if config is None:
            config = HTTPClientConfig(base_url=base_url, worker_id=worker_id, timeout=timeout)
        self.config = replace(config, base_url=config.base_url.rstrip("/"))
        self._worker_id = self.config.worker_id or worker_id or f"worker_{uuid.uuid4().hex[:8]}"
        self._api_key = api_key if api_key is not None else os.environ.get("ARENITE_API_KEY") or None
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
        self._heartbeat: asyncio.Task[None] | None = None
        import httpx  # noqa: F401  so that its lack is told here, and not at the first call

    @property
    def worker_id(self) -> str:
        return self._worker_id

    @property
    def base_url(self) -> str:
        return self.config.base_url

    # The connection

    async def connect(self) -> None:
        """Asks the server whether it is there, and begins to send heartbeats if the configuration says so."""
        import httpx

        try:
            response = await self._http().get("/health", timeout=self.config.timeout)
        except httpx.HTTPError as error:
            raise HTTPClientError(f"Cannot connect to {self.base_url}: {_words(error)}") from error
        if response.status_code != 200:
            raise HTTPClientError(
                f"Cannot connect to {self.base_url}: /health answered {response.status_code}", response.status_code
            )
        if self.config.auto_heartbeat and (self._heartbeat is None or self._heartbeat.done()):
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    async def close(self, destroy_sessions: bool = False) -> None:
        if destroy_sessions:
            with contextlib.suppress(HTTPClientError):
                await self.destroy_all_sessions()
        if self._heartbeat is not None:
            loop = self._heartbeat.get_loop()
            if loop is asyncio.get_running_loop():
                self._heartbeat.cancel()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(self._heartbeat.cancel)
            self._heartbeat = None
        # Those of other loops can't be closed from here; their sockets close when they are collected.
        client = self._clients.pop(asyncio.get_running_loop(), None)
        self._clients.clear()
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> HTTPServiceClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.config.heartbeat_interval)
            try:
                await self._send_heartbeat()
            except HTTPClientError as error:
                log.warning("heartbeat failed: %s", error)

    async def _send_heartbeat(self) -> dict[str, Any]:
        return await self._post("/api/v1/lifecycle/heartbeat")  # type: ignore[no-any-return]

    def _http(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            headers = {"Content-Type": "application/json", "X-Worker-ID": self._worker_id}
            if self._api_key:
                headers["Authorization"] = f"Bearer {self._api_key}"
            # A proxy of the environment leads out of this machine, and would look for the server there.
            is_here = httpx.URL(self.base_url).host in ("localhost", "127.0.0.1", "::1")
            client = httpx.AsyncClient(
                base_url=self.base_url, headers=headers, timeout=self.config.timeout, trust_env=not is_here
            )
            self._clients[loop] = client
        return client

    async def _post(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        repeatable: bool = True,
        with_worker: bool = True,
    ) -> Any:
        body = {"worker_id": self._worker_id, **(body or {})} if with_worker else body
        return await self._request("POST", path, body, timeout=timeout, repeatable=repeatable)

    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        repeatable: bool = True,
    ) -> Any:
        """A call that never reached the server is tried again; one that did only if it is `repeatable`.

        Raises:
            HTTPClientError: the server answered 400 or above, or not at all, or not in JSON.
        """
        import httpx

        timeout = self.config.timeout if timeout is None else timeout
        tries = max(1, self.config.max_retries)
        for attempt in range(1, tries + 1):
            try:
                response = await self._http().request(method, path, json=body, timeout=timeout)
                break
            except httpx.TransportError as error:
                unheard = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
                if attempt < tries and (unheard or repeatable):
                    await asyncio.sleep(self.config.retry_delay * attempt)
                    continue
                raise HTTPClientError(_failed(error, attempt, timeout, unheard or repeatable)) from error
        try:
            answer = response.json()
        except ValueError:
            text = response.text[:200] or "nothing"
            raise HTTPClientError(
                f"Request failed: status {response.status_code}, and instead of JSON came: {text}", response.status_code
            ) from None
        if response.status_code >= 400:
            known = answer if isinstance(answer, dict) else {}
            message = known.get("message") or known.get("error") or str(answer)
            raise HTTPClientError(f"Request failed: {message}", response.status_code, known or None)
        return answer

    # Tools

    async def execute(
        self,
        action: str,
        params: dict[str, Any] | None = None,
        timeout: int | None = None,
        *,
        trace_id: str | None = None,
        task_id: str | None = None,
        parent: str | None = None,
    ) -> dict[str, Any]:
        """Runs a tool, once: a call whose answer does not come is not sent again.

        Args:
            timeout: seconds that the tool has; the answer may come 5 s later.
            trace_id: named in the answer and in the server's records.
            task_id: the task that this step belongs to.
            parent: the step before this one.
        """
        body: dict[str, Any] = {"action": action, "params": params or {}, "timeout": timeout}
        for key, value in (("trace_id", trace_id), ("task_id", task_id), ("parent", parent)):
            if value is not None:
                body[key] = value
        return await self._post(  # type: ignore[no-any-return]
            "/api/v1/execute", body, timeout=self._patience(timeout), repeatable=False
        )

    async def execute_batch(
        self,
        actions: list[dict[str, Any]],
        parallel: bool = False,
        stop_on_error: bool = True,
        *,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Runs several. All failed is an HTTPClientError, whose `response` has the results; some failed is not.

        Args:
            timeout: seconds to wait for the whole; without it, long enough for the timeouts of the actions.
        """
        if timeout is None:
            each = [float(action.get("timeout") or 0) for action in actions]
            needed = (max if parallel else sum)(each or [0.0])
            timeout = max(self.config.timeout, needed + SLACK if needed > 0 else 0.0)
        body = {"actions": actions, "parallel": parallel, "stop_on_error": stop_on_error}
        return await self._post(  # type: ignore[no-any-return]
            "/api/v1/execute/batch", body, timeout=timeout, repeatable=False
        )

    def _patience(self, timeout: float | None) -> float:
        return timeout + SLACK if timeout and timeout > 0 else self.config.timeout

    async def list_tools(self, include_hidden: bool = False) -> list[dict[str, Any]]:
        answer = await self._request("GET", f"/api/v1/tools?include_hidden={bool(include_hidden)}")
        return list(answer.get("tools", []))

    async def get_tool_schema(self, tool_name: str) -> dict[str, Any]:
        from urllib.parse import quote

        return await self._request("GET", f"/api/v1/tools/{quote(tool_name, safe=':')}/schema")  # type: ignore[no-any-return]

    # Sessions

    async def get_status(self) -> dict[str, Any]:
        return await self._post("/api/v1/lifecycle/status")  # type: ignore[no-any-return]

    async def create_session(
        self, resource_type: str, session_config: dict[str, Any] | None = None, custom_name: str | None = None
    ) -> dict[str, Any]:
        body = {"resource_type": resource_type, "session_config": session_config or {}, "custom_name": custom_name}
        return await self._post("/api/v1/session/create", body)  # type: ignore[no-any-return]

    async def destroy_session(self, resource_type: str) -> dict[str, Any]:
        # Not repeated: the second try would not find what the first one destroyed.
        return await self._post(  # type: ignore[no-any-return]
            "/api/v1/session/destroy", {"resource_type": resource_type}, repeatable=False
        )

    async def list_sessions(self) -> list[dict[str, Any]]:
        answer = await self._post("/api/v1/session/list")
        return list((answer.get("data") or {}).get("sessions", []))

    async def destroy_all_sessions(self) -> dict[str, Any]:
        return await self._post("/api/v1/worker/disconnect")  # type: ignore[no-any-return]

    async def refresh_session(self, resource_type: str | None = None) -> dict[str, Any]:
        body = {"resource_type": resource_type} if resource_type else None
        return await self._post("/api/v1/session/refresh", body)  # type: ignore[no-any-return]

    async def init_resource(
        self, resource_type: str, init_config: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        body = {"resource_type": resource_type, "init_config": init_config or {}}
        return await self._post("/api/v1/init/resource", body)  # type: ignore[no-any-return]

    async def init_batch(self, resource_configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return await self._post("/api/v1/init/batch", {"resource_configs": resource_configs})  # type: ignore[no-any-return]

    async def init_from_config(
        self, config_path: str, override_params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        body = {"config_path": config_path, "override_params": override_params or {}}
        return await self._post("/api/v1/init/from-config", body)  # type: ignore[no-any-return]

    # The server

    async def warmup(self, backends: list[str] | None = None) -> dict[str, Any]:
        return await self._post(  # type: ignore[no-any-return]
            "/api/v1/warmup", {"backends": backends}, with_worker=False
        )

    async def get_warmup_status(self) -> dict[str, Any]:
        return await self._request("GET", "/api/v1/warmup/status")  # type: ignore[no-any-return]

    async def shutdown_server(self, force: bool = False, cleanup_sessions: bool = True) -> dict[str, Any]:
        body = {"force": force, "cleanup_sessions": cleanup_sessions}
        return await self._post(  # type: ignore[no-any-return]
            "/api/v1/server/shutdown", body, repeatable=False, with_worker=False
        )


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _failed(error: Exception, attempts: int, timeout: float, was_repeated: bool) -> str:
    import httpx

    often = f" after {attempts} attempts" if attempts > 1 or was_repeated else ""
    if isinstance(error, httpx.TimeoutException):
        if was_repeated:
            return f"Request timed out{often}"
        return f"Request timed out after {timeout:g} s; what was asked for may still be running"
    return f"Request failed{often}: {_words(error)}"


async def quick_execute(
    action: str,
    params: dict[str, Any] | None = None,
    base_url: str = "http://localhost:8080",
    worker_id: str | None = None,
) -> dict[str, Any]:
    """One call by a worker that exists for it alone."""
    config = HTTPClientConfig(base_url=base_url, worker_id=worker_id, auto_heartbeat=False)
    async with HTTPServiceClient(config=config) as client:
        return await client.execute(action, params)


def create_client(base_url: str = "http://localhost:8080", **kwargs: Any) -> HTTPServiceClient:
    return HTTPServiceClient(base_url=base_url, **kwargs)
