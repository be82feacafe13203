"""The desktop and the browser on it: pictures, hands, recordings, and what happens when a part of it dies."""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from agent_sandbox import Resolution, RestartRequest, browser
from agent_sandbox.core.api_error import ApiError
from cdp import Tab, tab
from sandboxes import LiveSandbox

PAGE = """<!doctype html><title>{title}</title><body style="margin:0;height:4000px">
<textarea autofocus style="position:fixed;left:0;top:0;width:500px;height:300px"></textarea>
<script>
window.seen = [];
const note = event => seen.push([event.type, event.button ?? null, event.key ?? null, event.detail]);
for (const kind of ['mousedown', 'mouseup', 'click', 'dblclick', 'contextmenu', 'keydown', 'keyup', 'wheel']) addEventListener(kind, note, true);
window.moved = [];
addEventListener('mousemove', event => moved.push([event.screenX, event.screenY, event.buttons]), true);
</script>"""


def png_size(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", data[16:24])


def screenshot(live: LiveSandbox, **query: Any) -> bytes:
    # The SDK has no arguments for the kind of file.
    options = {"additional_query_parameters": query} if query else None
    return b"".join(live.client.browser.screenshot(request_options=options))


def act(live: LiveSandbox, kind: str, **arguments: Any) -> Any:
    action = getattr(browser, "Action_" + "".join(map(str.title, kind.split("_"))))
    answer = live.client.browser.execute_action(request=action(**arguments))
    assert (answer.status, answer.action_performed, answer.data.action_performed) == ("success", kind, kind)
    return answer


def refused(live: LiveSandbox, kind: str, status: int, **arguments: Any) -> dict[str, Any]:
    answer = live.http.post("/v1/browser/actions", json={"action_type": kind, **arguments})
    assert answer.status_code == status, answer.text
    assert answer.json()["success"] is False
    return answer.json()


@pytest.fixture
def page(browsing: LiveSandbox) -> Iterator[Tab]:
    """A tab of its own that is shown, with a page that notes what happens to it."""
    with tab(browsing, PAGE.format(title=uuid.uuid4().hex)) as opened:
        opened.wait("document.hasFocus() && document.activeElement.tagName === 'TEXTAREA'")
        yield opened


def test_what_the_browser_says_of_itself(browsing: LiveSandbox) -> None:
    info = browsing.client.browser.get_info().data
    assert "Chrome/" in info.user_agent and "Headless" not in info.user_agent
    assert (info.viewport.width, info.viewport.height) == (1280, 1024)
    assert 500 < info.page_viewport.height < 1024 and info.page_viewport.width <= 1280
    place = browsing.url.removeprefix("http://")
    assert info.cdp_url.startswith(f"ws://{place}/cdp/devtools/browser/")
    assert info.vnc_url.startswith(f"{browsing.url}/vnc/index.html")
    assert httpx.get(info.vnc_url).status_code == 200


def test_pictures_of_the_screen(browsing: LiveSandbox) -> None:
    assert png_size(screenshot(browsing)) == (1280, 1024)
    answer = browsing.http.get("/v1/browser/screenshot")
    assert answer.headers["content-type"] == "image/png"
    for name, wanted in (("screen-width", 1280), ("screen-height", 1024), ("image-width", 1280), ("image-height", 1024)):
        assert answer.headers[f"x-{name}"] == str(wanted)
    sizes = [len(screenshot(browsing, format="jpeg", quality=quality)) for quality in (5, 95)]
    assert sizes[0] < sizes[1]
    assert screenshot(browsing, format="jpg").startswith(b"\xff\xd8")
    for query in ("format=gif", "quality=101", "format=jpeg&quality=-1", "quality=x"):
        assert browsing.http.get(f"/v1/browser/screenshot?{query}").status_code == 422, query


def test_one_browser_for_all_who_ask_at_once(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser")
    programs = "pgrep -c -x 'Xvnc|openbox|chromium' || true"
    assert live.output(programs) == "0", "nothing runs before it is used"
    with ThreadPoolExecutor(8) as pool:
        pictures = list(pool.map(lambda _: screenshot(live), range(8)))
    assert all(png_size(picture) == (1280, 1024) for picture in pictures)
    # An empty screen is one colour, and its file tiny.
    assert min(map(len, pictures)) > 8000
    assert live.output("pgrep -c -x Xvnc; pgrep -c -x openbox; ps -eo args | grep -c '^/usr/lib/chromium/chromium --user'").split() == ["1", "1", "1"]


def test_a_profile_is_there_that_is_nobodys(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser")
    kept = live.output("cd ~/.config/browser && cat 'Local State' Default/Preferences")
    assert live.output("stat -c '%U %a' ~/.config/browser/Default/History") == "gem 600"
    # Whatever tells one installation from another is drawn by each for itself.
    for mark in ("randomization_source", "device_id", "profile_guid", "hash_token", "client_id"):
        assert mark not in kept, mark
    screenshot(live)
    live.output("until grep -q enterprise_profile_guid ~/.config/browser/Default/Preferences; do sleep 0.2; done", timeout=60)


def test_a_display_that_is_taken_is_left_alone(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser")
    for other in ("99", "100"):
        live.bash(f"Xvnc :{other} -rfbport -1 -rfbunixpath /tmp/vnc{other} -SecurityTypes None", async_mode=True)
        live.output(f"until [ -S /tmp/.X11-unix/X{other} ]; do sleep 0.05; done", timeout=20)
    assert png_size(screenshot(live)) == (1280, 1024)
    assert live.output("tr '\\0' '\\n' </proc/$(pgrep -o -x openbox)/environ | grep ^DISPLAY=") == "DISPLAY=:101"


def test_typing_reaches_the_page(browsing: LiveSandbox, page: Tab) -> None:
    for text, clipboard in (
        ("plain ASCII: ~!@#$%^&*()_+{}|:\"<>?`-=[]\\;',./ 0123456789", True),
        ("two\nlines\tand a tab", True),
        ("Grüße, naïve café — ¿qué? Привет", False),
        ("世界 こんにちは 안녕 😀🎉", False),
        ("一二三四五六七八九十百千万" * 20, True),
    ):
        page.run("document.querySelector('textarea').focus(); document.querySelector('textarea').value = ''")
        # The tab key would leave the field.
        typed = text.replace("\t", " ")
        act(browsing, "TYPING", text=typed, use_clipboard=clipboard)
        page.wait(f"document.querySelector('textarea').value === {json.dumps(typed)}", shown="document.querySelector('textarea').value")
    # Each time keys mean something else.
    for first in range(0x5000, 0x5030, 8):
        text = "".join(map(chr, range(first, first + 8)))
        page.run("document.querySelector('textarea').value = ''")
        act(browsing, "TYPING", text=text, use_clipboard=False)
        page.wait(f"document.querySelector('textarea').value === {json.dumps(text)}", shown="document.querySelector('textarea').value")
    many = "".join(chr(0x4E00 + i) for i in range(300))
    page.run("document.querySelector('textarea').value = ''")
    act(browsing, "TYPING", text=many, use_clipboard=True)
    page.wait(f"document.querySelector('textarea').value === {json.dumps(many)}", shown="document.querySelector('textarea').value")
    assert refused(browsing, "TYPING", 422, text="")
    assert "can't be typed" in refused(browsing, "TYPING", 400, text="\x01")["message"]


def test_keys_by_all_their_names(browsing: LiveSandbox, page: Tab) -> None:
    wanted = []
    for name, key in (
        ("Return", "Enter"), ("BackSpace", "Backspace"), ("space", " "), ("Page_Down", "PageDown"), ("ArrowLeft", "ArrowLeft"),
        ("f2", "F2"), ("esc", "Escape"), ("delete", "Delete"), ("A", "A"), ("KeyB", "b"),
    ):
        act(browsing, "PRESS", key=name)
        wanted.append(key)
    heard = "seen.filter(e => e[0] === 'keydown' && e[2] !== 'Shift').map(e => e[2])"
    page.wait(f"{heard}.length >= {len(wanted)}")
    assert page.value(heard) == wanted
    page.run("seen.length = 0; document.querySelector('textarea').value = 'some text'")
    act(browsing, "HOTKEY", keys=["ctrl", "a"])
    act(browsing, "KEY_DOWN", key="shift")
    act(browsing, "PRESS", key="x")
    act(browsing, "KEY_UP", key="shift")
    page.wait("document.querySelector('textarea').value === 'X'")
    for kind, arguments, status in (
        ("PRESS", {"key": "nonsense"}, 400), ("HOTKEY", {"keys": ["ctrl", "nonsense"]}, 400), ("HOTKEY", {"keys": []}, 422),
        ("KEY_DOWN", {"key": ""}, 400), ("PRESS", {}, 422),
    ):
        refused(browsing, kind, status, **arguments)
    # None of them left ctrl pressed.
    page.run("document.querySelector('textarea').value = ''")
    act(browsing, "PRESS", key="a")
    page.wait("document.querySelector('textarea').value === 'a'")


def test_the_mouse_does_what_it_is_told(browsing: LiveSandbox, page: Tab) -> None:
    top = page.value("screenY + outerHeight - innerHeight")
    x, y = 700, top + 300
    kinds = "seen.filter(e => e[2] === null).map(e => e.slice(0, 2))"
    act(browsing, "MOVE_TO", x=x, y=y)
    act(browsing, "CLICK")
    page.wait(f"{kinds}.length === 3", shown="JSON.stringify([seen, screenX, screenY, outerWidth, outerHeight, innerHeight])")
    assert page.value(kinds) == [["mousedown", 0], ["mouseup", 0], ["click", 0]]
    act(browsing, "MOVE_REL", x_offset=30.4, y_offset=-20.6)
    page.wait("moved.length > 0 && moved.at(-1)[0] === 730", shown="moved.at(-1)")
    assert page.value("moved.at(-1).slice(0, 2)") == [730, y - 21]
    page.run("seen.length = 0")
    act(browsing, "CLICK", x=x, y=y, button="middle", num_clicks=1)
    page.wait("seen.some(e => e[0] === 'mousedown' && e[1] === 1)")
    time.sleep(0.6)
    page.run("seen.length = 0")
    act(browsing, "DOUBLE_CLICK", x=x, y=y)
    page.wait("seen.some(e => e[0] === 'dblclick')")
    page.run("seen.length = 0")
    act(browsing, "MOUSE_DOWN")
    act(browsing, "MOUSE_UP")
    page.wait("seen.some(e => e[0] === 'mouseup')")
    page.run("moved.length = 0")
    act(browsing, "DRAG_TO", x=x + 100, y=y + 50)
    page.wait(f"moved.length > 3 && moved.at(-1)[0] === {x + 100} && moved.some(m => m[2] === 1)")
    act(browsing, "DRAG_REL", x_offset=-50, y_offset=0)
    page.wait(f"moved.at(-1)[0] === {x + 50}")
    page.run("scrollTo(0, 0)")
    act(browsing, "SCROLL", dy=-5)
    page.wait("scrollY > 100", shown="scrollY")
    act(browsing, "SCROLL", dy=50)
    page.wait("scrollY === 0", shown="scrollY")
    act(browsing, "RIGHT_CLICK", x=x, y=y)
    page.wait("seen.some(e => e[0] === 'contextmenu')")
    act(browsing, "PRESS", key="Escape")
    begun = time.monotonic()
    act(browsing, "WAIT", duration=0.3)
    assert 0.3 <= time.monotonic() - begun < 5
    for kind, arguments, status in (
        ("MOVE_TO", {"x": 1280, "y": 5}, 400), ("CLICK", {"x": -1, "y": 5}, 400), ("DRAG_TO", {"x": 1, "y": 1e9}, 400),
        ("MOVE_TO", {"x": 1}, 422), ("CLICK", {"num_clicks": 4}, 422), ("CLICK", {"button": "side"}, 422),
        ("WAIT", {"duration": 0}, 422), ("NONSENSE", {}, 422), ("SCROLL", {"dy": "far"}, 422),
    ):
        refused(browsing, kind, status, **arguments)
    with pytest.raises(ApiError) as failure:
        act(browsing, "MOVE_TO", x=5000, y=5)
    assert "1280x1024" in failure.value.body["message"]


def test_the_screen_changes_its_size(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser", env={"DISPLAY_WIDTH": "1000", "DISPLAY_HEIGHT": "700", "BROWSER_USER_AGENT": "Tester/1"})
    info = live.client.browser.get_info().data
    assert (info.viewport.width, info.viewport.height, info.user_agent) == (1000, 700, "Tester/1")
    live.client.browser.set_config(resolution=Resolution(width=1280, height=720))
    assert png_size(screenshot(live)) == (1280, 720)
    deadline = time.monotonic() + 10
    while live.client.browser.get_info().data.page_viewport.width < 1200:
        assert time.monotonic() < deadline, "the browser fills the screen"
    assert live.client.browser.set_config().success
    with pytest.raises(ApiError) as failure:
        live.client.browser.set_config(resolution=Resolution(width=1234, height=567))
    assert failure.value.status_code == 400 and "1280x720" in failure.value.body["message"]
    assert live.http.post("/v1/browser/config", json={"resolution": {"width": 0, "height": 1}}).status_code == 422
    # As AIO's README writes it.
    assert live.client.browser.set_config(resolution="1280x720").success
    assert live.client.browser.get_info().data.viewport.width == 1280
    assert live.http.post("/v1/browser/config", json={"resolution": "large"}).status_code == 422


def test_restarts(browsing: LiveSandbox) -> None:
    def opens(url: str) -> bool:
        with tab(browsing, None) as opened:
            return not opened.call("Page.navigate", url=url).get("errorText")

    with tab(browsing, PAGE.format(title="stays")) as opened:
        browsing.client.browser.restart(request=RestartRequest(mode="soft"))
        assert opened.value("document.title") == "stays"
    assert opens("data:text/html,x")
    browsing.client.browser.restart(request=RestartRequest(url_blocklist=["data:*"], locale="de-DE"))
    assert not opens("data:text/html,x")
    with tab(browsing, None) as opened:
        assert opened.value("navigator.language") == "de-DE"
    browsing.client.browser.restart(request=RestartRequest(mode="hard", url_blocklist=[], locale="en-US"))
    assert opens("data:text/html,x")
    assert browsing.http.post("/v1/browser/restart").status_code == 200
    assert browsing.http.post("/v1/browser/restart", json={"mode": "gentle"}).status_code == 422


@pytest.mark.parametrize("victim", ["Xvnc", "chromium", "openbox"])
def test_what_dies_is_there_again_at_the_next_call(browsing: LiveSandbox, victim: str) -> None:
    screenshot(browsing)
    before = browsing.output(f"pgrep -o -x {victim}")
    for signal in ("KILL", "STOP") if victim == "Xvnc" else ("KILL",):
        browsing.output(f"kill -{signal} $(pgrep -o -x {victim})")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = browsing.http.get("/v1/browser/screenshot")
            if answer.status_code == 200:
                break
            # A call that was under way fails, and says so.
            assert answer.status_code == 424, answer.text
        assert png_size(answer.content) == (1280, 1024)
    # Its end is noticed a moment after it.
    deadline = time.monotonic() + 20
    while browsing.bash(f"pgrep -o -x {victim}").stdout in (None, f"{before}\n"):
        assert time.monotonic() < deadline
        browsing.http.get("/v1/browser/screenshot")
    assert act(browsing, "MOVE_TO", x=5, y=5)


def test_an_image_without_it_says_which_one_has_it(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    for method, path, body in (
        ("GET", "/v1/browser/info", None), ("GET", "/v1/browser/screenshot", None), ("POST", "/v1/browser/restart", {}),
        ("POST", "/v1/browser/actions", {"action_type": "MOVE_TO", "x": 1, "y": 1}), ("GET", "/cdp/json/version", None),
        ("POST", "/v1/browser/config", {"resolution": {"width": 640, "height": 480}}), ("POST", "/v1/display/record", {"action": "start"}),
    ):
        answer = live.http.request(method, path, json=body)
        assert answer.status_code == 424, (path, answer.text)
        assert "`browser`" in answer.json()["hint"], answer.text
    assert live.client.display.record(action="status").data.status == "idle"


def test_the_proxy_file_follows_the_rules(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser")
    live.client.browser.get_proxy_pac()

    def file() -> str:
        answer = live.http.get("/v1/browser/proxy.pac")
        assert answer.headers["content-type"] == "application/x-ns-proxy-autoconfig"
        return answer.text

    assert "DIRECT" in file() and "PROXY" not in file()
    live.bash("mkdir -p ~/site; echo '<title>mapped</title>' > ~/site/index.html; python3 -m http.server -d ~/site 8000", async_mode=True)
    live.client.proxy.add_mapping(source="mapped.example", target="8000")
    assert "PROXY 127.0.0.1:8118" in file()
    with tab(live, None) as opened:
        opened.call("Page.navigate", url="http://mapped.example/")
        opened.wait("document.title === 'mapped'")


def test_recordings_of_the_screen(browsing: LiveSandbox) -> None:
    record = browsing.client.display.record
    begun = record(action="start", fps=10, save_path="films/one.mp4").data
    assert begun.status == "recording" and begun.save_path == "/home/gem/films/one.mp4"
    with pytest.raises(ApiError) as failure:
        record(action="start")
    assert failure.value.status_code == 409
    act(browsing, "WAIT", duration=1.2)
    assert record(action="status").data.status == "recording"
    ended = record(action="stop").data
    assert ended.status == "stopped" and ended.duration >= 1.2 and ended.file_size_bytes > 1000
    probe = "ffprobe -v error -count_frames -show_entries stream=codec_name,width,height,nb_read_frames -of csv=p=0 films/one.mp4"
    codec, width, height, frames = browsing.output(probe).split(",")
    assert (codec, width, height) == ("h264", "1280", "1024") and int(frames) >= 8
    assert record(action="stop").data.status == "stopped"
    # Ends by itself, in another size.
    record(action="start", max_duration=0.5, width=321, height=240)
    deadline = time.monotonic() + 20
    while (last := record(action="status").data).status == "recording":
        assert time.monotonic() < deadline
    assert last.save_path.startswith("/tmp/recordings/recording_")
    assert "320,240" in browsing.output(f"ffprobe -v error -show_entries stream=width,height -of csv=p=0 {last.save_path}")
    for wrong in ({"action": "pause"}, {"action": "start", "fps": 31}, {"action": "start", "crf": 52}, {"action": "start", "max_duration": 0}):
        assert browsing.http.post("/v1/display/record", json=wrong).status_code == 422, wrong
    answer = browsing.http.post("/v1/display/record", json={"action": "start", "save_path": "/proc/no.mp4"})
    assert answer.status_code == 424, answer.text


def test_a_page_in_the_browser_has_no_power_over_the_sandbox(browsing: LiveSandbox) -> None:
    """The guest's API is on loopback beside the browser; whatever page it shows must not get to it."""
    browsing.output("rm -f /tmp/pwned; mkdir -p ~/evil; echo hostile > ~/evil/index.html")
    browsing.bash("python3 -m http.server -d ~/evil 8001", async_mode=True)
    call = json.dumps({"command": "touch /tmp/pwned"})
    attack = f"""fetch('http://%s/v1/bash/exec', {{method: 'POST', mode: 'no-cors', body: {json.dumps(call)}}}).then(() => 'sent', String)"""
    with tab(browsing, None) as opened:
        opened.call("Page.navigate", url="http://127.0.0.1:8001/")
        opened.wait("document.body && document.body.innerText.includes('hostile')")
        for host in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
            opened.value(attack % host)
        socket = """new Promise(done => { const s = new WebSocket('ws://127.0.0.1:8080/websockify');
            s.onopen = () => done('open'); s.onerror = () => done('refused'); })"""
        assert opened.value(socket) == "refused"
    assert browsing.output("test ! -e /tmp/pwned && echo safe") == "safe"
    for headers in ({"Host": "evil.example:8080"}, {"Origin": "http://127.0.0.1:8001"}):
        flags = " ".join(f"-H '{name}: {value}'" for name, value in headers.items())
        assert browsing.output(f"curl -s -o /dev/null -w '%{{http_code}}' {flags} http://127.0.0.1:8080/v1/sandbox") == "403"
    assert browsing.output("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/v1/sandbox") == "200"
    # Nor does a preview lead to the browser's own port.
    assert browsing.http.get("/proxy/9222/json/version").status_code in (403, 404)
