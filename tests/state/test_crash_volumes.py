"""kill -9 of the server while volumes are created, copied, changed and removed: each is there as a whole, or not at all."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from arenite_server import Server
from operation.conftest import own_server  # noqa: F401
from small import MIB, SmallServer

ROUNDS = int(os.environ.get("ARENITE_TEST_KILLS", 6))
WORKERS = 3
FILES = {f"file-{n}": f"content {n}".encode() * 100 for n in range(5)}


class Worker(threading.Thread):
    """Changes volumes of its own names until the server is gone. Knows what must be there, and what may be."""

    def __init__(self, server: Server, number: int, seed: int):
        super().__init__(daemon=True)
        self.server, self.prefix, self.random = server, f"w{number}", random.Random(seed)
        #: Acknowledged: name to size.
        self.there: dict[str, int] = {}
        #: What was under way when the server was killed.
        self.open: tuple[str, str, int] | None = None
        self.done = 0

    def run(self) -> None:
        with httpx.Client(base_url=self.server.url, timeout=60) as api:
            while True:
                try:
                    self.step(api)
                    self.done += 1
                except httpx.TransportError:
                    return

    def step(self, api: httpx.Client) -> None:
        names = [f"{self.prefix}-{n}" for n in range(6)]
        free = [name for name in names if name not in self.there]
        size = self.random.randrange(16, 64) * MIB
        kind = self.random.choice(["create", "copy", "copy", "change", "remove"])
        if kind in ("create", "copy") and free:
            name = self.random.choice(free)
            path = "/api/v2/volumes" if kind == "create" else "/api/v2/volumes/source/copy"
            self.call(api, kind, name, size, "POST", path, {"name": name, "size_bytes": size})
            self.there[name] = size
        elif kind in ("change", "remove") and self.there:
            name = self.random.choice(sorted(self.there))
            method = "PATCH" if kind == "change" else "DELETE"
            self.call(api, kind, name, size, method, f"/api/v2/volumes/{name}", {"size_bytes": size} if kind == "change" else None)
            if kind == "change":
                self.there[name] = size
            else:
                del self.there[name]
        self.open = None

    def call(self, api: httpx.Client, kind: str, name: str, size: int, method: str, path: str, body: object) -> None:
        self.open = (kind, name, size)
        answer = api.request(method, path, json=body)
        # A server that ends may refuse what it can't begin.
        if answer.status_code >= 500:
            raise httpx.TransportError(answer.text)
        assert answer.is_success, f"{kind} {name}: {answer.text}"

    def check(self, found: dict[str, dict], api: httpx.Client) -> None:
        expected = dict(self.there)
        if self.open is not None:
            kind, name, size = self.open
            if kind in ("create", "copy") and name in found:
                expected[name] = size
            elif kind == "change" and found[name]["size_bytes"] == size:
                expected[name] = size
            elif kind == "remove" and name not in found:
                del expected[name]
        assert {name: one["size_bytes"] for name, one in found.items()} == expected, (self.there, self.open)
        self.there, self.open = expected, None
        for name, one in found.items():
            assert one["state"] == "ready", one
            files = api.get(f"/api/v2/volumes/{name}/files").raise_for_status().json()["files"]
            # A copy has all files of its source.
            assert [file["name"] for file in files] in ([], sorted(FILES)), files


@pytest.fixture
def crashing(own_server: Callable[..., Server]) -> Iterator[SmallServer]:  # noqa: F811
    server = own_server(kind=SmallServer)
    server.start()
    yield server


def test_a_volume_is_whole_or_not_there_after_a_kill(crashing: SmallServer) -> None:
    seed = int(os.environ.get("ARENITE_TEST_SEED", random.randrange(1 << 30)))
    print(f"ARENITE_TEST_SEED={seed}")
    dice = random.Random(seed)
    with crashing.api() as api:
        api.post("/api/v2/volumes", json={"name": "source", "size_bytes": 64 * MIB}).raise_for_status()
        for name, content in FILES.items():
            api.put("/api/v2/volumes/source/content", params={"path": name}, content=content).raise_for_status()
    known: dict[int, dict[str, int]] = {}
    done = 0
    for turn in range(ROUNDS):
        workers = [Worker(crashing, number, seed + turn * WORKERS + number) for number in range(WORKERS)]
        for number, worker in enumerate(workers):
            worker.there = known.get(number, {})
            worker.start()
        time.sleep(dice.uniform(0.05, 0.8))
        crashing.kill()
        for worker in workers:
            worker.join(60)
        crashing.start()
        with crashing.api() as api:
            volumes = {one["name"]: one for one in api.get("/api/v2/volumes").raise_for_status().json()["volumes"]}
            for number, worker in enumerate(workers):
                own = {name: one for name, one in volumes.items() if name.startswith(f"w{number}-")}
                worker.check(own, api)
                known[number] = worker.there
                done += worker.done
            assert volumes["source"]["state"] == "ready"
        directory = crashing.in_pool() / "volumes"
        ids = {one["id"] for one in volumes.values()}
        assert {path.name for path in directory.iterdir()} == ids | {f"{id}.json" for id in ids}, "no volume without a row"
    assert done > ROUNDS, "the rounds did something"
