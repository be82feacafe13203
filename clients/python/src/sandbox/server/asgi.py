"""The tools of an HTTPServiceServer as an ASGI application, for tests. What serves agents is `arenite`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from .app import HTTPServiceServer

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Application:
    """`/health`, `/ready`, the lists of tools, and the two ways to execute."""

    def __init__(self, server: HTTPServiceServer) -> None:
        self.server = server

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = {key: values[-1] for key, values in parse_qs(scope.get("query_string", b"").decode()).items()}
        try:
            status, answer = await self._answer(scope["method"], scope["path"], query, body)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            status, answer = 422, {"detail": [{"type": "value_error", "loc": ["body"], "msg": str(error)}]}
        text = json.dumps(answer, allow_nan=False).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        now = datetime.now(timezone.utc).replace(tzinfo=None).isoformat()
        hidden = query.get("include_hidden", "").lower() in ("1", "true", "yes", "on", "t", "y")
        match (method, path.strip("/").split("/")):
            case ("GET", ["health"]):
                return 200, {"status": "healthy", "timestamp": now}
            case ("GET", ["ready"]):
                sessions = await self.server.resource_router.list_all_sessions()
                workers = {session["worker_id"] for session in sessions}
                return 200, {
                    "status": "ready",
                    "tools_count": len(self.server.registered),
                    "active_workers": len(workers),
                    "total_sessions": len(sessions),
                }
            case ("GET", ["api", "v1", "tools"]):
                tools = self.server.list_tools(hidden)
                return 200, {"tools": tools, "count": len(tools)}
            case ("GET", ["api", "v1", "tools", name, "schema"]):
                info = self.server.get_tool_info(name)
                return (200, info) if info else (404, {"status": "error", "message": f"Tool not found: {name}"})
            case ("POST", ["api", "v1", "execute"]):
                asked = json.loads(body)
                result = await self.server.execute(
                    asked["action"],
                    asked.get("params") or {},
                    worker_id=asked["worker_id"],
                    timeout=asked.get("timeout"),
                )
                return _status(result), result
            case ("POST", ["api", "v1", "execute", "batch"]):
                asked = json.loads(body)
                result = await self.server.execute_batch(
                    asked["actions"],
                    worker_id=asked["worker_id"],
                    parallel=asked.get("parallel", False),
                    stop_on_error=asked.get("stop_on_error", True),
                )
                return _status(result), result
        return 404, {"detail": "Not Found"}

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self.server.warmup_resources:
                    outcome = await self.server.warmup_backends_with_errors(self.server.warmup_resources)
                    if "errors" in outcome:
                        await send({"type": "lifespan.startup.failed", "message": str(outcome["errors"])})
                        return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                for name in self.server.list_backends():
                    if (backend := self.server.get_backend(name)) is not None:
                        await backend.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _status(result: dict[str, Any]) -> int:
    code = result["code"]
    if code == 0:
        return 200
    if code == 5010:
        return 207
    return 400 if 4000 <= code < 5000 else 500
