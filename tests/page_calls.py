"""Which routes our pages call: all of them have to be in the OpenAPI documents, since the public API is their only way to data.

Every browser of the fixture `browser` is watched. A request that is in no document fails the test after which it is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from arenite_server import REPOSITORY, Server
from playwright.sync_api import Browser, BrowserContext, Download, Error, Page, Request, WebSocket

#: The golden files, which `aio/test_docs_page.py` compares with what the server serves.
GOLDEN = REPOSITORY / "crates/gateway/golden"
SERVER = ("server-openapi", "agentflow-openapi")
SANDBOX = ("openapi",)

#: The pages that are watched.
OURS = re.compile(
    r"(/sandbox/[^/]+)?/(index\.html)?|/trajectories|/trajectory/[^/]+/?|(/sandbox/[^/]+)?/v1/docs|/api/v2/docs(/errors)?|/docs|/redoc"
    r"|(/sandbox/[^/]+)?/(terminal|vnc/?|vnc/\w+\.html)"
)
#: What no document describes, and why.
ELSEWHERE = {
    r"/static/(web|sandbox)/.+": "scripts, styles, and pictures of the pages: files, and no data",
    r"/(v1/|api/v2/)?openapi\.json": "the documents themselves",
    r"/favicon\.ico": "the browser looks for it by itself",
}
#: What OpenAPI has no form for. AIO's own document does not have them either.
WEB_SOCKETS = {
    r"/v1/shell/ws": "the terminal",
    r"/websockify": "the desktop",
}
#: Pages of programs in the sandbox, which the dashboard frames, after it looked whether they are there. Their requests are their own.
PROGRAMS = re.compile(r"/(code-server|jupyter|proxy|absproxy|opencode|codex)(/.*)?")
#: Names of images have slashes, which OpenAPI has no form for.
WITH_SLASHES = "/api/v2/images/{name}"
#: A credential in an address, of any route.
CREDENTIALS = {"ticket", "key"}

_wrong: list[str] = []


@cache
def operations(documents: tuple[str, ...]) -> list[tuple[str, re.Pattern[str], dict[str, Any]]]:
    """Methods with patterns of paths; those without parameters come first."""
    found = []
    for name in documents:
        for path, item in json.loads((GOLDEN / f"{name}.json").read_text())["paths"].items():
            parameter = ".+" if path == WITH_SLASHES else "[^/]+"
            pattern = re.compile(parameter.join(re.escape(part) for part in re.split(r"\{\w+\}", path)))
            found += [(method.upper(), pattern, operation) for method, operation in item.items()]
    return sorted(found, key=lambda one: one[1].pattern.count("+"))


def problem(method: str, url: str, content: str | None = None) -> str | None:
    """What the documents lack for a request to a server; None if they have it."""
    address = urlsplit(url)
    in_sandbox = re.fullmatch(r"/sandbox/[^/]+(/.*)", address.path)
    path = in_sandbox[1] if in_sandbox else address.path
    if any(re.fullmatch(pattern, path) for pattern in ELSEWHERE) or PROGRAMS.fullmatch(path):
        return None
    # On a sandbox's own host, and below its path, there is only its own interface; at the root, there is also that of `default`.
    only_sandbox = in_sandbox is not None or (address.hostname or "").endswith(".localhost")
    known = operations(SANDBOX if only_sandbox else SERVER + SANDBOX)
    method = "GET" if method == "HEAD" else method
    for described, pattern, operation in known:
        if described == method and pattern.fullmatch(path):
            parameters = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"} | CREDENTIALS
            if unknown := {name for name, _ in parse_qsl(address.query, keep_blank_values=True)} - parameters:
                return f"{method} {path} has no parameter {', '.join(sorted(unknown))}"
            bodies = operation.get("requestBody", {}).get("content", {})
            if content is not None and content.partition(";")[0] not in bodies:
                return f"{method} {path} takes no {content}"
            return None
    return f"{method} {path} is in no OpenAPI document"


def is_of_server(url: str) -> bool:
    address = urlsplit(url)
    # `PORT-ID.localhost` has the pages of a program.
    return address.port in Server.ports and not re.match(r"\d+-", address.hostname or "")


def is_ours(url: str) -> bool:
    return is_of_server(url) and OURS.fullmatch(urlsplit(url).path) is not None


def note(who: str, found: str | None) -> None:
    if found is not None:
        _wrong.append(f"{urlsplit(who).path}: {found}")


def note_request(request: Request) -> None:
    try:
        if request.is_navigation_request():
            note_frame(request)
            return
        page = request.frame.url
    except Error:
        # Its page was closed.
        return
    if is_ours(page) and is_of_server(request.url):
        has_body = request.post_data_buffer is not None
        note(page, problem(request.method, request.url, request.headers.get("content-type", "") if has_body else None))


def note_frame(request: Request) -> None:
    """What our pages frame is a page of ours, or a program's."""
    parent = request.frame.parent_frame
    if parent is None or not is_ours(parent.url) or not is_of_server(request.url) or is_ours(request.url):
        return
    note(parent.url, problem(request.method, request.url))


def note_socket(page: Page, socket: WebSocket) -> None:
    path = re.sub(r"^/sandbox/[^/]+", "", urlsplit(socket.url).path)
    is_known = any(re.fullmatch(pattern, path) for pattern in WEB_SOCKETS) or PROGRAMS.fullmatch(path)
    if is_ours(page.url) and is_of_server(socket.url) and not is_known:
        note(page.url, f"the WebSocket {path} is not known")


def note_download(page: Page, download: Download) -> None:
    if is_ours(page.url) and is_of_server(download.url):
        note(page.url, problem("GET", download.url))


def watch_page(page: Page) -> None:
    page.on("websocket", lambda socket: note_socket(page, socket))
    page.on("download", lambda download: note_download(page, download))


def watch(browser: Browser) -> None:
    """Watches all pages that are opened from now on."""
    make = browser.new_context

    def watched(*args: Any, **options: Any) -> BrowserContext:
        context = make(*args, **options)
        context.on("request", note_request)
        context.on("page", watch_page)
        return context

    browser.new_context = watched  # type: ignore[method-assign]


def take() -> list[str]:
    """What was found since the last time."""
    found = sorted(set(_wrong))
    _wrong.clear()
    return found


def checked(is_scripted: bool) -> Iterator[None]:
    """For a fixture: fails if the pages called something that is not in the documents. `is_scripted`: the test's own scripts call."""
    take()
    yield
    assert not (found := take()) or is_scripted, f"pages call what no OpenAPI document has: {found}"
