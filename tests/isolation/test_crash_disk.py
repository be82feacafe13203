"""A disk that is full, a store that can't be written to, a storage pool that broke: the server says so, and goes on by itself."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from small import MIB, SmallServer, small_server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    with small_server(tmp_path_factory.mktemp("small")) as server:
        yield server


@pytest.fixture
def fresh(small: SmallServer) -> Iterator[SmallServer]:
    """The small server, running, without sandboxes and with room on its disk."""
    if small.process is None:
        small.start()
    small.delete_all_sandboxes()
    yield small
    small.empty()


def within(seconds: float, what: str, done: Callable[[], bool]) -> float:
    """How long it took until it was done."""
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < seconds, f"after {seconds} s still not: {what}"
        time.sleep(0.05)
    return time.monotonic() - begun


def create(server: SmallServer, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": "tiny"}, timeout=60)


def delete(server: SmallServer, name: str) -> httpx.Response:
    return httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)


def steps(server: SmallServer, sandbox_id: str) -> list[dict[str, object]]:
    answer = httpx.get(f"{server.url}/api/v1/trajectories/{sandbox_id}/steps", timeout=30)
    return answer.raise_for_status().json()["steps"]


def test_deletes_work_on_a_full_disk_and_free_it(fresh: SmallServer) -> None:
    """All of them, also when there are more than what is reserved would do for at once."""
    for number in range(4):
        fresh.create(f"full-{number}").output("dd if=/dev/zero of=/root/data bs=1M count=8 status=none")
    subprocess.run(["sync", "-f", str(fresh.in_pool())], check=True)
    fresh.fill()
    assert fresh.free() < MIB
    refused = create(fresh, "more")
    assert refused.status_code in (429, 503, 507), refused.text
    assert delete(fresh, "full-0").status_code == 200
    fresh.kill()
    fresh.start(ready=False)
    assert fresh.states() == {f"full-{number}": "running" for number in range(1, 4)}
    for number in range(1, 4):
        answer = delete(fresh, f"full-{number}")
        assert answer.status_code == 200, answer.text
    assert fresh.states() == {}
    fresh.empty()
    assert fresh.create("full-0").output("echo back") == "back"
    fresh.restart()
    assert fresh.states() == {"full-0": "running"}


def test_accepted_calls_keep_their_results_on_a_full_disk(fresh: SmallServer) -> None:
    sandbox = fresh.create("steps")
    fresh.fill()
    answered, refused = 0, 0
    for number in range(200):
        answer = httpx.post(f"{sandbox.url}/v1/bash/exec", json={"command": f"echo {number}"}, timeout=30)
        if answer.status_code == 200:
            answered += 1
        else:
            assert answer.status_code == 507 and "disk" in answer.json()["message"], answer.text
            refused += 1
    assert refused > 0
    about = httpx.get(f"{fresh.url}/api/v2/sandboxes/steps", timeout=30).json()
    fresh.kill()
    fresh.start(ready=False)
    fresh.empty()
    recorded = [step for step in steps(fresh, about["id"]) if "bash/exec" in str(step["action"])]
    assert len(recorded) == answered
    assert {step["outcome"] for step in recorded} <= {"ok"}
    works = lambda: httpx.post(f"{sandbox.url}/v1/bash/exec", json={"command": "true"}, timeout=30).status_code == 200  # noqa: E731
    within(10, "calls work again", works)


def test_a_store_that_was_read_only_at_the_start_is_written_to_again(fresh: SmallServer) -> None:
    fresh.create("before")
    fresh.stop()
    store = fresh.data_dir / "control.sqlite"
    subprocess.run(["chattr", "+i", str(store)], check=True)
    try:
        fresh.start(ready=False)
        assert fresh.states() == {"before": "running"}
        refused = create(fresh, "after")
        assert refused.status_code == 503 and "only be read" in refused.json()["message"], refused.text
    finally:
        subprocess.run(["chattr", "-i", str(store)], check=True)
    within(10, "creates work again", lambda: create(fresh, "after").status_code == 201)
    # A deletion that could not be written is, before the name is taken again.
    assert delete(fresh, "before").status_code == 200
    fresh.create("before")
    fresh.restart()
    assert fresh.states() == {"before": "running", "after": "running"}


def test_a_store_that_another_process_has_locked_is_refused_soon(fresh: SmallServer) -> None:
    fresh.create("there")
    shell = sqlite3.connect(fresh.data_dir / "control.sqlite", isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    refused = create(fresh, "locked")
    assert refused.status_code == 503 and "another process has locked it" in refused.json()["message"], refused.text
    assert "retry-after" in refused.headers
    assert time.monotonic() - begun < 2.5, "not the 10 s of two waits for the lock"
    assert delete(fresh, "there").status_code == 200
    assert fresh.states() == {}
    shell.execute("ROLLBACK")
    shell.close()
    within(5, "creates work again", lambda: create(fresh, "there").status_code == 201)
    fresh.restart()
    assert fresh.states() == {"there": "running"}
