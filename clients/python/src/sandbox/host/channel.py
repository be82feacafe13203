"""The two pipes to Arenite, each with a thread, so that a full or an idle pipe never holds up the loop."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .encoding import LINE_LIMIT, encode
from .errors import Refused, error_object

#: Notifications that wait to be written. More are dropped: a tool that talks a lot must not fill the memory.
NOTIFICATIONS = 1000

#: Seconds that the rest of the process has, after stdin ended, before it is ended from outside the loop.
GRACE = 10.0


class Channel:
    def __init__(self, reader: int, writer: int) -> None:
        self._reader = os.fdopen(reader, "rb", buffering=1024 * 1024)
        self._writer = writer
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls) -> Channel:
        """Takes stdin and stdout from the process, so that no print and no child process can disturb the protocol."""
        reader, writer = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = sys.stderr
        return cls(reader, writer)

    # In

    def listen(self, line: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Calls `line` for each line and `end` at the end, from a thread of its own."""

        def read() -> None:
            try:
                for text in self._lines():
                    line(text)
            finally:
                end()
                # Code that blocks the loop must not keep the process alive when nobody is there any more.
                threading.Timer(GRACE, lambda: os._exit(1)).start()

        threading.Thread(target=read, name="reader", daemon=True).start()

    def _lines(self) -> Iterator[bytes]:
        while line := self._reader.readline(LINE_LIMIT + 1):
            if len(line) > LINE_LIMIT:
                while line and not line.endswith(b"\n"):
                    line = self._reader.readline(LINE_LIMIT)
                yield b"\0"  # No JSON begins so; the answer is that of a line that can't be read.
            elif line.strip():
                yield line

    # Out

    def answer(self, id: Any, result: Any) -> None:
        try:
            line = encode({"jsonrpc": "2.0", "id": id, "result": result})
        except Refused as error:
            self.refuse(id, error)
        else:
            self._outgoing.put(line)

    def refuse(self, id: Any, error: BaseException) -> None:
        self._outgoing.put(encode({"jsonrpc": "2.0", "id": id, "error": error_object(error)}))

    def notify(self, method: str, params: dict[str, Any]) -> None:
        if self._outgoing.qsize() >= NOTIFICATIONS:
            return
        try:
            self._outgoing.put(encode({"jsonrpc": "2.0", "method": method, "params": params}))
        except Refused:
            pass

    def close(self) -> None:
        """Waits until all is written, or can't be."""
        self._outgoing.put(None)
        self._thread.join(GRACE)

    def _write(self) -> None:
        while (line := self._outgoing.get()) is not None:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._writer, view) :]
            except OSError:
                return  # Nobody reads any more; the end of stdin follows.
