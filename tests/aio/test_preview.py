"""Previews: what listens on a port of a sandbox, by every way in, and nothing else by any of them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from arenite_server import Server
from playwright.sync_api import Page
from sandboxes import LiveSandbox
from websockets.sync.client import connect

#: A website with a cookie, an absolute path, a redirect, events and a WebSocket that answers in capitals.
SITE = r'''
import base64, hashlib, http.server, json, socket, sys

PAGE = """<!doctype html><title>loading</title><script src="/app.js"></script>"""
APP = """
(async () => {
  const told = await (await fetch('/told')).json();
  const socket = new WebSocket('ws://' + location.host + '/socket');
  const said = await new Promise((done, failed) => {
    socket.onopen = () => socket.send('hello');
    socket.onmessage = event => done(event.data);
    socket.onerror = failed;
  });
  document.title = [window.origin === location.origin, told.cookie, said].join(' ');
})();
"""

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args): pass

    def answer(self, body, kind="text/html", status=200, **headers):
        body = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if "websocket" in self.headers.get("upgrade", "").lower():
            return self.socket()
        if path.endswith("/page"):
            return self.answer(PAGE, set_cookie="site=mine; Domain=localhost; Path=/")
        if path == "/app.js":
            return self.answer(APP, "text/javascript")
        if path.endswith("/redirect"):
            return self.answer("", status=302, location="http://localhost:3000/there")
        told = {"path": self.path, "cookie": self.headers.get("cookie"), "headers": {k.lower(): v for k, v in self.headers.items()}}
        self.answer(json.dumps(told), "application/json")

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        self.answer(json.dumps({"size": len(self.rfile.read(length))}), "application/json")

    def socket(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size))).upper()
            self.wfile.write(bytes([0x81, len(text)]) + text)

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET

Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
'''


def serve(live: LiveSandbox, address: str = "127.0.0.1", port: int = 3000) -> None:
    live.client.file.write_file(file="/tmp/site.py", content=SITE)
    live.bash(f"python3 /tmp/site.py {address} {port}", async_mode=True)
    target = f"[{address}]" if ":" in address else address
    live.output(f"for i in $(seq 100); do curl -gs http://{target}:{port}/ && exit 0; sleep 0.1; done; exit 1")


@pytest.fixture
def site(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    live = sandbox()
    serve(live)
    return live


def test_all_four_ways_and_their_paths(server: Server, site: LiveSandbox) -> None:
    own = {"host": f"3000-{site.id}.localhost:{server.port}"}
    for path, headers, seen in [
        (f"/sandbox/{site.name}/proxy/3000/a%2Fb?c=%2F", {}, "/a%2Fb?c=%2F"),
        (f"/sandbox/{site.name}/absproxy/3000/a%2Fb", {}, "/absproxy/3000/a%2Fb"),
        ("/a%2Fb", own, "/a%2Fb"),
        ("/v1/bash/exec", own, "/v1/bash/exec"),
        (f"/sandbox/{site.name}/v1/sandbox", {"x-aio-proxy-port": "3000"}, "/v1/sandbox"),
        ("/proxy/3000/x", {"x-arenite-sandbox": site.name}, "/x"),
    ]:
        answer = httpx.get(f"{server.url}{path}", headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        told = answer.json()
        assert told["path"] == seen, path
        assert told["headers"]["host"] == headers.get("host", f"127.0.0.1:{server.port}")
        assert "x-aio-proxy-port" not in told["headers"]
    prefixed = httpx.get(f"{site.url}/proxy/3000/x").json()["headers"]
    assert prefixed["x-forwarded-prefix"] == f"/sandbox/{site.name}/proxy/3000"
    assert prefixed["x-forwarded-for"] == "127.0.0.1"
    led = httpx.get(f"{site.url}/proxy/3000/redirect")
    assert (led.status_code, led.headers["location"]) == (302, f"/sandbox/{site.name}/proxy/3000/there")
    posted = httpx.post(f"{site.url}/proxy/3000/upload", content=b"x" * (8 << 20), timeout=60)
    assert posted.json() == {"size": 8 << 20}


def test_of_the_sandbox_default(server: Server) -> None:
    httpx.get(f"{server.url}/v1/sandbox", timeout=60).raise_for_status()
    serve(LiveSandbox(server.url, "default"), port=3100)
    assert httpx.get(f"{server.url}/proxy/3100/x").json()["path"] == "/x"
    assert httpx.get(f"{server.url}/x", headers={"host": "3100-localhost"}).json()["path"] == "/x"


@pytest.mark.parametrize("address", ["0.0.0.0", "::1"])
def test_whatever_address_the_program_took(sandbox: Callable[..., LiveSandbox], address: str) -> None:
    live = sandbox()
    serve(live, address)
    assert httpx.get(f"{live.url}/proxy/3000/x").json()["path"] == "/x"


def test_websockets(server: Server, site: LiveSandbox) -> None:
    base = f"ws://127.0.0.1:{server.port}"
    for address, headers in [
        (f"{base}/sandbox/{site.name}/proxy/3000/socket", {}),
        (f"{base}/sandbox/{site.name}/socket", {"x-aio-proxy-port": "3000"}),
    ]:
        with connect(address, additional_headers=headers, compression=None) as socket:
            socket.send("hello")
            assert socket.recv(timeout=10) == "HELLO"


@pytest.fixture
def host_site() -> Iterator[int]:
    """Something on the host's loopback, which no sandbox may reach."""
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield site.server_port
    site.shutdown()


def test_nothing_else_is_reached(
    server: Server, site: LiveSandbox, sandbox: Callable[..., LiveSandbox], host_site: int
) -> None:
    other = sandbox()
    # The other sandbox's port, the host's, and this server's own.
    for live, port in [(other, 3000), (site, host_site), (site, server.port)]:
        answer = httpx.get(f"{live.url}/proxy/{port}/")
        assert answer.status_code == 502, (port, answer.text)
        assert "nothing listens" in answer.json()["message"] and answer.json()["hint"]
    for path, headers in [
        (f"/sandbox/{site.name}/proxy/8080/v1/sandbox", {}),
        (f"/sandbox/{site.name}/proxy/08080/v1/sandbox", {}),
        (f"/sandbox/{site.name}/absproxy/8080/v1/sandbox", {}),
        ("/v1/sandbox", {"host": f"8080-{site.id}.localhost"}),
        ("/v1/sandbox", {"host": "8080-localhost"}),
        ("/v1/sandbox", {"x-aio-proxy-port": "8080"}),
    ]:
        answer = httpx.get(f"{server.url}{path}", headers=headers)
        assert answer.status_code == 403, (path, headers, answer.text)
    for header in ("3000x", "-1", "0", "65536", "3000,3000"):
        assert httpx.get(f"{server.url}/", headers={"x-aio-proxy-port": header}).status_code == 400
    # A server in a sandbox leads nowhere else either.
    for target in ("http://169.254.169.254/", f"http://127.0.0.1:{host_site}/"):
        assert httpx.get(f"{site.url}/proxy/3000/{target}").json()["path"] == f"/{target}"


def test_previews_are_no_steps(server: Server, site: LiveSandbox) -> None:
    def steps() -> int:
        answer = httpx.get(f"{server.url}/api/v1/trajectories/{site.id}", params={"limit": 1000})
        return len(answer.raise_for_status().json()["steps"])

    before = steps()
    assert httpx.get(f"{site.url}/proxy/3000/x").status_code == 200
    assert steps() == before


class TestInABrowser:
    def test_a_page_has_an_origin_of_its_own(self, server: Server, site: LiveSandbox, page: Page) -> None:
        page.goto(f"{site.url}/proxy/3000/page?x=1")
        assert page.url == f"http://3000-{site.id}.localhost:{server.port}/page?x=1"
        # Its script, its cookie and its WebSocket work.
        page.wait_for_function("document.title !== 'loading'")
        assert page.title() == "true site=mine HELLO"
        cookies = page.context.cookies()
        assert [(c["name"], c["domain"]) for c in cookies] == [("site", f"3000-{site.id}.localhost")]
        answer = page.evaluate(
            "base => fetch(base + '/api/v2/sandboxes').then(a => a.status, error => 'refused')", server.url
        )
        assert answer in ("refused", 403)

    def test_nothing_listens(self, site: LiveSandbox, page: Page) -> None:
        response = page.goto(f"{site.url}/proxy/3999/")
        assert response is not None and response.status == 502
        assert "nothing listens on port 3999" in page.inner_text("main")
