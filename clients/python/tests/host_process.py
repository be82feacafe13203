"""The plugin host as a process, spoken to over its real stdin and stdout."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
REPOSITORY = HERE.parent.parent.parent
DEMO = REPOSITORY / "tests/agentflow/plugins"


class Failed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.message = error["message"]
        self.code = error["code"]
        self.kind = error["data"]["kind"]
        self.type = error["data"]["type"]


class PluginProcess:
    """What Arenite does on its side: requests with ids, answers in any order."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self._ids = itertools.count(1)
        self._answers: dict[Any, queue.Queue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.notifications: list[dict[str, Any]] = []
        self.unreadable: list[bytes] = []
        self.log = b""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_log)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                self.unreadable.append(line)
                continue
            if "method" in message:
                self.notifications.append(message)
            else:
                self._waiting(message["id"]).put(message)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def _waiting(self, id: Any) -> queue.Queue[dict[str, Any]]:
        with self._lock:
            return self._answers.setdefault(id, queue.Queue())

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any] | None = None) -> int:
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        self.write(json.dumps(message).encode() + b"\n")
        return id

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def answer(self, id: Any, timeout: float = 20) -> dict[str, Any]:
        return self._waiting(id).get(timeout=timeout)

    def result(self, id: Any, timeout: float = 20) -> Any:
        answer = self.answer(id, timeout)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        return self.result(self.send(method, params))

    def describe(self, config: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.ask("describe", {"protocol": 1, "config": config or {}})

    def tool(self, name: str) -> dict[str, Any]:
        return next(tool for tool in self.describe()["tools"] if tool["name"] == name)

    def begin(self, tool: str, params: dict[str, Any] | None = None, session: str | None = None, **more: Any) -> int:
        asked = {
            "tool": tool,
            "params": params or {},
            "timeout_ms": None,
            "worker_id": "w1",
            "trace_id": "trace-1",
            "session_id": session,
            "session": session_fields(session) if session else None,
            **more,
        }
        return self.send("call", asked)

    def call(self, tool: str, params: dict[str, Any] | None = None, session: str | None = None, **more: Any) -> Any:
        return self.result(self.begin(tool, params, session, **more))["result"]

    def initialize(self, session: str, config: dict[str, Any] | None = None, worker: str = "w1") -> None:
        fields = session_fields(session, config)
        assert self.ask("initialize", {"worker_id": worker, "config": config or {}, "session": fields}) == {}

    def cleanup(self, session: str) -> None:
        fields = session_fields(session)
        assert self.ask("cleanup", {"worker_id": "w1", "session_id": session, "session": fields}) == {}

    def end(self, timeout: float = 20) -> int:
        """Closes stdin and waits."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        return status

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def until(self, what: Any, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)


def session_fields(session: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "session_id": session,
        "session_name": session.rpartition("_")[0] or session,
        "worker_id": "w1",
        "resource_type": "demo",
        "config": config or {},
        "created_at": "2026-01-01T00:00:00.000000",
        "last_activity": "2026-01-01T00:00:00.000000",
        "expires_at": "2026-01-01T00:05:00.000000",
        "status": "active",
        "auto_created": False,
        "custom_name": None,
    }


def host(*arguments: str, path: list[Path] | None = None) -> PluginProcess:
    """As Arenite starts it: without site-packages, and with nothing of the test's environment on the path."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ARENITE_"))}
    env["PYTHONPATH"] = str(SOURCE)
    env["ARENITE_PLUGIN_PATH"] = os.pathsep.join(map(str, [*(path or []), DEMO]))
    return PluginProcess([sys.executable, "-S", "-m", "sandbox.host", *arguments], env)
