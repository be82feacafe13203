"""The DevTools protocol through the gateway: Playwright by `cdp_url`, several clients at once, and addresses that lead back."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.browser import Action_MoveTo
from cdp import Tab, tab
from playwright.sync_api import Browser, Error, Playwright
from sandboxes import LiveSandbox
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

SITE = """from http.server import *
class Site(BaseHTTPRequestHandler):
    def answer(self, body, kind='text/html', **headers):
        self.send_response(200)
        for name, value in {'content-type': kind, **headers}.items(): self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body.encode())
    def do_GET(self):
        if self.path == '/report.csv': return self.answer('a,b\\n1,2\\n', 'text/csv', content_disposition='attachment; filename="report.csv"')
        self.answer('<title>Login</title><form method=post action=/in>Name <input name=user> Word <input name=word type=password><button>Log in</button></form>')
    def do_POST(self):
        sent = self.rfile.read(int(self.headers['content-length'])).decode()
        self.answer(f'<title>Inside</title><h1>{sent}</h1><a href=/report.csv>Report</a>', set_cookie='in=yes')
    def log_message(self, *args): pass
ThreadingHTTPServer(('127.0.0.1', 8002), Site).serve_forever()
"""


@pytest.fixture(scope="module")
def site(browsing: LiveSandbox) -> str:
    browsing.client.file.write_file(file="/tmp/site.py", content=SITE)
    browsing.bash("python3 /tmp/site.py", async_mode=True)
    browsing.output("until curl -s -o /dev/null http://127.0.0.1:8002/; do sleep 0.05; done", timeout=20)
    return "http://127.0.0.1:8002"


@pytest.fixture
def remote(browsing: LiveSandbox, playwright: Playwright) -> Iterator[Browser]:
    remote = playwright.chromium.connect_over_cdp(browsing.client.browser.get_info().data.cdp_url)
    yield remote
    remote.close()


def test_playwright_logs_in_and_downloads(browsing: LiveSandbox, site: str, remote: Browser) -> None:
    context = remote.new_context()
    page = context.new_page()
    page.goto(site)
    page.fill("input[name=user]", "gem")
    page.fill("input[name=word]", "stone")
    page.get_by_role("button", name="Log in").click()
    assert page.inner_text("h1") == "user=gem&word=stone"
    assert context.cookies()[0]["name"] == "in"
    with page.expect_download() as download:
        page.get_by_text("Report").click()
    assert download.value.suggested_filename == "report.csv" and download.value.failure() is None
    assert page.screenshot().startswith(b"\x89PNG")
    context.close()


def test_what_pages_download_is_in_downloads(browsing: LiveSandbox, site: str) -> None:
    with tab(browsing, None) as opened:
        opened.call("Page.navigate", url=f"{site}/report.csv")
        browsing.output("until test -s ~/Downloads/report.csv; do sleep 0.05; done", timeout=20)
    assert browsing.output("cat ~/Downloads/report.csv") == "a,b\n1,2"


def test_a_new_browser_has_nothing_but_its_tab(browsing: LiveSandbox) -> None:
    with connect(browsing.client.browser.get_info().data.cdp_url) as socket:
        # What the browser loads for itself, such as suggestions of its address bar, costs each sandbox a renderer.
        targets = Tab(socket).call("Target.getTargets", filter=[{}])["targetInfos"]
    own = [target for target in targets if target["url"].startswith("chrome")]
    assert own == []


def test_several_clients_and_rest_at_once(browsing: LiveSandbox, site: str, remote: Browser) -> None:
    page = remote.new_context().new_page()
    page.goto(site)
    page.evaluate("document.title = 'mine'")
    with tab(browsing, "<title>second</title>") as second, tab(browsing, "<title>third</title>") as third:
        browsing.client.browser.execute_action(request=Action_MoveTo(x=9, y=9))
        assert (second.value("document.title"), third.value("document.title"), page.title()) == ("second", "third", "mine")
        titles = {target["title"] for target in browsing.http.get("/cdp/json/list").json()}
        assert {"mine", "second", "third"} <= titles
    # One client's end is nothing to the others.
    assert page.title() == "mine"
    page.context.close()


def test_large_messages_pass(browsing: LiveSandbox) -> None:
    with tab(browsing, None) as opened:
        text = opened.value("'é'.repeat(20 << 20)")
        assert len(text) == 20 << 20
        assert opened.value(f"{'x' * (4 << 20)!r}.length") == 4 << 20
        opened.run("document.body.style.height = '20000px'")
        picture = opened.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                              clip={"x": 0, "y": 0, "width": 1280, "height": 20000, "scale": 1})
        assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")


def test_addresses_lead_back_here(browsing: LiveSandbox) -> None:
    place = browsing.url.removeprefix("http://")
    for root in ("/cdp/json", "/json"):
        version = browsing.http.get(f"{root}/version").json()
        assert version["webSocketDebuggerUrl"].startswith(f"ws://{place}/cdp/devtools/browser/")
        assert version["Browser"].startswith("Chrome/")
        for path in ("", "/", "/list"):
            for target in browsing.http.get(f"{root}{path}").json():
                assert target["webSocketDebuggerUrl"] == f"ws://{place}/cdp/devtools/page/{target['id']}"
                assert f"ws={place}/cdp/devtools/page/" in target.get("devtoolsFrontendUrl", f"ws={place}/cdp/devtools/page/")
    assert browsing.http.get("/json/version/").status_code == 200
    # On the sandbox's own host, and by whom a proxy in front names.
    port = browsing.base_url.rsplit(":", 1)[1]
    host = f"{browsing.id}.localhost:{port}"
    answer = httpx.get(f"{browsing.base_url}/json/version", headers={"Host": host})
    assert answer.json()["webSocketDebuggerUrl"].startswith(f"ws://{host}/cdp/devtools/browser/")
    made = browsing.http.put("/json/new?about:blank").json()
    assert browsing.http.get(f"/json/activate/{made['id']}").status_code == 200
    assert browsing.http.get(f"/json/close/{made['id']}").status_code == 200
    assert browsing.http.get("/json/close/nonsense").status_code == 404
    assert "domains" in browsing.http.get("/json/protocol").json()


def test_an_address_outlives_its_browser(browsing: LiveSandbox, playwright: Playwright) -> None:
    url = browsing.client.browser.get_info().data.cdp_url
    with connect(url) as socket:
        browsing.client.browser.restart()
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=20)
    again = playwright.chromium.connect_over_cdp(url)
    assert again.version
    again.close()


def test_nonsense_is_refused(browsing: LiveSandbox, playwright: Playwright) -> None:
    root = browsing.url.replace("http", "ws")
    for path in ("/cdp/devtools/page/nonsense", "/cdp/devtools/nonsense"):
        with pytest.raises(InvalidStatus) as refused, connect(f"{root}{path}"):
            pass
        assert refused.value.response.status_code == 404, path
    with pytest.raises(InvalidStatus) as refused, connect(browsing.client.browser.get_info().data.cdp_url, origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    with connect(browsing.client.browser.get_info().data.cdp_url) as socket:
        socket.send("nonsense")
        assert "error" in socket.recv(timeout=20)
    with pytest.raises(Error):
        playwright.chromium.connect_over_cdp(f"{browsing.url}/cdp/json/nonsense")


def test_a_tab_that_closes_ends_its_clients(browsing: LiveSandbox) -> None:
    made = browsing.http.put("/cdp/json/new?about:blank").json()
    with connect(made["webSocketDebuggerUrl"]) as socket:
        browsing.http.get(f"/cdp/json/close/{made['id']}")
        deadline = time.monotonic() + 20
        with pytest.raises(ConnectionClosed):
            while time.monotonic() < deadline:
                socket.recv(timeout=20)


def test_the_bare_port_has_it_too(client: Client, base_url: str) -> None:
    """The sandbox `default` is of another image, and says which one has a browser."""
    answer = httpx.get(f"{base_url}/json/version")
    assert answer.status_code == 424 and "`browser`" in answer.json()["hint"]
