"""The console and the dashboard in a real Chromium, as a person has them: by mouse, by keyboard, light and dark."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from consoles import answer, error, heading, row, sentence, show
from playwright.sync_api import Browser, Page, expect
from sandboxes import LiveSandbox

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c635038900000024401418fcf1fb70000000049454e44ae426082"
)


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def step(page: Page, what: str) -> Any:
    return page.locator("#steps .step", has_text=what).first


class TestConsole:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_sandbox_comes_is_looked_at_and_goes(
        self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page, scheme: str
    ) -> None:
        person.emulate_media(color_scheme=scheme)
        other = sandbox(f"old-{uuid.uuid4().hex[:6]}")
        other.output("echo something")
        person.goto(server.url)
        before = row(person, other.name)
        expect(before.get_by_text("running", exact=True)).to_be_visible()
        expect(before.get_by_role("meter", name="Memory used")).to_be_visible()
        expect(before).to_contain_text(re.compile(r"\d [KM]iB of \d"))
        name = f"new-{uuid.uuid4().hex[:6]}"
        person.get_by_role("button", name="Create sandbox").click()
        dialog = person.get_by_role("dialog", name="Create sandboxes")
        dialog.get_by_label("Name", exact=True).fill(name)
        dialog.get_by_label("Image").select_option("base")
        dialog.get_by_role("button", name="Create", exact=True).click()
        made = row(person, name)
        expect(made.get_by_text("running", exact=True)).to_be_visible()
        expect(made.get_by_text("base", exact=True)).to_be_visible()
        picture(person, f"console-{scheme}")
        # Asked, and kept.
        made.get_by_role("button", name=f"Delete {name}").click()
        question = person.get_by_role("dialog", name=f"Delete the sandbox {name}?")
        expect(question).to_be_visible()
        person.keyboard.press("Enter")
        expect(question).to_have_count(0)
        assert httpx.get(f"{server.url}/api/v2/sandboxes/{name}").status_code == 200
        made.get_by_role("button", name=f"Delete {name}").click()
        answer(person, "Delete")
        expect(made).to_have_count(0)
        assert httpx.get(f"{server.url}/api/v2/sandboxes/{name}").status_code == 404
        # What was recorded of it stays.
        show(person, "Overview").get_by_role("region", name="Trajectories of deleted sandboxes").get_by_role("link", name=name, exact=True).click()
        expect(person.get_by_role("heading", level=1)).to_contain_text(name)
        expect(person.get_by_role("main")).to_contain_text("delete the sandbox")

    def test_it_shows_what_others_do(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        person.goto(server.url)
        expect(heading(person)).to_have_text("Sandboxes")
        expect(person.get_by_role("status", name="Number of sandboxes")).to_have_text(re.compile(r"\d"))
        # Only events: no timer reads anything.
        person.evaluate("() => { for (let id = setTimeout(() => {}); id > 0; id--) clearTimeout(id); }")
        live = sandbox()
        expect(row(person, live.name).get_by_text("running", exact=True)).to_be_visible()
        live.delete()
        expect(row(person, live.name)).to_have_count(0)

    def test_the_steps_of_one(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        live.output("echo the first")
        person.goto(server.url)
        of_it = row(person, live.name).get_by_role("button", name=re.compile(f"steps? of {live.name}"))
        of_it.click()
        dialog = person.get_by_role("dialog", name=f"Steps of {live.name}")
        steps = dialog.locator("ol.steps > .step")
        expect(steps.first).to_contain_text("echo the first")
        for n in range(120):
            live.bash(f"echo number {n}")
        expect(steps.first).to_contain_text("echo number 119")
        steps.first.locator("summary").click()
        picture(person, "console-steps")
        expect(steps.first.locator(".more")).to_contain_text('"command": "echo number 119"')
        expect(steps.first.locator(".more")).to_contain_text("number 119\\n")
        numbers = [int(text) for text in steps.locator(".what small").all_inner_texts()]
        assert numbers == sorted(numbers, reverse=True)
        # After reopening it has the last hundred, and the older ones on request.
        person.keyboard.press("Escape")
        of_it.click()
        expect(steps).to_have_count(100)
        dialog.get_by_role("button", name="Show older ones").click()
        expect(steps.last).to_contain_text("create the sandbox")
        expect(dialog.get_by_role("button", name="Show older ones")).to_have_count(0)

    def test_by_keyboard(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        person.goto(server.url)
        expect(row(person, live.name)).to_be_visible()
        person.keyboard.press("?")
        keys = person.get_by_role("dialog", name="Keyboard shortcuts")
        expect(keys).to_be_visible()
        person.keyboard.press("Escape")
        expect(keys).to_have_count(0)
        focused = "document.activeElement.closest('tr')?.querySelector('a.title')?.textContent"
        for _ in range(person.get_by_role("row").count()):
            person.keyboard.press("j")
            if person.evaluate(focused) == live.name:
                break
        assert person.evaluate(focused) == live.name
        person.keyboard.press("s")
        steps = person.get_by_role("dialog", name=f"Steps of {live.name}")
        expect(steps).to_be_visible()
        person.keyboard.press("Escape")
        expect(steps).to_have_count(0)
        person.keyboard.press("c")
        dialog = person.get_by_role("dialog", name="Create sandboxes")
        expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
        person.keyboard.type("Not A Name")
        person.keyboard.press("Enter")
        expect(error(dialog.get_by_label("Name", exact=True))).to_contain_text("name")
        person.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        row(person, live.name).get_by_role("link", name=live.name, exact=True).focus()
        person.keyboard.press("Delete")
        expect(person.get_by_role("dialog", name=f"Delete the sandbox {live.name}?")).to_be_visible()
        person.keyboard.press("Tab")
        person.keyboard.press("Enter")
        expect(row(person, live.name)).to_have_count(0)


class TestDashboard:
    def test_a_browser_is_led_to_the_sandboxs_own_host(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        own = f"http://{live.id}.localhost:{server.port}"
        for address in (f"{live.url}/index.html", f"{live.url}/", live.url, f"{own}/"):
            person.goto(address)
            expect(person.locator("h1")).to_have_text(live.name)
            assert person.evaluate("location.origin") == own, address
        person.locator(".brand").click()
        expect(person.get_by_role("heading", level=1, name="Sandboxes")).to_be_visible()
        assert person.evaluate("location.origin") == f"http://localhost:{server.port}"
        person.get_by_role("link", name=f"Dashboard of {live.name}").click()
        expect(person.locator("h1")).to_have_text(live.name)
        # A program gets the page where it asks for it.
        plain = httpx.get(f"{live.url}/index.html")
        assert plain.status_code == 200 and live.name in plain.text and plain.headers["x-frame-options"] == "DENY"
        assert httpx.get(f"{server.url}/sandbox/nobody-{uuid.uuid4().hex[:6]}/index.html").status_code == 404

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_tabs(self, browsing: LiveSandbox, person: Page, scheme: str) -> None:
        person.emulate_media(color_scheme=scheme)
        person.set_viewport_size({"width": 1440, "height": 860})
        person.goto(f"{browsing.url}/index.html")
        terminal = person.frame_locator("#panel-terminal iframe")
        expect(terminal.locator("#session")).to_have_text(re.compile("session .+"))
        session = terminal.locator("#session").inner_text()
        person.reload()
        expect(terminal.locator("#state.good")).to_be_visible()
        expect(terminal.locator("#session")).to_have_text(session)
        assert person.locator("#panel-browser iframe").count() == 0, "loaded before it is shown"
        person.click("#tab-browser")
        screen = person.frame_locator("#panel-browser iframe")
        expect(screen.locator("#state.good")).to_be_visible()
        browsing.http.get("/v1/browser/screenshot").raise_for_status()
        shot = step(person, "browser screenshot")
        expect(shot.locator("img")).to_be_visible()
        assert shot.locator("img").evaluate("async node => { await node.decode(); return node.naturalWidth; }") == 1280
        picture(person, f"dashboard-browser-{scheme}")
        shot.locator(".picture").click()
        expect(person.locator("dialog.shown img")).to_be_visible()
        person.keyboard.press("Escape")
        expect(person.locator("dialog.shown")).to_have_count(0)
        assert person.evaluate("location.hash") == "#browser"
        person.reload()
        expect(screen.locator("#state.good")).to_be_visible()

    def test_what_the_sandbox_itself_serves(self, aio: LiveSandbox, page: Page) -> None:
        page.set_default_timeout(90_000)
        page.goto(f"{aio.url}/index.html#code")
        code = page.frame_locator("#panel-code iframe")
        expect(code.locator(".monaco-workbench")).to_be_visible(timeout=90_000)
        picture(page, "dashboard-code")
        # From within it, too.
        code.locator("body").press("Alt+4")
        expect(page.frame_locator("#panel-jupyter iframe").locator("#jp-main-dock-panel")).to_be_visible(timeout=90_000)
        picture(page, "dashboard-jupyter")

    def test_without_a_host_of_its_own(self, server: Server, aio: LiveSandbox, page: Page) -> None:
        """As at an address on the network: the page is on the server's host, and what the sandbox serves is not in it."""
        live = aio
        # No program is led away, so it is fetched as by one.
        page.route("**/index.html", lambda route: route.fulfill(response=page.request.get(f"{live.url}/index.html")))
        page.goto(f"{live.url}/index.html#code")
        assert page.evaluate("location.origin") == server.url
        expect(page.locator("#panel-code [role=alert]")).to_contain_text("none at this address")
        page.click("#tab-terminal")
        expect(page.frame_locator("#panel-terminal iframe").locator("#state.good")).to_be_visible()
        expect(page.locator("#live")).to_have_text("live")

    def test_a_service_that_is_not_there_says_so(self, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox(image="base")
        person.goto(f"{live.url}/index.html#code")
        notice = person.locator("#panel-code [role=alert]")
        expect(notice).to_contain_text("Code is not in this sandbox")
        expect(notice).to_contain_text("aio")
        expect(notice.get_by_role("button", name="Try again")).to_be_visible()
        picture(person, "dashboard-missing")
        answer = live.http.get("/code-server/", headers={"accept": "application/json"})
        assert answer.status_code in (404, 424)
        if answer.headers.get("content-type", "").startswith("application/json"):
            message = answer.json()["message"]
            expect(notice).to_contain_text(sentence(message))
        # Tabs are only for what the image has; a menu names the others.
        tabs = person.get_by_role("tab")
        expect(person.get_by_role("tab", name="Desktop")).to_have_count(0)
        expect(person.get_by_role("tab", name="Files")).to_be_visible()
        person.get_by_role("button", name="Not in this image").click()
        person.get_by_role("menuitem", name="Desktop").click()
        person.set_viewport_size({"width": 480, "height": 800})
        picture(person, "dashboard-narrow")
        expect(person.locator("#panel-browser [role=alert]")).to_contain_text("browser")
        expect(person.get_by_role("tab", name="Desktop")).to_be_focused()
        # Who goes on has a tab less.
        person.get_by_role("tab", name="Files").click()
        expect(tabs.filter(has_text="Desktop")).to_have_count(0)

    def test_the_strip_is_live(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live, other = sandbox(), sandbox()
        person.goto(f"{live.url}/index.html#files")
        expect(person.locator("#live")).to_have_text("live")
        mark = uuid.uuid4().hex[:8]
        other.output(f"echo not-{mark}")
        started = live.client.bash.exec(command=f"echo {mark}; read line", async_mode=True)
        mine = step(person, mark)
        expect(mine).to_have_attribute("data-outcome", "ok")
        live.client.bash.kill(session_id=started.data.session_id)
        # One that is under way is there before it has ended.
        answer = httpx.Client(timeout=60)
        with answer.stream("POST", f"{live.url}/v1/shell/exec", json={"command": f"echo slow-{mark}; read go"}, headers={"accept": "text/event-stream"}) as stream:
            lines = stream.iter_lines()
            session = next(json.loads(line[5:])["session_id"] for line in lines if line.startswith("data:"))
            slow = step(person, f"slow-{mark}")
            expect(slow).to_have_attribute("data-outcome", "under way")
            live.http.post("/v1/shell/write", json={"id": session, "input": "go", "press_enter": True}).raise_for_status()
            list(lines)
        expect(slow).to_have_attribute("data-outcome", "ok")
        answer.close()
        assert live.http.get(f"/v1/nothing-{mark}").status_code == 404
        expect(step(person, f"nothing-{mark}")).to_have_attribute("data-outcome", "error")
        expect(step(person, f"nothing-{mark}").locator(".took")).to_contain_text("404")
        assert person.locator("#steps").get_by_text(f"not-{mark}").count() == 0, "another sandbox's step"
        # Nobody looks, then somebody does: what happened meanwhile is there.
        look = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
        person.evaluate(look, True)
        live.output(f"echo unseen-{mark}")
        assert step(person, f"unseen-{mark}").count() == 0
        person.evaluate(look, False)
        expect(step(person, f"unseen-{mark}")).to_be_visible()
        # A server that comes back is found again, and nothing is there twice.
        server.restart()
        live.output(f"echo back-{mark}")
        expect(step(person, f"back-{mark}")).to_have_attribute("data-outcome", "ok")
        numbers = [int(text) for text in person.locator("#steps .step .what small").all_inner_texts()]
        assert numbers == sorted(set(numbers), reverse=True)
        id = live.id
        live.delete()
        expect(person.get_by_role("heading", name="This sandbox is gone")).to_be_visible()
        expect(person.locator("#strip, iframe")).to_have_count(0)
        expect(person.get_by_role("link", name="Its steps")).to_have_attribute("href", f"http://localhost:{server.port}/trajectory/{id}")

    def test_files(self, sandbox: Callable[..., LiveSandbox], person: Page, tmp_path: Path) -> None:
        live = sandbox()
        live.output("mkdir -p ~/work/sub && echo 'one <b>line</b>' > ~/work/note.txt && head -c 100 /dev/zero > ~/work/data.bin")
        live.client.file.upload_file(file=("dot.png", PNG), path="/home/gem/work/dot.png")
        person.goto(f"{live.url}/index.html")
        expect(person.frame_locator("#panel-terminal iframe").locator("#state.good")).to_be_visible()
        # The terminal has the focus, and still the key is the dashboard's.
        expect(person.get_by_role("button", name="Not in this image")).to_be_visible()
        at = person.get_by_role("tab").all_inner_texts().index("Files") + 1
        person.frame_locator("#panel-terminal iframe").locator("textarea").press(f"Alt+{at}")
        files = person.locator("#panel-files tbody")
        files.get_by_role("button", name="work/").click()
        expect(person.locator("#path")).to_have_value("/home/gem/work")
        files.get_by_role("button", name="note.txt", exact=True).click()
        expect(person.get_by_role("textbox", name="Content of note.txt")).to_have_value("one <b>line</b>\n")
        files.get_by_role("button", name="dot.png", exact=True).click()
        picture_shown = person.locator("img.opened")
        expect(picture_shown).to_be_visible()
        picture(person, "dashboard-files")
        assert picture_shown.evaluate("async node => { await node.decode(); return node.naturalWidth; }") == 1
        files.get_by_role("button", name="data.bin", exact=True).click()
        expect(person.locator("#panel-files article")).to_contain_text("neither text nor a picture")
        with person.expect_download() as download:
            person.get_by_role("link", name="Download note.txt").click()
        assert Path(download.value.path()).read_text() == "one <b>line</b>\n"
        (tmp_path / "carried in.txt").write_text("from outside")
        person.set_input_files("#chosen", str(tmp_path / "carried in.txt"))
        expect(files.get_by_role("button", name="carried in.txt", exact=True)).to_be_visible()
        assert live.output("cat '/home/gem/work/carried in.txt'") == "from outside"
        person.fill("#path", "/nothing/here")
        person.keyboard.press("Enter")
        expect(person.locator("#file-message.bad")).to_contain_text("/nothing/here")

    def test_by_keyboard(self, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        person.goto(f"{live.url}/index.html#files")
        person.locator("#tab-files").focus()
        expect(person.get_by_role("button", name="Not in this image")).to_be_visible()
        for key, tab in (("ArrowRight", "ports"), ("ArrowLeft", "files"), ("Home", "terminal"), ("ArrowLeft", "processes"), ("End", "processes"), ("ArrowLeft", "logs")):
            person.keyboard.press(key)
            expect(person.locator(f"#tab-{tab}")).to_be_focused()
            expect(person.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
            expect(person.locator(f"#panel-{tab}")).to_be_visible()
        assert person.locator("[role=tab][tabindex='0']").count() == 1
        outline = person.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus can't be seen"
        person.keyboard.press("Alt+2")
        expect(person.locator("#panel-files")).to_be_visible()
        person.keyboard.press("Alt+s")
        expect(person.locator("#strip")).to_be_hidden()
        person.keyboard.press("Alt+s")
        expect(person.locator("#strip")).to_be_visible()
        first = person.locator("#steps summary").first
        first.focus()
        person.keyboard.press("Enter")
        expect(person.locator("#steps .more").first).to_be_visible()
        person.locator("#tab-files").focus()
        person.keyboard.press("?")
        expect(person.locator("#keys")).to_be_visible()
        picture(person, "dashboard-keys")


class TestSteps:
    """What the pages read, as a program has it."""

    def events(self, address: str, wanted: int, **options: Any) -> list[dict[str, Any]]:
        """So many events, with their ids."""
        found: list[dict[str, Any]] = []
        with httpx.Client(timeout=30) as http, http.stream("GET", address, **options) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            event: dict[str, Any] = {}
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    event["event"] = line[7:]
                elif line.startswith("data: "):
                    event["data"] = json.loads(line[6:])
                elif line.startswith("id: "):
                    event["id"] = int(line[4:])
                elif not line and event:
                    found.append(event)
                    event = {}
                    if len(found) == wanted:
                        break
        return found

    def test_going_on_where_it_was(self, server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        for n in range(5):
            live.output(f"echo {n}")
        own = {"host": f"{live.id}.localhost:{server.port}"}
        for address, headers in (
            (f"{live.url}/steps", {}),
            (f"{server.url}/steps", own),
            (f"{server.url}/api/v2/sandboxes/{live.name}/steps", {}),
            (f"{server.url}/api/v1/trajectories/{live.id}", {}),
        ):
            seen = self.events(f"{address}?follow=true", 6, headers=headers)
            assert [e["data"]["step"] for e in seen] == [1, 2, 3, 4, 5, 6], address
            assert seen[-1]["id"] == 6
            seen = self.events(f"{address}?follow=true", 2, headers={**headers, "last-event-id": "4"})
            assert [e["data"]["step"] for e in seen] == [5, 6]
            seen = self.events(f"{address}?follow=true&tail=1", 1, headers=headers)
            assert [e["data"]["step"] for e in seen] == [6]
        page = live.http.get("/steps?limit=2").json()
        assert [s["step"] for s in page["steps"]] == [1, 2] and page["next_after"] == 2
        body = live.http.get("/steps/6/arguments")
        assert body.json()["command"] == "echo 4" and body.headers["content-disposition"] == "attachment"
        assert json.loads(live.http.get("/steps/6/observation").text)["data"]["stdout"] == "4\n"
        for bad, status in (("steps/7/arguments", 404), ("steps/x/arguments", 400), ("steps/1/other", 404), ("steps?follow=true&after=x", 400)):
            assert live.http.get(f"/{bad}").status_code == status, bad

    def test_its_own_host_tells_of_nothing_else(self, server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
        live, victim = sandbox(), sandbox()
        victim.output("echo the-secret")
        own = {"host": f"{live.id}.localhost:{server.port}"}
        for path in (
            f"/api/v1/trajectories/{victim.id}",
            f"/api/v1/trajectories/{victim.id}?follow=true",
            f"/api/v2/sandboxes/{victim.name}/steps",
            "/api/v2/sandboxes?follow=true",
            f"/sandbox/{victim.name}/steps",
            f"/steps/{victim.id}",
        ):
            answer = httpx.get(f"{server.url}{path}", headers=own)
            assert answer.status_code == 404 and "the-secret" not in answer.text, (path, answer.text)
        named = httpx.get(f"{server.url}/steps", headers={**own, "x-arenite-sandbox": victim.name})
        assert named.json()["trajectory"] == live.id

    def test_a_page_of_a_sandbox_reads_its_own_steps_alone(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        """From the origin that a page of the sandbox has, which is the dashboard's too."""
        live, victim = sandbox(), sandbox()
        victim.output("echo the-secret")
        # No page of ours: no policy but the server's own checks is in the way.
        person.goto(f"http://{live.id}.localhost:{server.port}/v1/sandbox")
        attempts = person.evaluate(
            """async ([own, server, victim, id]) => {
              const found = {};
              for (const [name, address] of Object.entries({
                own: own + '/steps', list: server + '/api/v2/sandboxes', follow: server + '/api/v2/sandboxes?follow=true',
                named: server + `/sandbox/${victim}/steps`, recorded: server + `/api/v1/trajectories/${id}`, bare: server + '/steps',
              })) {
                try { found[name] = (await (await fetch(address)).text()).slice(0, 2000); } catch (error) { found[name] = 'refused'; }
              }
              return found;
            }""",
            [f"http://{live.id}.localhost:{server.port}", f"http://localhost:{server.port}", victim.name, victim.id],
        )
        assert live.id in attempts.pop("own")
        assert set(attempts.values()) == {"refused"}, attempts


@pytest.fixture
def locked(server: Server, sandbox: Callable[..., LiveSandbox]) -> Iterator[LiveSandbox]:
    """The server asks for a key."""
    live = sandbox()
    live.output("echo before")
    assert live.id
    server.restart(("--api-key", "a-key-for-people"))
    yield live
    server.restart()


def test_with_a_key(server: Server, locked: LiveSandbox, person: Page, browser: Browser) -> None:
    person.goto(server.url)
    person.fill("#key", "wrong")
    person.keyboard.press("Enter")
    expect(person.locator("#message")).to_contain_text("Invalid key")
    person.fill("#key", "a-key-for-people")
    person.keyboard.press("Enter")
    person.get_by_role("link", name=f"Dashboard of {locked.name}").click()
    # On the sandbox's host nobody is asked again, in no frame either.
    expect(person.locator("#live")).to_have_text("live")
    assert re.fullmatch(rf"http://{locked.id}\.localhost:{server.port}/index\.html(#\w+)?", person.url), person.url
    expect(person.frame_locator("#panel-terminal iframe").locator("#state.good")).to_be_visible()
    person.goto(server.url)
    listed = row(person, locked.name)
    expect(listed).to_be_visible()
    # The session ends while the page is open: the key is asked for, and the page goes on.
    person.context.clear_cookies()
    expect(person.locator("#sign-in")).to_be_visible()
    person.get_by_label("API key, token or ticket").fill("a-key-for-people")
    person.keyboard.press("Enter")
    expect(person.locator("#sign-in")).to_have_count(0)
    expect(listed).to_be_visible()
    stranger = browser.new_context().new_page()
    stranger.goto(f"http://{locked.id}.localhost:{server.port}/index.html")
    assert locked.name not in stranger.content()
    stranger.context.close()
