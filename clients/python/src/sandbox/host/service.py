"""Requests to answers: one loop, a task for each request, and a bound on how many there are."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..server.core.progress import listener
from .channel import Channel
from .errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Refused, clean
from .plugins import PROTOCOL, Plugin

log = logging.getLogger("sandbox.host")

#: Requests that are worked on at once.
REQUESTS = 1024

#: Seconds that a cancelled request has to end, before it is answered without it.
CANCEL_SECONDS = 2.0

#: Seconds that a backend has to shut down when stdin just ended.
LAST_SECONDS = 5.0


class Request:
    """One that is worked on. It is answered exactly once, whatever its work does."""

    def __init__(self, id: Any, channel: Channel) -> None:
        self.id = id
        self._channel = channel
        self.is_answered = False
        self.task: asyncio.Task[None] | None = None

    def answer(self, result: Any) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._channel.answer(self.id, result)

    def refuse(self, error: BaseException) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._channel.refuse(self.id, error)

    def give_up(self) -> None:
        self.refuse(Refused("cancelled", "cancelled", "CancelledError"))

    def progress(self, message: str) -> None:
        if not self.is_answered:
            self._channel.notify("progress", {"id": self.id, "message": clean(str(message))})


class Service:
    def __init__(self, channel: Channel, plugin: Plugin) -> None:
        self._channel = channel
        self._plugin = plugin
        self._requests: dict[Any, Request] = {}
        # Also those that were answered and don't end.
        self._tasks: set[asyncio.Task[None]] = set()
        self._description: dict[str, Any] | None = None
        self._is_shut_down = False
        # A backend is not asked to load twice at once.
        self._loading = asyncio.Lock()

    async def serve(self) -> None:
        """Until stdin ends."""
        ended = asyncio.Event()
        self._channel.listen(self.line, ended.set)
        await ended.wait()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_SECONDS)
        if not self._is_shut_down:
            try:
                await asyncio.wait_for(self._plugin.shutdown(), LAST_SECONDS)
            except BaseException:  # it ends either way
                traceback.print_exc()

    def line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._channel.refuse(None, Refused("the line is not JSON", "exception", "JSONDecodeError", PARSE_ERROR))
            return
        if not isinstance(message, dict):
            self._refuse_request(None, "a request is an object")
            return
        id, method, params = message.get("id"), message.get("method"), message.get("params")
        id = id if isinstance(id, (str, int, float)) else None
        params = {} if params is None else params
        if not isinstance(method, str) or not isinstance(params, dict):
            self._refuse_request(id, "method is a text, and params an object")
        elif "id" not in message:
            if method == "cancel":
                self._cancel(params.get("id"))
        elif id is None:
            self._refuse_request(None, "id is a text or a number")
        elif id in self._requests:
            self._refuse_request(id, f"a request with id {id!r} is worked on already")
        elif len(self._tasks) >= REQUESTS:
            self._channel.refuse(id, Refused(f"more than {REQUESTS} requests at once", "exception", "RuntimeError"))
        else:
            self._start(Request(id, self._channel), method, params)

    def _refuse_request(self, id: Any, why: str) -> None:
        self._channel.refuse(id, Refused(why, "exception", "ValueError", INVALID_REQUEST))

    def _start(self, request: Request, method: str, params: dict[str, Any]) -> None:
        request.task = asyncio.get_running_loop().create_task(self._work(request, method, params))
        self._requests[request.id] = request
        self._tasks.add(request.task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never gets to answer.
            request.give_up()
            if self._requests.get(request.id) is request:
                del self._requests[request.id]

        request.task.add_done_callback(ended)

    def _cancel(self, id: Any) -> None:
        if not isinstance(id, (str, int, float)) or (request := self._requests.get(id)) is None:
            return
        assert request.task is not None, "a request in the table has been started"
        request.task.cancel()
        # A tool that does not let itself be cancelled keeps its task, and nobody waits for it.
        asyncio.get_running_loop().call_later(CANCEL_SECONDS, request.give_up)

    async def _work(self, request: Request, method: str, params: dict[str, Any]) -> None:
        listener.set(request.progress)
        try:
            result = await self._do(method, params)
        except asyncio.CancelledError:
            request.give_up()
        except Refused as refused:
            request.refuse(refused)
        except BaseException as error:  # also SystemExit: one call never ends the host
            traceback.print_exc()
            request.refuse(error)
        else:
            request.answer(result)

    async def _do(self, method: str, params: dict[str, Any]) -> Any:
        if (missing := _missing(method, params)) is not None:
            raise missing
        match method:
            case "describe":
                return await self._describe(params)
            case "warmup":
                await self._plugin.warmup()
            case "initialize":
                await self._plugin.initialize(params["worker_id"], params.get("config") or {}, params["session"])
            case "call":
                context = {key: params.get(key) for key in ("worker_id", "trace_id", "session_id", "session")}
                return {"result": await self._plugin.call(params["tool"], params.get("params") or {}, context)}
            case "cleanup":
                await self._plugin.cleanup(params["worker_id"], params["session_id"], params.get("session") or {})
            case "shutdown":
                self._is_shut_down = True
                await self._plugin.shutdown()
            case _:
                raise Refused(f"no method {method!r}", "exception", "ValueError", METHOD_NOT_FOUND)
        return {}

    async def _describe(self, params: dict[str, Any]) -> dict[str, Any]:
        if (asked := params.get("protocol", PROTOCOL)) != PROTOCOL:
            log.warning("asked for version %s of the protocol, and this is version %s", asked, PROTOCOL)
        async with self._loading:
            if self._description is None:
                self._plugin.load(params.get("config") or {})
                self._description = self._plugin.describe()
        return self._description


_NEEDED: dict[str, dict[str, type]] = {
    "initialize": {"worker_id": str, "session": dict},
    "call": {"tool": str},
    "cleanup": {"worker_id": str, "session_id": str},
}


def _missing(method: str, params: dict[str, Any]) -> Refused | None:
    needed = _NEEDED.get(method, {})
    wrong = [name for name, kind in needed.items() if not isinstance(params.get(name), kind)]
    if method == "initialize" and not wrong and "session_id" not in params["session"]:
        wrong = ["session.session_id"]
    if method == "call" and not isinstance(params.get("params") or {}, dict):
        wrong.append("params")
    if not wrong:
        return None
    return Refused(f"{method} needs {' and '.join(wrong)}", "exception", "ValueError", INVALID_PARAMS)


def thread_pool() -> ThreadPoolExecutor:
    """For tools that are plain functions. One that hangs holds its thread for as long as it hangs."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="tool")


def exit_now(status: int) -> None:
    """Without waiting for threads: one may hang in a tool."""
    os._exit(status)
