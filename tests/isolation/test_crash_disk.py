"""A disk that is full, a store that can't be written to, a storage pool that broke: the server says so, and goes on by itself."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest
from arenite_server import binary
from isolation.rounds import kills_on_a_small_disk
from sandboxes import LiveSandbox
from small import MIB, SmallServer, within


def create(server: SmallServer, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": "tiny"}, timeout=60)


def delete(server: SmallServer, name: str) -> httpx.Response:
    return httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)


def steps(server: SmallServer, sandbox_id: str) -> list[dict[str, object]]:
    answer = httpx.get(f"{server.url}/api/v1/trajectories/{sandbox_id}/steps", params={"limit": 1000}, timeout=30)
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


def ready(server: SmallServer) -> list[str]:
    """Why it is not ready; nothing when it is."""
    answer = httpx.get(f"{server.url}/ready", timeout=5)
    reasons = [] if answer.status_code == 200 else answer.json()["reasons"]
    assert (answer.status_code == 200) == (reasons == []) and answer.status_code in (200, 503), answer.text
    assert str(server.data_dir) not in answer.text, "anyone may read it"
    return reasons


def warnings(server: SmallServer) -> list[str]:
    with server.api() as api:
        return api.get("/api/v2/info").raise_for_status().json()["warnings"]


def write(sandbox: LiveSandbox, mib: int, name: str = "data") -> str:
    """What dd says of writing so many MiB, with what the storage says of the sync after it."""
    return sandbox.bash(f"dd if=/dev/zero of=/root/{name} bs=1M count={mib} 2>&1; echo").stdout or ""


def test_a_full_disk_leaves_the_pool_whole(fresh: SmallServer) -> None:
    """Sandboxes' writes are held, not broken off below them; with room they go on."""
    sandbox = fresh.create("writer")
    sandbox.output("echo kept > /root/kept")
    work = "dd if=/dev/zero of=/root/data bs=1M count=60 2>>/dev/shm/log; for i in {1..200}; do echo > /root/n-$i; rm -f /root/n-$i; done 2>/dev/null"
    sandbox.bash(f"while [ ! -e /dev/shm/stop ]; do {work}; rm -f /root/data; done", async_mode=True)
    time.sleep(1)
    fresh.fill()
    within(10, "it is not ready", lambda: any("can't write" in reason for reason in ready(fresh)))
    assert any("disk" in reason for reason in warnings(fresh))
    for _ in range(5):
        subprocess.run(["sync", "-f", str(fresh.in_pool())], check=False)
        time.sleep(1)
    assert not any("read-only" in reason for reason in ready(fresh)), "metadata has its place on a full disk"
    fresh.kill()
    fresh.start(ready=False)
    assert fresh.states() == {"writer": "running"}
    fresh.empty()
    within(15, "it is ready", lambda: ready(fresh) == [])
    sandbox = LiveSandbox(fresh.url, "writer")
    assert "quota exceeded" in sandbox.output("touch /dev/shm/stop; cat /dev/shm/log /root/kept")
    assert "200+0 records out" in write(sandbox, 200)


def test_a_hold_that_a_killed_server_left_is_taken_back(fresh: SmallServer) -> None:
    sandbox = fresh.create("held")
    fresh.fill()
    within(10, "writes are held", lambda: any("can't write" in reason for reason in ready(fresh)))
    assert "quota exceeded" in write(sandbox, 8)
    fresh.kill()
    fresh.empty()
    fresh.start()
    sandbox = LiveSandbox(fresh.url, "held")
    within(10, "it can write", lambda: "8+0 records out" in write(sandbox, 8))
    # And up to its own limit, not further.
    limited = fresh.create("limited", resources={"disk_bytes": 32 * MIB})
    assert "quota exceeded" in write(limited, 40)


@pytest.fixture
def broken(fresh: SmallServer) -> Iterator[SmallServer]:
    """Its pool has met an error of the disk below it, and is read-only."""
    fresh.create("there").output("echo kept > /root/kept")
    subprocess.run(["sync", "-f", str(fresh.in_pool())], check=True)
    image = fresh.data_dir / "pool.img"
    subprocess.run(["chattr", "+i", str(image)], check=True)
    try:
        LiveSandbox(fresh.url, "there").bash("echo more > /root/more")
        subprocess.run(["sync", "-f", str(fresh.in_pool())], check=False)
        within(10, "the pool is read-only", lambda: any("read-only" in reason for reason in ready(fresh)))
    finally:
        subprocess.run(["chattr", "-i", str(image)], check=True)
    yield fresh


def test_a_pool_that_broke_is_reported_and_recovered(broken: SmallServer) -> None:
    assert any("arenite recover-storage" in warning for warning in warnings(broken))
    refused = create(broken, "more")
    assert refused.status_code == 503 and "read-only" in refused.json()["message"], refused.text
    running = recover_storage(broken)
    assert running.returncode != 0 and "another server" in running.stderr, "not below a server that runs"
    broken.stop()
    with pytest.raises(RuntimeError, match="arenite recover-storage --data-dir"):
        broken.start()
    done = recover_storage(broken)
    assert done.returncode == 0, done.stderr
    assert "ended" in done.stdout and "mounted" in done.stdout, done.stdout
    broken.start()
    assert broken.states() == {"there": "lost"}
    assert broken.create("new").output("echo works") == "works"
    kept = list((broken.in_pool() / "uppers").glob("*/upper/root/kept"))
    assert [path.read_text() for path in kept] == ["kept\n"], "the disk is there"
    again = recover_storage(broken)
    assert again.returncode != 0


def recover_storage(server: SmallServer) -> subprocess.CompletedProcess[str]:
    command = [str(binary()), "recover-storage", "--data-dir", str(server.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_pool_that_is_not_mounted_is_reported(fresh: SmallServer) -> None:
    subprocess.run(["umount", "--lazy", str(fresh.in_pool())], check=True)
    within(10, "it is not ready", lambda: any("not mounted" in reason for reason in ready(fresh)))
    fresh.stop()
    fresh.start()
    assert fresh.create("again").output("echo works") == "works"


def test_a_missing_pool_image_is_never_replaced(fresh: SmallServer) -> None:
    sandbox = fresh.create("there")
    sandbox.output("echo kept > /root/kept")
    image, aside = fresh.data_dir / "pool.img", fresh.data_dir.parent / "moved.img"
    image.rename(aside)
    within(10, "it is not ready", lambda: any("was removed or moved" in reason for reason in ready(fresh)))
    fresh.kill()
    with pytest.raises(RuntimeError, match="still mounted(.|\n)*put it back: mv .*moved.img"):
        fresh.start()
    assert not image.exists()
    aside.rename(image)
    fresh.start()
    assert LiveSandbox(fresh.url, "there").output("cat /root/kept") == "kept"
    # Nothing is mounted, as after a restart of the host.
    fresh.delete_all_sandboxes()
    fresh.stop()
    image.rename(aside)
    with pytest.raises(RuntimeError, match="is missing, and with it all images(.|\n)*remove .*pool.made"):
        fresh.start()
    assert not image.exists()
    aside.rename(image)
    fresh.start()
    assert fresh.create("after").output("echo works") == "works"


def test_a_copied_data_directory_is_served_beside_its_original(fresh: SmallServer) -> None:
    fresh.create("original").output("echo first > /root/mine")
    fresh.stop()
    subprocess.run(["sync", "-f", str(fresh.in_pool())], check=True)
    copy = SmallServer(fresh.data_dir.parent / "copy", args=fresh.args)
    copy.data_dir.mkdir()
    skip = ("pool", "program")
    for entry in fresh.data_dir.iterdir():
        if entry.name not in skip and not entry.is_socket():
            subprocess.run(["cp", "-a", "--sparse=always", str(entry), str(copy.data_dir)], check=True)
    fresh.start()
    try:
        copy.start()
        assert (copy.in_pool() / "images/tiny.json").exists()
        assert copy.states() == {"original": "lost"}
        assert copy.create("second").output("echo works") == "works"
        copy.delete_all_sandboxes()
        assert fresh.states() == {"original": "running"}
        assert LiveSandbox(fresh.url, "original").output("cat /root/mine") == "first"
    finally:
        if copy.process is not None:
            copy.stop()
        subprocess.run(["umount", str(copy.in_pool())], capture_output=True)
        shutil.rmtree(copy.data_dir)


@pytest.mark.timeout(300)
def test_random_kills_on_a_small_disk_lose_nothing(fresh: SmallServer) -> None:
    kills_on_a_small_disk(fresh, 6)
