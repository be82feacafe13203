"""Our pages in Debian's Firefox: axe finds nothing, and the main flows work as they do in Chromium."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest
from arenite_server import Server
from consoles import LOOKS
from firefox import Firefox
from sandboxes import LiveSandbox
from waiting import until


@pytest.fixture(scope="module")
def running() -> Iterator[Firefox]:
    firefox = Firefox()
    yield firefox
    firefox.close()


@pytest.fixture
def firefox(running: Firefox) -> Iterator[Firefox]:
    """In a window of a desktop; its pages make no mistakes."""
    running.call("look", width=1280, height=860)
    running.mistakes()
    yield running
    # Firefox says so of a dashboard's terminal that is left while it connects.
    left = re.compile(r"^(Firefox can’t establish a|The) connection to (the server at )?ws://[^/]+/v1/shell/ws")
    assert [mistake for mistake in running.mistakes() if not left.search(mistake)] == []


@pytest.mark.parametrize("look", LOOKS)
def test_pages_are_accessible(server: Server, sandbox: Callable[..., LiveSandbox], firefox: Firefox, look: str) -> None:
    assert firefox.call("version").startswith("firefox/")
    live = sandbox()
    live.bash("echo out; echo err >&2; exit 3")
    httpx.post(f"{server.url}/api/v2/sandboxes/{live.name}/checkpoints", json={"note": "with a note"}).raise_for_status()
    pages = {
        "": live.name, "#/overview": "Running", "#/snapshots": "Snapshots", "#/volumes": "Volumes", "#/groups": "Groups", "#/usage": "Usage",
        "#/secrets": "Secrets", "#/models": "Models", "#/webhooks": "Webhooks", "#/settings": "Single keys are shortcuts", f"#/sandboxes/{live.name}": "with a note",
        "trajectories": live.name, f"trajectory/{live.id}#step-2": "echo out", "api/v2/docs": "quarantine", "api/v2/docs#/arenite/create_sandbox": "idle_policy",
        f"sandbox/{live.name}/v1/docs#/aio/exec": "hard_timeout", f"sandbox/{live.name}/index.html": live.name,
    }
    theme, width, height = LOOKS[look]
    chosen = "document.documentElement.dataset.theme"
    wrong = {}
    for path, text in pages.items():
        firefox.open(f"{server.url}/{path}")
        firefox.sees(text)
        if firefox.call("evaluate", script=chosen) != theme:
            # A dashboard is on a host for its sandbox, where nothing was chosen yet.
            firefox.call("look", theme=theme, width=width, height=height)
            firefox.open(firefox.call("url"))
            firefox.sees(text)
        assert firefox.call("evaluate", script=chosen) == theme
        # In the other looks, Chromium's tests let axe look at them: it takes seconds for each page.
        found = firefox.violations() if look == "light" else firefox.call("evaluate", script="document.documentElement.scrollWidth > innerWidth")
        if found:
            wrong[path] = found
    firefox.call("look", theme="light", width=1280, height=860)
    assert not wrong


def test_a_sandbox_is_created_found_paused_and_deleted(server: Server, firefox: Firefox) -> None:
    name = f"fox-{uuid.uuid4().hex[:6]}"
    state = f'tr:has([href="#/sandboxes/{name}"])'
    firefox.open(server.url)
    firefox.click("Create sandbox")
    firefox.fill("Name", name, within="dialog")
    firefox.click("Create", within="dialog")
    firefox.sees("running", within=state)
    firefox.press("/")
    firefox.type("nothing has this name")
    firefox.sees("No sandbox matches")
    firefox.click("Show all")
    firefox.click(f"Pause {name}")
    firefox.sees("paused", within=state)
    firefox.click(f"Resume {name}")
    firefox.sees("running", within=state)
    # By the palette, and back by a shortcut.
    firefox.call("chord", modifier="Control", key="k")
    firefox.type(name)
    firefox.sees(f"Dashboard of {name}", within="[role=listbox]")
    firefox.press("Enter")
    firefox.sees(name, within="main h1")
    firefox.press("g")
    firefox.press("s")
    firefox.sees("Sandboxes", within="main h1")
    firefox.click(f"Delete {name}")
    firefox.click("Delete", within="dialog")
    firefox.does_not_see(name, within="main")
    assert httpx.get(f"{server.url}/api/v2/sandboxes/{name}").status_code == 404


def test_a_disk_is_rolled_back(server: Server, sandbox: Callable[..., LiveSandbox], firefox: Firefox) -> None:
    live = sandbox()
    live.output("echo one > ~/work")
    firefox.open(f"{server.url}/#/sandboxes/{live.name}")
    firefox.click("Take a checkpoint")
    firefox.fill("Note", "before the mistake", within="dialog")
    firefox.click("Take it", within="dialog")
    firefox.sees("before the mistake")
    live.output("echo two > ~/work")
    firefox.click("Roll back to #1")
    firefox.click("Roll back", within="dialog")
    until(lambda: live.output("cat ~/work") == "one", "the disk is as it was", 30)


def test_files_are_written_and_a_terminal_is_typed_into(sandbox: Callable[..., LiveSandbox], firefox: Firefox) -> None:
    live = sandbox()
    live.output("mkdir -p ~/notes")
    firefox.open(f"{live.url}/index.html#files")
    firefox.click("notes/", within=".listed")
    firefox.sees("This folder is empty")
    firefox.click("New")
    firefox.click("New file", role="menuitem")
    firefox.fill("Name", "from-firefox.txt", within="dialog")
    firefox.click("Create", within="dialog")
    firefox.fill("Content of from-firefox.txt", "first line\nsecond line\n")
    firefox.click("Save")
    until(lambda: live.output("cat ~/notes/from-firefox.txt") == "first line\nsecond line", "the file is written", 30)
    firefox.click("Terminal", role="tab")
    firefox.call("clickCss", css="[role=tabpanel]:not([hidden]) iframe")
    until(lambda: live.output("pgrep -c bash || true") != "0", "the terminal's shell runs", 30)
    firefox.type("echo typed > ~/notes/typed.txt\n")
    until(lambda: live.output("cat ~/notes/typed.txt 2>/dev/null || true") == "typed", "the terminal ran the command", 30)


def test_the_failure_of_a_run_is_found_and_exported(server: Server, sandbox: Callable[..., LiveSandbox], firefox: Firefox) -> None:
    live = sandbox()
    for n in range(4):
        live.output(f"echo step-{n}")
    live.bash("echo the-reason >&2; exit 3")
    live.output("echo after")
    firefox.open(f"{server.url}/trajectories")
    firefox.click("with failed steps", role="checkbox")
    firefox.click(live.name, role="link")
    firefox.click("Previous failure")
    firefox.sees("the-reason", within=".pane")
    until(lambda: firefox.call("url").endswith("#step-6"), "the address has the step", 30)
    firefox.fill("Search arguments and observations", "step-2", role="searchbox")
    firefox.does_not_see("step-3", within=".run-list")
    firefox.sees("step-2", within=".run-list")
    firefox.click("Film", role="tab")
    firefox.sees("Shorten pauses", within=".film-bar")
    firefox.click("Step", role="tab")
    firefox.click("Export")
    firefox.sees("echo step-0", within="dialog")
    firefox.press("Escape")
    firefox.does_not_see("The same export")
    steps = httpx.get(f"{server.url}/api/v1/trajectories/{live.id}/steps?result=failed").raise_for_status().json()["steps"]
    assert [one["step"] for one in steps] == [6] and "the-reason" in json.dumps(steps)


def test_a_call_is_tried_on_the_page_of_the_api(server: Server, firefox: Firefox) -> None:
    firefox.open(f"{server.url}/api/v2/docs#/arenite/get_info")
    firefox.click("Send")
    firefox.sees('"name": "arenite"')
