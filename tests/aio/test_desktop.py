"""The desktop without its browser: pictures of its parts, windows, clipboard, what programs say that they show, and what
happens when a part of it dies."""

from __future__ import annotations

import base64
import json
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sandboxes import LiveSandbox
from waiting import until

# As in the image; said here too, for images that were built before they said it.
BUS = "unix:path=/run/desktop/bus"
ON_DESKTOP = f"DISPLAY=:99 DBUS_SESSION_BUS_ADDRESS={BUS}"
# For programs to start and to draw themselves on a busy machine.


def data(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["success"] is True
    return body["data"]


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.json()["success"] is False
    return answer.json()


def windows(live: LiveSandbox) -> list[dict[str, Any]]:
    return data(live.http.get("/v1/display/windows"))


def window(live: LiveSandbox, title: str) -> dict[str, Any]:
    return until(lambda: next((w for w in windows(live) if title in w["title"]), None), f"a window {title}")


def start(live: LiveSandbox, command: str) -> None:
    windows(live)
    live.bash(f"{ON_DESKTOP} exec {command}", async_mode=True)


def act(live: LiveSandbox, kind: str, **arguments: Any) -> None:
    data(live.http.post("/v1/browser/actions", json={"action_type": kind, **arguments}))


def activate(live: LiveSandbox, window_id: int) -> dict[str, Any]:
    """The window as it is once it is active: a busy window manager may need longer than one call waits for it."""

    def asked() -> dict[str, Any] | None:
        now = data(live.http.post(f"/v1/display/windows/{window_id}/activate"))
        return now if now["active"] else None

    return until(asked, "an active window")


def tree(live: LiveSandbox, **query: Any) -> dict[str, Any]:
    return data(live.http.get("/v1/display/accessibility", params=query))


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from nodes(child)


def found(live: LiveSandbox, role: str, name: str = "", **query: Any) -> dict[str, Any] | None:
    here = nodes(tree(live, **query)["tree"])
    return next((node for node in here if node["role"] == role and name in node["name"]), None)


def depth(node: dict[str, Any]) -> int:
    return 1 + max(map(depth, node["children"]), default=0)


@pytest.fixture(scope="module")
def editor(browsing: LiveSandbox) -> dict[str, Any]:
    """The window of a GTK program with a text."""
    browsing.output("echo some text > /tmp/note.txt")
    start(browsing, "l3afpad /tmp/note.txt")
    return window(browsing, "note.txt")


@pytest.fixture(scope="module")
def terminal(browsing: LiveSandbox) -> dict[str, Any]:
    """The window of a program that starts minimised."""
    start(browsing, "xterm -iconic -T patient -e sleep 10000")
    return window(browsing, "patient")


def png_size(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", content[16:24])


def test_pictures_of_the_screen_and_of_parts(browsing: LiveSandbox, editor: dict[str, Any]) -> None:
    def picture(**query: Any) -> httpx.Response:
        answer = browsing.http.get("/v1/display/screenshot", params=query)
        assert answer.status_code == 200, answer.text
        sizes = [int(answer.headers[f"x-{name}"]) for name in ("screen-width", "screen-height")]
        assert sizes == [1280, 1024]
        return answer

    answer = picture()
    assert answer.headers["content-type"] == "image/png"
    assert png_size(answer.content) == (1280, 1024)
    assert [answer.headers[f"x-image-{side}"] for side in ("width", "height")] == ["1280", "1024"]
    assert png_size(picture(x=1000, y=1000).content) == (280, 24)
    assert png_size(picture(x=5, width=7, height=9).content) == (7, 9)
    assert png_size(picture(width=32767, height=32767).content) == (1280, 1024)
    box = editor["box"]
    assert png_size(picture(window=editor["id"]).content) == (box["width"], box["height"])
    assert png_size(picture(window=editor["id"], x=10, y=20, width=30).content) == (30, box["height"] - 20)
    jpeg = picture(format="jpeg", quality=30, width=50)
    assert jpeg.headers["content-type"] == "image/jpeg" and jpeg.content.startswith(b"\xff\xd8")
    for query, status in (
        ({"x": 1280}, 400), ({"y": 32767}, 400), ({"x": -1}, 422), ({"width": 0}, 422), ({"height": 40000}, 422), ({"x": "left"}, 422),
        ({"format": "gif"}, 422), ({"quality": 101}, 422), ({"window": 1}, 404), ({"window": 2**32}, 422), ({"window": "0x1"}, 422),
        ({"window": editor["id"], "x": 5000}, 400),
    ):  # fmt: skip
        refused(browsing.http.get("/v1/display/screenshot", params=query), status)


def test_windows_tell_what_they_are(browsing: LiveSandbox, editor: dict[str, Any], terminal: dict[str, Any]) -> None:
    seen = {w["id"]: w for w in windows(browsing)}
    one = seen[editor["id"]]
    assert one["class"] == "L3afpad" and one["minimised"] is False
    assert str(one["pid"]) in browsing.output("pgrep -x l3afpad").split()
    assert 0 < one["box"]["width"] <= 1280 and 0 < one["box"]["height"] <= 1024
    other = seen[terminal["id"]]
    assert (other["class"], other["title"], other["minimised"], other["active"]) == ("XTerm", "patient", True, False)


def test_windows_are_shown_when_asked(browsing: LiveSandbox, editor: dict[str, Any], terminal: dict[str, Any]) -> None:
    answer = refused(browsing.http.get("/v1/display/screenshot", params={"window": terminal["id"]}), 400)
    assert "minimised" in answer["message"] and str(terminal["id"]) in answer["hint"]
    for one in (terminal, editor, terminal):
        now = activate(browsing, one["id"])
        assert (now["id"], now["minimised"]) == (one["id"], False)
        assert [w["id"] for w in windows(browsing) if w["active"]] == [one["id"]]
    # A window manager may let it fly to its place, from outside of the screen.
    until(lambda: browsing.http.get("/v1/display/screenshot", params={"window": terminal["id"]}).is_success, "its picture")
    for wrong, status in (("1", 404), ("4294967295", 404), ("4294967296", 400), ("-1", 400), ("0x1", 400), ("x" * 300, 400), ("%00", 400)):
        refused(browsing.http.post(f"/v1/display/windows/{wrong}/activate"), status)
        refused(browsing.http.delete(f"/v1/display/windows/{wrong}"), status)


def test_windows_close_or_say_that_they_do_not(browsing: LiveSandbox) -> None:
    name = uuid.uuid4().hex
    start(browsing, f"xterm -T {name} -e sleep 10000")
    one = window(browsing, name)
    closed = data(browsing.http.delete(f"/v1/display/windows/{one['id']}"))
    # A busy machine may need longer than the call waits.
    assert closed["id"] == one["id"]
    until(lambda: one["id"] not in [w["id"] for w in windows(browsing)], "its end")
    refused(browsing.http.delete(f"/v1/display/windows/{one['id']}"), 404)
    # A program that asks first: its text is not saved.
    browsing.output(f"echo x > /tmp/{name}")
    start(browsing, f"l3afpad /tmp/{name}")
    one = window(browsing, name)
    until(lambda: found(browsing, "text", window=one["id"]), "its text")
    # The browser is on the screen before the window is chosen, and takes no keys from it then.
    act(browsing, "MOVE_TO", x=1, y=1)
    activate(browsing, one["id"])
    act(browsing, "TYPING", text="more ")
    until(lambda: "more" in str((found(browsing, "text", window=one["id"]) or {}).get("value")), "what was typed")
    answer = browsing.http.delete(f"/v1/display/windows/{one['id']}")
    assert data(answer)["closed"] is False and "look at the screen" in answer.json()["hint"]
    browsing.bash(f"pkill -f {name}")


def test_the_clipboard_holds_what_was_copied(browsing: LiveSandbox) -> None:
    def copied() -> str:
        return data(browsing.http.get("/v1/display/clipboard"))["text"]

    for text in ("plain", "", "Grüße 世界 😀\nand\ttabs\n", "x" * (8 << 20)):
        assert data(browsing.http.put("/v1/display/clipboard", json={"text": text})) == {"bytes": len(text.encode())}
        assert copied() == text
    refused(browsing.http.put("/v1/display/clipboard", json={"text": "x" * ((8 << 20) + 1)}), 413)
    for wrong in ({}, {"text": None}, {"text": 5}, {"text": ["x"]}):
        refused(browsing.http.put("/v1/display/clipboard", json=wrong), 422)
    assert len(copied()) == 8 << 20, "what was refused changed nothing"


def test_programs_and_calls_share_the_clipboard(browsing: LiveSandbox) -> None:
    name = uuid.uuid4().hex
    # Long enough that the program gives it in pieces.
    text = "".join(f"line {number} of the text\n" for number in range(60_000))
    browsing.http.post("/v1/file/write", json={"file": f"/tmp/{name}", "content": text}).raise_for_status()
    start(browsing, f"l3afpad /tmp/{name}")
    one = window(browsing, name)
    act(browsing, "MOVE_TO", x=1, y=1)

    def shown(part: str) -> bool:
        return part in str((found(browsing, "text", window=one["id"]) or {}).get("value"))

    until(lambda: shown("line 0 of"), "its text")
    activate(browsing, one["id"])

    def copied() -> bool:
        act(browsing, "HOTKEY", keys=["ctrl", "a"])
        act(browsing, "HOTKEY", keys=["ctrl", "c"])
        answer = browsing.http.get("/v1/display/clipboard")
        return answer.status_code == 200 and answer.json()["data"]["text"] == text

    data(browsing.http.put("/v1/display/clipboard", json={"text": "before"}))
    until(copied, "what the program copied")
    data(browsing.http.put("/v1/display/clipboard", json={"text": "pasted: Grüße 世界"}))
    act(browsing, "HOTKEY", keys=["ctrl", "a"])
    act(browsing, "HOTKEY", keys=["ctrl", "v"])
    until(lambda: shown("pasted: Grüße 世界"), "what was pasted")
    browsing.bash(f"pkill -f {name}")


def test_long_texts_are_typed_by_keys_too(browsing: LiveSandbox) -> None:
    name = uuid.uuid4().hex
    browsing.output(f": > /tmp/{name}")
    start(browsing, f"l3afpad /tmp/{name}")
    one = window(browsing, name)
    act(browsing, "MOVE_TO", x=1, y=1)
    activate(browsing, one["id"])
    # More than goes in one piece.
    text = "".join(f"{number} " for number in range(1150))
    act(browsing, "TYPING", text=text, use_clipboard=False)

    def arrived() -> bool:
        act(browsing, "HOTKEY", keys=["ctrl", "s"])
        return browsing.bash(f"cat /tmp/{name}").stdout == text

    until(arrived, "the text in the file", patience=120)
    answer = browsing.http.post("/v1/browser/actions", json={"action_type": "TYPING", "text": "x" * ((1 << 20) + 1), "use_clipboard": False})
    assert answer.status_code == 413, answer.text
    browsing.bash(f"pkill -f {name}")


def test_programs_tell_what_they_show(browsing: LiveSandbox, editor: dict[str, Any]) -> None:
    until(lambda: found(browsing, "menu item", "Save As"), "the program's menus")
    whole = tree(browsing)
    assert whole["tree"]["role"] == "desktop frame" and whole["silent"] == [] and whole["truncated"] is False
    assert whole["nodes"] == sum(1 for _ in nodes(whole["tree"])) - 1
    program = next(p for p in whole["tree"]["children"] if p["pid"] == editor["pid"])
    assert (program["role"], program["name"]) == ("application", "l3afpad")
    ask = {"window": editor["id"]}
    text = until(lambda: found(browsing, "text", **ask), "its text")
    assert text["value"].strip() == "some text" and {"editable", "multi line", "showing"} <= set(text["states"])
    menu = found(browsing, "menu", "File", **ask)
    assert menu and menu["box"]["width"] > 10 and "box" not in next(node for node in nodes(menu) if node["name"] == "Quit")
    # A place in the tree is a place on the screen.
    shown = windows(browsing)
    place = next(w["box"] for w in shown if w["id"] == editor["id"])
    assert place["x"] <= menu["box"]["x"] < place["x"] + place["width"]
    one = tree(browsing, **ask)["tree"]
    assert (one["role"], one["name"]) == ("frame", "note.txt")
    flat = tree(browsing, depth=2, **ask)
    assert depth(flat["tree"]) == 3 and flat["truncated"] is True
    few = tree(browsing, max_nodes=5, **ask)
    assert few["nodes"] == 5 and few["truncated"] is True
    for query, status in (
        ({"depth": 0}, 422), ({"depth": 65}, 422), ({"max_nodes": 0}, 422), ({"max_nodes": 5001}, 422), ({"window": -1}, 422),
        ({"window": 1}, 404), ({"max_nodes": "all"}, 422),
    ):  # fmt: skip
        refused(browsing.http.get("/v1/display/accessibility", params=query), status)


def test_windows_without_a_tree_say_so(browsing: LiveSandbox, terminal: dict[str, Any]) -> None:
    answer = refused(browsing.http.get("/v1/display/accessibility", params={"window": terminal["id"]}), 404)
    assert "AT-SPI" in answer["hint"]


def test_programs_of_gtk_2_tell_it_too(browsing: LiveSandbox) -> None:
    if browsing.bash("ls /usr/lib/*/gtk-2.0/modules/libatk-bridge.so").exit_code != 0:
        pytest.fail("this image was built before it had the modules for GTK 2; run: cargo xtask image browser")
    start(browsing, "pcmanfm /usr/share")
    one = window(browsing, "share")
    button = until(lambda: found(browsing, "push button", "Parent Folder", window=one["id"]), "its buttons")
    assert button["box"]["width"] > 10
    browsing.bash("pkill pcmanfm")


HOSTILE = '''
import os, socket, struct, sys, time
def text(v): return struct.pack("<I", len(v)) + v + b"\\0"
def pad(b, n): return b + b"\\0" * (-len(b) % n)
def message(kind, fields, body=b"", signature=b"", serial=1):
    head = b""
    if signature: fields = fields + [(8, b"g", bytes([len(signature)]) + signature + b"\\0")]
    for code, sig, value in fields:
        head = pad(head, 8) + bytes([code, 1]) + sig + b"\\0" + value
    return pad(b"l" + bytes([kind, 0, 1]) + struct.pack("<III", len(body), serial, len(head)) + head, 8) + body
class Bus:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX); self.s.connect(path); self.buffer = b""; self.serial = 0
        self.s.send(b"\\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\\r\\n")
        assert self.s.recv(200).startswith(b"OK"); self.s.send(b"BEGIN\\r\\n")
        self.call(b"org.freedesktop.DBus", b"/org/freedesktop/DBus", b"org.freedesktop.DBus", b"Hello")
        self.name = self.answer()
    def call(self, to, path, interface, member):
        self.serial += 1
        self.s.sendall(message(1, [(1, b"o", text(path)), (2, b"s", text(interface)), (3, b"s", text(member)), (6, b"s", text(to))], serial=self.serial))
    def next(self):
        def need(n):
            while len(self.buffer) < n:
                more = self.s.recv(65536)
                if not more: sys.exit()
                self.buffer += more
        need(16)
        body, serial, fields = struct.unpack("<III", self.buffer[4:16]); start = 16 + (fields + 7) // 8 * 8
        need(start + body)
        whole = self.buffer[:start + body]; self.buffer = self.buffer[start + body:]
        return whole[1], serial, whole[16:16 + fields], whole[start:]
    def answer(self):
        while True:
            kind, serial, head, body = self.next()
            if kind == 2: return body[4:4 + struct.unpack("<I", body[:4])[0]]
def field(head, code):
    at = 0
    while at < len(head):
        at += -at % 8; this = head[at]; sig = head[at + 2:at + 3]; at += 4
        if sig in (b"s", b"o"):
            n, = struct.unpack("<I", head[at:at + 4]); value = head[at + 4:at + 4 + n]; at += 5 + n
        elif sig == b"g": n = head[at]; value = head[at + 1:at + 1 + n]; at += 2 + n
        else: value = head[at:at + 4]; at += 4
        if this == code: return value
session = Bus("/run/desktop/bus")
session.call(b"org.a11y.Bus", b"/org/a11y/bus", b"org.a11y.Bus", b"GetAddress")
bus = Bus(session.answer().split(b"path=")[1].split(b",")[0])
print("ready", flush=True)
def variant(sig, value): return b"\\1" + sig + b"\\0" + pad(b"xyz" + value, 1)[3:]
made = 0
while True:
    kind, serial, head, body = bus.next()
    if kind != 1 or sys.argv[1] == "silent": continue
    member, sender, path = field(head, 3), field(head, 7), field(head, 1)
    reply = [(5, b"u", struct.pack("<I", serial)), (6, b"s", text(sender))]
    asked = body[-(len(body) - body.find(b"org.")):].split(b"\\0")[0] if b"org." in body else b""
    prop = body.rstrip(b"\\0").split(b"\\0")[-1]
    out, sig = text(b"x" * 5000), b"s"
    if member == b"Get":
        sig = b"v"
        if prop.endswith(b"ChildCount"): out = b"\\1i\\0\\0" + struct.pack("<i", 2**31 - 1)
        elif prop.endswith(b"CharacterCount"): out = b"\\1i\\0\\0" + struct.pack("<i", 2**31 - 1)
        elif prop.endswith(b"Description"): out = b"\\1s\\0\\0" + text(b"d" * (400000 if made % 50 == 0 else 2000))
        else: out = b"\\1s\\0\\0" + text(b"n" * 20000)
    elif member == b"GetState": out, sig = struct.pack("<I", 8) + b"\\xff" * 8, b"au"
    elif member == b"GetInterfaces":
        names = b""
        for name in (b"org.a11y.atspi.Component", b"org.a11y.atspi.Text", b"org.a11y.atspi.Value"): names = pad(names, 4) + text(name)
        out, sig = struct.pack("<I", len(names)) + names, b"as"
    elif member == b"GetExtents": out, sig = struct.pack("<iiii", -2**31, 2**31 - 1, -5, 2**31 - 1), b"(iiii)"
    elif member == b"GetChildAtIndex":
        made += 1
        # Itself, somebody who is not there, no name at all, and ever new ones below.
        choice = made % 4
        to, child = (bus.name, path) if choice == 0 else (b":9.999", b"/x") if choice == 1 else (b"no name", b"/x") if choice == 2 else (bus.name, b"/n/%d" % made)
        out, sig = pad(text(to), 4) + text(child), b"(so)"
    bus.s.sendall(message(2, reply, out, sig, serial=made + 10))
'''


def test_programs_that_lie_or_keep_silent_do_no_harm(browsing: LiveSandbox, editor: dict[str, Any]) -> None:
    until(lambda: found(browsing, "menu", "File"), "the program's menus")
    script = base64.b64encode(HOSTILE.encode()).decode()
    browsing.output(f"echo {script} | base64 -d > /tmp/hostile.py")
    for way in ("lies", "silent"):
        browsing.bash(f"exec python3 /tmp/hostile.py {way} > /tmp/{way}.out 2>&1", async_mode=True)
        until(lambda way=way: browsing.bash(f"cat /tmp/{way}.out").stdout == "ready\n", f"the program that {way}")
    liar, silent = (int(browsing.output(f"pgrep -f '[h]ostile.py {way}'")) for way in ("lies", "silent"))
    try:
        def both() -> dict[str, Any] | None:
            begun = time.monotonic()
            answer = browsing.http.get("/v1/display/accessibility", params={"max_nodes": 2000})
            # Its own bound is 20 s; the rest is a busy machine.
            assert time.monotonic() - begun < 60
            assert len(answer.content) < 12 << 20
            whole = data(answer)
            assert whole["nodes"] <= 2000 and whole["truncated"] is True
            pids = {program.get("pid") for program in whole["tree"]["children"]}
            assert silent in whole["silent"] and silent not in pids
            return whole if {liar, editor["pid"]} <= pids else None

        whole = until(both, "what the other programs show", patience=90)
        for node in nodes(next(program for program in whole["tree"]["children"] if program.get("pid") == liar)):
            assert len(node["name"]) <= 1000 and len(node.get("description", "")) <= 1000 and "box" not in node
    finally:
        browsing.bash("pkill -f hostile.py")
    until(lambda: tree(browsing)["silent"] == [], "they are gone")
    assert browsing.output("echo alive") == "alive"


@pytest.mark.parametrize("victim", ["at-spi2-registr", "openbox", "dbus-daemon", "Xvnc"])
def test_what_dies_is_no_reason_to_fail(browsing: LiveSandbox, victim: str) -> None:
    """No call is lost: the first one after the kill is answered as if nothing had been."""
    calls = ("/v1/display/screenshot", "/v1/display/windows", "/v1/display/clipboard", "/v1/display/accessibility")
    for path in calls:
        name = uuid.uuid4().hex
        # Something of each is there to be killed.
        start(browsing, f"xterm -T {name} -e sleep 10000")
        one = window(browsing, name)
        tree(browsing)
        browsing.bash(f"pkill -KILL -x {victim}")
        answer = browsing.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        if victim != "Xvnc":
            activate(browsing, one["id"])
        browsing.bash(f"pkill -f {name}")
    name = uuid.uuid4().hex
    browsing.output(f"echo x > /tmp/{name}")
    start(browsing, f"l3afpad /tmp/{name}")
    until(lambda: found(browsing, "frame", name), "a program that was started afterwards")
    browsing.bash(f"pkill -f {name}")


def test_nobody_s_desktop_ends_and_comes_back(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="browser", env={"DESKTOP_IDLE_SECONDS": "10"})
    assert live.http.get("/v1/browser/screenshot").status_code == 200
    left = "ps -eo comm | grep -c -E '^(Xvnc|openbox|dbus-daemon|chromium)$'"
    until(lambda: live.bash(left).stdout == "0\n", "the end of an unused desktop", patience=120)
    assert live.http.get("/v1/display/screenshot").status_code == 200
    assert live.http.get("/v1/browser/screenshot").status_code == 200


def test_an_image_without_a_desktop_says_which_one_has_it(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    for method, path, body in (
        ("GET", "screenshot", None), ("GET", "windows", None), ("POST", "windows/1/activate", None), ("DELETE", "windows/1", None),
        ("GET", "clipboard", None), ("PUT", "clipboard", {"text": "x"}), ("GET", "accessibility", None),
    ):  # fmt: skip
        answer = live.http.request(method, f"/v1/display/{path}", json=body)
        assert "`browser`" in refused(answer, 424)["hint"], json.dumps(answer.json())
