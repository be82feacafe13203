"""`vm:*` on VMs of QEMU: the same tools as on a desktop, by the HTTP API alone."""

from __future__ import annotations

import ast
import base64
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from arenite_server import Server, ensure_vm
from workers import Worker

# The image takes minutes to make, and each of its instructions is made up.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

QEMU = {"provider": "qemu", "screen_size": [1280, 800], "memory_mb": 2048}
TEXT = "Hello, <World> 42!"


@pytest.fixture
def worker(server: Server) -> Iterator[Callable[[str], Worker]]:
    ensure_vm(server.data_dir, "vm")
    made: list[Worker] = []

    def make(name: str) -> Worker:
        made.append(Worker(server.url, f"vm-qemu-{name}-{uuid.uuid4().hex[:6]}"))
        made[-1].http.timeout = 600
        return made[-1]

    yield make
    for one in made:
        one.leave()


def rows(tree: str) -> list[dict[str, str]]:
    head, *lines = tree.splitlines()
    names = head.split("\t")
    return [dict(zip(names, line.split("\t"), strict=False)) for line in lines]


def found(w: Worker, tag: str, name: str = "") -> tuple[int, int]:
    """The middle of a thing on the screen, once it is there."""
    deadline = time.monotonic() + 120
    while True:
        tree = w.ok("vm:wait", seconds=0.5)["accessibility_tree"] or ""
        for row in rows(tree) if tree else []:
            if row.get("tag") == tag and name in row.get("name", ""):
                corner = next(value for key, value in row.items() if key.startswith("position"))
                size = next(value for key, value in row.items() if key.startswith("size"))
                (x, y), (width, height) = (ast.literal_eval(pair) for pair in (corner, size))
                return x + width // 2, y + height // 2
        assert time.monotonic() < deadline, tree


def printed(w: Worker, *command: str) -> str:
    """What a command in the VM writes, as an evaluator sees it."""
    getter = {"type": "vm_command_line", "command": list(command)}
    told = w.ok("vm:evaluate", evaluator={"func": "exact_match", "result": getter, "expected": {"type": "rule", "rules": {"expected": ""}}})
    return told["details"][0]["result"]


def test_all_that_a_person_does_works_in_a_vm(worker: Callable[[str], Worker]) -> None:
    w, other = worker("one"), worker("two")
    w.create("vm", session_config={**QEMU, "setup": [{"type": "launch", "parameters": {"command": ["mousepad", "/tmp/note.txt"]}}]})
    shot = w.ok("vm:screenshot")
    assert shot["size"] == [1280, 800] and base64.b64decode(shot["image"]).startswith(b"\x89PNG")
    # An empty text is no row of the table: it begins below the menu.
    left, top = (side + way for side, way in zip(found(w, "menu", "File"), (-14, 25), strict=True))
    x, y = left + 74, top + 95
    w.ok("vm:click", x=x, y=y)
    w.ok("vm:type", text=TEXT)
    w.ok("vm:key", key="enter")
    w.ok("vm:key_down", key="shift")
    w.ok("vm:key", key="a")
    w.ok("vm:key_up", key="shift")
    w.ok("vm:pyautogui", command="pyautogui.write('b'); pyautogui.press('c')")
    w.ok("vm:hotkey", keys=["ctrl", "s"])
    w.ok("vm:wait", seconds=2)
    assert printed(w, "cat", "/tmp/note.txt").rstrip("\n") == f"{TEXT}\nAbc"
    # A drag from the first line to the second marks the first, and what is typed takes its place.
    w.ok("vm:drag", start_x=left, start_y=top, end_x=left, end_y=top + 18)
    w.ok("vm:type", text="Q")
    w.ok("vm:hotkey", keys=["ctrl", "s"])
    w.ok("vm:wait", seconds=2)
    assert printed(w, "cat", "/tmp/note.txt").rstrip("\n") == "QAbc"
    w.ok("vm:scroll", x=x, y=y, clicks=-3)
    w.ok("vm:move", x=5, y=5)
    w.ok("vm:mouse_down")
    w.ok("vm:mouse_up")
    w.ok("vm:hotkey", keys=["escape"])
    w.ok("vm:double_click", x=x, y=y)
    w.ok("vm:right_click", x=x, y=y)
    w.ok("vm:key", key="escape")
    menu = found(w, "menu", "File")
    w.ok("vm:click", x=menu[0], y=menu[1])
    found(w, "menu-item", "Open")
    w.ok("vm:key", key="escape")
    off = w.call("vm:click", x=1280, y=5)
    assert off["code"] == 5005 and "1280" in off["message"], off

    other.create("vm", session_config=QEMU)
    assert "No such file" in printed(other, "sh", "-c", "cat /tmp/note.txt 2>&1"), "another's disk"
    w.post("session/destroy", resource_type="vm")
    w.create("vm", session_config=QEMU)
    assert "No such file" in printed(w, "sh", "-c", "cat /tmp/note.txt 2>&1"), "a new session is a fresh VM"
    w.ok("vm:fail", reason="enough")
    assert w.ok("vm:done") == {"done": True}
