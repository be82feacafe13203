"""Web sites inside a sandbox, from sites_pages/, and its browser as the SDK reaches it."""

from __future__ import annotations

import io
import json
import shlex
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from agent_sandbox import RouteResponseModel
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox

PAGES = Path(__file__).parent / "sites_pages"
PORTS = (8003, 8004)
#: How long anything may take on a loaded machine, in seconds.
PATIENCE = 30


class Sites:
    #: The sites themselves; another origin of the same site; and another site.
    url = f"http://127.0.0.1:{PORTS[0]}"
    beside = f"http://127.0.0.1:{PORTS[1]}"
    other = f"http://localhost:{PORTS[0]}"

    def __init__(self, live: LiveSandbox):
        self.live = live
        self.page = live.client.browser_page
        self.tabs = live.client.browser_tabs
        self.cookies = live.client.browser_cookies
        self.state = live.client.browser_state
        self.network = live.client.browser_network
        self.captcha = live.client.browser_captcha
        self.routes: list[str] = []

    def serve(self) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for path in sorted(PAGES.iterdir()):
                if path.is_file():
                    archive.write(path, path.name)
        self.live.client.file.upload_file(file=("sites.zip", packed.getvalue()), path="/tmp/sites.zip")
        self.live.output("python3 -m zipfile -e /tmp/sites.zip /tmp/sites")
        self.live.bash(f"python3 /tmp/sites/server.py {' '.join(map(str, PORTS))}", async_mode=True)
        for port in PORTS:
            self.live.output(f"until curl -s -o /dev/null http://127.0.0.1:{port}/; do sleep 0.05; done", timeout=60)

    def fresh(self) -> None:
        """One empty tab and no routes, whatever tests before this one have left."""
        self.tabs.create()
        for _ in range(len(self.tabs.list().data) - 1):
            self.tabs.close(0)
        for pattern in self.routes:
            # The test may have removed it itself.
            self.live.http.request("DELETE", "/v1/browser/network/route", json={"url_pattern": pattern})
        self.routes.clear()

    def open(self, path: str, **arguments: Any) -> dict[str, Any]:
        """The current tab goes there; `path` is one of the sites', or a whole address."""
        url = path if "://" in path else self.url + path
        return self.page.navigate(url=url, **arguments).data

    def route(self, pattern: str, body: str | None = None, *, abort: bool | None = None, **response: Any) -> dict[str, Any]:
        """Requests of that pattern get this answer until the test ends, or none."""
        self.routes.append(pattern)
        if abort:
            return self.network.add_route(url_pattern=pattern, abort=True).data
        return self.network.add_route(url_pattern=pattern, response=RouteResponseModel(body=body, **response)).data

    def place(self) -> dict[str, Any]:
        """Where the current tab is."""
        return next(tab for tab in self.live.http.get("/v1/browser/tabs").json()["data"] if tab["active"])

    def value(self, expression: str) -> Any:
        return self.page.evaluate(expression=expression).data

    def until(self, expression: str, shown: str | None = None) -> Any:
        """The expression's value in the page, as soon as it is true there."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, (expression, shown and self.value(shown))
            time.sleep(0.05)
        return value

    def element(self, name: str, **wanted: Any) -> dict[str, Any]:
        """The element of that name, as soon as the page's list has it."""
        def found() -> list[dict[str, Any]]:
            return [one for one in self.page.get_elements().data if one["name"] == name and wanted.items() <= one.items()]

        return soon(found, f"an element called {name}")[0]

    def seen(self, path: str) -> list[list[Any]]:
        """The requests whose path begins so and that reached the server: method, path, headers."""
        answer = self.live.http.get(f"/proxy/{PORTS[0]}/_seen")
        return [one for one in answer.raise_for_status().json() if one[1].startswith(path)]

    def read(self, path: str) -> str:
        return self.live.output(f"cat {shlex.quote(path)}")

    def json(self, path: str) -> Any:
        return json.loads(self.live.client.file.read_file(file=path).data.content)

    def bytes(self, path: str) -> bytes:
        return b"".join(self.live.client.file.download_file(path=path))


def soon(look: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `look` answers, as soon as that is true."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {patience} s"
        time.sleep(0.05)
    return found


def failure(status: int | tuple[int, ...], call: Callable[..., Any], **arguments: Any) -> str:
    """The message of a call that fails with this status."""
    with pytest.raises(ApiError) as failed:
        answer = call(**arguments)
        if isinstance(answer, Iterator):
            list(answer)
        print("succeeded:", arguments, answer)
    statuses = (status,) if isinstance(status, int) else status
    assert failed.value.status_code in statuses, failed.value
    # Of 422 the SDK makes a model.
    body = failed.value.body if isinstance(failed.value.body, dict) else failed.value.body.model_dump()
    assert body["success"] is False and body["message"], body
    return body["message"]


def failures(*calls: tuple[int | tuple[int, ...], Callable[..., Any], dict[str, Any]]) -> list[str]:
    """The messages of calls that fail only after they have waited for something: all at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda one: failure(one[0], one[1], **one[2]), calls))
