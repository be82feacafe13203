"""A tab of a sandbox's browser, over the relay of the DevTools protocol: for tests that look at what a page saw."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandboxes import LiveSandbox
from websockets.sync.client import connect


class Tab:
    def __init__(self, socket: Any):
        self.socket = socket
        self.ids = itertools.count(1)
        self.patience = 30.0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=self.patience))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def go(self, url: str) -> None:
        for left in (2, 1, 0):
            self.call("Page.navigate", url=url)
            try:
                return self.wait("document.readyState === 'complete' && location.href !== 'about:blank'", patience=5)
            except AssertionError:
                if not left:
                    raise

    def run(self, statements: str) -> None:
        self.value(f"(() => {{ {statements} }})()")

    def wait(self, expression: str, shown: str | None = None, patience: float = 15) -> None:
        deadline = time.monotonic() + patience
        while not self.value(expression):
            assert time.monotonic() < deadline, (expression, shown and self.value(shown))
            time.sleep(0.02)


@contextmanager
def tab(live: LiveSandbox, html: str | None) -> Iterator[Tab]:
    """A new tab that is shown, with this page; it is closed at the end.

    Another client that is connected, as Playwright is, holds up new tabs until it has looked at them, and a navigation of then
    may get lost. It is done again, and in another tab if that does not help.
    """
    url = "about:blank"
    if html is not None:
        url = "data:text/html;charset=utf-8;base64," + base64.b64encode(html.encode()).decode()
    for left in reversed(range(5)):
        target = live.http.put("/cdp/json/new?about:blank").json()
        with connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
            opened = Tab(socket)
            try:
                try:
                    # What is held up does not answer at all.
                    opened.patience = 6
                    if html is not None:
                        opened.go(url)
                    opened.call("Page.bringToFront")
                    opened.patience = 30
                except (AssertionError, TimeoutError):
                    if not left:
                        raise
                    continue
                yield opened
                return
            finally:
                live.http.get(f"/cdp/json/close/{target['id']}")
