"""Many forks of one sandbox: they take hardly any space, run at once, and never see each other's files.

`ARENITE_TEST_FORKS` sets their number, and `ARENITE_TEST_MEBIBYTES` the size of the parent's files."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

FORKS = int(os.environ.get("ARENITE_TEST_FORKS", "6"))
MEBIBYTES = int(os.environ.get("ARENITE_TEST_MEBIBYTES", "64"))
API = "/api/v2/sandboxes"
FILL = (
    "mkdir tree && cd tree && for d in $(seq 20); do mkdir d$d && "
    f"head -c {MEBIBYTES * (1 << 20) // 20} /dev/urandom | split -a 4 -b 50000 - d$d/f; done"
)
SUMS = "cd tree && find . -type f | sort | xargs b2sum | b2sum"


def used(server: Server) -> int:
    """Bytes of the pool in use, when all is on disk and what was deleted is gone."""
    pool = server.data_dir / "pool"
    subprocess.run(["btrfs", "filesystem", "sync", str(pool)], check=True, capture_output=True)
    about = os.statvfs(pool)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


@pytest.mark.timeout(120 + 8 * FORKS + MEBIBYTES)
def test_many_forks_take_no_space_and_stay_apart(server: Server) -> None:
    with server.api(600) as api:
        resources = {"disk_bytes": 8 << 30, "memory_bytes": 192 << 20}
        api.post(API, json={"name": "parent", "image": "base", "resources": resources}).raise_for_status()
        parent = LiveSandbox(server.url, "parent", 600)
        forks: list[LiveSandbox] = []
        try:
            parent.output(FILL, timeout=500)
            before, tree = used(server), parent.output(SUMS, timeout=500)
            answer = api.post(f"{API}/parent/fork", json={"count": FORKS, "name": "many"})
            assert answer.status_code == 201, answer.text
            forks = [LiveSandbox(server.url, fork["name"], 600) for fork in answer.json()["sandboxes"]]
            assert len(forks) == FORKS
            states = {one["name"]: one["state"] for one in api.get(API, params={"limit": 1000}).json()["sandboxes"]}
            assert {states[fork.name] for fork in forks} == {"running"}
            # Each has some files of its own, such as its host name.
            assert used(server) - before < max(MEBIBYTES << 20, 1 << 30) * 0.02

            def change(fork: LiveSandbox) -> str:
                fork.output(f"echo {fork.name} >tree/d1/own; rm tree/d2/faaaa; echo {fork.name} >>tree/d3/faaaa")
                return fork.output(SUMS, timeout=500)

            with ThreadPoolExecutor(4) as pool:
                trees = list(pool.map(change, forks))
            assert len({*trees, tree}) == FORKS + 1
            assert parent.output(SUMS, timeout=500) == tree
            assert [fork.output("cat tree/d1/own") for fork in forks] == [fork.name for fork in forks]
        finally:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(LiveSandbox.delete, [*forks, parent]))


def test_a_fork_that_can_not_be_created_leaves_none(server: Server) -> None:
    with server.api(60) as api:
        made = api.post(API, json={"image": "base"}).raise_for_status().json()["name"]
        taken = api.post(API, json={"name": "apart-1", "image": "base"}).raise_for_status().json()["name"]
        some = api.post(f"{API}/{made}/fork", json={"count": 3, "name": "apart", "min": 1})
        assert some.status_code == 207 and len(some.json()["sandboxes"]) == 2, some.text
        for fork in some.json()["sandboxes"]:
            api.delete(f"{API}/{fork['name']}")
        none = api.post(f"{API}/{made}/fork", json={"count": 3, "name": "apart"})
        assert none.status_code == 409, none.text
        left = {one["name"] for one in api.get(API).json()["sandboxes"]}
        assert {made, taken} <= left and not {"apart-0", "apart-2"} & left
        for name in (made, taken):
            assert httpx.delete(f"{server.url}{API}/{name}", timeout=60).status_code == 200
        assert list((server.data_dir / "states").iterdir()) == []
