"""What a person does in the dashboard of a sandbox: files, ports, logs, the desktop, and sharing; each look with axe."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import Server
from cdp import tab
from consoles import picture, violations
from playwright.sync_api import Browser, Page, expect
from sandboxes import LiveSandbox

LOOKS = {"light": ("light", 1280, 860, None), "dark": ("dark", 1280, 860, None), "narrow": ("light", 390, 844, None), "contrast": ("dark", 1280, 860, "more")}
#: Would run, or end a command, if anything took it as more than a name.
HOSTILE = "$(touch owned) `id`; '\" <img src=x onerror=document.title='owned'>.txt"


class TestFiles:
    def test_editing(self, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        live.output("printf 'one\\r\\ntwo\\r\\n' > ~/dos.txt; printf 'a\\nb\\r\\n' > ~/mixed.txt; printf '\\xff\\xfe' > ~/latin.txt")
        person.goto(f"{live.url}/index.html#files")
        person.get_by_role("button", name="dos.txt", exact=True).click()
        area = person.get_by_role("textbox", name="Content of dos.txt")
        expect(area).to_have_value("one\ntwo\n")
        area.fill("three\n")
        expect(person.get_by_text("not saved")).to_be_visible()
        person.keyboard.press("Control+s")
        expect(person.get_by_text("not saved")).to_have_count(0)
        assert live.output("od -c ~/dos.txt | head -1").split()[1:] == ["t", "h", "r", "e", "e", "\\r", "\\n"]
        # The agent writes meanwhile: that is not replaced without a question.
        area.fill("mine\n")
        live.output("echo theirs > ~/dos.txt")
        person.get_by_role("button", name="Save", exact=True).click()
        question = person.get_by_role("dialog", name="dos.txt has changed meanwhile")
        question.get_by_role("button", name="Keep editing").click()
        assert live.output("cat ~/dos.txt") == "theirs"
        expect(area).to_have_value("mine\n")
        person.get_by_role("button", name="Save", exact=True).click()
        picture(person, "dashboard-changed")
        question.get_by_role("button", name="Replace it").click()
        expect(person.get_by_text("not saved")).to_have_count(0)
        assert live.output("cat -A ~/dos.txt") == "mine^M$"
        # What is not saved is not lost by a click elsewhere.
        area.fill("more\n")
        person.get_by_role("button", name="mixed.txt", exact=True).click()
        person.get_by_role("dialog", name="Close without saving?").get_by_role("button", name="Keep editing").click()
        expect(area).to_have_value("more\n")
        person.get_by_role("button", name="mixed.txt", exact=True).click()
        person.get_by_role("button", name="Close without saving").click()
        expect(person.locator("article")).to_contain_text("end in several ways")
        person.get_by_role("button", name="latin.txt", exact=True).click()
        expect(person.locator("article")).to_contain_text("not UTF-8")

    def test_by_keyboard_and_with_any_name(self, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        live.output("mkdir -p ~/work/sub")
        person.goto(f"{live.url}/index.html#files")
        person.get_by_role("button", name="work/").focus()
        person.keyboard.press("Enter")
        expect(person.locator("#path")).to_have_value("/home/gem/work")
        expect(person.get_by_role("button", name="sub/")).to_be_focused()
        for kind, name in (("File", HOSTILE), ("Folder", "-rf *")):
            person.get_by_role("button", name="New", exact=True).focus()
            person.keyboard.press("Enter")
            person.get_by_role("menuitem", name=f"New {kind.lower()}").press("Enter")
            expect(person.get_by_role("textbox", name="Name")).to_be_focused()
            person.keyboard.type(name)
            person.keyboard.press("Enter")
            expect(person.locator("dialog[open]")).to_have_count(0)
            expect(person.locator("button.name", has_text=name)).to_be_focused()
        area = person.get_by_role("textbox", name=f"Content of {HOSTILE}")
        area.fill("text")
        person.keyboard.press("Control+s")
        expect(person.get_by_text("not saved")).to_have_count(0)
        assert set(live.output("cd ~/work && ls").splitlines()) >= {"sub", "-rf *"}
        assert live.output("cd ~/work && cat ./*img*") == "text"
        picture(person, "dashboard-editor")
        # Renamed to another name that commands could misread, and found by its new name.
        person.locator("button.name", has_text=HOSTILE).focus()
        person.keyboard.press("F2")
        name = person.get_by_role("textbox", name="Name")
        expect(name).to_have_value(HOSTILE)
        name.fill("sub")
        person.keyboard.press("Enter")
        expect(person.locator("dialog[open] .problem")).to_contain_text("already")
        name.fill("--new 'name'\"")
        person.keyboard.press("Enter")
        renamed = person.locator("button.name", has_text="--new 'name'\"")
        expect(renamed).to_be_focused()
        person.keyboard.press("Delete")
        question = person.get_by_role("dialog")
        expect(question).to_contain_text("Delete --new 'name'\"?")
        person.keyboard.press("Enter")
        expect(renamed).to_be_visible()
        renamed.focus()
        person.keyboard.press("Delete")
        question.get_by_role("button", name="Delete", exact=True).click()
        expect(renamed).to_have_count(0)
        person.locator("button.name", has_text="-rf *").focus()
        person.keyboard.press("Delete")
        question.get_by_role("button", name="Delete", exact=True).click()
        expect(person.locator("button.name", has_text="-rf *")).to_have_count(0)
        assert live.output("ls -A ~/work; ls -A ~ | grep -c owned || true").split() == ["sub", "0"]
        person.get_by_role("button", name="sub/").focus()
        person.keyboard.press("Backspace")
        expect(person.locator("#path")).to_have_value("/home/gem")
        assert person.title() == f"{live.name}: Arenite"

    def test_uploads_and_searches(self, sandbox: Callable[..., LiveSandbox], person: Page, tmp_path: Path) -> None:
        live = sandbox()
        live.output("mkdir -p ~/a/b && echo 'the needle is here' > ~/a/b/hay.txt && echo kept > ~/kept.txt")
        person.goto(f"{live.url}/index.html#files")
        expect(person.get_by_role("button", name="kept.txt", exact=True)).to_be_visible()
        big, kept = tmp_path / "big.bin", tmp_path / "kept.txt"
        big.write_bytes(os.urandom(3 << 20))
        kept.write_text("replaced")
        person.set_input_files("#chosen", [str(big), str(kept)])
        person.get_by_role("dialog", name="Replace kept.txt?").get_by_role("button", name="Keep them").click()
        assert live.output("cat ~/kept.txt; ls ~/big.bin 2>/dev/null || echo none") == "kept\nnone"
        person.set_input_files("#chosen", [str(big), str(kept)])
        person.get_by_role("button", name="Replace", exact=True).click()
        uploads = person.get_by_role("region", name="Uploads")
        expect(uploads.get_by_text("3.0 MiB, uploaded")).to_be_visible()
        expect(uploads.get_by_text("8 B, uploaded")).to_be_visible()
        assert live.output("cat ~/kept.txt; stat -c %s ~/big.bin") == f"replaced{3 << 20}"
        # The same by dropping.
        transfer = person.evaluate_handle("() => { const transfer = new DataTransfer(); transfer.items.add(new File(['dropped'], 'drop me.txt')); return transfer; }")
        person.dispatch_event("#panel-files .files", "drop", {"dataTransfer": transfer})
        expect(person.get_by_role("button", name="drop me.txt", exact=True)).to_be_visible()
        assert live.output("cat ~/'drop me.txt'") == "dropped"
        search = person.get_by_role("searchbox", name="Filter this folder")
        search.fill("KEPT")
        expect(person.locator("button.name")).to_have_count(1)
        search.fill("hay")
        person.keyboard.press("Enter")
        found = person.get_by_role("region", name="Search results")
        expect(found.get_by_role("button", name="a/b/hay.txt")).to_be_visible()
        person.get_by_role("combobox", name="Search for").select_option("contents")
        search.fill("NEEDLE")
        person.keyboard.press("Enter")
        expect(found).to_contain_text("the needle is here")
        picture(person, "dashboard-search")
        found.get_by_role("button", name="a/b/hay.txt:1").click()
        expect(person.get_by_role("textbox", name="Content of hay.txt")).to_have_value("the needle is here\n")
        # Looking is no step; changing is one of a person.
        steps = live.http.get("/steps?origin=person").json()["steps"]
        assert {step["action"].split("?")[0] for step in steps} == {"POST /v1/file/upload"}


class TestParts:
    def test_ports_processes_and_the_header(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        live = sandbox()
        person.goto(f"{live.url}/index.html#ports")
        expect(person.get_by_text("Nothing listens on a port")).to_be_visible()
        live.client.bash.exec(command="mkdir -p ~/site && cd ~/site && echo 'hello from inside' > index.html && exec python3 -m http.server 4100", async_mode=True)
        address = f"http://4100-{live.id}.localhost:{server.port}/"
        expect(person.get_by_text(address)).to_be_visible()
        expect(person.get_by_role("row").filter(has_text="8080")).to_have_count(0)
        picture(person, "dashboard-ports")
        with person.context.expect_page() as opened:
            person.get_by_role("link", name="Open port 4100").click()
        expect(opened.value.get_by_text("hello from inside")).to_be_visible()
        assert opened.value.url == address
        assert opened.value.evaluate("window.opener") is None
        opened.value.close()
        header = person.get_by_role("banner")
        expect(header).to_contain_text("running")
        expect(header.locator('[data-amount="memory"]')).to_have_text(re.compile(r"\d [KM]iB"))
        expect(header.locator('[data-amount="cpu"]')).to_have_text(re.compile(r"\d+ %"))
        person.get_by_role("tab", name="Processes").click()
        expect(person.get_by_role("row").filter(has_text="python3").first).to_be_visible()
        picture(person, "dashboard-processes")

    def test_the_state_changes_nothing(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        """It is read every few seconds, and the sandbox stays paused; what resumes it is the button."""
        live = sandbox()
        live.output("echo before > ~/before.txt")
        control = f"{server.url}/api/v2/sandboxes/{live.name}"
        person.goto(f"{live.url}/index.html#files")
        expect(person.get_by_role("table", name="Files in")).to_be_visible()
        assert httpx.post(f"{control}/pause", json={}, timeout=60).status_code == 200
        expect(person.get_by_role("heading", name="This sandbox is paused")).to_be_visible()
        expect(person.locator("iframe, #strip")).to_have_count(0)
        used = httpx.get(control).json()["last_used_at"]
        picture(person, "dashboard-paused")
        for _ in range(3):
            with person.expect_response("**/state"):
                pass
        after = httpx.get(control).json()
        assert (after["state"], after["last_used_at"]) == ("paused", used)
        person.reload()
        expect(person.get_by_role("heading", name="This sandbox is paused")).to_be_visible()
        person.get_by_role("button", name="Resume").click()
        expect(person.get_by_role("table", name="Files in")).to_be_visible()
        assert httpx.get(control).json()["state"] == "running"

    def test_the_log(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        plain = sandbox()
        person.goto(f"{plain.url}/index.html#logs")
        expect(person.get_by_role("heading", name="No output")).to_be_visible()
        loud = sandbox(labels={}, args=["sh", "-c", "echo 'started <b>here</b>'; n=0; while sleep 0.5; do n=$((n+1)); echo \"turn $n\"; done"])
        person.goto(f"{loud.url}/index.html#logs")
        log = person.get_by_role("log")
        expect(log).to_contain_text("started <b>here</b>")
        expect(log).to_contain_text("turn 12")
        person.get_by_role("searchbox", name="Search in the log").fill("turn 3")
        expect(log.locator("mark").first).to_have_text("turn 3")
        assert "started" not in log.inner_text() and log.locator("b").count() == 0
        person.get_by_role("checkbox", name="Follow").uncheck()
        picture(person, "dashboard-log")
        with person.expect_download() as download:
            person.get_by_role("link", name="Download").click()
        assert "started <b>here</b>" in Path(download.value.path()).read_text()

    def test_a_failed_sandbox_says_why(self, server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
        """Its state and reason are the server's; only their answer is replaced, since no test ends a sandbox in this way."""
        live = sandbox()
        state = live.http.get("/state").json()
        person.route("**/state", lambda route: route.fulfill(json={**state, "state": "lost", "reason": "its processes <b>ended</b>"}))
        person.goto(f"{live.url}/index.html")
        expect(person.get_by_role("heading", name="The processes of this sandbox have ended")).to_be_visible()
        expect(person.get_by_text("its processes <b>ended</b>")).to_be_visible()
        expect(person.get_by_role("link", name="Start it in the console")).to_have_attribute("href", f"http://localhost:{server.port}/#/sandboxes/{live.name}")


class TestDesktop:
    def test_a_person_takes_over_and_hands_back(self, browsing: LiveSandbox, person: Page) -> None:
        with tab(browsing, f"<!doctype html><title>{uuid.uuid4().hex}</title><body style='margin:0;background:#20c060'><script>window.clicks = 0; addEventListener('click', () => clicks++, true);</script>") as shown:
            person.set_viewport_size({"width": 1440, "height": 860})
            person.goto(f"{browsing.url}/index.html#browser")
            screen = person.frame_locator("#panel-browser iframe")
            expect(screen.locator("#state.good")).to_be_visible()
            expect(person.get_by_text("You only watch")).to_be_visible()
            canvas = screen.locator("#screen canvas")

            def click() -> None:
                box = canvas.bounding_box()
                assert box
                person.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.7)

            click()
            person.get_by_role("button", name="Take control").click()
            expect(person.get_by_text("You control the desktop")).to_be_visible()
            expect(screen.locator("#watch")).to_have_attribute("aria-pressed", "false")
            picture(person, "dashboard-control")
            click()
            shown.wait("clicks === 1")
            # Back by key, which is pressed in the desktop and must not stay so: a click with Alt is the window manager's.
            canvas.focus()
            person.keyboard.down("Alt")
            person.keyboard.press("h")
            expect(person.get_by_text("You only watch")).to_be_visible()
            person.keyboard.up("Alt")
            click()
            expect(screen.locator("#watch")).to_have_attribute("aria-pressed", "true")
            # The desktop's own button does the same.
            screen.locator("#watch").click()
            expect(person.get_by_text("You control the desktop")).to_be_visible()
            click()
            shown.wait("clicks === 2")
            person.get_by_role("tab", name="Terminal").click()
            person.get_by_role("tab", name="Browser").click()
            expect(person.get_by_text("You only watch")).to_be_visible()
            browsing.http.get("/v1/browser/page/text")
            expect(person.get_by_text("Agent: browser page text")).to_be_visible()


@pytest.fixture
def locked(server: Server, sandbox: Callable[..., LiveSandbox]) -> Iterator[LiveSandbox]:
    live = sandbox()
    live.output("echo before > ~/before.txt")
    assert live.id
    server.restart(("--api-key", "a-key-for-people", "--ticket-ttl-seconds", "600"))
    yield live
    server.restart()


def test_a_shared_link_opens_this_sandbox_alone(server: Server, locked: LiveSandbox, person: Page, browser: Browser) -> None:
    own = f"http://{locked.id}.localhost:{server.port}"
    key = {"x-api-key": "a-key-for-people"}
    ticket = httpx.post(f"{server.url}/tickets", headers={**key, "host": f"{locked.id}.localhost:{server.port}"}).json()["ticket"]
    person.goto(f"{own}/index.html?ticket={ticket}")
    # A link that is made with a link ends no later than that one.
    person.get_by_role("button", name="Share").click()
    share = person.get_by_role("dialog", name=f"Share {locked.name}")
    share.get_by_role("button", name="Create a link").click()
    expect(share).to_contain_text("It ends in")
    assert "ticket=" in share.get_by_role("textbox", name="Link").input_value()
    # Where none may be made, the console is named instead.
    person.keyboard.press("Escape")
    person.route("**/tickets", lambda route: route.fulfill(status=403, json={"success": False, "message": "a ticket can't be used to make another"}))
    person.get_by_role("button", name="Share").click()
    share.get_by_role("button", name="Create a link").click()
    expect(share.get_by_role("alert")).to_contain_text("A ticket can't")
    expect(share.get_by_role("link", name="Open the keys")).to_have_attribute("href", f"http://localhost:{server.port}/#/keys")
    # With the key, it is a link with an end.
    holder = browser.new_context(extra_http_headers=key).new_page()
    holder.goto(f"{own}/index.html#files")
    holder.get_by_role("button", name="Share").click()
    holder.get_by_role("button", name="Create a link").click()
    link = holder.get_by_role("textbox", name="Link").input_value()
    expect(holder.get_by_role("dialog")).to_contain_text("It ends in")
    picture(holder, "dashboard-share")
    guest = browser.new_context().new_page()
    guest.goto(link)
    expect(guest.get_by_role("table", name="Files in")).to_be_visible()
    assert httpx.get(f"{server.url}/api/v2/sandboxes", params={"ticket": link.split("ticket=")[1].split("#")[0]}).status_code == 401
    for page in (holder, guest):
        page.context.close()


@pytest.mark.parametrize("look", LOOKS)
def test_all_tabs_are_accessible(server: Server, browsing: LiveSandbox, person: Page, look: str) -> None:
    scheme, width, height, contrast = LOOKS[look]
    person.emulate_media(color_scheme=scheme, contrast=contrast)  # type: ignore[arg-type]
    person.set_viewport_size({"width": width, "height": height})
    browsing.output("mkdir -p ~/notes && echo 'a note' > ~/notes/note.txt && ls /nowhere || true")
    found = {}

    def check(state: str) -> None:
        picture(person, f"dashboard-{state}-{look}")
        # What frames show has tests of its own.
        if wrong := violations(person, left_out="iframe"):
            found[state] = wrong

    person.goto(f"{browsing.url}/index.html#files")
    person.fill("#path", "/home/gem/notes")
    person.keyboard.press("Enter")
    person.get_by_role("button", name="note.txt", exact=True).click()
    expect(person.get_by_role("textbox", name="Content of note.txt")).to_be_visible()
    check("files-open")
    person.get_by_role("button", name="Close note.txt").click()
    check("files")
    for name, ready in (("Terminal", "iframe"), ("Browser", ".hand-over"), ("Ports", "h2"), ("Logs", "h2, h3"), ("Processes", "td")):
        person.get_by_role("tab", name=name).click()
        expect(person.locator(f"[role=tabpanel]:not([hidden]) :is({ready})").first).to_be_visible()
        check(name.lower())
    if person.locator("#strip").count() == 0:
        person.get_by_role("button", name="Steps", exact=True).click()
    person.locator("#steps summary").first.click()
    expect(person.locator("#steps .more").first).to_be_visible()
    check("steps")
    if width < 960:
        person.get_by_role("button", name="Hide the steps").click()
    person.get_by_role("button", name="Not in this image").click()
    check("menu")
    person.get_by_role("menuitem", name="Code").click()
    check("missing")
    person.get_by_role("button", name="Share").click()
    check("share-open")
    person.keyboard.press("Escape")
    person.route("**/state", lambda route: route.fulfill(status=404, json={"message": "there is no such sandbox"}))
    expect(person.get_by_role("heading", name="This sandbox is gone")).to_be_visible()
    check("gone")
    assert not found
