"""A long batch as several requests, with a bar that says how far it is."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any, Protocol

from .client import HTTPClientError, HTTPServiceClient

#: Actions in one request when nobody looks on.
CHUNK = 500

#: Requests that a batch is split into when somebody does.
STEPS = 50


async def run_batch(
    client: HTTPServiceClient,
    actions: list[dict[str, Any]],
    parallel: bool,
    stop_on_error: bool,
    progress: bool,
    chunk_size: int | None,
) -> dict[str, Any]:
    start = time.perf_counter()
    size = chunk_size or (max(1, min(CHUNK, len(actions) // STEPS)) if progress else CHUNK)
    if parallel and not chunk_size:
        # Small requests would make parallel actions wait for each other.
        size = max(size, min(CHUNK, 32))
    bar = make_bar(len(actions)) if progress else None
    results: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    try:
        for first in range(0, max(1, len(actions)), size):
            part = actions[first : first + size]
            try:
                last = await client.execute_batch(part, parallel=parallel, stop_on_error=stop_on_error)
            except HTTPClientError as error:
                # All of a request's actions failed. Other refusals have no results.
                last = error.response or {}
                if not isinstance((last.get("data") or {}).get("results"), list):
                    raise
            data = last["data"]
            results += data["results"]
            if bar is not None:
                bar.update(len(data["results"]))
            if stop_on_error and not parallel and data["success_count"] < len(part):
                break
    finally:
        if bar is not None:
            bar.close()
    if len(actions) <= size:
        return last
    return _envelope(results, len(actions), (time.perf_counter() - start) * 1000)


def _envelope(results: list[dict[str, Any]], total: int, elapsed_ms: float) -> dict[str, Any]:
    """What the server would have answered to one request."""
    good = sum(result.get("code") == 0 for result in results)
    if good == total:
        code, message = 0, "success"
    elif good == 0:
        code, message = 5009, "All actions failed"
    else:
        code, message = 5010, f"{len(results) - good} out of {len(results)} actions failed"
    return {
        "code": code,
        "message": message,
        "data": {"results": results, "total": total, "executed": len(results), "success_count": good},
        "meta": {
            "tool": "batch:execute",
            "execution_time_ms": elapsed_ms,
            "resource_type": None,
            "session_id": None,
            "trace_id": str(uuid.uuid4()),
        },
    }


class Bar(Protocol):
    def update(self, n: int) -> Any: ...

    def close(self) -> Any: ...


class Line:
    """A line on a terminal that is written over."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()

    def update(self, n: int) -> None:
        self._done += n
        seconds = time.monotonic() - self._start
        sys.stderr.write(f"\r{self._done}/{self._total} actions, {self._done / max(seconds, 0.001):.0f} a second")
        sys.stderr.flush()

    def close(self) -> None:
        if self._done:
            sys.stderr.write("\n")


def make_bar(total: int) -> Bar | None:
    """tqdm where it is installed, else a line on a terminal, else nothing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return Line(total) if sys.stderr.isatty() else None
    bar: Bar = tqdm(total=total, unit="action")
    return bar
