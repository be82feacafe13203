"""VS Code and JupyterLab in a real Chromium, and what is shown where they are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page
from sandboxes import LiveSandbox

PATIENCE = 120_000
SHOWN = "() => [...document.querySelectorAll('.xterm-rows > div')].map(row => row.textContent).join('\\n')"


def picture(page: Page, name: str) -> None:
    """In light and in dark."""
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1000)
            page.screenshot(path=str(Path(folder) / f"{name}-{scheme}.png"))


def until(is_so: Callable[[], bool], what: str, do: Callable[[], None] = lambda: None) -> None:
    """Waits, and does it again every ten seconds: a page takes input a while before it acts by it."""
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline:
        do()
        again = time.monotonic() + 10
        while time.monotonic() < again:
            if is_so():
                return
            time.sleep(0.1)
    pytest.fail(f"it never came that {what}")


def runs_in_terminal(live: LiveSandbox, page: Page, command: str, wanted: str) -> None:
    """Types a command into the terminal that has the focus."""
    live.output("rm -f ~/from-terminal")
    seen = lambda: live.output("cat ~/from-terminal 2>/dev/null || true")
    until(lambda: seen() == wanted, f"{command} says {wanted!r}", lambda: page.keyboard.type(f"{command} > ~/from-terminal\n"))


@pytest.fixture(autouse=True)
def patient(page: Page) -> None:
    page.set_default_timeout(PATIENCE)
    page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.timeout(600)
def test_vscode_edits_and_has_a_terminal(aio: LiveSandbox, page: Page) -> None:
    aio.output("mkdir -p ~/project && printf 'first line\\n' > ~/project/notes.txt")
    page.goto(f"{aio.url}/code-server/?folder=/home/gem/project", timeout=PATIENCE)
    # An origin of its own, which has none of the routes that control sandboxes.
    place = urlsplit(page.url)
    assert (place.hostname, place.path, place.query) == (f"{aio.id}.localhost", "/code-server/", "folder=/home/gem/project")
    row = page.locator(".explorer-folders-view .monaco-list-row", has_text="notes.txt")
    line = page.locator(".monaco-editor .view-line", has_text="line")
    until(lambda: line.count() > 0, "the file is open", row.dblclick)

    def edit() -> None:
        line.first.click()
        page.keyboard.press("Control+a")
        page.keyboard.type("typed in a browser over the first line")

    typed = page.locator(".monaco-editor .view-line", has_text="browser")
    until(lambda: typed.count() > 0, "the text is typed", edit)
    saved = lambda: aio.output("cat ~/project/notes.txt") == "typed in a browser over the first line"
    until(saved, "the file is saved", lambda: page.keyboard.press("Control+s"))
    # Nobody is asked to sign in, to trust what is theirs, or to read what is new.
    assert page.locator(".monaco-dialog-box").count() == 0
    toasts = " ".join(page.locator(".notification-toast").all_inner_texts()).lower()
    assert not any(word in toasts for word in ("sign in", "trust", "update", "telemetry")), toasts

    def new_terminal() -> None:
        page.keyboard.press("F1")
        page.locator(".quick-input-widget input").first.fill(">Terminal: Create New Terminal")
        page.locator(".quick-input-list .monaco-list-row.focused", has_text="Create New Terminal").first.wait_for()
        page.keyboard.press("Enter")

    has_focus = "() => !!document.activeElement?.classList.contains('xterm-helper-textarea')"
    until(lambda: page.evaluate(has_focus), "a terminal has the focus", new_terminal)
    runs_in_terminal(aio, page, "echo $((6 * 7)) $PWD $(id -un)", "42 /home/gem/project gem")
    picture(page, "vscode")


@pytest.mark.timeout(600)
def test_jupyterlab_runs_a_cell_and_has_a_terminal(aio: LiveSandbox, page: Page) -> None:
    page.goto(f"{aio.url}/jupyter", timeout=PATIENCE)
    place = urlsplit(page.url)
    assert (place.hostname, place.path) == (f"{aio.id}.localhost", "/jupyter/lab")
    page.locator('.jp-LauncherCard[data-category="Notebook"]').first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    page.keyboard.type("import os; print(6 * 7, os.getcwd())")
    # What is run before its kernel is there is not run at all.
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')

    def run() -> None:
        cell.click()
        page.keyboard.press("Control+Enter")

    output = page.locator(".jp-Notebook .jp-OutputArea-output", has_text="42 /home/gem")
    until(lambda: output.count() > 0, "the cell has its output", run)
    assert page.locator(".jp-Dialog").count() == 0
    picture(page, "jupyterlab")
    other = page.context.new_page()
    other.set_default_timeout(PATIENCE)
    other.goto(f"{place.scheme}://{place.netloc}/jupyter/lab/workspaces/other")
    other.locator(".jp-LauncherCard", has_text="Terminal").click()
    other.locator(".jp-Terminal .xterm-screen").click()
    runs_in_terminal(aio, other, "echo $((40 + 2)) $(id -un)", "42 gem")


def test_programs_get_the_bytes_on_every_path(aio: LiveSandbox) -> None:
    port = aio.base_url.rsplit(":", 1)[1]
    for root, headers in ((aio.url, {}), (aio.base_url, {"host": f"{aio.id}.localhost:{port}"})):
        status = httpx.get(f"{root}/jupyter/api/status", headers=headers, timeout=120)
        assert status.status_code == 200 and "kernels" in status.json(), status.text
        opened = httpx.get(f"{root}/code-server", headers=headers, timeout=120)
        assert (opened.status_code, opened.headers["location"]) == (307, "code-server/")
        assert httpx.get(f"{root}/code-server/healthz", headers=headers, timeout=120).status_code == 200
        # What one of them says of the other's host has no place on the server's own.
        cookies = httpx.get(f"{root}/jupyter/lab", headers=headers, timeout=120).headers.get_list("set-cookie")
        assert bool(cookies) == bool(headers) and not any("domain" in cookie.lower() for cookie in cookies)


@pytest.mark.timeout(600)
def test_one_that_was_killed_is_replaced(aio: LiveSandbox) -> None:
    for path, name in (("/code-server/healthz", "code-server"), ("/jupyter/api", "jupyter-lab")):

        def is_killed() -> bool:
            answer = httpx.get(aio.url + path, timeout=120)
            assert answer.status_code == 200, (path, answer.text)
            # A new one answers a moment before its last program has its name, and a child of the killed one a moment longer.
            return aio.bash(f"pkill -KILL -o -f '[b]in/{name}'").exit_code == 0

        for _ in range(3):
            until(is_killed, f"{name} was killed")
        assert httpx.get(aio.url + path, timeout=120).status_code == 200


def test_an_image_without_them_says_so(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox(env={"DISABLE_JUPYTER": "true"})
    for path, said in (("/code-server/", "`aio`"), ("/jupyter/lab", "DISABLE_JUPYTER"), ("/opencode", "opencode-ai"), ("/codex", "@openai/codex")):
        answer = live.http.get(path)
        assert answer.status_code in (404, 424) and said in answer.text and answer.json()["success"] is False, answer.text
        assert page.goto(live.url + path).status == answer.status_code
        assert said in page.inner_text("main")
        picture(page, f"page-{path.strip('/').replace('/', '-')}")


def test_an_agent_starts_in_the_terminal(sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    live = sandbox()
    live.output("printf '#!/bin/sh\\necho running in $(tty | cut -c1-8)\\nread line' | sudo tee /usr/local/bin/codex; sudo chmod +x /usr/local/bin/codex")
    page.goto(f"{live.url}/codex")
    assert urlsplit(page.url).path == f"/sandbox/{live.name}/terminal"
    page.wait_for_function(f"() => ({SHOWN})().includes('running in /dev/pts')")
