"""A person in the dashboard, the terminal and the desktop of a sandbox, while an agent works in it."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from arenite_server import Server
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox
from workers import Worker

#: Unlike any default, so that a replay on another screen differs.
SCREEN = [900, 700]


def looked_at(person: Page, server: Server, live: LiveSandbox, tabs: list[str]) -> None:
    """Opens the dashboard and each of the tabs."""
    person.goto(f"{server.url}/sandbox/{live.name}/index.html")
    for tab in tabs:
        person.click(f"#tab-{tab}")
        expect(person.locator(f"#panel-{tab}")).to_be_visible()
        person.wait_for_timeout(400)


def agent(worker: Worker, pause: float) -> None:
    """Twenty calls, whose answers depend on nothing but the session: its screen, environment and directory.

    It pauses between them for so many seconds, since a session without calls ends after five minutes.
    """
    for n in range(6):
        time.sleep(pause)
        worker.ok("bash:run", command=f"echo {n}; echo $GREETING; pwd")
        worker.ok("vm:move", x=10 + n, y=20)
    for n in range(3):
        time.sleep(pause)
        worker.ok("vm:screenshot")
        worker.ok("bash:run", command=f"echo {n} >> notes; cat notes")
    assert worker.call("bash:run", command="exit 3")["code"] == 0
    worker.post("execute", action="bash:run", params={"command": "echo last"}, timeout=20)


def worked_by_both(server: Server, person: Page, arenite: Callable[..., Any], seconds: float) -> None:
    worker = Worker(server.url, f"both-{uuid.uuid4().hex[:8]}")
    try:
        worker.create("vm", session_config={"screen_size": SCREEN})
        worker.create("bash", session_config={"env": {"GREETING": "hello"}, "cwd": "/tmp"})
        found = httpx.get(f"{server.url}/api/v2/sandboxes", timeout=30).json()["sandboxes"]
        live = next(LiveSandbox(server.url, one["name"]) for one in found if one["spec"]["labels"].get("agentflow.worker") == worker.name)
        calling = threading.Thread(target=agent, args=(worker, seconds / 10))
        calling.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or calling.is_alive():
            looked_at(person, server, live, ["terminal", "browser", "files"])
            person.goto(f"{server.url}/sandbox/{live.name}/terminal")
            expect(person.locator("#state")).to_have_text("connected", timeout=30_000)
            person.keyboard.type("echo a person\n")
            person.goto(f"{server.url}/sandbox/{live.name}/vnc/index.html?autoconnect=true")
            expect(person.locator("#state")).to_have_text("connected", timeout=30_000)
            canvas = person.locator("#screen canvas")
            expect(canvas).to_be_visible()
            canvas.click(position={"x": 5, "y": 5}, button="left")
            person.wait_for_timeout(300)
        calling.join()
        sandbox = live.id
        worker.post("worker/disconnect")
    finally:
        worker.leave()
    http = httpx.Client(base_url=server.url, timeout=120)
    (listed,) = http.get("/api/v1/trajectories", params={"worker": worker.name}).json()["trajectories"]
    lines = http.get(f"/api/v1/trajectories/{listed['trajectory']}/export").text.splitlines()
    assert len(lines) == 20, len(lines)
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    assert json.loads(lines[18])["result"] == {"failed": {"exit_code": 3}}
    assert json.loads(lines[19])["work"]["timeout"] == 20
    sessions = http.get(f"/api/v1/trajectories/{listed['trajectory']}/sessions").json()["sessions"]
    begun = {one["resource_type"]: one["config"] for one in sessions if one["event"] == "begin"}
    assert begun["vm"]["screen_size"] == SCREEN and begun["bash"]["cwd"] == "/tmp", begun
    assert {one["resource_type"] for one in sessions if one["event"] == "end"} == {"vm", "bash"}
    # In the sandbox's own record a person's acts stand beside what the calls did, and can be told from it.
    inside = http.get(f"/api/v1/trajectories/{sandbox}", params={"limit": 1000}).json()["steps"]
    people = {step["action"].split("?")[0] for step in inside if step["origin"] == "person"}
    assert people == {"GET /v1/shell/ws", "GET /websockify"}, people
    agents = http.get(f"/api/v1/trajectories/{sandbox}/export").text.splitlines()
    assert not {json.loads(line)["action"].split("?")[0] for line in agents} & people
    again = arenite("trajectory", "replay", worker.name, "--json")
    told = json.loads(again.stdout)
    assert (again.returncode, told["divergence"], told["replayed"]) == (0, None, 20), again
