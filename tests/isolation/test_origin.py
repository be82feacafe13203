"""A person's browser, a page that a sandbox made, and the control routes: a real Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import httpx
import pytest
from arenite_server import Server
from playwright.sync_api import Error, Page, Response
from sandboxes import LiveSandbox

#: Tries to list, make and remove sandboxes, and to run a command, from wherever it is opened.
ATTACK = """
async base => {
  const found = {};
  const attempt = async (name, path, options) => {
    try {
      const answer = await fetch(base + path, options);
      found[name] = answer.type === 'opaque' ? 'opaque' : answer.status + ' ' + (await answer.text()).slice(0, 400);
    } catch (error) { found[name] = 'refused: ' + error.message; }
  };
  const json = {'content-type': 'application/json'};
  const plain = {'content-type': 'text/plain'};
  await attempt('list', '/api/v1/sandbox');
  await attempt('list2', '/api/v2/sandboxes');
  await attempt('list with cookies', '/api/v2/sandboxes', {credentials: 'include'});
  await attempt('make', '/api/v1/sandbox', {method: 'POST', headers: json, body: '{"name": "stolen-json"}'});
  await attempt('make plain', '/api/v1/sandbox', {method: 'POST', headers: plain, body: '{"name": "stolen-plain"}'});
  await attempt('make blind', '/api/v2/sandboxes', {method: 'POST', mode: 'no-cors', headers: plain, body: '{"name": "stolen-blind"}'});
  await attempt('remove', '/api/v2/sandboxes/victim', {method: 'DELETE'});
  await attempt('pause', '/api/v2/sandboxes/victim/pause', {method: 'POST', mode: 'no-cors'});
  await attempt('run', '/sandbox/victim/v1/bash/exec', {method: 'POST', mode: 'no-cors', headers: plain, body: '{"command": "touch ~/stolen"}'});
  await attempt('run on default', '/v1/bash/exec', {method: 'POST', mode: 'no-cors', headers: plain, body: '{"command": "touch ~/stolen"}'});
  await attempt('read', '/sandbox/victim/v1/file/download?path=/home/gem/secret');
  await attempt('steps', '/api/v1/trajectories');
  await attempt('steps of one', '/sandbox/victim/steps');
  await attempt('steps here', '/steps');
  await attempt('changes', '/api/v2/sandboxes?follow=true');
  await attempt('metrics', '/metrics');
  found.socket = await new Promise(done => {
    try {
      const socket = new WebSocket(base.replace('http', 'ws') + '/sandbox/victim/v1/shell/ws');
      socket.onopen = () => { socket.send('touch ~/stolen\\n'); setTimeout(() => done('open'), 500); };
      socket.onerror = () => done('refused');
    } catch (error) { done('refused'); }
  });
  return found;
}
"""

FORM = """
<form id=f method=POST enctype=text/plain action="{base}/api/v1/sandbox">
<input name='{{"name": "stolen-form", "x": "' value='"}}'></form><script>f.submit()</script>
"""


@pytest.fixture
def victim(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    live = sandbox("victim")
    live.output("echo the-secret > ~/secret")
    return live


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Some other site on this machine."""
    folder: Path = tmp_path_factory.mktemp("foreign")
    (folder / "index.html").write_text("<title>foreign</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://localhost:{site.server_port}/index.html"
    site.shutdown()


def nothing_happened(server: Server, victim: LiveSandbox, found: dict[str, Any] | None) -> None:
    with server.api() as api:
        there = {s["name"]: s["state"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]}
    assert not [name for name in there if name.startswith("stolen")], (there, found)
    assert there.get("victim") == "running", (there, found)
    assert victim.bash("test -e ~/stolen").exit_code == 1, found
    if "default" in there:
        answer = httpx.post(f"{server.url}/v1/bash/exec", json={"command": "test -e ~/stolen"}).json()
        assert answer["data"]["exit_code"] == 1, found
    if found is not None:
        text = json.dumps(found)
        assert victim.id not in text and "the-secret" not in text, found
        assert found["socket"] == "refused", found


class TestForeignPage:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_by_script(self, server: Server, victim: LiveSandbox, foreign: str, page: Page, host: str) -> None:
        page.goto(foreign)
        nothing_happened(server, victim, page.evaluate(ATTACK, f"http://{host}:{server.port}"))

    def test_by_form(self, server: Server, victim: LiveSandbox, foreign: str, page: Page) -> None:
        page.goto(foreign)
        page.set_content(FORM.format(base=server.url))
        page.wait_for_load_state("networkidle")
        nothing_happened(server, victim, None)

    def test_with_no_origin_at_all(self, server: Server, victim: LiveSandbox, page: Page) -> None:
        page.goto("data:text/html,<title>null origin</title>")
        nothing_happened(server, victim, page.evaluate(ATTACK, server.url))

    def test_a_rebound_name(self, server: Server, victim: LiveSandbox) -> None:
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
            answer = httpx.get(f"{server.url}/api/v2/sandboxes", headers={"host": host})
            assert answer.status_code in (400, 403, 404, 421), (host, answer.text)
            assert "victim" not in answer.text


#: A page of the guest's place-taker at every path, with all that a page could wish for.
PAGE = r'''
    connection.recv(65536)
    body = b"<!doctype html><title>of a sandbox</title><script>document.title += ' that ran'</script>"
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: planted=1; Path=/\r\nService-Worker-Allowed: /\r\n"
        b"Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
'''


class TestPageOfASandbox:
    """Whatever a sandbox can get a browser to show under its path must not be able to use the control routes."""

    @pytest.fixture
    def evil(self, sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
        live = sandbox("evil")
        live.client.file.write_file(file="/home/gem/page.html", content="<!doctype html><title>of a sandbox</title>")
        live.client.file.write_file(file="/tmp/page.py", content=hostile.program(PAGE))
        running = live.bash("sudo python3 /tmp/page.py", async_mode=True)
        try:
            live.client.bash.output(session_id=running.session_id, command_id=running.command_id, wait=True, wait_timeout=5)
        except Exception:  # noqa: BLE001 - from here on its answers are not the guest's
            pass
        return live

    def open(self, page: Page, url: str) -> Response:
        """Until it is the hostile page: the guest accepts connections, too."""
        for _ in range(60):
            response = page.goto(url)
            assert response is not None
            if page.title().startswith("of a sandbox"):
                return response
        raise AssertionError(f"{url} never showed the sandbox's own page: this test tests nothing")

    @pytest.mark.parametrize("kind", ["path", "host"])
    def test_it_has_no_power(self, server: Server, victim: LiveSandbox, evil: LiveSandbox, page: Page, kind: str) -> None:
        urls = evil.details()["urls"]
        response = self.open(page, urls[kind] + "v1/sandbox")
        headers = response.all_headers()
        for header in ("set-cookie", "service-worker-allowed", "access-control-allow-origin", "access-control-allow-credentials"):
            assert header not in headers
        assert page.context.cookies() == []
        # Either no origin at all, or one that is the sandbox's alone.
        origin = page.evaluate("window.origin")
        assert origin in ("null", urls["host"].rstrip("/")), origin
        for base in (server.url, f"http://localhost:{server.port}", urls["host"].rstrip("/"), urls["path"].rstrip("/")):
            nothing_happened(server, victim, page.evaluate(ATTACK, base))

    def test_a_file_is_a_download_and_no_page(self, evil: LiveSandbox, sandbox: Callable[..., LiveSandbox], page: Page) -> None:
        honest = sandbox("honest")
        honest.client.file.write_file(file="/home/gem/page.html", content="<!doctype html><title>of a sandbox</title>")
        with pytest.raises(Error, match="Download|ERR_ABORTED"):
            page.goto(honest.details()["urls"]["path"] + "v1/file/download?path=/home/gem/page.html")

    def test_a_sandboxs_host_serves_that_sandbox_alone(self, server: Server, victim: LiveSandbox, evil: LiveSandbox) -> None:
        host = evil.details()["urls"]["host"].removeprefix("http://").rstrip("/")
        for path in ("/api/v2/sandboxes", "/api/v1/sandbox", "/api/v1/trajectories", "/metrics", "/sandbox/victim/v1/sandbox", "/"):
            answer = httpx.get(f"{server.url}{path}", headers={"host": host})
            assert victim.id not in answer.text, (path, answer.text)
        made = httpx.post(f"{server.url}/api/v2/sandboxes", headers={"host": host}, json={"name": "stolen-by-host"})
        assert made.status_code in (403, 404, 405), made.text
        nothing_happened(server, victim, None)
