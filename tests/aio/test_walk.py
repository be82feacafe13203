"""The walk of `docs/WALK.md`: twelve tasks of a person, through the pages alone, with the number of actions that the document says.

An action is a click, a key, a choice in a list, or a text that is typed. `ARENITE_TEST_WALK=FILE` writes the measured table there.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from arenite_server import REPOSITORY, Server
from cdp import tab
from consoles import heading, navigation, notification, row
from playwright.sync_api import Browser, Locator, Page, expect
from sandboxes import LiveSandbox
from waiting import until

DOCUMENT = REPOSITORY / "docs/WALK.md"


class Walk:
    """Counts what a person does."""

    def __init__(self, page: Page):
        self.page = page
        self.actions = 0
        self.taken: dict[str, tuple[int, float]] = {}

    @contextmanager
    def task(self, name: str, start: str) -> Iterator[None]:
        """From the page at `start` to the end of the block."""
        self.page.goto("about:blank")
        self.page.goto(start)
        # While it is loaded, a page of the console is called by the name of the product.
        expect(self.page.locator("h1").first).not_to_have_text("Arenite")
        self.actions, began = 0, time.monotonic()
        yield
        self.taken[name] = (self.actions, time.monotonic() - began)

    def click(self, target: Locator) -> None:
        self.actions += 1
        target.click()

    def key(self, key: str) -> None:
        self.actions += 1
        self.page.keyboard.press(key)

    def fill(self, target: Locator, text: str) -> None:
        self.actions += 1
        target.fill(text)

    def choose(self, target: Locator, option: str) -> None:
        self.actions += 1
        target.select_option(option)

    def show(self, name: str) -> None:
        self.click(navigation(self.page).get_by_role("link", name=name, exact=True))
        expect(heading(self.page)).to_have_text(name)

    def button(self, name: str, within: Locator | Page | None = None) -> None:
        self.click((within or self.page).get_by_role("button", name=name, exact=True))


def documented() -> dict[str, int]:
    """The number of actions of each task."""
    rows = re.findall(r"^\| (\d+\. [^|]+) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {name.strip(): int(actions) for name, actions in rows}


def write(file: Path, taken: dict[str, tuple[int, float]]) -> None:
    file.write_text("".join(f"| {name} | {actions} | {seconds:.1f} |\n" for name, (actions, seconds) in taken.items()))


def test_twelve_tasks(server: Server, sandbox: Callable[..., LiveSandbox], browsing: LiveSandbox, person: Page, browser: Browser) -> None:
    api = f"{server.url}/api/v2/sandboxes"
    person.set_viewport_size({"width": 1440, "height": 900})
    walk, console = Walk(person), f"{server.url}/"
    failed = sandbox(f"walk-{uuid.uuid4().hex[:6]}", checkpoint="auto", network={"mode": "allowlist", "allow": ["a.example"]})
    failed.output("echo 'int main() { return 0; }' > ~/main.c")
    failed.output("echo prepared > ~/state.txt")
    failed.bash("echo 'main.c:1: error: no such header' >&2; exit 2")
    failed.bash("curl -s -m 5 http://packages.example/")
    other = sandbox(f"again-{uuid.uuid4().hex[:6]}")
    other.output("echo 'int main() { return 0; }' > ~/main.c")
    other.output("echo something else > ~/state.txt")
    team = uuid.uuid4().hex[:6]
    reds = [sandbox(f"red-{n}-{team}", labels={"team": team}) for n in range(3)]
    run = f"{server.url}/trajectory/{failed.id}"
    step = person.get_by_role("group", name="Step", exact=True)

    with walk.task("1. Find the run that failed, and why", console):
        walk.show("Trajectories")
        walk.click(person.get_by_role("checkbox", name="with failed steps"))
        # The number of its failed steps leads to the last of them.
        walk.click(row(person, failed.id).get_by_role("link", name="2", exact=True))
        expect(step).to_contain_text("packages.example")
        walk.key("F")
        expect(step).to_contain_text("main.c:1: error: no such header")
        expect(step).to_contain_text("exit code 2")

    with walk.task("2. Fork the sandbox before the step that failed", f"{run}#step-4"):
        walk.click(step.get_by_role("link", name=re.compile("^Checkpoints of")))
        walk.click(person.get_by_role("button", name=re.compile("^Fork from #")).first)
        expect(heading(person)).not_to_have_text(failed.name)
        expect(person.get_by_role("main").get_by_text("running", exact=True).first).to_be_visible()
    fork = heading(person).inner_text()

    # Usage is read every few seconds.
    until(lambda: any(one.get("sandbox") == failed.id for one in httpx.get(f"{server.url}/api/v2/usage?group=sandbox").json()["rows"]))
    with walk.task("3. Find which sandbox used the most", console):
        walk.show("Usage")
        # The one that used the most comes first.
        expect(person.get_by_role("region", name="By sandbox").get_by_role("row").nth(1)).to_be_visible()

    made = f"new-{uuid.uuid4().hex[:6]}"
    with walk.task("4. Create a sandbox that reaches one host alone", console):
        walk.key("c")
        dialog = person.get_by_role("dialog", name="Create sandboxes")
        walk.fill(dialog.get_by_label("Name", exact=True), made)
        walk.choose(dialog.get_by_label("Network", exact=True), "allowlist")
        walk.fill(dialog.get_by_label("Allow", exact=True), "pypi.org")
        walk.button("Create", dialog)
        expect(notification(person)).to_contain_text(f"Created {made}")

    with walk.task("5. See what a sandbox was refused, and allow it", console):
        walk.click(row(person, failed.name).get_by_role("link", name=failed.name, exact=True))
        section = person.get_by_role("region", name="Network", exact=True)
        walk.button("Allow packages.example", section)
        expect(notification(person)).to_contain_text("The network was changed.")

    with walk.task("6. Take a sandbox back to an earlier state", console):
        walk.click(row(person, failed.name).get_by_role("link", name=failed.name, exact=True))
        walk.button("Roll back to #2")
        walk.button("Roll back", person.get_by_role("dialog"))
        expect(notification(person)).to_contain_text("Rolled back to #2.")

    with tab(browsing, "<!doctype html><title>page</title><body style='background:#20c060'><script>window.clicks = 0; addEventListener('click', () => clicks++, true);</script>") as shown:
        with walk.task("7. Take the desktop over from the agent, click, and hand it back", f"{browsing.url}/index.html"):
            walk.click(person.get_by_role("tab", name="Browser"))
            screen = person.frame_locator("#panel-browser iframe")
            expect(screen.locator("#state.good")).to_be_visible()
            walk.button("Take control")
            expect(person.get_by_text("You control the desktop")).to_be_visible()
            walk.click(screen.locator("#screen canvas"))
            shown.wait("clicks === 1")
            walk.actions += 1
            screen.locator("#screen canvas").press("Alt+h")
            expect(person.get_by_text("You only watch")).to_be_visible()

    with walk.task("8. Correct a line of a file", f"{failed.url}/index.html#files"):
        walk.button("main.c")
        walk.fill(person.get_by_role("textbox", name="Content of main.c"), "int main() { return 1; }\n")
        walk.key("Control+s")
        expect(person.get_by_text("not saved")).to_have_count(0)

    with walk.task("9. Find where two runs part", run):
        expect(person.locator(".virtual-row").first).to_be_visible()
        walk.key("c")
        walk.fill(person.get_by_label("Search runs"), other.name)
        walk.click(person.get_by_role("dialog").get_by_role("button", name=other.name))
        expect(person.locator(".divergence")).to_contain_text("First difference at step")

    with walk.task("10. Pause all sandboxes of a team", console):
        walk.button("Filter by label")
        walk.fill(person.get_by_role("dialog").get_by_label("Label"), f"team={team}")
        walk.key("Enter")
        expect(person.get_by_role("table", name="Sandboxes").locator("a.title")).to_have_count(3)
        walk.click(person.get_by_role("checkbox", name="Select all rows"))
        walk.button("Pause selected")
        expect(notification(person)).to_contain_text("Paused 3 sandboxes.")

    with walk.task("11. Save a run as training data", run):
        walk.button("Export")
        walk.choose(person.get_by_role("dialog").get_by_label("Format"), "openai-messages")
        expect(person.get_by_role("dialog").get_by_role("group", name="Record 1", exact=True)).to_be_visible()
        with person.expect_download() as download:
            walk.click(person.get_by_role("dialog").get_by_role("link", name="Download"))
        assert "main.c" in Path(download.value.path()).read_text()

    for name in (fork, made):
        assert httpx.delete(f"{api}/{name}", timeout=60).is_success
    assert {httpx.get(f"{api}/{one.name}").json()["state"] for one in reds} == {"paused"}
    # Only a server with keys needs a link for that.
    server.restart(("--api-key", "a-key-for-people"))
    try:
        context = browser.new_context(extra_http_headers={"x-api-key": "a-key-for-people"}, viewport={"width": 1440, "height": 900})
        walk.page = context.new_page()
        with walk.task("12. Give a colleague a look at a sandbox", f"{failed.url}/index.html"):
            walk.button("Share")
            walk.button("Create a link")
            link = walk.page.get_by_role("textbox", name="Link")
            expect(link).to_have_value(re.compile("ticket="))
        guest = browser.new_context()
        looking = guest.new_page()
        looking.goto(link.input_value())
        expect(looking.get_by_role("tab", name="Files")).to_be_visible()
        guest.close()
        context.close()
    finally:
        server.restart()
    if file := os.environ.get("ARENITE_TEST_WALK"):
        write(Path(file), walk.taken)
    else:
        assert {name: actions for name, (actions, _) in walk.taken.items()} == documented()
