"""kill -9 of the server: sandboxes live on with their state; nothing acknowledged is missing; nothing leaks."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import httpx
import leaks
import pytest
from arenite_server import Server
from isolation.rounds import random_kills
from sandboxes import LiveSandbox

COUNT = 20


def create(server: Server, name: str) -> LiveSandbox:
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name}, timeout=120)
    assert answer.status_code == 201, answer.text
    return LiveSandbox(server.url, name)


def steps_of(server: Server, trajectory: str) -> list[dict]:
    steps, after = [], 0
    with server.api() as api:
        while True:
            page = api.get(f"/api/v1/trajectories/{trajectory}", params={"after": after, "limit": 1000}).raise_for_status().json()
            steps += page["steps"]
            if page["next_after"] is None:
                return steps
            after = page["next_after"]


@pytest.mark.timeout(400)
def test_twenty_sandboxes_outlive_the_server(server: Server) -> None:
    server.delete_all_sandboxes()
    with ThreadPoolExecutor(COUNT) as pool:
        live = list(pool.map(lambda i: create(server, f"crash-{i}"), range(COUNT)))
    before = {sandbox.name: sandbox.details() for sandbox in live}
    shells: dict[str, str] = {}
    commands: dict[str, tuple[str, str]] = {}
    for sandbox in live:
        shells[sandbox.name] = sandbox.client.shell.exec_command(command=f"kept={sandbox.name}; cd /usr/lib").data.session_id
        ticking = sandbox.bash("for i in $(seq 100000); do echo tick-$i; sleep 0.1; done", async_mode=True)
        commands[sandbox.name] = (ticking.session_id, ticking.command_id)

    acknowledged: dict[str, list[str]] = {sandbox.name: [] for sandbox in live}
    dead = threading.Event()

    def keep_calling(sandbox: LiveSandbox) -> None:
        for i in range(100_000):
            if dead.is_set():
                return
            try:
                answer = sandbox.http.post("/v1/bash/exec", json={"command": f"echo call-{i}"})
            except httpx.TransportError:
                return
            if answer.status_code == 200:
                acknowledged[sandbox.name].append(f"echo call-{i}")

    callers = [threading.Thread(target=keep_calling, args=(sandbox,)) for sandbox in live]
    for caller in callers:
        caller.start()
    while min(len(calls) for calls in acknowledged.values()) < 3:
        time.sleep(0.05)
    server.kill()
    dead.set()
    for caller in callers:
        caller.join()
    server.start()

    live = [LiveSandbox(server.url, sandbox.name) for sandbox in live]
    for sandbox in live:
        details = sandbox.details()
        assert details["state"] == "running"
        assert (details["id"], details["spec"]) == (before[sandbox.name]["id"], before[sandbox.name]["spec"])
        # To the microsecond: the store keeps no finer time.
        made = [datetime.fromisoformat(d["created_at"]) for d in (details, before[sandbox.name])]
        assert made[0] == made[1]
        shell = sandbox.client.shell.exec_command(command="echo $kept; pwd", id=shells[sandbox.name]).data
        assert shell.output == f"{sandbox.name}\n/usr/lib"
        session, command = commands[sandbox.name]
        output = sandbox.client.bash.output(session_id=session, command_id=command).data
        assert output.command.status == "running"
        ticks = output.stdout.split()
        assert ticks == [f"tick-{i + 1}" for i in range(len(ticks))], "no output was lost while nobody was there"
        more = sandbox.client.bash.output(session_id=session, command_id=command, offset=output.offset, wait=True).data
        assert more.stdout.startswith(f"tick-{len(ticks) + 1}\n")

        steps = steps_of(server, details["id"])
        assert [step["step"] for step in steps] == sorted({step["step"] for step in steps})
        recorded = [str(step) for step in steps]
        for call in acknowledged[sandbox.name]:
            assert any(f"{call}'" in text or f'{call}"' in text for text in recorded), f"{call} was acknowledged and is not recorded"
    for sandbox in live:
        assert sandbox.delete().status_code == 200


@pytest.mark.timeout(400)
def test_random_kills_leak_nothing(server: Server) -> None:
    random_kills(server, 5)


@pytest.mark.timeout(200)
def test_a_graceful_stop_keeps_sandboxes_and_can_remove_them(server: Server) -> None:
    server.delete_all_sandboxes()
    server.restart()
    sandbox = create(server, "graceful")
    session = sandbox.client.shell.exec_command(command="kept=1").data.session_id
    server.restart()
    sandbox = LiveSandbox(server.url, "graceful")
    assert sandbox.client.shell.exec_command(command="echo $kept", id=session).data.output == "1"
    server.restart(("--remove-sandboxes", "true"))
    assert sandbox.details()["state"] == "running"
    server.stop()
    server.start()
    with server.api() as api:
        assert api.get("/api/v2/sandboxes").json()["sandboxes"] == []


@pytest.mark.timeout(200)
def test_a_sandbox_that_died_meanwhile_is_told(server: Server) -> None:
    server.delete_all_sandboxes()
    before = leaks.steady(server)
    sandbox = create(server, "died")
    uid = int(sandbox.output("head -1 /proc/self/uid_map").split()[1])
    inner_init = None
    server.kill()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "status").read_text()
        except OSError:
            continue
        ids = [int(x) for line in status.splitlines() if line.startswith("Uid:") for x in line.split()[1:]]
        nested = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")][0]
        if ids and uid <= ids[0] < uid + 65536 and nested[-1] == "1":
            inner_init = int(path.name)
    assert inner_init, "the sandbox's first process was not found"
    os.kill(inner_init, 9)
    server.start()
    details = httpx.get(f"{server.url}/api/v2/sandboxes/died", timeout=30)
    if details.status_code == 200:
        assert details.json()["state"] in ("lost", "failed")
        assert details.json()["reason"]
    else:
        assert details.status_code == 404
    answer = httpx.post(f"{server.url}/sandbox/died/v1/bash/exec", json={"command": "true"}, timeout=30)
    assert answer.status_code in (404, 409, 410, 502, 503)
    httpx.delete(f"{server.url}/api/v2/sandboxes/died", timeout=60)
    leaks.settle(before, server)
