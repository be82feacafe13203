"""The envelope that a tool returns: `code`, `message`, `data`, `meta`."""

from __future__ import annotations

import time
import uuid
from typing import Any


def build_success_response(
    data: Any,
    tool: str,
    execution_time_ms: float | None = None,
    resource_type: str | None = None,
    session_id: str | None = None,
    trace_id: str | None = None,
) -> dict[str, Any]:
    return {
        "code": 0,
        "message": "success",
        "data": data,
        "meta": _meta(tool, execution_time_ms, resource_type, session_id, trace_id),
    }


def build_error_response(
    code: int,
    message: str,
    tool: str,
    data: Any | None = None,
    execution_time_ms: float | None = None,
    resource_type: str | None = None,
    session_id: str | None = None,
    trace_id: str | None = None,
) -> dict[str, Any]:
    return {
        # An ErrorCode becomes a plain number, so that the answer is the same in every encoder.
        "code": int(code),
        "message": message,
        "data": data,
        "meta": _meta(tool, execution_time_ms, resource_type, session_id, trace_id),
    }


def _meta(
    tool: str, execution_time_ms: float | None, resource_type: str | None, session_id: str | None, trace_id: str | None
) -> dict[str, Any]:
    # Every key is there, with null where nothing is known: clients index without looking.
    return {
        "tool": tool,
        "execution_time_ms": execution_time_ms,
        "resource_type": resource_type,
        "session_id": session_id,
        "trace_id": trace_id or str(uuid.uuid4()),
    }


class ResponseTimer:
    """Counts from where it is made, or from where its `with` block begins."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def get_elapsed_ms(self) -> float:
        return (time.perf_counter() - self._start) * 1000

    def __enter__(self) -> ResponseTimer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        pass
