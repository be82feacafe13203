"""kill -9 of the server at random points of create and delete, again and again."""

from __future__ import annotations

import random
import threading
import time

import httpx
import leaks
from arenite_server import Server


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
