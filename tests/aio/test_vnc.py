"""The desktop's page in a real Chromium: what is drawn there is seen here, and hands here reach it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from cdp import tab
from playwright.sync_api import Page
from sandboxes import LiveSandbox
from websockets.sync.client import connect

NOTES = """<!doctype html><title>{title}</title><body style="margin:0;background:#20c060">
<textarea autofocus style="position:fixed;left:0;top:0;width:400px;height:200px"></textarea>
<script>window.clicks = []; addEventListener('click', e => clicks.push([e.screenX, e.screenY]), true);</script>"""

# The colour of one place of the desktop, as the page shows it.
COLOUR = """([x, y]) => { const canvas = document.querySelector('#screen canvas');
    return canvas ? [...canvas.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)] : null; }"""


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_eyes_and_hands(browsing: LiveSandbox, page: Page, scheme: str) -> None:
    mistakes: list[str] = []
    page.on("console", lambda message: mistakes.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.emulate_media(color_scheme=scheme)
    with tab(browsing, NOTES.format(title=uuid.uuid4().hex)) as shown:
        page.goto(browsing.client.browser.get_info().data.vnc_url)
        page.wait_for_selector("#state.good", timeout=30_000)
        page.wait_for_function("() => document.getElementById('size').textContent === '1280 × 1024'")
        page.wait_for_function(f"() => String(({COLOUR})([900, 800])) === '32,192,96'", timeout=15_000)
        box = page.locator("#screen canvas").bounding_box()
        scale = box["width"] / 1280
        page.mouse.click(box["x"] + 900 * scale, box["y"] + 800 * scale)
        shown.wait("clicks.length === 1")
        assert all(abs(a - b) <= 2 for a, b in zip(shown.value("clicks[0]"), (900, 800)))
        shown.run("document.querySelector('textarea').focus()")
        page.keyboard.type("Typed from afar: ABC {}[]~@#1")
        shown.wait("document.querySelector('textarea').value === 'Typed from afar: ABC {}[]~@#1'", shown="document.querySelector('textarea').value")
        picture(page, f"vnc-{scheme}")
        page.click("#watch")
        page.mouse.click(box["x"] + 900 * scale, box["y"] + 700 * scale)
        page.click("#watch")
        page.mouse.click(box["x"] + 900 * scale, box["y"] + 600 * scale)
        shown.wait("clicks.length === 2")
        assert abs(shown.value("clicks[1][1]") - 600) <= 2, "who only watches has no hands"
        # Another desktop takes the place of one that ended, and the page shows it.
        browsing.output("kill -KILL $(pgrep -o -x Xvnc)")
    page.wait_for_selector("#state:not(.good)", timeout=30_000)
    page.wait_for_selector("#state.good", timeout=60_000)
    # While the old one ended, the new one could not be had yet.
    expected = ("websockify", "WebSocket", "status of 424")
    assert not [mistake for mistake in mistakes if not any(part in mistake for part in expected)], mistakes


def test_it_works_on_every_path(browsing: LiveSandbox, page: Page) -> None:
    port = browsing.base_url.rsplit(":", 1)[1]
    for root in (browsing.url, f"http://{browsing.id}.localhost:{port}"):
        for path in ("/vnc/", "/vnc/index.html?autoconnect=true", "/vnc/vnc.html"):
            page.goto(root + path)
            page.wait_for_selector("#state.good", timeout=30_000)


def test_the_socket_speaks_vnc(browsing: LiveSandbox) -> None:
    with connect(f"{browsing.url.replace('http', 'ws')}/websockify", subprotocols=["binary"]) as socket:
        assert socket.subprotocol == "binary"
        assert socket.recv(timeout=20).startswith(b"RFB 003.008")
        assert browsing.output("ls /tmp/.X11-unix").strip() == "X99"
        ports = browsing.output("cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"0A\" { print $2 }' | cut -d: -f2 | sort -u").split()
        # The guest's and the browser's: the X server and VNC listen on none.
        assert ports == ["1F90", "2406"], ports


def test_an_image_without_it_says_so(sandbox, page: Page) -> None:
    live = sandbox()
    page.goto(f"{live.url}/vnc/index.html")
    page.wait_for_selector("#state.bad", timeout=30_000)
    assert "`browser`" in page.inner_text("#state")
