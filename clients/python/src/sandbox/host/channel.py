"""The two pipes to Arenite, served by the loop itself: a call costs no change of threads, and a full or idle pipe blocks nothing."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .encoding import LINE_LIMIT, encode
from .errors import Refused, error_object

#: Notifications that wait to be written. More are dropped: a tool that talks a lot must not fill the memory.
NOTIFICATIONS = 1000

#: Seconds that the rest of the process has, after stdin ended, before it is ended from outside the loop.
GRACE = 10.0

#: Bytes of one read.
CHUNK = 256 * 1024


def event_loop() -> asyncio.AbstractEventLoop:
    """By `poll`, which takes regular files too: requests may come from one."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


class Channel:
    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = threading.get_ident()
        #: What of a line has come. None: the rest of a line that is too long is passed over.
        self._part: bytearray | None = bytearray()
        self._backlog: deque[bytes] = deque()
        #: Notifications of other threads that the loop has not seen.
        self._posted = 0
        self._is_broken = False

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
        """Calls `line` for each line and `end` at the end, in the running loop, which writes from here on as well."""
        loop = self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()

        def read() -> None:
            try:
                chunk = os.read(self._reader, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            for text in self._lines(chunk):
                line(text)
            if not chunk:
                loop.remove_reader(self._reader)
                end()

        loop.add_reader(self._reader, read)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        self._flush()

    def _watch(self) -> None:
        """Code that blocks the loop must not keep the process alive when nobody is there any more."""
        hangup = select.poll()
        hangup.register(self._reader, 0)
        hangup.poll()
        time.sleep(GRACE)
        os._exit(1)

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        whole, found, rest = chunk.rpartition(b"\n")
        if found:
            for text in whole.split(b"\n"):
                if self._part is None:
                    self._part = bytearray()
                    continue
                if self._part:
                    text = bytes(self._part) + text
                    self._part.clear()
                if len(text) >= LINE_LIMIT:
                    yield b"\0"  # No JSON begins so; the answer is that of a line that can't be read.
                elif text.strip():
                    yield text
        if self._part is None:
            return
        self._part += rest
        if len(self._part) >= LINE_LIMIT:
            self._part = None
            yield b"\0"
        elif not chunk and self._part.strip():
            yield bytes(self._part)

    # Out

    def answer(self, id: Any, result: Any) -> None:
        try:
            line = encode({"jsonrpc": "2.0", "id": id, "result": result})
        except Refused as error:
            self.refuse(id, error)
        else:
            self._send(line)

    def refuse(self, id: Any, error: BaseException) -> None:
        self._send(encode({"jsonrpc": "2.0", "id": id, "error": error_object(error)}))

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """From any thread."""
        if len(self._backlog) + self._posted >= NOTIFICATIONS:
            return
        try:
            line = encode({"jsonrpc": "2.0", "method": method, "params": params})
        except Refused:
            return
        if threading.get_ident() == self._home:
            self._send(line)
        elif self._loop is not None:
            self._posted += 1
            try:
                self._loop.call_soon_threadsafe(self._post, line)
            except RuntimeError:
                pass  # The loop has ended.

    def _post(self, line: bytes) -> None:
        self._posted -= 1
        self._send(line)

    def _send(self, line: bytes) -> None:
        self._backlog.append(line)
        if len(self._backlog) == 1:
            self._flush()

    def _flush(self) -> None:
        """Writes what the pipe takes, and the rest when it takes more."""
        while self._backlog and not self._is_broken:
            line = self._backlog[0]
            try:
                written = os.write(self._writer, line)
            except BlockingIOError:
                if self._loop is not None:
                    self._loop.add_writer(self._writer, self._flush)
                return
            except OSError:
                self._is_broken = True  # Nobody reads any more; the end of stdin follows.
                break
            if written == len(line):
                self._backlog.popleft()
            else:
                self._backlog[0] = line[written:]
        if self._is_broken:
            self._backlog.clear()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_writer(self._writer)

    def close(self) -> None:
        """Waits until all is written, or can't be."""
        room, until = select.poll(), time.monotonic() + GRACE
        room.register(self._writer, select.POLLOUT)
        while self._backlog and time.monotonic() < until:
            room.poll(100)
            self._flush()
