"""A VM as an agent uses it: its screen, hands on it, what is in it, and that it can be had again as it was."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arenite_server import Server, binary
from vms import empty_qcow2, with_backing_file
from waiting import until

# A boot takes a minute on a busy machine, and the image is built by whoever needs it first.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

# Every character that a US keyboard has, but for those that the shell of this test would need quoted twice.
TEXT = "Hello, World 0123456789 (a+b)*c = {[<x>]}; \"q\" 'p' ~!@#$%^&_-|\\:?/`."


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from nodes(child)


def tree(vm: Any) -> list[dict[str, Any]]:
    return list(nodes(vm.data("GET", "/v1/display/accessibility", params={"max_nodes": 5000})["tree"]))


def shown(vm: Any, role: str, name: str = "") -> dict[str, Any] | None:
    return next((n for n in tree(vm) if n["role"] == role and name in n["name"] and n.get("box")), None)


def click(vm: Any, node: dict[str, Any]) -> None:
    box = node["box"]
    vm.act("CLICK", x=box["x"] + box["width"] // 2, y=box["y"] + box["height"] // 2)


# It is gone when another begins: one process has all its windows.
CLOSE = "pkill -9 -x mousepad; while pgrep -x mousepad >/dev/null; do sleep 0.1; done"


def edit(vm: Any, path: str) -> None:
    """An editor with a file, in which keys arrive."""
    vm.agent("POST", "/setup/launch", json={"command": ["mousepad", path]})
    click(vm, until(lambda: shown(vm, "text"), "an editor"))


def saved(vm: Any, path: str, wanted: Callable[[str], bool]) -> str:
    read = lambda: vm.inside(f"cat {path} 2>/dev/null")  # noqa: E731

    def now() -> str:
        # What is pasted comes when its owner has answered: a shortcut may be before it.
        vm.act("HOTKEY", keys=["ctrl", "s"])
        time.sleep(1)
        return wanted(text := read()) and (text or " ") or ""

    return until(now, f"{path} saved; it holds {read()!r}", 30)


def pixels(vm: Any) -> tuple[int, int, bytes]:
    picture = vm.http.get("/v1/display/screenshot")
    assert picture.status_code == 200, picture.text
    width, height = struct.unpack(">II", picture.content[16:24])
    return width, height, picture.content


def test_it_is_there_with_its_desktop(vm: Any) -> None:
    width, height, picture = pixels(vm)
    assert (width, height) == (1280, 800)
    # A desktop has a panel and a colour; an empty screen would be a kilobyte or two.
    assert picture.startswith(b"\x89PNG") and len(picture) > 3000
    state = vm.data("GET", "/v1/vm")
    assert (state["state"], state["accel"], state["snapshot"], state["warm"]) == ("ready", "tcg", True, True), state
    part = vm.http.get("/v1/display/screenshot", params={"x": 10, "y": 20, "width": 30, "height": 40, "format": "jpeg"})
    assert (part.headers["x-image-width"], part.headers["x-image-height"], part.headers["x-screen-width"]) == ("30", "40", "1280")
    assert vm.agent("GET", "/platform").text == "Linux"
    assert vm.agent("POST", "/screen_size", json={}).json() == {"width": 1280, "height": 800}
    assert vm.agent("GET", "/screenshot").content.startswith(b"\x89PNG")


def test_the_pointer_goes_where_it_is_sent(vm: Any) -> None:
    for x, y in [(0, 0), (1279, 799), (641, 402)]:
        vm.act("MOVE_TO", x=x, y=y)
        until(lambda: vm.agent("GET", "/cursor_position").json() == [x, y], f"the pointer at {x}, {y}", 20)  # noqa: B023
    vm.act("MOVE_REL", x_offset=-41, y_offset=-2)
    until(lambda: vm.agent("GET", "/cursor_position").json() == [600, 400], "the pointer by a way", 20)
    refused = vm.http.post("/v1/browser/actions", json={"action_type": "MOVE_TO", "x": 1280, "y": 0})
    assert refused.status_code == 400 and "outside of the screen" in refused.text


def test_what_is_typed_arrives_as_it_was(vm: Any) -> None:
    edit(vm, "/home/user/typed.txt")
    vm.act("TYPING", text=TEXT, use_clipboard=False)
    assert saved(vm, "/home/user/typed.txt", lambda text: text == TEXT)
    # What is on no key goes over the clipboard, by the agent.
    vm.act("HOTKEY", keys=["ctrl", "a"])
    vm.act("TYPING", text="grüße 世界")
    assert saved(vm, "/home/user/typed.txt", lambda text: text == "grüße 世界")
    refused = vm.http.post("/v1/browser/actions", json={"action_type": "TYPING", "text": "é", "use_clipboard": False})
    assert refused.status_code == 400 and "no key of a US keyboard" in refused.text
    refused = vm.http.post("/v1/browser/actions", json={"action_type": "PRESS", "key": "nonsense"})
    assert refused.status_code == 400


def test_a_drag_selects_and_a_wheel_scrolls(vm: Any) -> None:
    vm.inside(f"{CLOSE}; seq -f 'line %g is here' 200 >/home/user/lines.txt")
    edit(vm, "/home/user/lines.txt")
    box = until(lambda: shown(vm, "text"), "the text")["box"]
    # From the first line to the third, which are then replaced by what is typed.
    vm.act("MOVE_TO", x=box["x"] + 2, y=box["y"] + 8)
    vm.act("DRAG_TO", x=box["x"] + 2, y=box["y"] + 46)
    vm.act("TYPING", text="X")
    text = saved(vm, "/home/user/lines.txt", lambda text: text.startswith("X"))
    assert text.startswith("Xline 3 is here") or text.startswith("Xline 4 is here"), text[:40]
    before = pixels(vm)[2]
    vm.act("SCROLL", dy=-10)
    until(lambda: pixels(vm)[2] != before, "a screen that has scrolled", 30)


def test_the_tree_has_a_button_and_a_click_there_presses_it(vm: Any) -> None:
    vm.inside(CLOSE)
    edit(vm, "/home/user/other.txt")
    vm.act("TYPING", text="unsaved")
    # Closing asks what to do with the text.
    vm.act("HOTKEY", keys=["ctrl", "q"])
    button = until(lambda: shown(vm, "push button", "Cancel"), "a question with buttons")
    assert "showing" in button["states"]
    click(vm, button)
    until(lambda: not shown(vm, "push button", "Cancel"), "no question any more")
    assert vm.inside("pgrep -c mousepad").strip() == "1"


def test_it_is_recorded_and_watched(vm: Any) -> None:
    place = "/tmp/vm.mp4"
    begun = vm.data("POST", "/v1/display/record", json={"action": "start", "save_path": place, "fps": 5})
    assert begun["status"] == "recording"
    for x in range(100, 1200, 200):
        vm.act("MOVE_TO", x=x, y=300)
    time.sleep(2)
    ended = vm.data("POST", "/v1/display/record", json={"action": "stop"})
    assert ended["status"] == "stopped" and ended["file_size_bytes"] > 1000
    told = vm.output(f"ffprobe -v error -show_entries stream=width,height,codec_name -of csv=p=0 {place}")
    assert told == "h264,1280,800"
    assert vm.http.get("/vnc/index.html").status_code == 200


def test_files_and_programs_by_the_agents_protocol(vm: Any, tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    files = {"file_data": ("blob", content)}
    vm.agent("POST", "/setup/upload", data={"file_path": "/home/user/blob"}, files=files)
    assert vm.agent("POST", "/file", data={"file_path": "/home/user/blob"}).content == content
    missing = vm.http.post("/proxy/5000/file", data={"file_path": "/nowhere"})
    assert missing.status_code == 404
    ran = vm.agent("POST", "/run_python", json={"code": "import sys; print(6 * 7); sys.exit(3)"}).json()
    assert (ran["status"], ran["output"], ran["return_code"]) == ("error", "42\n", 3)
    ran = vm.agent("POST", "/run_bash_script", json={"script": "echo $((1 + 1)); pwd", "working_dir": "/tmp"}).json()
    assert (ran["status"], ran["output"], ran["returncode"]) == ("success", "2\n/tmp\n", 0)
    vm.agent("POST", "/setup/launch", json={"command": "xterm -T terminal -e sleep 600"})
    until(lambda: "terminal" in vm.inside("wmctrl -l"), "a terminal")
    vm.agent("POST", "/setup/activate_window", json={"window_name": "terminal"})
    vm.agent("POST", "/setup/close_window", json={"window_name": "terminal"})
    until(lambda: "terminal" not in vm.inside("wmctrl -l"), "no terminal")
    xml = vm.agent("GET", "/accessibility").json()["AT"]
    assert xml.startswith("<desktop-frame") and 'xmlns:st="https://accessibility.ubuntu.example.org/ns/state"' in xml


def test_a_reset_takes_everything_back_and_another_vm_has_its_own_disk(
    vm: Any, vms: Callable[..., Any]
) -> None:
    vm.inside("echo mine >/home/user/mine; sync; pgrep mousepad || (mousepad >/dev/null 2>&1 &)")
    until(lambda: vm.inside("pgrep -c mousepad; true").strip() != "0", "an editor")
    other = vms()
    assert other.inside("cat /home/user/mine 2>&1; true").startswith("cat: ")
    other.inside("echo theirs >/home/user/mine")
    assert vm.inside("cat /home/user/mine") == "mine\n"
    other.delete()

    told = vm.data("POST", "/v1/vm/reset")
    assert told["booted"] is False
    assert vm.inside("ls /home/user/mine 2>&1; true").startswith("ls: ")
    assert vm.inside("pgrep -c mousepad; true").strip() == "0"
    # The clock did not go back with the rest.
    assert abs(int(vm.inside("date +%s")) - time.time()) < 60


def test_a_killed_vm_is_back_at_the_next_call(vm: Any) -> None:
    vm.inside("echo kept >/home/user/kept; sync")
    vm.output("pkill -9 qemu-system")
    until(lambda: vm.data("GET", "/v1/vm")["state"] == "off", "a VM that is off", 20)
    # This is the one boot of these tests.
    assert pixels(vm)[:2] == (1280, 800)
    state = vm.data("GET", "/v1/vm")
    assert (state["state"], state["warm"]) == ("ready", False) and state["boot_seconds"] > 1
    assert vm.inside("cat /home/user/kept") == "kept\n"


def test_a_disk_that_does_not_boot_is_told_with_its_last_screen(blank: str, vms: Callable[..., Any]) -> None:
    vm = vms(blank)
    answer = vm.http.get("/v1/display/screenshot")
    assert answer.status_code == 424, answer.text
    message = answer.json()["message"]
    assert "was not ready within 20 s" in message
    place = message.rsplit(" ", 1)[1]
    picture = vm.http.get("/v1/file/download", params={"path": place})
    assert picture.status_code == 200 and picture.content.startswith(b"\x89PNG")
    assert vm.data("GET", "/v1/vm")["state"] == "off"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"not a disk", "this is no qcow2"), (with_backing_file(empty_qcow2(1 << 20), "/etc/passwd"), "backing file")],
    ids=["text", "layer"],
)
def test_disks_that_lead_elsewhere_are_refused(server: Server, tmp_path: Path, content: bytes, said: str) -> None:
    disk = tmp_path / "disk.qcow2"
    disk.write_bytes(content)
    command = [str(binary()), "vm", "import", "vm-bad", str(disk), "--cold", "--data-dir", str(server.data_dir)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode != 0 and said in ran.stderr, ran.stderr


def test_a_sandbox_without_a_vm_says_so(server: Server, sandbox: Callable[..., Any]) -> None:
    live = sandbox()
    answer = live.http.get("/v1/vm")
    assert answer.status_code == 404 and "vm build" in answer.json()["hint"]
