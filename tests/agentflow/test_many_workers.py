"""Many workers at once, and the same with the server killed in the middle: nobody waits for ever, nothing is mixed up or lost."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import loads
import pytest
from arenite_server import Server
from workers import Worker

WORKERS = loads.size(24, 64)
STEPS = loads.size(20, 50)
WITH_BROWSER = loads.size(2, 8)
#: Sandboxes of 256 MiB let all of them in beside each other.
SMALL = {"memory_mb": 256}


class Steady(Worker):
    """A worker that goes on when the server was away: what was under way it asks again."""

    acknowledged: int = 0

    def post(self, path: str, **body: Any) -> httpx.Response:
        deadline = time.monotonic() + 90
        while True:
            try:
                answer = super().post(path, **body)
            except httpx.TransportError:
                # The server is gone, or was in the middle of this.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            if path == "execute":
                self.acknowledged += 1
            return answer


def work(worker: Steady, browser: bool) -> None:
    mark = uuid.uuid4().hex
    config = {"session_config": SMALL} if not browser else {}
    worker.create("bash", **config)
    worker.create("code")
    worker.ok("bash:run", command=f"mkdir -p ~/job; cd ~/job; MARK={mark}")
    if browser:
        worker.create("browser")
        worker.ok("code:write", file_path="/tmp/p.html", content=f"<title>{mark}</title>")
        assert worker.ok("browser:goto", url="file:///tmp/p.html")["title"] == mark
    for n in range(STEPS - 1):
        match n % 5:
            case 0:
                worker.ok("code:write", file_path=f"/home/gem/job/{n}.txt", content=f"{mark} {n}")
            case 1:
                assert worker.ok("bash:run", command=f"cat {n - 1}.txt")["stdout"] == f"{mark} {n - 1}"
            case 2:
                assert worker.ok("code:execute", code=f"echo {n}", language="bash")["stdout"] == f"{n}\n"
            case 3:
                assert worker.ok("bash:run", command="echo $MARK")["stdout"] == f"{mark}\n"
            case 4:
                assert mark in worker.ok("code:read", file_path=f"/home/gem/job/{n - 4}.txt")["result"]
    assert worker.post("worker/disconnect").json()["data"]["sessions_cleaned"] in (2, 3)


@pytest.mark.load
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "server-killed-midway"])
def test_many_workers_at_once(server: Server, killed: bool) -> None:
    workers = [Steady(server.url, f"many-{killed}-{uuid.uuid4().hex[:6]}-{n}") for n in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        done = [pool.submit(work, worker, n < WITH_BROWSER) for n, worker in enumerate(workers)]
        if killed:
            wanted = WORKERS * STEPS // 3
            while sum(worker.acknowledged for worker in workers) < wanted and not all(one.done() for one in done):
                time.sleep(0.05)
            server.kill()
            server.start()
        failures = [error for one in done if (error := one.exception()) is not None]
    assert not failures, f"{len(failures)} of {WORKERS} failed: {failures[:3]}"
    interrupted = 0
    for worker in workers:
        steps = worker.steps()
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        assert all(step["work"]["worker"] == worker.name for step in steps)
        ended = [step for step in steps if step["outcome"] == "ok"]
        # Every answer that came is there, and what the kill cut off is marked.
        assert len(ended) >= worker.acknowledged, worker.name
        interrupted += len(steps) - len(ended)
        worker.http.close()
    assert interrupted <= (WORKERS if killed else 0)
    left = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
    mine = {worker.name for worker in workers}
    assert [one["name"] for one in left if one["spec"]["labels"].get("agentflow.worker") in mine] == []
