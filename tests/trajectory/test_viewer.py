"""The page of a trajectory in a real Chromium: live, by keyboard, compared, exported, with 10,000 steps, and with hostile ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx
import pytest
from arenite_server import Server
from consoles import picture, violations
from playwright.sync_api import Browser, Locator, Page, Route, expect
from sandboxes import LiveSandbox
from waiting import until

#: Milliseconds for what the server does; a loaded machine takes its time.
PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)
LOOKS = {"light": ("light", 1440, 900), "dark": ("dark", 1440, 900), "narrow": ("light", 390, 844)}
MANY = 10_000


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


def chosen(page: Page) -> Locator:
    """The row of the step that is shown."""
    return page.locator(".virtual-row[aria-selected=true]")


def pane(page: Page) -> Locator:
    """The step, as it is shown in full."""
    return page.get_by_role("group", name="Step", exact=True)


def row(page: Page, step: int) -> Locator:
    return page.locator(f'.virtual-row[data-id="step-{step}"]')


def test_steps_come_live_and_are_walked_by_keyboard(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    live.output("echo the-first")
    person.goto(f"{server.url}/trajectories")
    person.get_by_role("link", name=live.name).first.click()
    expect(pane(person).locator(".terminal").last).to_have_text("the-first\n")
    live.bash("echo on-stdout; echo on-stderr >&2; exit 4")
    expect(chosen(person)).to_have_attribute("data-id", "step-3")
    expect(pane(person).locator(".terminal .stderr")).to_have_text("on-stderr\n")
    expect(pane(person).locator(".terminal .exit")).to_contain_text("exit code 4")
    person.keyboard.press("ArrowUp")
    expect(chosen(person)).to_have_attribute("data-id", "step-2")
    expect(person.get_by_label("Follow")).not_to_be_checked()
    # Who looks at a step stays there.
    live.output("echo later")
    expect(row(person, 4)).to_be_visible()
    expect(chosen(person)).to_have_attribute("data-id", "step-2")
    expect(person).to_have_url(re.compile(r"#step-2$"))
    # The next failure, and none after it.
    person.keyboard.press("f")
    expect(chosen(person)).to_have_attribute("data-id", "step-3")
    person.keyboard.press("f")
    expect(person.locator(".toast")).to_contain_text("no later failure")
    person.keyboard.press("Shift+F")
    expect(chosen(person)).to_have_attribute("data-id", "step-3")
    live.delete()
    expect(person.locator(".run-state")).to_have_text("ended")


def test_edits_are_differences_and_nothing_is_markup(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    live.client.file.write_file(file="/tmp/f", content="one\ntwo\n")
    live.client.file.write_file(file="/tmp/f", content=f"one\n{hostile}\n")
    live.client.file.str_replace_editor(command="str_replace", path="/tmp/f", old_str="one", new_str=hostile)
    live.output(f"echo '{hostile}'")
    person.goto(f"{server.url}/trajectory/{live.id}#step-3")
    detail = pane(person)
    expect(detail.locator(".diff .gone")).to_have_text("−two")
    expect(detail.locator(".diff .new")).to_have_text(f"+{hostile}")
    person.keyboard.press("j")
    expect(detail.locator(".diff .gone")).to_have_text("−one")
    person.keyboard.press("j")
    expect(detail.locator(".terminal").last).to_have_text(f"{hostile}\n")
    assert person.locator("main img, main script").count() == 0
    person.get_by_role("tab", name="Film").click()
    expect(person.locator(".film .terminal")).to_contain_text(hostile)
    assert person.locator("main img, main script").count() == 0
    person.goto(f"{server.url}/trajectory/no-such-one")
    expect(person.get_by_role("alert")).to_contain_text("no trajectory")
    expect(person.get_by_role("link", name="All trajectories")).to_be_visible()


def test_decisions_of_a_network_policy_are_listed(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox(network={"mode": "allowlist", "allow": ["a.example"]})
    live.bash("curl -s -m 5 http://refused.example/")
    records = f"{server.url}/api/v1/trajectories/{live.id}/network"
    until(lambda: httpx.get(records).json().get("network"))
    person.goto(f"{server.url}/trajectory/{live.id}")
    person.get_by_label("Kind", exact=True).select_option("network")
    refused = person.locator(".virtual-row[data-kind=network]")
    expect(refused.first).to_have_attribute("data-outcome", "refused")
    expect(refused.first.locator(".about")).to_have_text(re.compile(r"^refused\.example:53.*, no rule$"))
    refused.first.click()
    facts = person.locator(".pane .step-facts")
    expect(facts).to_contain_text(re.compile(r"decisionrefused"))
    expect(facts).to_contain_text(re.compile(r"after step\d+"))


def test_filters_are_in_the_address(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    live.output("echo needle-1; sleep 0.3")
    live.bash("echo needle-2; exit 7")
    live.client.file.write_file(file="/tmp/f", content="hay")
    person.goto(f"{server.url}/trajectory/{live.id}")
    expect(row(person, 4)).to_be_visible()
    rows = person.locator(".virtual-row")
    person.keyboard.press("/")
    person.keyboard.type("NEEDLE")
    expect(rows).to_have_count(2)
    expect(person.locator(".counts")).to_contain_text("2 of ")
    person.get_by_label("Outcome", exact=True).select_option("failed")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-id", "step-3")
    expect(person).to_have_url(re.compile(r"\?q=NEEDLE&outcome=failed"))
    # Someone else sees the same.
    person.reload()
    expect(rows).to_have_count(1)
    person.get_by_role("button", name="Clear").click()
    person.get_by_label("Tool", exact=True).select_option("file write")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-id", "step-4")
    person.get_by_label("Tool", exact=True).select_option("")
    person.get_by_label("Minimum duration").select_option("100")
    expect(row(person, 2)).to_be_visible()
    person.get_by_label("Origin", exact=True).select_option("person")
    expect(person.get_by_text("No step matches")).to_be_visible()


def test_two_runs_are_aligned_and_their_first_difference_is_shown(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    first, second = sandbox(), sandbox()
    for live in (first, second):
        live.output("echo same")
        live.output("echo common")
        if live is second:
            live.output("echo inserted")
        live.output("echo last")
    person.goto(f"{server.url}/trajectory/{first.id}")
    expect(row(person, 4)).to_be_visible()
    person.keyboard.press("c")
    person.get_by_label("Search runs").fill(second.id)
    person.get_by_role("dialog").get_by_role("button", name=second.name).click()
    expect(person.locator(".divergence")).to_contain_text("First difference at step 4: bash exec is only in the second")
    pairs = person.locator(".virtual-row")
    expect(pairs).to_have_count(5)
    expect(pairs.nth(3)).to_have_attribute("data-difference", "right")
    expect(pairs.nth(4)).to_have_attribute("data-difference", "same")
    expect(person).to_have_url(re.compile(rf"compare={second.id}"))
    pairs.nth(3).click()
    expect(person.get_by_role("group", name="Difference")).to_contain_text("+inserted")
    person.get_by_role("button", name="End the comparison").click()
    expect(person).not_to_have_url(re.compile("compare="))


def test_an_export_is_previewed_and_saved(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    live.output("echo exported")
    person.goto(f"{server.url}/trajectory/{live.id}")
    expect(row(person, 2)).to_be_visible()
    person.get_by_role("button", name="Export").click()
    dialog = person.get_by_role("dialog")
    expect(dialog.get_by_role("group", name="Record 1", exact=True)).to_contain_text("echo exported")
    size = len(httpx.get(f"{server.url}/api/v1/trajectories/{live.id}/export?format=jsonl").content)
    assert size > 0
    expect(dialog.get_by_role("status").last).to_contain_text(re.compile(r"Size: [\d.]+ (B|KiB)"))
    offered = dialog.get_by_label("Format").locator("option").all_inner_texts()
    assert set(offered) == {"jsonl", "agentflow-rollout", "agentflow-synthesis", "atif", "openai-messages", "sharegpt", "asciicast"}
    dialog.get_by_label("Format").select_option("asciicast")
    command = f"arenite trajectory export {live.id} --format asciicast -o {live.id}.asciicast.cast"
    expect(dialog.get_by_role("group", name="The same export")).to_have_text(command)
    expect(dialog.get_by_role("group", name="Record 1", exact=True)).to_contain_text('"version"')
    with person.expect_download() as download:
        dialog.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{live.id}.asciicast.cast"


def many_steps(after: int, limit: int) -> list[dict[str, Any]]:
    """Steps as the API returns them; recording so many takes too long here."""
    return [
        {
            "v": 2, "step": n, "tenant": "default", "sandbox_id": "many", "sandbox_name": "many", "dialect": "aio", "action": "POST /v1/bash/exec",
            "arguments": {"json": {"command": f"make target-{n}"}}, "observation": {"json": {"data": {"stdout": "built\n", "exit_code": 2 * (n % 100 == 13)}}},
            "started_at": f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z", "ended_at": f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.5Z",
            "duration_ms": 500, "outcome": "ok", "status": 200, "result": {"failed": {"exit_code": 2}} if n % 100 == 13 else "succeeded", "class": None, "error": None,
            "origin": "agent", "client": None, "request_id": "", "bytes_in": 30, "bytes_out": 60,
        }
        for n in range(after + 1, min(MANY, after + limit) + 1)
    ]


def answer_many(route: Route) -> None:
    url = urlparse(route.request.url)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    if query.get("follow"):
        events = [f"event: step\nid: {one['step']}\ndata: {json.dumps(one)}\n\n" for one in many_steps(MANY - int(query["tail"]), MANY)]
        route.fulfill(content_type="text/event-stream", body="".join([*events, "event: end\ndata: {}\n\n"]))
    elif url.path.endswith("/steps"):
        route.fulfill(json={"trajectory": "many", "steps": many_steps(int(query["after"]), int(query["limit"]))})
    else:
        route.fulfill(json={"trajectory": "many", "network": [], "sessions": [], "left_out": 0, "next_cursor": None})


def test_10000_steps_stay_fast(server: Server, person: Page) -> None:
    person.route(re.compile("/api/v1/trajectories/many"), answer_many)
    person.goto(f"{server.url}/trajectory/many")
    # It can be used with its newest steps, before the earlier ones are read.
    expect(row(person, MANY)).to_be_visible()
    expect(person.locator(".counts")).to_contain_text(f"{MANY:,} rows")
    assert person.locator(".virtual-row").count() < 80
    person.locator(".virtual").focus()
    person.keyboard.press("Home")
    expect(chosen(person)).to_have_attribute("data-id", "step-1")
    person.keyboard.press("f")
    expect(chosen(person)).to_have_attribute("data-id", "step-13")
    person.get_by_label("Search arguments and observations").fill("target-7777")
    expect(person.locator(".virtual-row")).to_have_count(1)


@pytest.mark.parametrize("look", LOOKS)
def test_pages_are_accessible(server: Server, sandbox: Callable[..., LiveSandbox], browser: Browser, look: str) -> None:
    first, second = sandbox(), sandbox()
    for live in (first, second):
        live.bash("echo out; echo err >&2; exit 3")
        live.client.file.write_file(file="/tmp/f", content=live.name)
    theme, width, height = LOOKS[look]
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height}, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    one = f"trajectory/{first.id}"
    states: dict[str, tuple[str, Callable[[], Any]]] = {
        "list": ("trajectories", lambda: expect(page.get_by_role("link", name=first.name).first).to_be_visible()),
        "step": (f"{one}#step-2", lambda: expect(pane(page).locator(".terminal .exit")).to_be_visible()),
        "film": (f"{one}?view=film#step-2", lambda: expect(page.locator(".film .terminal")).to_be_visible()),
        "compare": (f"{one}?compare={second.id}", lambda: expect(page.locator(".divergence")).to_be_visible()),
        "export": (one, lambda: (page.get_by_role("button", name="Export").click(), expect(page.get_by_role("group", name="Record 1", exact=True)).to_be_visible())),
        "gone": ("trajectory/no-such-one", lambda: expect(page.get_by_role("alert")).to_be_visible()),
    }
    wrong: list[Any] = []
    for name, (path, ready) in states.items():
        page.goto("about:blank")
        page.goto(f"{server.url}/{path}")
        ready()
        picture(page, f"viewer-{name}-{look}")
        wrong += [(name, one) for one in violations(page)]
    context.close()
    assert not wrong
