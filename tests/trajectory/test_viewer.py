"""The page of a trajectory in a real Chromium: live, by keyboard, and with what hostile steps say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from arenite_server import Server
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox
from waiting import until

#: Milliseconds for what the server does; a loaded machine takes its time.
PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def person(page: Page) -> Iterator[Page]:
    """A page that must not make mistakes, nor run anything that a step brought along."""
    mistakes: list[str] = []
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("dialog", lambda dialog: (mistakes.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: mistakes.append(message.text) if "Content Security Policy" in message.text else None)
    yield page
    assert not mistakes


def test_steps_come_live_and_are_walked_by_keyboard(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    live.output("echo the-first")
    person.goto(f"{server.url}/trajectories")
    person.get_by_role("link", name=live.name).first.click()
    expect(person.locator("#detail .terminal").last).to_have_text("the-first\n")
    live.bash("echo on-stdout; echo on-stderr >&2; exit 4")
    expect(person.locator("#steps li.chosen")).to_have_attribute("data-step", "3")
    expect(person.locator("#detail .terminal .stderr")).to_have_text("on-stderr\n")
    expect(person.locator("#detail .terminal .exit")).to_contain_text("exit code 4")
    person.keyboard.press("ArrowUp")
    expect(person.locator("#steps li.chosen")).to_have_attribute("data-step", "2")
    expect(person.locator("#follow")).not_to_be_checked()
    # Who looks at a step stays there.
    live.output("echo later")
    expect(person.locator('#steps li[data-step="4"]')).to_be_visible()
    expect(person.locator("#steps li.chosen")).to_have_attribute("data-step", "2")
    assert person.url.endswith("#step-2")
    with person.expect_download() as download:
        person.get_by_label("Export as").select_option("asciicast")
    assert download.value.suggested_filename == f"{live.id}.asciicast.cast"
    live.delete()
    expect(person.locator("#live")).to_have_text("ended")


def test_edits_are_differences_and_nothing_is_markup(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    live.client.file.write_file(file="/tmp/f", content="one\ntwo\n")
    live.client.file.write_file(file="/tmp/f", content=f"one\n{hostile}\n")
    live.client.file.str_replace_editor(command="str_replace", path="/tmp/f", old_str="one", new_str=hostile)
    live.output(f"echo '{hostile}'")
    person.goto(f"{server.url}/trajectory/{live.id}#step-3")
    expect(person.locator("#detail .diff .gone")).to_have_text("−two")
    expect(person.locator("#detail .diff .new")).to_have_text(f"+{hostile}")
    person.keyboard.press("j")
    expect(person.locator("#detail .diff .gone")).to_have_text("−one")
    person.keyboard.press("j")
    expect(person.locator("#detail .terminal").last).to_have_text(f"{hostile}\n")
    assert person.locator("main img, main script").count() == 0
    person.goto(f"{server.url}/trajectory/no-such-one")
    expect(person.locator("#message")).to_contain_text("no trajectory")


def test_decisions_of_a_network_policy_are_listed(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox(network={"mode": "allowlist", "allow": ["a.example"]})
    live.bash("curl -s -m 5 http://refused.example/")
    records = f"{server.url}/api/v1/trajectories/{live.id}/network"
    until(lambda: httpx.get(records).json().get("network"))
    person.goto(f"{server.url}/trajectory/{live.id}")
    network = person.locator("#network")
    network.get_by_text("Network").click()
    expect(network.locator("li")).to_have_text(re.compile(r"^refused refused\.example:53 after step \d+ no rule$"))
