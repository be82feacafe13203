"""kill -9 of the server at random points of create and delete, again and again."""

from __future__ import annotations

import random
import threading
import time

import httpx
import leaks
from arenite_server import Server
from small import SmallServer


def random_kills(server: Server, rounds: int, seed: int = 7) -> None:
    chance = random.Random(seed)
    server.delete_all_sandboxes()
    with server.api() as api:
        for i in range(8):
            api.post("/api/v2/sandboxes", json={"name": f"warm-{i}"}).raise_for_status()
    server.delete_all_sandboxes()
    server.restart()
    before = leaks.steady(server)
    for turn in range(rounds):
        dead = threading.Event()
        acknowledged: set[str] = set()
        deleting: set[str] = set()

        def churn(worker: int, turn: int = turn, dead: threading.Event = dead) -> None:
            with httpx.Client(base_url=server.url, timeout=30) as api:
                for i in range(1000):
                    if dead.is_set():
                        return
                    name = f"kill-{turn}-{worker}-{i}"
                    try:
                        if api.post("/api/v2/sandboxes", json={"name": name}).status_code == 201:
                            acknowledged.add(name)
                        if i % 2:
                            deleting.add(name)
                            api.delete(f"/api/v2/sandboxes/{name}")
                    except httpx.TransportError:
                        return

        workers = [threading.Thread(target=churn, args=(i,)) for i in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.0, 0.4))
        server.kill()
        dead.set()
        for worker in workers:
            worker.join()
        server.start()
        with server.api() as api:
            there = {s["name"]: s["state"] for s in api.get("/api/v2/sandboxes").json()["sandboxes"]}
            for name in acknowledged - deleting:
                assert there.get(name) == "running", f"round {turn}: {name} was acknowledged and is {there.get(name)}"
                answer = api.post(f"/sandbox/{name}/v1/bash/exec", json={"command": "echo found"})
                assert answer.json()["data"]["stdout"] == "found\n", answer.text
        server.delete_all_sandboxes()
    server.restart()
    leaks.settle(before, server)


def kills_on_a_small_disk(server: SmallServer, rounds: int, seed: int = 11) -> None:
    """The same with commands beside, on a disk that is full in every sixth round: what was answered is true afterwards."""
    chance = random.Random(seed)
    for turn in range(rounds):
        dead = threading.Event()
        kept: dict[str, str] = {}
        deleting: set[str] = set()
        deleted: set[str] = set()

        def churn(worker: int, turn: int = turn, dead: threading.Event = dead) -> None:
            with httpx.Client(base_url=server.url, timeout=60) as api:
                for i in range(1000):
                    if dead.is_set():
                        return
                    name = f"disk-{turn}-{worker}-{i}"
                    try:
                        if api.post("/api/v2/sandboxes", json={"name": name, "image": "tiny"}).status_code != 201:
                            time.sleep(0.02)
                            continue
                        kept[name] = ""
                        answer = api.post(f"/sandbox/{name}/v1/bash/exec", json={"command": f"echo {name} > /root/name && cat /root/name"})
                        if answer.status_code == 200 and answer.json()["data"]["exit_code"] == 0:
                            kept[name] = name
                        if i % 2:
                            deleting.add(name)
                            if api.delete(f"/api/v2/sandboxes/{name}").status_code == 200:
                                deleted.add(name)
                    except httpx.TransportError:
                        return

        workers = [threading.Thread(target=churn, args=(i,)) for i in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(chance.uniform(0.2, 1.2))
        if turn % 6 == 3:
            server.fill()
            time.sleep(chance.uniform(0.2, 1.2))
        server.kill()
        dead.set()
        for worker in workers:
            worker.join()
        server.start(ready=False)
        there = server.states()
        for name in deleted:
            assert there.get(name) in (None, "lost"), f"round {turn}: {name} was deleted and is {there[name]}"
        server.empty()
        deadline = time.monotonic() + 20
        while httpx.get(f"{server.url}/ready").status_code != 200:
            assert time.monotonic() < deadline, httpx.get(f"{server.url}/ready").text
            time.sleep(0.1)
        with server.api() as api:
            for name in kept.keys() - deleting:
                assert there.get(name) == "running", f"round {turn}: {name} was acknowledged and is {there.get(name)}"
                answer = api.post(f"/sandbox/{name}/v1/bash/exec", json={"command": "cat /root/name"})
                if kept[name]:
                    assert answer.json()["data"]["stdout"] == f"{name}\n", answer.text
        server.delete_all_sandboxes()
    deadline = time.monotonic() + 20
    # The one that is kept prepared has a layer too.
    while len(layers := list((server.in_pool() / "uppers").iterdir())) > 1:
        assert time.monotonic() < deadline, layers
        time.sleep(0.1)
