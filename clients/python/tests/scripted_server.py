"""A server of raw answers, one after the other, so that a test decides where a connection breaks."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass
from typing import Any


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


def answer(status: int, body: Any = None, **headers: str) -> bytes:
    """A complete answer with JSON."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def events(*texts: str) -> bytes:
    """The start of a stream of events. Without an end, so the end of the connection breaks it off."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(f"{len(text.encode()):x}\r\n{text}\r\n".encode() for text in texts)


class ScriptedServer:
    """Each request gets the next answer, and its connection is closed after it. The last answer stays."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                line = file.readline().decode().strip()
                headers = {}
                while text := file.readline().decode().strip():
                    name, _, value = text.partition(": ")
                    headers[name.lower()] = value
                body = file.read(int(headers.get("content-length", 0)))
                self.requests.append(Request(line, headers, body))
                connection.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            # Wakes `accept`, which `close` alone does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
