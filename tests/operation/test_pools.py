"""Warm pools under load: many more creates at once than there are ready sandboxes all succeed, and the pool fills again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
from arenite_server import Server
from sandboxes import LiveSandbox
from small import tiny_image

READY = 50
CLAIMS = 200
AT_ONCE = 50


def ready(server: Server) -> int:
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("arenite_sandbox_pool "))


def wait_until_full(server: Server) -> None:
    deadline = time.monotonic() + 120
    while ready(server) < READY:
        assert time.monotonic() < deadline, f"{ready(server)} of {READY} are ready"
        time.sleep(0.1)


def test_two_hundred_claims_of_a_pool_of_fifty(own_server: Callable[..., Server]) -> None:
    server = own_server(args=("--default-image", "tiny", "--pool", f"tiny={READY}"))
    server.start()
    tiny_image(server.data_dir / "pool")
    wait_until_full(server)

    with httpx.Client(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=AT_ONCE)) as api, ThreadPoolExecutor(AT_ONCE) as claims:

        def claim(number: int) -> str:
            answer = api.post("/api/v2/sandboxes", json={"name": f"claim-{number}", "env": {"NUMBER": str(number)}})
            assert answer.status_code == 201, answer.text
            assert LiveSandbox(server.url, f"claim-{number}").output("echo $NUMBER") == str(number)
            deleted = api.delete(f"/api/v2/sandboxes/claim-{number}")
            assert deleted.status_code == 200, deleted.text
            return str(answer.json()["id"])

        ids = list(claims.map(claim, range(CLAIMS)))
        assert len(set(ids)) == CLAIMS
        assert api.get("/api/v2/sandboxes").json()["sandboxes"] == []
    wait_until_full(server)
