"""Finds a tool by any of its names, calls it in its session, and makes an envelope of what comes back.

This is the in-process version for tests of backends. The `arenite` program has its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from ..backends.error_codes import ErrorCode
from ..backends.response_builder import ResponseTimer, build_error_response, build_success_response
from .invoke import arguments, run
from .resource_router import ResourceRouter, Session

log = logging.getLogger(__name__)

LEGACY = "Tool returned legacy response format; expected {code, message, data, meta}"


class ToolExecutor:
    def __init__(
        self,
        tools: dict[str, Callable[..., Any]],
        tool_name_index: dict[str, list[str]],
        tool_resource_types: dict[str, str],
        resource_router: ResourceRouter,
        warmup_callback: Callable[[str], Any] | None = None,
    ) -> None:
        """`tool_name_index`: from a name without its prefix to the full names. The three maps stay the caller's."""
        self._tools = tools
        self._index = tool_name_index
        self._types = tool_resource_types
        self._router = resource_router
        self._warmup = warmup_callback

    def resolve(self, action: str) -> tuple[str | None, list[str]]:
        """The full name, or None and the candidates when there are several."""
        if action in self._tools:
            return action, []
        if ":" not in action:
            prefixes = {name.partition(":")[0] for name in self._tools if ":" in name}
            for separator in "._-":
                prefix, found, rest = action.partition(separator)
                if found and prefix in prefixes and f"{prefix}:{rest}" in self._tools:
                    return f"{prefix}:{rest}", []
        candidates = self._index.get(action, [])
        return (candidates[0], []) if len(candidates) == 1 else (None, list(candidates))

    async def execute(self, action: str, params: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`worker_id` is needed; `timeout` is in seconds, 0 or None for none; `trace_id` is made up if not given."""
        worker_id = kwargs.get("worker_id")
        if not worker_id:
            raise ValueError("worker_id is required")
        timer = ResponseTimer()
        trace_id = kwargs.get("trace_id") or str(uuid.uuid4())
        name, candidates = self.resolve(action)
        if name is None:
            return _unresolved(action, candidates, timer, trace_id)
        resource_type = self._types.get(name) or None
        if resource_type and self._warmup is not None:
            try:
                await run(self._warmup, (resource_type,))
            except Exception:  # the tool may work without; if not, it says so itself
                log.warning("warmup of %s failed", resource_type, exc_info=True)
        session: Session | None = None
        temporary = False
        if resource_type:
            temporary = await self._router.get_session(worker_id, resource_type) is None
            session = await self._router.get_or_create_session(worker_id, resource_type, auto_created=True)
        meta: dict[str, Any] = {
            "tool": name,
            "resource_type": resource_type,
            "session_id": session["session_id"] if session else None,
        }
        if session and session["status"] == "error":
            return build_error_response(
                ErrorCode.RESOURCE_NOT_INITIALIZED,
                f"Resource initialization failed: {session['error']}",
                data={"resource_type": resource_type, "details": session["error"]},
                execution_time_ms=timer.get_elapsed_ms(),
                trace_id=trace_id,
                **meta,
            )
        try:
            return await self._run(name, params, kwargs.get("timeout"), worker_id, trace_id, session, temporary, meta)
        finally:
            if temporary and resource_type:
                await self._router.destroy_session(worker_id, resource_type)

    async def _run(
        self,
        name: str,
        params: dict[str, Any],
        timeout: float | None,
        worker_id: str,
        trace_id: str,
        session: Session | None,
        temporary: bool,
        meta: dict[str, Any],
    ) -> dict[str, Any]:
        timer = ResponseTimer()
        func = self._tools[name]
        context = {
            "worker_id": worker_id,
            "trace_id": trace_id,
            "session_id": session["session_id"] if session else None,
            "session_info": session,
        }
        try:
            if timeout is not None and timeout < 0:
                raise asyncio.TimeoutError
            call = run(func, (), arguments(func, params, context))
            result = await asyncio.wait_for(call, timeout or None)
        except (asyncio.TimeoutError, TimeoutError):
            message = f"Tool execution timed out after {timeout}s"
            code, data = ErrorCode.TIMEOUT_ERROR, {"timeout": timeout}
            return build_error_response(
                code, message, data=data, execution_time_ms=timer.get_elapsed_ms(), trace_id=trace_id, **meta
            )
        except Exception as error:  # every failure of a tool is an answer
            log.warning("tool %s failed", name, exc_info=True)
            return build_error_response(
                ErrorCode.UNEXPECTED_ERROR,
                str(error) or type(error).__name__,
                data={"type": type(error).__name__},
                execution_time_ms=timer.get_elapsed_ms(),
                trace_id=trace_id,
                **meta,
            )
        if session:
            await self._router.refresh_session(worker_id, session["resource_type"])
        answer = _envelope(result, timer.get_elapsed_ms(), trace_id, meta)
        if temporary:
            answer["meta"]["temporary_session"] = True
        return answer

    async def execute_batch(self, actions: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Actions are `{action, params, timeout}`. `parallel` is False and `stop_on_error` True, unless given."""
        parallel, stop = kwargs.pop("parallel", False), kwargs.pop("stop_on_error", True)
        start = time.perf_counter()

        async def one(action: dict[str, Any]) -> dict[str, Any]:
            own = {**kwargs, "timeout": action.get("timeout")}
            return await self.execute(action.get("action", ""), action.get("params") or {}, **own)

        results: list[dict[str, Any]] = []
        if parallel:
            results = list(await asyncio.gather(*map(one, actions)))
        else:
            for action in actions:
                results.append(await one(action))
                if stop and results[-1]["code"] != 0:
                    break
        good = sum(result["code"] == 0 for result in results)
        return batch_envelope(results, len(actions), good, (time.perf_counter() - start) * 1000)


def batch_envelope(results: list[dict[str, Any]], total: int, good: int, elapsed_ms: float | None) -> dict[str, Any]:
    data = {"results": results, "total": total, "executed": len(results), "success_count": good}
    if good == total:
        return build_success_response(data, "batch:execute", elapsed_ms)
    if good == 0:
        return build_error_response(
            ErrorCode.ALL_REQUESTS_FAILED, "All actions failed", "batch:execute", data, elapsed_ms
        )
    message = f"{len(results) - good} out of {len(results)} actions failed"
    return build_error_response(ErrorCode.PARTIAL_FAILURE, message, "batch:execute", data, elapsed_ms)


def _unresolved(action: str, candidates: list[str], timer: ResponseTimer, trace_id: str) -> dict[str, Any]:
    if candidates:
        message = (
            f"Ambiguous tool name '{action}'. Multiple matches: {candidates}. Please use full name with prefix."
        )
        data: dict[str, Any] = {"candidates": candidates}
    else:
        message, data = f"Tool not found: {action}", {"action": action}
    return build_error_response(
        ErrorCode.INVALID_REQUEST_FORMAT,
        message,
        tool=action,
        data=data,
        execution_time_ms=timer.get_elapsed_ms(),
        trace_id=trace_id,
    )


def _envelope(result: Any, elapsed_ms: float, trace_id: str, meta: dict[str, Any]) -> dict[str, Any]:
    """What the tool returned, with what it left out of `meta`."""
    if not isinstance(result, dict) or "code" not in result:
        return build_error_response(
            ErrorCode.UNEXPECTED_ERROR,
            LEGACY,
            data={"returned_type": type(result).__name__},
            execution_time_ms=elapsed_ms,
            trace_id=trace_id,
            **meta,
        )
    own = result.get("meta")
    filled = dict(own) if isinstance(own, dict) else {}
    for key, value in {**meta, "execution_time_ms": elapsed_ms}.items():
        filled.setdefault(key, value)
    return {"code": result["code"], "message": "success", "data": None, **result, "meta": filled}
