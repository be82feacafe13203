"""A backend that does everything a backend should not, for the tests of the host."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any, Literal

from sandbox.server import Backend, BackendConfig, tool
from sandbox.server.core import report_progress


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Live:
    """Can't be sent anywhere."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0


def logged(func: Any) -> Any:
    """A decorator of someone's own."""

    @functools.wraps(func)
    def around(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return around


def ok(data: Any) -> dict[str, Any]:
    return {"code": 0, "message": "success", "data": data}


class OddBackend(Backend):
    name = "odd"
    description = "Misbehaves"
    version = "2.1"

    def __init__(self, config: BackendConfig | None = None) -> None:
        super().__init__(config)
        self.events: list[str] = []

    async def warmup(self) -> None:
        self.events.append("warmup")

    async def initialize(self, worker_id: str, config: dict[str, Any]) -> dict[str, Any]:
        if config.get("fail"):
            raise ValueError("no such thing")
        return {"live": Live(), "config": config, "worker": worker_id}

    def cleanup(self, worker_id: str, session_info: dict[str, Any]) -> None:  # not async, as some are
        self.events.append(f"cleanup {session_info['data']['worker']} {session_info['session_id']}")

    async def shutdown(self) -> None:
        print("SHUTDOWN REACHED")

    def bind_server(self, server: Any) -> None:
        super().bind_server(server)
        server.register_tool("odd:bound", lambda session_info=None: ok("bound"), resource_type="odd")

    @tool("odd:events")
    def recorded(self) -> dict[str, Any]:
        return ok(self.events)

    @tool("odd:live")
    async def live(self, session_info: dict[str, Any]) -> dict[str, Any]:
        live = session_info["data"]["live"]
        with live.lock:
            live.calls += 1
        session_info["seen"] = session_info.get("seen", 0) + 1
        return ok({"calls": live.calls, "seen": session_info["seen"], "last": session_info["last_activity"]})

    @tool("odd:who")
    async def who(self, worker_id: str, trace_id: str, session_id: str, session_info: dict[str, Any]) -> dict[str, Any]:
        return ok([worker_id, trace_id, session_id, session_info["session_id"], sorted(session_info)])

    @tool("odd:all")
    async def everything(self, a: int, **kwargs: Any) -> dict[str, Any]:
        return ok({"a": a, "kwargs": {key: value if key != "session_info" else None for key, value in kwargs.items()}})

    @tool("odd:plain")
    async def plain(self, text: str, times: int = 1) -> dict[str, Any]:
        return ok(text * times)

    @tool("odd:wrapped")
    @logged
    def wrapped(self, text: str) -> dict[str, Any]:
        return ok(text)

    @tool("odd:inside")
    async def inside(self) -> Any:
        return len(5)  # type: ignore[arg-type]

    @tool("odd:hang")
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @tool("odd:stubborn")
    async def stubborn(self) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    @tool("odd:hang_sync")
    def hang_sync(self) -> None:
        time.sleep(3600)

    @tool("odd:nap")
    def nap(self, s: float) -> dict[str, Any]:
        time.sleep(s)
        return ok(s)

    @tool("odd:chatter")
    async def chatter(self, lines: int = 10) -> dict[str, Any]:
        for number in range(lines):
            print("x" * 100, number)
        sys.__stdout__.write("by the old name\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        os.write(1, b"by its number\n")
        subprocess.run(["echo", "by a child"], check=True)
        return ok(sys.stdin.read())

    @tool("odd:exit")
    async def exit(self) -> None:
        sys.exit(3)

    @tool("odd:exit_later")
    async def exit_later(self) -> dict[str, Any]:
        async def leave() -> None:
            sys.exit(3)

        self.left = asyncio.get_running_loop().create_task(leave())
        return ok("left")

    @tool("odd:interrupt")
    def interrupt(self) -> None:
        raise KeyboardInterrupt

    @tool("odd:stop")
    def stop(self) -> None:
        raise StopIteration

    @tool("odd:value")
    async def value(self, which: str) -> Any:
        ring: list[Any] = []
        ring.append(ring)
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        return {
            "nan": float("nan"),
            "inf": {"x": [float("-inf")]},
            "object": Live(),
            "bytes": b"x",
            "set": {1},
            "ring": ring,
            "deep": deep,
            "surrogate": "\ud800",
            "huge": 10**400,
            "large": {"text": "ü" * (1024 * 1024)},
            "too large": "x" * (17 * 1024 * 1024),
            "none": None,
            "number": 2.5,
            "int": 2**64 - 1,
            "keys": {1: "a", None: "b"},
            "objects": [{"n": [n]} for n in range(500)],
        }[which]

    @tool("odd:progress")
    async def progress(self, steps: int) -> dict[str, Any]:
        for step in range(steps):
            report_progress(f"step {step}")
        logging.getLogger("odd").warning("a word for the log")
        return ok(steps)

    @tool("odd:typed", hidden=True)
    async def typed(
        self,
        text: str,
        numbers: list[int],
        color: Color = Color.RED,
        mode: Literal["a", "b"] = "a",
        limit: int | None = None,
        either: int | str = 3,
        options: dict[str, float] | None = None,
        session_info: Any = None,
    ) -> None:
        """Does nothing, but is well described.

        Args:
            text: what is said,
                over two lines.
            numbers (list): some of them.
            limit: how many at most.

        Returns:
            nothing: at all.
        """

    @tool("odd:given", schema={"type": "object", "properties": {"own": {}}})
    async def given(self, own: Any) -> None:
        """[HIDDEN] Not for everyone."""
