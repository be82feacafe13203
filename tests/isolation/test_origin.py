"""A person's browser, a page that a sandbox made, and the control routes: a real Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from playwright.sync_api import Browser, Page, sync_playwright
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("ARENITE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.fail("no chromium found; install it (apt-get install chromium) or set ARENITE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                "--disable-component-update", "--disable-sync",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


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
        assert "victim" not in text and "the-secret" not in text, found
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


class TestPageOfASandbox:
    """Whatever a sandbox can get a browser to show under its path must not be able to use the control routes."""

    PAGE = "<!doctype html><title>of a sandbox</title><script>window.ran = true</script>"

    def urls(self, live: LiveSandbox) -> list[str]:
        """Every address where this sandbox's own bytes can come to a browser."""
        urls = live.details()["urls"]
        ways = ["v1/file/download?path=/home/gem/page.html", "page.html", "proxy/9100/page.html", "absproxy/9100/page.html"]
        return [base + way for base in (urls["path"], urls["host"]) for way in ways]

    def test_it_has_no_power(self, server: Server, victim: LiveSandbox, sandbox: Callable[..., LiveSandbox], page: Page) -> None:
        live = sandbox("evil-page")
        live.client.file.write_file(file="/home/gem/page.html", content=self.PAGE)
        live.bash("cd ~ && exec python3 -m http.server 9100 --bind 127.0.0.1", async_mode=True)
        for url in self.urls(live):
            try:
                page.goto(url)
            except Exception as error:  # noqa: BLE001 - a download is no page
                assert "ERR_ABORTED" in str(error) or "Download" in str(error), error
                continue
            nothing_happened(server, victim, page.evaluate(ATTACK, server.url))

    def test_a_hostile_guests_answers_are_stripped(self, server: Server, victim: LiveSandbox, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox("evil-head")
        answer = live.http.get("/v1/sandbox", headers={"origin": "http://evil.example"})
        for header in ("set-cookie", "access-control-allow-origin", "service-worker-allowed"):
            assert header not in answer.headers
