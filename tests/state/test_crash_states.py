"""kill -9 of the server, and of its launcher, at random points of checkpoints, rollbacks, resets, forks and snapshots.

`ARENITE_TEST_KILLS` sets the number of kills."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field

import httpx
import leaks
import pytest
from arenite_server import Server

KILLS = int(os.environ.get("ARENITE_TEST_KILLS", "5"))
API = "/api/v2/sandboxes"


@dataclass
class Known:
    """What one worker's sandbox has for certain."""

    name: str
    #: What each acknowledged checkpoint has in its file.
    checkpoints: dict[int, str] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    #: What the file has; none while a change is under way.
    content: str | None = ""


def run(api: httpx.Client, name: str, command: str) -> str:
    answer = api.post(f"/sandbox/{name}/v1/bash/exec", json={"command": command})
    answer.raise_for_status()
    return (answer.json()["data"]["stdout"] or "").strip()


def act(api: httpx.Client, known: Known, chance: random.Random, turn: int, number: int) -> None:
    path = f"{API}/{known.name}"
    match chance.randrange(6):
        case 0 | 1:
            known.content = None
            value = f"v{turn}-{number}"
            if run(api, known.name, f"echo {value} >/home/gem/file; cat /home/gem/file") == value:
                known.content = value
        case 2:
            before = known.content
            answer = api.post(f"{path}/checkpoints", json={})
            if answer.status_code == 201 and before is not None:
                known.checkpoints[answer.json()["number"]] = before
        case 3 if known.checkpoints:
            number, value = chance.choice(sorted(known.checkpoints.items()))
            known.content = None
            if api.post(f"{path}/rollback", json={"to": str(number)}).status_code == 200:
                known.content = value
        case 4:
            before, snapshot = known.content, f"{known.name}-{turn}-{number}"
            answer = api.post("/api/v2/snapshots", json={"name": snapshot, "sandbox": known.name})
            if answer.status_code == 201 and before is not None:
                known.snapshots[snapshot] = before
        case 5:
            for fork in api.post(f"{path}/fork", json={"count": 2}).json().get("sandboxes", []):
                api.delete(f"{API}/{fork['name']}")
        case _:
            known.content = None
            if api.post(f"{path}/reset", json={}).status_code == 200:
                known.content = ""


def check(api: httpx.Client, known: Known) -> None:
    read = "cat /home/gem/file 2>/dev/null; true"
    sandbox = api.get(f"{API}/{known.name}").json()
    if sandbox["state"] != "running":
        # Killed between the end of the processes and their next start: nothing was acknowledged.
        assert known.content is None, sandbox
        api.post(f"{API}/{known.name}/start", json={}).raise_for_status()
    content = run(api, known.name, read)
    assert known.content in (None, content), known
    there = {one["number"] for one in api.get(f"{API}/{known.name}/history").raise_for_status().json()["checkpoints"]}
    assert set(known.checkpoints) <= there, (known, there)
    for number, value in list(known.checkpoints.items())[-2:]:
        api.post(f"{API}/{known.name}/rollback", json={"to": str(number)}).raise_for_status()
        assert run(api, known.name, read) == value, (known, number)
    for snapshot, value in known.snapshots.items():
        made = api.post(API, json={"snapshot": snapshot}).raise_for_status().json()["name"]
        assert run(api, made, read) == value, (known, snapshot)
        api.delete(f"{API}/{made}")


def forget_all(api: httpx.Client) -> None:
    for sandbox in api.get(API).json()["sandboxes"]:
        api.delete(f"{API}/{sandbox['name']}")
    for snapshot in api.get("/api/v2/snapshots").json()["snapshots"]:
        api.delete(f"/api/v2/snapshots/{snapshot['name']}")


@pytest.mark.timeout(120 + 30 * KILLS)
def test_acknowledged_states_outlive_kills(server: Server) -> None:
    chance = random.Random(11)
    states, sealed = server.data_dir / "states", server.data_dir / "pool/snapshots"
    with server.api(120) as api:
        forget_all(api)
    server.restart()
    before = leaks.steady(server)
    for turn in range(KILLS):
        dead = threading.Event()
        all_known = [Known(f"c{turn}-{worker}") for worker in range(2)]
        with server.api(120) as api:
            for known in all_known:
                api.post(API, json={"name": known.name, "image": "base"}).raise_for_status()

        def work(known: Known, seed: int, turn: int = turn, dead: threading.Event = dead) -> None:
            own = random.Random(seed)
            with server.api(60) as api:
                for number in range(1000):
                    if dead.is_set():
                        return
                    try:
                        act(api, known, own, turn, number)
                    except httpx.HTTPError:
                        return

        workers = [threading.Thread(target=work, args=(known, chance.randrange(10**6))) for known in all_known]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.1, 1.5))
        launcher = server.launcher()
        if launcher and chance.randrange(2):
            os.kill(launcher, signal.SIGKILL)
            # The server goes on for a while without it, or with another one.
            time.sleep(chance.choice([0, 0.3]))
        server.kill()
        dead.set()
        for worker in workers:
            worker.join()
        server.start()
        with server.api(120) as api:
            for known in all_known:
                check(api, known)
            forget_all(api)
    server.restart()
    assert sorted(states.iterdir()) == [] and sorted(sealed.iterdir()) == [], "nothing is left of what is gone"
    leaks.settle(before, server)
