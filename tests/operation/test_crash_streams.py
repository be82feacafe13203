"""A stop of the server, as clients of its streams see it. Sorted to the end, since it restarts the server of the run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


class Stream(threading.Thread):
    """Reads a stream of events to its end."""

    def __init__(self, url: str):
        super().__init__()
        self.url = url
        self.events: list[str] = []
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("GET", self.url, headers={"Accept": "text/event-stream"}, timeout=60) as answer:
                self.begun.set()
                for line in answer.iter_lines():
                    if line.startswith("event: "):
                        self.events.append(line.removeprefix("event: "))
        except Exception as error:  # noqa: BLE001: shown by the test
            self.error = error
            self.begun.set()


@pytest.mark.timeout(120)
def test_streams_end_at_once_with_a_reason(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(idle_timeout=30)
    live.output("mkdir -p /tmp/watched")
    watcher = live.client.file.watch_create(path="/tmp/watched")["watcher_id"]
    changes = Stream(f"{server.url}/api/v2/sandboxes?follow=true")
    files = Stream(f"{live.url}/v1/file/watch/{watcher}/events")
    streams = [changes, files]
    for stream in streams:
        assert stream.begun.wait(30) and stream.error is None, stream.error
    with connect(live.url.replace("http", "ws", 1) + "/v1/shell/ws") as socket:
        while json.loads(socket.recv(30))["type"] != "ready":
            pass
        begun = time.monotonic()
        assert server.stop() == 0
        took = time.monotonic() - begun
        try:
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    socket.recv(10)
            assert closed.value.rcvd is not None, "no close frame came"
            assert closed.value.rcvd.code == 1012 and "stopping" in closed.value.rcvd.reason
            for stream in streams:
                stream.join(20)
                assert stream.error is None and stream.events[-1:] == ["server_stopping"], (stream.url, stream.events, stream.error)
            # Streams alone would have held it for the ten seconds of a drain.
            assert took < 9, took
            assert "cutting off" not in server.log_tail()
        finally:
            server.start()
