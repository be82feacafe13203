"""The terminal's page in a real Chromium: type, resize, load again and go on; and several people at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
from agent_sandbox import Sandbox as Client
from arenite_server import Server
from playwright.sync_api import Page
from sandboxes import LiveSandbox

SHOWN = "() => [...document.querySelectorAll('.xterm-rows > div')].map(row => row.textContent.replaceAll('\\u00a0', ' ')).join('\\n')"


def shown(page: Page) -> str:
    return page.evaluate(SHOWN)


def wait_for(page: Page, text: str) -> None:
    page.wait_for_function(f"text => ({SHOWN})().includes(text)", arg=text, timeout=15_000)


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def opened(page: Page, url: str) -> Page:
    page.goto(url)
    page.wait_for_selector("#state.good")
    return page


def test_type_resize_load_again_and_go_on(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    mistakes: list[str] = []
    page.on("console", lambda message: mistakes.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    opened(page, f"{live.url}/terminal")
    page.keyboard.type("cd /tmp; mine=$((6 * 7)); echo \"got $mine\"\n")
    wait_for(page, "got 42")
    page.set_viewport_size({"width": 640, "height": 360})
    page.wait_for_function("() => parseInt(document.getElementById('size').textContent) < 80")
    columns, rows = (int(n) for n in page.inner_text("#size").split(" × "))
    page.keyboard.type("stty size\n")
    wait_for(page, f"{rows} {columns}")
    address = page.url
    assert "session_id=" in address
    picture(page, "terminal-small")
    page.set_viewport_size({"width": 1000, "height": 600})
    # What was there is there, and the shell is the same one.
    page.reload()
    page.wait_for_selector("#state.good")
    assert page.url == address
    wait_for(page, "got 42")
    page.keyboard.type("echo \"still $mine in $PWD\"\n")
    wait_for(page, "still 42 in /tmp")
    picture(page, "terminal")
    assert mistakes == []


def test_several_people_see_the_same(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    first = opened(page, f"{live.url}/terminal")
    second = opened(page.context.new_page(), first.url)
    first.keyboard.type("echo from-the-$((1))st\n")
    wait_for(second, "from-the-1st")
    second.keyboard.type("echo from-the-$((2))nd\n")
    wait_for(first, "from-the-2nd")


def test_it_comes_back_after_the_server_was_away(server: Server, sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    opened(page, f"{live.url}/terminal")
    page.keyboard.type("kept=yes; echo \"before: $kept\"\n")
    # What was typed has reached the shell before the server goes away.
    wait_for(page, "before: yes")
    server.restart()
    page.wait_for_selector("#state.good", timeout=30_000)
    page.keyboard.type("echo \"kept: $kept\"\n")
    wait_for(page, "kept: yes")


def test_a_session_that_ended_says_so(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    page.goto(f"{live.url}/terminal?session_id=never-was")
    page.wait_for_selector("#state.bad")
    assert "ended" in page.inner_text("#state")
    page.click("#renew")
    page.wait_for_selector("#state.good")
    assert "never-was" not in page.url


def test_what_is_drawn_is_text(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    opened(page, f"{live.url}/terminal")
    page.keyboard.type("printf '\\033]0;stolen\\007<img src=x onerror=\"document.title=1\">\\n\\033]52;c;c3RvbGVu\\007'\n")
    wait_for(page, "<img src=x")
    assert page.title() == f"Terminal of {live.name}"
    assert page.locator("#terminal img").count() == 0


def test_keys_for_fingers(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    context = page.context.browser.new_context(viewport={"width": 390, "height": 700}, has_touch=True, is_mobile=True)
    phone = opened(context.new_page(), f"{live.url}/terminal")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    phone.keyboard.type("sleep 1000\n")
    wait_for(phone, "sleep 1000")
    phone.tap("#control")
    phone.keyboard.type("c")
    wait_for(phone, "^C")
    picture(phone, "terminal-phone")
    context.close()


def test_the_address_that_the_sdk_gives(client: Client, page: Page) -> None:
    address = client.shell.get_terminal_url().data
    assert address is not None
    opened(page, address)
    page.keyboard.type("echo at-$((40 + 2))\n")
    wait_for(page, "at-42")


def test_assets_and_manual(base_url: str) -> None:
    for name, kind in [
        ("xterm@5.3.0/lib/xterm.js", "text/javascript"),
        ("xterm@5.3.0/css/xterm.css", "text/css"),
        ("xterm-addon-fit@0.8.0/lib/xterm-addon-fit.js", "text/javascript"),
    ]:
        answer = httpx.get(f"{base_url}/static/sandbox/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind), name
    manual = httpx.get(f"{base_url}/llms.txt")
    assert manual.headers["content-type"].startswith("text/plain") and f"{base_url}/v1/bash/exec" in manual.text
    assert httpx.get(f"{base_url}/v1/ping").json()["data"] == "pong"
    assert httpx.get(f"{base_url}/v1/capabilities").json()["success"] is True
