"""Keys, tokens, tickets and signing in, on a server that asks for them; and the SDK with them."""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server, binary
from consoles import heading, row
from playwright.sync_api import Page, expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

KEY = "a-key-for-tests-0123456789"
NAME = "guarded"


@pytest.fixture(scope="module")
def guarded(server: Server) -> Iterator[Server]:
    """The same server, restarted with a key."""
    httpx.delete(f"{server.url}/api/v2/sandboxes/default", timeout=60)
    server.stop()
    server.start(("--api-key", KEY, "--ticket-ttl-seconds", "3"))
    made = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": NAME}, headers={"x-api-key": KEY}, timeout=60)
    assert made.status_code == 201, made.text
    yield server
    httpx.delete(f"{server.url}/api/v2/sandboxes/{NAME}", headers={"x-api-key": KEY}, timeout=60)
    server.restart()


def client(server: Server, headers: dict[str, str]) -> Client:
    http = httpx.Client(headers=headers, timeout=60)
    return Client(base_url=f"{server.url}/sandbox/{NAME}", httpx_client=http)


def test_the_sdk_with_and_without_a_key(guarded: Server) -> None:
    for headers in ({"X-AIO-API-Key": KEY}, {"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        answer = client(guarded, headers).bash.exec(command="env; cat /proc/self/environ /proc/1/environ")
        assert answer.success
        # Nothing in the sandbox knows it.
        assert KEY not in (answer.data.stdout or "") + (answer.data.stderr or "")
    for headers in ({}, {"X-AIO-API-Key": "wrong"}, {"Authorization": "Bearer a.b.c"}):
        with pytest.raises(ApiError) as refused:
            client(guarded, headers).bash.exec(command="true")
        assert refused.value.status_code == 401
        assert refused.value.body["message"] == "Unauthorized" and refused.value.body["success"] is False


def test_what_needs_no_key(guarded: Server) -> None:
    for path in ("/health", "/ready", "/healthz", "/v1/ping", "/static/sandbox/xterm@5.3.0/css/xterm.css"):
        assert httpx.get(f"{guarded.url}{path}").status_code == 200, path
    with guarded.api(headers={"x-api-key": KEY}) as api:
        names = [s["name"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]]
    assert "default" not in names, "a ping without a key made a sandbox"
    for path in ("/", "/v1/docs", "/v1/sandbox", "/metrics", "/api/v2/sandboxes", "/api/v1/trajectories", "/proxy/3000/"):
        assert httpx.get(f"{guarded.url}{path}").status_code == 401, path


def test_mcp_asks_for_the_key_in_every_transport(guarded: Server) -> None:
    call = {"method": "tools/call", "params": {"name": "sandbox_execute_bash", "arguments": {"cmd": "hostname"}}}
    for path in ("/mcp", "/v1/mcp", f"/sandbox/{NAME}/mcp", "/mcp/messages?session_id=x"):
        assert httpx.post(f"{guarded.url}{path}", json=call).status_code == 401, path
    for path in ("/mcp/sse", "/sse", f"/sandbox/{NAME}/mcp/sse"):
        assert httpx.get(f"{guarded.url}{path}").status_code == 401, path
    answer = httpx.post(f"{guarded.url}/sandbox/{NAME}/mcp", json=call, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert answer.json()["result"]["structuredContent"]["output"] == NAME
    line = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n'
    for key, words in ((KEY, '"createSandbox"'), ("wrong", "the server asks for a key")):
        command = [str(binary()), "mcp", "--server", guarded.url]
        said = subprocess.run(command, input=line, env={"ARENITE_API_KEY": key}, capture_output=True, text=True, timeout=60)
        assert words in said.stdout, said


def test_tickets(guarded: Server) -> None:
    auth = client(guarded, {"Authorization": f"Bearer {KEY}"}).auth
    first, second = auth.create_ticket(), auth.create_ticket()
    assert first["ticket"] != second["ticket"] and first["expires_in"] == 3
    socket = f"ws://127.0.0.1:{guarded.port}/sandbox/{NAME}/v1/shell/ws"
    for _ in range(2):
        with connect(f"{socket}?ticket={first['ticket']}") as terminal:
            assert "session_id" in terminal.recv(timeout=10)
    with pytest.raises(InvalidStatus) as refused:
        connect(socket)
    assert refused.value.response.status_code == 401
    original = {"x-original-uri": f"/vnc/index.html?ticket={first['ticket']}"}
    told = httpx.get(f"{guarded.url}/auth", headers=original)
    assert told.status_code == 200 and all(isinstance(v, str) for v in told.json().values())
    assert httpx.get(f"{guarded.url}/auth").status_code == 401
    assert client(guarded, {"Authorization": f"Bearer {KEY}"}).auth.authenticate()
    deadline = time.monotonic() + 15
    while httpx.get(f"{guarded.url}/auth", headers=original).status_code == 200:
        assert time.monotonic() < deadline, "the ticket never ended"
        time.sleep(0.2)


def test_the_browser_and_the_desktop_ask_for_a_ticket_too(guarded: Server) -> None:
    """The image has neither, and says so to whoever is let in."""
    root = f"{guarded.url}/sandbox/{NAME}"
    for path in ("/cdp/json/version", "/json/list"):
        assert httpx.get(f"{root}{path}").status_code == 401, path
        ticket = httpx.post(f"{guarded.url}/tickets", headers={"x-api-key": KEY}).json()["ticket"]
        assert httpx.get(f"{root}{path}?ticket={ticket}").status_code == 424, path
    for path in ("/websockify", "/cdp/devtools/browser/x"):
        socket = f"{root.replace('http', 'ws')}{path}"
        for query, status in (("", 401), (f"?ticket={ticket}", 424)):
            with pytest.raises(InvalidStatus) as refused, connect(socket + query):
                pass
            assert refused.value.response.status_code == status, path
    page = httpx.get(f"{root}/vnc/index.html?ticket={ticket}")
    assert page.status_code == 200 and "<title>Desktop" in page.text
    assert "<title>Desktop" not in httpx.get(f"{root}/vnc/index.html").text


def test_no_credential_is_written_down(guarded: Server) -> None:
    ticket = httpx.post(f"{guarded.url}/tickets", headers={"x-api-key": KEY}).json()["ticket"]
    path = f"/sandbox/{NAME}/v1/sandbox?ticket={ticket}&api_key={KEY}"
    assert httpx.get(f"{guarded.url}{path}").status_code == 200
    for file in [guarded.log_path, *(guarded.data_dir / "trajectories").rglob("*")]:
        if file.is_file():
            text = file.read_bytes()
            assert KEY.encode() not in text and ticket.encode() not in text, file


def test_the_command_line_shows_the_key(guarded: Server) -> None:
    def ls(**more: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "ARENITE_SERVER": guarded.url, **more}
        return subprocess.run([str(binary()), "ls"], env=env, capture_output=True, text=True, timeout=60)

    assert NAME in ls(ARENITE_API_KEY=KEY).stdout
    refused = ls()
    assert refused.returncode != 0 and "ARENITE_API_KEY" in refused.stderr, refused


@pytest.mark.parametrize(("arguments", "listens"), [((), False), (("--api-key", KEY), True)])
def test_beyond_loopback_only_with_a_key(tmp_path: Path, arguments: tuple[str, ...], listens: bool) -> None:
    command = [str(binary()), "serve", "--show-config", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:8080", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (shown.returncode == 0) == listens, shown
    assert KEY not in shown.stdout + shown.stderr
    if not listens:
        assert "api_key" in shown.stderr.lower()


def test_a_flood_of_silent_connections_keeps_nobody_out(guarded: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    sent = [b"", b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HT", b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"]
    silent = []
    try:
        for at in range(4_000):
            silent.append(socket.create_connection(("127.0.0.1", guarded.port), timeout=30))
            silent[-1].sendall(sent[at % len(sent)])
        for _ in range(10):
            assert httpx.get(f"{guarded.url}/healthz", timeout=30).status_code == 200
            assert httpx.get(f"{guarded.url}/api/v2/sandboxes", headers={"x-api-key": KEY}, timeout=30).status_code == 200
        # Those that were first have made way.
        for connection in silent[:1_000]:
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    finally:
        for connection in silent:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SITE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        body = ("<title>%s</title><p>%s" % (self.path, self.headers.get("cookie"))).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""


class TestInABrowser:
    def sign_in(self, page: Page, url: str, key: str = KEY) -> None:
        page.goto(url)
        page.fill("#key", key)
        page.click("button")

    def test_signing_in(self, guarded: Server, page: Page) -> None:
        self.sign_in(page, f"{guarded.url}/", "wrong")
        page.wait_for_selector("#message:not(:empty)")
        page.fill("#key", KEY)
        page.click("button")
        expect(row(page, NAME)).to_be_visible()
        (cookie,) = page.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["value"] != KEY
        page.goto(f"{guarded.url}/v1/docs")
        expect(heading(page)).to_have_text("AIO API")

    def test_a_ticket_opens_the_terminal(self, guarded: Server, page: Page) -> None:
        ticket = httpx.post(f"{guarded.url}/tickets", headers={"x-api-key": KEY}).json()["ticket"]
        page.goto(f"{guarded.url}/sandbox/{NAME}/terminal?ticket={ticket}")
        assert ticket not in page.url
        page.wait_for_selector("#state.good")

    def test_a_preview_is_opened_signed_in(self, guarded: Server, page: Page) -> None:
        sdk = client(guarded, {"x-api-key": KEY})
        sdk.file.write_file(file="/tmp/site.py", content=SITE)
        sdk.bash.exec(command="python3 /tmp/site.py", async_mode=True)
        sdk.bash.exec(command="for i in $(seq 100); do curl -s localhost:3000/ && break; sleep 0.1; done")
        self.sign_in(page, f"{guarded.url}/")
        expect(heading(page)).to_have_text("Sandboxes")
        page.goto(f"{guarded.url}/sandbox/{NAME}/proxy/3000/x?a=b")
        assert page.title() == "/x?a=b" and page.inner_text("p") == "None"
        assert ".localhost:" in page.url and "ticket" not in page.url
        # It stays so.
        page.reload()
        assert page.title() == "/x?a=b" and page.inner_text("p") == "None"
        page.context.clear_cookies()
        page.reload()
        assert "Not signed in here" in page.inner_text("h1")
