"""A computer with a screen for each worker: all of `vm:*` on a real desktop, over the wire.

With `ARENITE_TEST_SHOTS` naming a folder, pictures of what the tests see are put there.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox
from workers import OURS, Worker
from waiting import until

Workers = Callable[..., Worker]
VM = f"{OURS}.vm.VMBackend"
#: For programs to start and to draw themselves on a busy machine.
SCREEN = (1024, 768)
TOOLS = {
    "screenshot", "click", "double_click", "right_click", "type", "key", "key_down", "key_up", "hotkey", "scroll", "drag", "move",
    "mouse_down", "mouse_up", "wait", "done", "fail", "pyautogui", "evaluate",
}  # fmt: skip
ROW = re.compile(r"(?P<tag>[^\t]*)\t(?P<name>[^\t]*)\t(?P<text>[^\t]*)\t(?P<state>[^\t]*)\t\((?P<x>\d+), (?P<y>\d+)\)\t\(\d+, \d+\)")


def look(w: Worker, shot: str = "") -> tuple[bytes, str]:
    """The screen, and the table of what is on it."""
    data = w.ok("vm:screenshot")
    picture = base64.b64decode(data["image"])
    assert picture.startswith(b"\x89PNG\r\n") and struct.unpack(">II", picture[16:24]) == tuple(data["size"])
    if shot and (folder := os.environ.get("ARENITE_TEST_SHOTS")):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{shot}.png").write_bytes(picture)
    return picture, data["accessibility_tree"] or ""


def rows(table: str) -> list[dict[str, str]]:
    head, *lines = table.split("\n")
    assert head == "tag\tname\ttext\tstate\tcentre (x, y)\tsize (w, h)"
    found = [ROW.fullmatch(line) for line in lines]
    return [one.groupdict() for one in found if one]


def shown(w: Worker, tag: str, name: str = "") -> dict[str, Any]:
    """The thing on the screen, once it is there: where to click it."""

    def there() -> dict[str, Any] | None:
        every = rows(look(w)[1])
        return next((one for one in every if one["tag"] == tag and name in one["name"]), None)

    one = until(there, f"{tag} {name}")
    return {**one, "at": {"x": int(one["x"]), "y": int(one["y"])}}


def machine(server: Server, w: Worker) -> LiveSandbox:
    """The sandbox behind a worker's session: to look at what became of it, behind the screen's back."""
    return LiveSandbox(server.url, w.steps()[-1]["work"]["sandbox"])


def edit(live: LiveSandbox, w: Worker, text: str, path: str = "/tmp/note.txt") -> dict[str, Any]:
    """The text's place in the editor that shows the file."""
    live.client.file.write_file(file=path, content=text)
    live.bash(f"exec l3afpad {path}", async_mode=True)
    shown(w, "frame", path.rsplit("/", 1)[1])
    return shown(w, "text")


def copied(live: LiveSandbox, w: Worker) -> str:
    w.ok("vm:hotkey", keys=["ctrl", "c"])
    return live.http.get("/v1/display/clipboard").json()["data"]["text"]


@pytest.fixture
def desk(server: Server, worker: Workers) -> Iterator[tuple[Worker, LiveSandbox]]:
    """A worker with a machine, and the sandbox behind it."""
    w = worker()
    w.create("vm", session_config={"screen_size": list(SCREEN)})
    look(w)
    yield w, machine(server, w)


def test_all_tools_are_listed_with_what_they_take(server: Server) -> None:
    tools = httpx.get(f"{server.url}/api/v1/tools").json()["tools"]
    mine = {tool["name"]: tool["parameters"] for tool in tools if tool["resource_type"] == "vm"}
    assert set(mine) == TOOLS
    assert mine["drag"]["required"] == ["start_x", "start_y", "end_x", "end_y"]
    assert set(mine["pyautogui"]["properties"]) == {"command", "commands"}


def test_an_agent_opens_the_editor_writes_a_text_and_saves_it(desk: tuple[Worker, LiveSandbox]) -> None:
    w, live = desk
    data = w.ok("vm:screenshot")
    assert data["size"] == list(SCREEN) and data["session"].startswith("vm_")
    look(w, "desktop")
    for tag, name in (("toggle-button", "Applications"), ("menu", "Accessories"), ("menu-item", "Mousepad")):
        w.ok("vm:click", **shown(w, tag, name)["at"])
        look(w, f"menu-{name.lower()}")
    field = shown(w, "text")
    assert w.ok("vm:click", **field["at"])["clicked"] == [field["at"]["x"], field["at"]["y"]]
    text = "if a < b: print(\"<>\")\n\tÄöü ß 世界 😀\n{[|~^`]} 'end'"
    typed = w.ok("vm:type", text=text)
    assert (typed["typed"], typed["length"]) == (text, len(text))
    assert "a < b" in typed["accessibility_tree"], typed["accessibility_tree"]
    look(w, "typed")
    assert w.ok("vm:hotkey", keys=["ctrl", "s"])["keys"] == ["ctrl", "s"]
    save = shown(w, "push-button", "Save")
    look(w, "save")
    w.ok("vm:hotkey", keys="ctrl+a")
    w.ok("vm:type", text="/tmp/saved <1>.txt", interval=0.01)
    w.ok("vm:click", **shown(w, "push-button", "Save")["at"])
    assert save["at"]["y"] > 0
    saved = until(lambda: live.bash("cat '/tmp/saved <1>.txt'").stdout, "the saved file")
    assert saved == text
    look(w, "saved")


def test_the_desktop_has_what_people_expect_and_all_of_it_is_in_the_tree(desk: tuple[Worker, LiveSandbox]) -> None:
    w, live = desk
    picture, table = look(w)
    # A wallpaper: the middle of the screen is not one black area.
    assert len(picture) > 20_000
    launchers = ("Chromium Web Browser", "Xfce Terminal", "File Manager PCManFM", "Mousepad", "Settings Manager")
    for name in launchers:
        assert any(one["tag"] == "push-button" and name in one["name"] for one in rows(table)), (name, table)
    w.ok("vm:right_click", x=700, y=600)
    shown(w, "menu-item", "Paste")
    look(w, "desktop-menu")
    w.ok("vm:key", key="escape")
    # An open menu would take the next click for itself.
    until(lambda: "Paste" not in look(w)[1], "the menu's end")
    w.ok("vm:click", **shown(w, "push-button", "Xfce Terminal")["at"])
    w.ok("vm:click", **shown(w, "terminal")["at"])
    w.ok("vm:type", text="echo $((6 * 7))-in-the-tree\n")
    until(lambda: "42-in-the-tree" in look(w)[1], "the terminal's text")
    w.ok("vm:click", **shown(w, "menu", "Edit")["at"])
    shown(w, "menu-item", "Select All")
    w.ok("vm:key", key="escape")
    until(lambda: "Select All" not in look(w)[1], "the menu's end")
    w.ok("vm:click", **shown(w, "push-button", "Settings Manager")["at"])
    shown(w, "dialog", "Settings")
    w.ok("vm:click", **shown(w, "push-button", "File Manager")["at"])
    shown(w, "frame", "gem")
    look(w, "programs")
    assert live.output("pgrep -c xfce4-panel") == "1"


def test_a_browser_is_started_from_the_panel(desk: tuple[Worker, LiveSandbox]) -> None:
    w, _ = desk
    w.ok("vm:click", **shown(w, "push-button", "Chromium")["at"])
    shown(w, "frame", "Chromium")
    w.ok("vm:hotkey", keys=["ctrl", "l"])
    w.ok("vm:type", text="data:text/html,<h1>A page of the task</h1>\n")
    shown(w, "heading", "A page of the task")
    look(w, "browser")


def test_mouse_and_keys_select_as_a_persons_do(desk: tuple[Worker, LiveSandbox]) -> None:
    w, live = desk
    field = edit(live, w, "alpha beta gamma\n" + "".join(f"line {n}\n" for n in range(2, 200)))
    w.ok("vm:click", **field["at"])
    w.ok("vm:hotkey", keys=["ctrl", "home"])
    w.ok("vm:key_down", key="shift")
    for _ in range(5):
        w.ok("vm:key", key="right")
    w.ok("vm:key_up", key="shift")
    assert copied(live, w) == "alpha"
    w.ok("vm:key", key="right")
    w.ok("vm:key_down", key="shift")
    w.ok("vm:key", key="end")
    w.ok("vm:key_up", key="shift")
    assert copied(live, w) == " beta gamma"
    look(w, "selected-by-keys")
    # The window's own upper edge is its menu's; the first line of the text is right below that.
    box = live.http.get("/v1/display/windows").json()["data"][-1]["box"]
    top = {"y": box["y"] + 40}
    w.ok("vm:double_click", x=box["x"] + 15, **top)
    word = copied(live, w).strip()
    assert word in ("alpha", "line"), word
    # What is selected would be dragged as it is.
    w.ok("vm:click", x=box["x"] + 200, y=top["y"] + 100)
    dragged = w.ok("vm:drag", start_x=box["x"] + 4, start_y=top["y"], end_x=box["x"] + 300, end_y=top["y"] + 60)
    assert dragged["from"] == [box["x"] + 4, top["y"]]
    by_drag = copied(live, w)
    assert by_drag.count("\n") >= 2, by_drag
    look(w, "selected-by-drag")
    w.ok("vm:click", x=box["x"] + 200, y=top["y"] + 100)
    assert w.ok("vm:move", x=box["x"] + 4, y=top["y"])["position"] == [box["x"] + 4, top["y"]]
    assert w.ok("vm:mouse_down")["button"] == "left"
    w.ok("vm:move", x=box["x"] + 200, y=top["y"] + 30)
    w.ok("vm:move", x=box["x"] + 300, y=top["y"] + 60)
    assert w.ok("vm:mouse_up", button="left")["button"] == "left"
    assert copied(live, w) == by_drag
    # Scrolled down, the same place is another line.
    scrolled = w.ok("vm:scroll", x=box["x"] + 100, y=top["y"] + 60, clicks=-10)
    assert scrolled["clicks"] == -10
    w.ok("vm:click", x=box["x"] + 4, **top)
    w.ok("vm:key", key="home")
    w.ok("vm:hotkey", keys=["shift", "end"])
    line = copied(live, w)
    assert re.fullmatch(r"line \d+", line) and int(line.split()[1]) > 10, line
    look(w, "scrolled")


def test_a_window_is_dragged_by_its_title(desk: tuple[Worker, LiveSandbox]) -> None:
    w, live = desk
    live.bash("exec xterm -T movable -geometry 40x10+100+100 -e sh", async_mode=True)
    window = shown(w, "window", "movable")

    def at() -> tuple[int, int]:
        box = next(one for one in live.http.get("/v1/display/windows").json()["data"] if one["title"] == "movable")["box"]
        return box["x"], box["y"]

    x, y = until(at, "the window's place")
    w.ok("vm:drag", start_x=x + 80, start_y=y - 8, end_x=x + 280, end_y=y + 192)
    assert until(lambda: at() == (x + 200, y + 200), f"a window at another place than {at()}")
    # A program without accessibility is in the table as a window.
    moved = shown(w, "window", "movable")
    assert (moved["at"]["x"], moved["at"]["y"]) == (window["at"]["x"] + 200, window["at"]["y"] + 200)
    w.ok("vm:click", **moved["at"])
    w.ok("vm:type", text="echo 'a<b' > /tmp/by-terminal\n")
    assert until(lambda: live.bash("cat /tmp/by-terminal").stdout, "what the terminal wrote") == "a<b\n"
    look(w, "moved")


def test_pyautogui_is_read_and_never_run(desk: tuple[Worker, LiveSandbox]) -> None:
    w, live = desk
    field = edit(live, w, "")
    x, y = field["at"]["x"], field["at"]["y"]
    done = w.ok(
        "vm:pyautogui",
        command=f"import pyautogui, time\npyautogui.click({x}, {y}); time.sleep(0.1)  # into the text\npyautogui.write('a;b < \\'c\\'\\n', interval=0)",
        commands=["pyautogui.press(['x', 'y'], presses=2)", "pyautogui.hotkey('ctrl', 's')", "pyautogui.size(); pyautogui.position()"],
    )
    assert len(done["commands"]) == 4 and [one["success"] for one in done["results"]] == [True] * 4
    assert done["results"][3]["output"] == f"Size(width=1024, height=768)\nPoint(x={x}, y={y})"
    assert isinstance(done["accessibility_tree"], str)
    assert until(lambda: live.bash("cat /tmp/note.txt").stdout, "the saved file") == "a;b < 'c'\nxyxy"
    look(w, "pyautogui")
    relative = "pyautogui.moveTo(100, 100); pyautogui.moveRel(-500, 20); pyautogui.position(); pyautogui.dragRel(30, 0, 0.5); pyautogui.position()"
    assert w.ok("vm:pyautogui", command=relative)["results"][0]["output"] == "Point(x=0, y=120)\nPoint(x=30, y=120)"
    partly = w.call("vm:pyautogui", commands=["pyautogui.click(5000, 1)", "pyautogui.moveTo(7, 8)", "pyautogui.press('nokey')"])
    assert partly["code"] == 5000 and partly["data"]["failed_indices"] == [0, 2], partly
    assert "1024x768" in partly["message"] and "nokey" in partly["data"]["results"][2]["error"]
    for hostile in (
        "pyautogui.click(1, 1); import os; os.system('touch /tmp/owned')",
        "pyautogui.click(__import__('os').system('touch /tmp/owned'))",
        "__import__('os').system('touch /tmp/owned')",
        "pyautogui.write(open('/etc/passwd').read())",
        "pyautogui.alert('x')", "pyautogui.write('unended", "pyautogui.press(" + "[" * 10_000, "", "print(1)",
    ):  # fmt: skip
        answer = w.call("vm:pyautogui", commands=["pyautogui.moveTo(1, 1)", hostile] if hostile else [])
        assert answer["code"] == 4000, (hostile, answer)
    assert w.ok("vm:pyautogui", command="pyautogui.position()")["results"][0]["output"] == "Point(x=7, y=8)", "a part of it was done"
    assert live.bash("ls /tmp/owned").exit_code != 0


def test_what_can_not_be_is_said_in_agentflows_codes(worker: Workers, desk: tuple[Worker, LiveSandbox]) -> None:
    w, _ = desk
    for tool, at in (("click", {"x": 1024, "y": 5}), ("move", {"x": 5, "y": -1}), ("drag", {"start_x": 1, "start_y": 1, "end_x": 5000, "end_y": 1})):
        answer = w.call(f"vm:{tool}", **at)
        assert answer["code"] == 5005 and answer["message"].startswith("[VM] Error: ") and "1024x768" in answer["message"], answer
    for tool, wrong, code in (
        ("right_click", {"x": 1}, 4000), ("wait", {"seconds": -1}, 4000), ("click", {"x": 1}, 5005), ("click", {"x": "a", "y": 1}, 4000),
        ("key", {"key": "nokey"}, 5005), ("pyautogui", {}, 4000), ("hotkey", {"keys": []}, 4000), ("evaluate", {}, 5005),
    ):  # fmt: skip
        assert w.call(f"vm:{tool}", **wrong)["code"] == code, tool
    assert w.ok("vm:wait", seconds=0.1)["waited"] == 0.1
    assert w.ok("vm:right_click")["clicked"] is None
    assert w.ok("vm:done") == {"done": True}
    failed = w.ok("vm:fail", reason="no way")
    assert (failed["fail"], failed["reason"]) == (True, "no way")
    for config, said in (({"provider": "aliyun"}, "aliyun"), ({"os_type": "Windows"}, "os_type"), ({"screen_size": [5, 5]}, "screen_size")):
        refused = worker("refused").post("session/create", resource_type="vm", session_config=config)
        assert refused.status_code == 500 and refused.json()["code"] == 4007
        assert said in refused.json()["data"]["error"], refused.text
    unscreened = worker("unscreened").post("session/create", resource_type="vm", session_config={"image": "base"})
    assert unscreened.json()["code"] == 4007 and "Xvnc" in unscreened.json()["data"]["error"]


def test_no_machine_has_anything_of_another(server: Server, worker: Workers) -> None:
    one, two = worker("one"), worker("two")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda w: w.create("vm"), (one, two)))
        list(pool.map(lambda w: w.ok("vm:move", x=10, y=10), (one, two)))
    mine, theirs = machine(server, one), machine(server, two)
    assert mine.name != theirs.name
    edit(mine, one, "of one", "/tmp/of-one.txt")
    assert "of-one" not in look(two)[1]
    assert theirs.output("ls /tmp/*.txt 2>/dev/null || echo none") == "none"
    mine.output("echo kept > ~/kept")
    assert one.post("session/destroy", resource_type="vm").json()["code"] == 0
    until(lambda: httpx.get(f"{server.url}/api/v2/sandboxes/{mine.name}").status_code == 404, "the machine's end")
    one.create("vm")
    assert "of-one" not in look(one, "fresh")[1]
    fresh = machine(server, one)
    assert fresh.name != mine.name
    assert fresh.output("ls ~/kept /tmp/of-one.txt 2>/dev/null | wc -l") == "0"
    assert theirs.output("echo lives") == "lives"


def test_a_call_without_a_session_has_a_machine_for_itself(worker: Workers) -> None:
    answer = worker().call("vm:screenshot")
    assert answer["code"] == 0 and answer["meta"]["temporary_session"] is True
    assert answer["data"]["size"] == [1280, 1024]


def films(server: Server, live: LiveSandbox, path: Path) -> str:
    """What ffprobe, which the image has, says of a film."""
    live.http.post("/v1/file/write", json={"file": "/tmp/film.mp4", "content": base64.b64encode(path.read_bytes()).decode(), "encoding": "base64"})
    return live.output("ffprobe -v error -show_entries stream=codec_name,width,height:format=duration -of csv=p=0 /tmp/film.mp4")


def test_a_session_is_filmed_and_goes_on_after_a_restart(
    configured: Callable[[dict[str, Any]], Server], worker: Workers, tmp_path: Path
) -> None:
    folder = tmp_path / "films"
    config = {"screen_size": "800x600", "recording": True, "recording_path": str(folder), "provider": "docker", "fallback": "desktop"}
    server = configured({"resources": {"vm": {"enabled": True, "backend_class": VM, "config": config}}})
    w = worker()
    session = w.create("vm", session_config={"recording_path": str(tmp_path / "elsewhere")})["session_id"]
    w.ok("vm:right_click", x=200, y=200)
    live = machine(server, w)
    live.output("echo before > ~/before")
    file = tmp_path / "sandbox-server.json"
    server.restart(("--config", str(file)))
    assert w.ok("vm:wait", seconds=1)["waited"] == 1
    assert machine(server, w).name == live.name and live.output("cat ~/before") == "before"
    assert w.post("session/destroy", resource_type="vm").json()["code"] == 0
    assert [one.name for one in folder.iterdir()] == [f"{session}.mp4"]
    assert not (tmp_path / "elsewhere").exists()
    w.create("vm", session_config={"recording": False})
    look(w)
    told = films(server, machine(server, w), folder / f"{session}.mp4").split()
    assert told[0] == "h264,800,600" and float(told[1]) > 0.5, told


def test_machines_are_ready_before_they_are_asked_for(
    configured: Callable[[dict[str, Any]], Server], worker: Workers, tmp_path: Path
) -> None:
    config = {"screen_size": [800, 600], "pool_size": 2}
    warm = {"enabled": True, "resources": ["vm"]}
    server = configured({"resources": {"vm": {"backend_class": VM, "config": config}}, "warmup": warm})

    def kept() -> set[str]:
        every = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
        return {one["name"] for one in every if any(label.startswith("agentflow.kept.") for label in one["spec"]["labels"])}

    first = kept()
    assert len(first) == 2
    w, other = worker(), worker("other")
    begun = time.monotonic()
    w.create("vm")
    took = time.monotonic() - begun
    assert look(w)[0]
    mine = machine(server, w)
    assert mine.name in first, f"it was recreated, in {took:.2f} s"
    until(lambda: len(kept()) == 3, "another in its place")
    # What is another machine than those that are kept is made.
    other.create("vm", session_config={"screen_size": [640, 480]})
    assert other.ok("vm:screenshot")["size"] == [640, 480]
    assert machine(server, other).name not in kept()
    mine.output("echo kept > ~/kept")
    w.post("session/destroy", resource_type="vm")
    w.create("vm")
    look(w)
    again = machine(server, w)
    assert again.name != mine.name and again.bash("ls ~/kept").exit_code != 0
    until(lambda: len(kept()) == 3, "another in its place")
    # A killed server's are gone, and the sessions' are not.
    before = kept() - {again.name}
    server.kill()
    server.start(("--config", str(tmp_path / "sandbox-server.json")))
    until(lambda: not before & kept(), "the end of what nobody uses")
    assert w.ok("vm:move", x=1, y=1)["position"] == [1, 1]
    assert machine(server, w).name == again.name

