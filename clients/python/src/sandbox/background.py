"""An event loop in a thread: how functions that are not async call those that are."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Starts with its first call and lasts until it is closed, so that connections stay open between calls.

    It works from any thread, also from one that runs an event loop itself, which then waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._started()
            if threading.current_thread().name == _name(loop):
                raise RuntimeError("the thread that does the work can't wait for itself; use the async method")
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting ends the request too.
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                loop = self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(loop,), name=_name(loop), daemon=True).start()
                # A client that is dropped without being closed takes its thread with it.
                self._end = weakref.finalize(self, _stop, loop)
            return self._loop

    def close(self) -> None:
        with self._lock:
            if self._end is not None:
                self._end()
            self._loop = self._end = None


def _name(loop: asyncio.AbstractEventLoop) -> str:
    return f"sandbox-{id(loop):x}"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.call_soon_threadsafe(loop.stop)
    except RuntimeError:
        pass  # Stopped already.
