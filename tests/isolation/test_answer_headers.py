"""What a sandbox's answer may say to a browser on the server's own origin: a real Chromium, and a guest that answers as it likes."""

from __future__ import annotations

import base64
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator

import hostile
import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from playwright.sync_api import Error, Page, Playwright, Response
from sandboxes import LiveSandbox

KEY = "a-key-for-tests-0123456789"

#: Answers with what the query holds. A port of the sandbox is answered for, too.
ECHO = r'''
    import base64
    def head():
        got = b""
        while b"\r\n\r\n" not in got:
            piece = connection.recv(65536)
            if not piece:
                raise OSError("closed")
            got += piece
        return got
    asked = head()
    if asked.startswith(b"GET /internal/ports/"):
        connection.sendall(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: arenite-port\r\n\r\n")
        asked = head()
    if b"raw=" not in asked:
        connection.sendall(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        return
    raw = asked.split(b" ")[1].split(b"raw=")[1].split(b"&")[0]
    connection.sendall(base64.urlsafe_b64decode(raw))
'''

#: Ways to a sandbox's answers on the server's host. What follows is below `/sandbox/{name}`.
ROUTES = ["/v1/x", "/json/x", "/json/version", "/cdp/x", "/cdp/json/version", "/proxy/3000/x", "/absproxy/3000/x"]
ROUTES += ["/code-server/x", "/jupyter/x", "/opencode/x", "/codex/x", "/websockify"]
#: Those at which a browser that opens them on loopback stays. The others are led to the sandbox's own host.
OPENED = [route for route in ROUTES if route.split("/")[1] not in ("proxy", "absproxy", "code-server", "jupyter")]

#: Headers that browsers act on, or acted on once, beyond the answer's own body.
POWERFUL = {
    "Accept-CH": "Sec-CH-UA-Model, Sec-CH-Viewport-Width, DPR, Viewport-Width, Device-Memory",
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Allow-Methods": "*",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Private-Network": "true",
    "Access-Control-Expose-Headers": "*",
    "Access-Control-Max-Age": "86400",
    "Activate-Storage-Access": "load",
    "Alt-Svc": 'h3="evil.example:443"; ma=86400; persist=1',
    "Attribution-Reporting-Register-Source": '{"destination": "https://evil.example"}',
    "Attribution-Reporting-Register-Trigger": "{}",
    "Clear-Site-Data": '"*"',
    "Content-Security-Policy": "script-src 'none'; report-uri /reported-by-csp; report-to here",
    "Content-Security-Policy-Report-Only": "script-src 'none'; img-src 'none'; report-uri /reported-only",
    "Critical-CH": "Sec-CH-UA-Model",
    "Cross-Origin-Embedder-Policy": 'require-corp; report-to="here"',
    "Cross-Origin-Embedder-Policy-Report-Only": 'require-corp; report-to="here"',
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Opener-Policy-Report-Only": 'same-origin; report-to="here"',
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Delegate-CH": "sec-ch-ua-model https://evil.example",
    "Document-Policy": "unsized-media=?0",
    "Expect-CT": 'max-age=86400, enforce, report-uri="/reported-ct"',
    "Feature-Policy": "geolocation *",
    "Integrity-Policy": "blocked-destinations=(script)",
    "Link": "</preloaded-style>; rel=stylesheet, </preloaded-script>; rel=preload; as=script, </preloaded-module>; rel=modulepreload, "
    "</preloaded-next>; rel=prefetch, <//evil.example>; rel=preconnect",
    "NEL": '{"report_to": "here", "max_age": 86400, "success_fraction": 1}',
    "No-Vary-Search": "params",
    "Observe-Browsing-Topics": "?1",
    "Origin-Agent-Cluster": "?0",
    "Origin-Trial": "x",
    "Permissions-Policy": "geolocation=*",
    "Ping-From": "/pinged",
    "Proxy-Authenticate": 'Basic realm="sign in"',
    "Public-Key-Pins": 'pin-sha256="x"; max-age=86400; report-uri="/reported-pins"',
    "Referrer-Policy": "unsafe-url",
    "Refresh": "0; url=/refreshed",
    "Report-To": '{"group": "here", "max_age": 86400, "endpoints": [{"url": "/reported-to"}]}',
    "Reporting-Endpoints": 'here="/reported-to", default="/reported-by-default"',
    "Require-Document-Policy": "unsized-media=?0",
    "Sec-Session-Registration": '(ES256);path="/registered";challenge="x"',
    "Server-Timing": "evil;dur=1",
    "Service-Worker-Allowed": "/",
    "Set-Cookie": "planted=1; Path=/",
    "Set-Cookie2": "planted2=1; Path=/",
    "Set-Login": "logged-in",
    "Shared-Storage-Write": "set;key=a;value=b",
    "SourceMap": "/mapped",
    "Speculation-Rules": '"/speculated"',
    "Strict-Transport-Security": "max-age=86400; includeSubDomains",
    "Supports-Loading-Mode": "credentialed-prerender",
    "Timing-Allow-Origin": "*",
    "Use-As-Dictionary": 'match="/*"',
    "WWW-Authenticate": 'Basic realm="sign in"',
    "X-Content-Security-Policy": "script-src 'none'",
    "X-DNS-Prefetch-Control": "on",
    "X-Permitted-Cross-Domain-Policies": "all",
    "X-SourceMap": "/mapped",
    "X-UA-Compatible": "IE=7",
    "X-WebKit-CSP": "script-src 'none'",
    "X-XSS-Protection": "1; mode=block; report=/reported-xss",
    "Header-Of-Tomorrow": "1",
}
#: What this server says itself, whatever the sandbox said.
OURS = {"content-security-policy", "server-timing"}

PAGE = (
    "<!doctype html><title>of a sandbox</title><script>document.title = 'ran at ' + window.origin;"
    "fetch('/api/v2/sandboxes').then(a => a.text()).then(t => { document.title = 'stole ' + t })</script>"
    "<svg xmlns='http://www.w3.org/2000/svg'><script>document.title = 'ran at ' + window.origin</script></svg>"
)
SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' xmlns:h='http://www.w3.org/1999/xhtml'><title>of a sandbox</title>"
    "<script>document.querySelector('title').textContent = 'ran at ' + window.origin;"
    "fetch('/api/v2/sandboxes').then(a => a.text()).then(t => { document.querySelector('title').textContent = 'stole ' + t })"
    "</script></svg>"
)
#: The lines of an answer that say, or hide, what its body is.
TYPES = [
    ["Content-Type: text/html"],
    ["Content-Type: image/png, text/html"],
    ["Content-Type: image/png,text/html"],
    ["Content-Type: image/png", "Content-Type: text/html"],
    ["Content-Type: application/json", "Content-Type: text/html"],
    ["Content-Type: image/png;,text/html"],
    ['Content-Type: image/png; x="a, text/html'],
    ["Content-Type: image/png\t, text/html; charset=utf-8"],
    ["Content-Type: text/html; charset=utf-7"],
    ["Content-Type: image/svg+xml"],
    ["Content-Type: image/png, image/svg+xml"],
    ["Content-Type: application/xhtml+xml"],
    ["Content-Type: text/xml"],
    ["Content-Type: */*"],
    ["Content-Type: "],
    ["Content-Type: text"],
    ["Content-Type: multipart/x-mixed-replace; boundary=x"],
    ["Content-Type: application/json"],
    ["Content-Type: image/png"],
    [],
]


def raw(*lines: str, body: str = "", status: str = "200 OK") -> str:
    """An answer as a query that asks for it. Its `ETag` tells that it came from there."""
    head = [f"HTTP/1.1 {status}", 'ETag: "hostile"', "Cache-Control: no-store", "Connection: close", *lines]
    if not status.startswith("101"):
        head.append(f"Content-Length: {len(body)}")
    text = "\r\n".join([*head, "", body])
    return "?raw=" + base64.urlsafe_b64encode(text.encode("latin-1")).decode()


def is_hostile(headers: dict[str, str]) -> bool:
    return headers.get("etag") == '"hostile"'


def take_over(live: LiveSandbox, program: str) -> None:
    live.client.file.write_file(file="/tmp/answer.py", content=hostile.program(program))
    running = live.bash("sudo python3 /tmp/answer.py", async_mode=True)
    try:
        live.client.bash.output(session_id=running.session_id, command_id=running.command_id, wait=True, wait_timeout=5)
    except Exception:  # noqa: BLE001 - from here on its answers are not the guest's
        pass


@pytest.fixture
def evil(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    live = sandbox("evil")
    take_over(live, ECHO)
    return live


def fetch(url: str, **more: object) -> httpx.Response:
    """Until it is the hostile answer: the guest accepts connections, too."""
    for _ in range(60):
        answer = httpx.get(url, timeout=60, **more)
        if is_hostile(dict(answer.headers)):
            return answer
    raise AssertionError(f"{url} was never answered by the sandbox's own: this test tests nothing")


def open_page(page: Page, url: str) -> Response | None:
    """Opens it, until it is the hostile answer. None: it became a download."""
    for _ in range(60):
        try:
            response = page.goto(url)
        except Error as error:
            if "ERR_ABORTED" in error.message or "Download" in error.message:
                return None
            raise
        if response is not None and is_hostile(response.all_headers()):
            return response
    raise AssertionError(f"{url} was never answered by the sandbox's own: this test tests nothing")


def test_no_header_but_those_of_the_body_passes(evil: LiveSandbox) -> None:
    lines = [f"{name}: {value}" for name, value in POWERFUL.items()]
    wanted = raw("Content-Type: text/html", "Content-Disposition: inline", *lines, body="x")
    for route in ROUTES:
        answer = fetch(evil.url + route + wanted)
        passed = {name.lower() for name in POWERFUL if name.lower() in answer.headers} - OURS
        assert not passed, (route, passed)
        assert answer.headers.get_list("content-security-policy") == ["sandbox allow-scripts allow-forms allow-popups allow-downloads"]
        assert "evil" not in answer.headers["server-timing"] and answer.headers["x-content-type-options"] == "nosniff", route
        assert answer.headers["content-disposition"] == "inline" and answer.text == "x", route


@pytest.mark.scripted
class TestInChromium:
    @pytest.fixture
    def console(self, server: Server, page: Page) -> Page:
        """A page of the server's own origin, where something is kept."""
        page.goto(f"{server.url}/")
        page.evaluate("localStorage.setItem('kept', '1'); caches.open('kept')")
        return page

    def test_no_type_becomes_a_page_of_the_server(self, server: Server, evil: LiveSandbox, page: Page) -> None:
        for lines in TYPES:
            for body in (PAGE, SVG):
                response = open_page(page, evil.url + "/v1/x" + raw(*lines, body=body))
                if response is None:
                    continue
                assert page.evaluate("window.origin") == "null", (lines, response.all_headers())
                # What the page tried is over when the same has failed once more.
                tried = page.evaluate("fetch('/api/v2/sandboxes').then(a => a.text(), error => 'refused')")
                assert tried == "refused" and "stole" not in page.title(), lines
        for route in OPENED:
            response = open_page(page, evil.url + route + raw("Content-Type: image/png, text/html", body=PAGE))
            assert response is None or page.evaluate("window.origin") == "null", route

    def test_no_header_has_power(self, server: Server, evil: LiveSandbox, console: Page) -> None:
        asked: list[str] = []
        console.on("request", lambda request: asked.append(request.url))
        lines = [f"{name}: {value}" for name, value in POWERFUL.items()]
        body = "<!doctype html><title>of a sandbox</title><script>document.title = 'ran'</script><img src='/no-image'>"
        early = "HTTP/1.1 103 Early Hints\r\nLink: </preloaded-early>; rel=preload; as=script\r\n\r\n"
        plain = raw("Content-Type: text/html", *lines, body=body)
        hinted = "?raw=" + base64.urlsafe_b64encode(early.encode() + base64.urlsafe_b64decode(plain.removeprefix("?raw="))).decode()
        for route in OPENED:
            for query in (plain, hinted) if route in ("/v1/x", "/json/x") else (plain,):
                url = evil.url + route + query
                open_page(console, url)
                console.wait_for_load_state("networkidle")
                # A refresh and a worker would come after the load.
                console.wait_for_timeout(200)
                assert console.url == url and console.evaluate("window.origin") == "null", route
        words = ("preloaded", "report", "refreshed", "speculated", "mapped", "registered", "pinged")
        assert not [url for url in asked if any(f"/{word}" in url for word in words)], asked
        assert console.context.cookies() == []
        answer = console.goto(f"{server.url}/")
        assert answer is not None
        sent = answer.request.all_headers()
        assert not {"sec-ch-ua-model", "sec-ch-viewport-width", "dpr", "viewport-width", "device-memory", "cookie"} & sent.keys()
        assert console.evaluate("localStorage.getItem('kept')") == "1"
        assert console.evaluate("caches.keys()") == ["kept"]
        assert console.evaluate("navigator.serviceWorker.getRegistrations().then(all => all.length)") == 0

    def test_its_scripts_are_no_workers_of_the_server(self, evil: LiveSandbox, console: Page) -> None:
        script = raw("Content-Type: text/javascript", "Service-Worker-Allowed: /", body="self.x = 1")
        register = """([url, scope]) => navigator.serviceWorker.register(url, scope ? {scope} : {})
            .then(() => 'registered', error => 'refused: ' + error.message)"""
        for route in ROUTES:
            url = f"/sandbox/{evil.name}{route}{script}"
            for scope in (None, "/", f"/sandbox/{evil.name}/"):
                assert console.evaluate(register, [url, scope]).startswith("refused"), (route, scope)

    def test_it_leads_no_call_to_another_route(
        self, server: Server, evil: LiveSandbox, sandbox: Callable[..., LiveSandbox], console: Page
    ) -> None:
        sandbox("victim")
        call = """([url, method]) => fetch(url, {method, body: method == 'POST' ? '{"name": "stolen"}' : undefined,
            headers: {'content-type': 'application/json'}}).then(a => [a.url, a.status], e => ['' + e, 0])"""
        for route in ROUTES:
            for method, to in (
                ("DELETE", "/api/v2/sandboxes/victim"),
                ("DELETE", f"{server.url}/api/v2/sandboxes/victim"),
                ("DELETE", "../../../api/v2/sandboxes/victim"),
                ("DELETE", f"/sandbox/{evil.name}/v1/%2e%2e/../../../api/v2/sandboxes/victim"),
                ("DELETE", f"http://localhost:{server.port}/api/v2/sandboxes/victim"),
                ("POST", "/api/v2/sandboxes"),
            ):
                url = f"/sandbox/{evil.name}{route}" + raw(f"Location: {to}", status="307 Temporary Redirect")
                led = console.evaluate(call, [url, method])
                assert led[0].startswith(evil.url) or led[1] == 0, (route, to, led)
        with server.api() as api:
            names = {s["name"]: s["state"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]}
        assert names.get("victim") == "running" and "stolen" not in names

    def test_a_handshake_sets_no_cookie(self, evil: LiveSandbox, console: Page) -> None:
        answer = raw(
            "Upgrade: websocket", "Connection: upgrade", "Set-Cookie: planted=1; Path=/", "Clear-Site-Data: \"*\"",
            status="101 Switching Protocols",
        )
        for route in ("/v1/x", "/websockify", "/cdp/x", "/proxy/3000/x"):
            console.evaluate(
                "url => new Promise(done => { const s = new WebSocket(url); s.onopen = s.onerror = s.onclose = () => done() })",
                evil.url.replace("http", "ws") + route + answer,
            )
        assert console.context.cookies() == [] and console.evaluate("localStorage.getItem('kept')") == "1"


class TestWithoutHostsOfTheirOwn:
    """On a name below which sandboxes have no hosts, previews are pages of the server's host."""

    @pytest.fixture
    def named(self, server: Server) -> Iterator[str]:
        server.restart(("--allowed-host", "box.example"))
        yield f"http://box.example:{server.port}"
        server.restart()

    @pytest.fixture
    def elsewhere(self, playwright: Playwright) -> Iterator[Page]:
        """A browser for which that name is this machine."""
        chromium = os.environ.get("ARENITE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--host-resolver-rules=MAP box.example 127.0.0.1", "--no-proxy-server"]
        )
        yield browser.new_page()
        browser.close()

    def test_a_preview_is_no_page_of_the_server(
        self, named: str, elsewhere: Page, sandbox: Callable[..., LiveSandbox]
    ) -> None:
        live = sandbox("plain")
        program = (
            "import base64, http.server\n"
            "class H(http.server.BaseHTTPRequestHandler):\n"
            "    def log_message(self, *a): pass\n"
            "    def do_GET(self):\n"
            "        self.wfile.write(base64.urlsafe_b64decode(self.path.split('raw=')[1]) if 'raw=' in self.path else b'')\n"
            "http.server.HTTPServer(('127.0.0.1', 3000), H).serve_forever()\n"
        )
        live.client.file.write_file(file="/tmp/site.py", content=program)
        live.bash("python3 /tmp/site.py", async_mode=True)
        live.bash("for i in $(seq 200); do (echo > /dev/tcp/127.0.0.1/3000) 2>/dev/null && break; sleep 0.05; done")
        for lines in TYPES:
            url = f"{named}/sandbox/{live.name}/proxy/3000/x" + raw(*lines, "Set-Cookie: planted=1", body=PAGE)
            response = open_page(elsewhere, url)
            if response is not None:
                assert elsewhere.evaluate("window.origin") == "null", (lines, response.all_headers())
                assert "stole" not in elsewhere.title()
        assert elsewhere.context.cookies() == []


def test_the_sdk_sends_its_key_to_no_other_server(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    seen: list[dict[str, str]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    answer = f"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:{collector.server_port}/\r\nETag: \"hostile\"\r\nContent-Length: 0\r\n\r\n"
    take_over(sandbox("evil"), f"    connection.recv(65536)\n    connection.sendall({answer.encode()!r})\n")
    server.restart(("--api-key", KEY))
    try:
        led = 0
        for _ in range(60):
            plain = httpx.post(f"{server.url}/sandbox/evil/v1/bash/exec", headers={"x-aio-api-key": KEY}, json={}, timeout=60)
            led += plain.status_code == 307
            http_client = httpx.Client(headers={"X-AIO-API-Key": KEY}, timeout=60, follow_redirects=True)
            try:
                Client(base_url=f"{server.url}/sandbox/evil", httpx_client=http_client).bash.exec(command="true")
            except (ApiError, httpx.HTTPError, ValueError):
                pass
            if led >= 3:
                break
        assert led >= 3, "the sandbox's own never answered: this test tests nothing"
        assert seen == []
    finally:
        server.restart()
        collector.shutdown()
