"""HTTP receivers of the tests: of webhooks, and of traces."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Keeps the JSON that is posted to it. `status` says how it answers."""

    def __init__(self, port: int = 0):
        receiver = self
        self.status = 200
        self.received: list[tuple[dict[str, str], Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()} | {"path": self.path, "raw": body.decode()}
                receiver.received.append((headers, json.loads(body)))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def wait(self, found: Callable[[dict[str, str], Any], bool], seconds: float = 30) -> tuple[dict[str, str], Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for headers, body in list(self.received):
                if found(headers, body):
                    return headers, body
            time.sleep(0.02)
        raise AssertionError(f"nothing like that was received: {[body for _, body in self.received]}")


def is_signed(secret: str, headers: dict[str, str]) -> bool:
    """As https://www.standardwebhooks.com specifies."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{headers['raw']}"
    tag = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    return abs(time.time() - int(headers["webhook-timestamp"])) < 60 and headers["webhook-signature"] == f"v1,{tag}"
