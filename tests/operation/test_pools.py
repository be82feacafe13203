"""Warm pools under load: many more creates at once than there are ready sandboxes all succeed, and the pool fills again. A server
that is killed in the middle of claims leaves each sandbox as its client's, or not at all."""

from __future__ import annotations

import contextlib
import threading
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


def wait_until_full(server: Server, number: int = READY) -> None:
    deadline = time.monotonic() + 120
    while ready(server) < number:
        assert time.monotonic() < deadline, f"{ready(server)} of {number} are ready"
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


def test_a_server_that_is_killed_in_claims(own_server: Callable[..., Server]) -> None:
    server = own_server(args=("--default-image", "tiny", "--pool", "tiny=12"))
    server.start()
    tiny_image(server.data_dir / "pool")
    answered: dict[str, str] = {}
    some = threading.Semaphore(0)

    def claim(number: int) -> None:
        name = f"claim-{number}"
        # The kill cuts connections, and later ones are refused.
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "env": {"NUMBER": str(number)}}, timeout=60)
            assert answer.status_code == 201, answer.text
            answered[name] = answer.json()["id"]
            some.release()

    for kill in range(4):
        wait_until_full(server, 12)
        with ThreadPoolExecutor(4) as claims:
            running = [claims.submit(claim, kill * 12 + number) for number in range(12)]
            for _ in range(1 + kill):
                assert some.acquire(timeout=30)
            server.kill()
            for one in running:
                one.result()
        server.start()
        with server.api() as api:
            listed = api.get("/api/v2/sandboxes").json()["sandboxes"]
            assert {sandbox["state"] for sandbox in listed} == {"running"}, listed
            assert answered.items() <= {sandbox["name"]: sandbox["id"] for sandbox in listed}.items()
            for sandbox in listed:
                assert sandbox["isolation"], sandbox
                live = LiveSandbox(server.url, sandbox["name"])
                number, *names = live.output("echo $NUMBER $HOSTNAME; cat /etc/hostname").split()
                assert (f"claim-{number}", *names) == (sandbox["name"],) * 3
                live.delete()
            assert api.get("/api/v2/quarantine").json()["quarantine"] == []
        answered.clear()
        while some.acquire(blocking=False):
            pass
