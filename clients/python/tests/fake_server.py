"""A fake of the server on a loopback port: it answers what was recorded, or what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded_client.jsonl"

#: A status with a body, which is text when it is not to be JSON.
Answer = tuple[int, Any]


@dataclass
class Seen:
    method: str
    url: str
    headers: dict[str, str]
    body: Any
    #: Which connection it came over.
    connection: int


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def success(data: Any, tool: str = "demo:incr") -> Answer:
    meta = {"tool": tool, "execution_time_ms": 1.0, "resource_type": "demo", "session_id": None, "trace_id": "t"}
    return 200, {"code": 0, "message": "success", "data": data, "meta": meta}


class FakeRecordedServer:
    """With `replay`, requests must be those of the recording, in their order. Else `on` says what is answered."""

    def __init__(self, port: int = 0) -> None:
        self.seen: list[Seen] = []
        self.wrong: list[str] = []
        self._script: list[dict[str, Any]] = []
        self._answers: dict[str, Callable[[Any], Answer]] = {
            "/health": lambda _: (200, {"status": "healthy", "timestamp": "2026-01-01T00:00:00.000000"})
        }
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body in one packet; apart, each answer waits 40 ms for an acknowledgement.
            wbufsize = 1024 * 1024

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                text = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(text) if text else None
                status, answer = fake._answer(Seen(self.command, self.path, headers, body, id(self.connection)))
                content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    kind = "text/plain" if isinstance(answer, str) else "application/json"
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                    self.wfile.flush()
                except OSError:
                    self.close_connection = True  # The client did not wait.

            do_GET = do_POST = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            # Its own 5 are too few for many threads at once: the kernel then resets connections that were made.
            request_queue_size = 128

        self._server = Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def replay(self, *steps: str) -> None:
        self._script = [exchange for exchange in recorded() if not steps or exchange["step"] in steps]

    def on(self, path: str, answer: Callable[[Any], Answer]) -> None:
        """`answer` gets the request's body."""
        self._answers[path] = answer

    def count(self, path: str) -> int:
        return sum(seen.url.partition("?")[0] == path for seen in self.seen)

    def last(self) -> Seen:
        return self.seen[-1]

    def _answer(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            if self._script:
                expected = self._script.pop(0)
                asked = {"method": seen.method, "url": seen.url, "body": seen.body}
                if asked != {key: expected[key] for key in asked}:
                    self.wrong.append(f"{expected['step']}: {asked} instead of {expected}")
                for name in ("content-type", "x-worker-id"):
                    if seen.headers.get(name) != expected["headers"].get(name):
                        self.wrong.append(f"{expected['step']}: header {name} is {seen.headers.get(name)!r}")
                return expected["status"], expected["response"]
        answer = self._answers.get(seen.url.partition("?")[0])
        return answer(seen.body) if answer else (404, {"detail": "Not Found"})

    @property
    def rest(self) -> list[str]:
        return [exchange["step"] for exchange in self._script]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def slowly(seconds: float, answer: Answer) -> Callable[[Any], Answer]:
    def late(_: Any) -> Answer:
        time.sleep(seconds)
        return answer

    return late
