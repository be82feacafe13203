"""Pauses of both kinds: what they keep, what wakes them, and what a kill of the server in the middle leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from operation.conftest import module_server  # noqa: F401
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image, within
from tenant import Tenant, TenantsServer

MIB = 1 << 20
#: Says each time that it runs.
MAIN = ["bash", "-c", "echo ran >> /root/runs; exec sleep 1000"]


@pytest.fixture(scope="module")
def served(
    module_server: Callable[..., Server],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SmallServer]:
    volume = tmp_path_factory.mktemp("volume")
    volume.chmod(0o777)
    server = module_server(kind=SmallServer, args=("--default-image", "tiny", "--volume", f"data={volume}"))
    server.start()
    tiny_image(server.data_dir / "pool")
    yield server
    if server.process is None:
        server.start()
    server.delete_all_sandboxes()


@pytest.fixture
def box(served: SmallServer) -> Iterator[LiveSandbox]:
    live = served.create("box", args=MAIN)
    within(10, "its main command runs", lambda: runs(live) == 1)
    yield live
    if served.process is None:
        served.start()
    live.delete()


def runs(live: LiveSandbox) -> int:
    """How often its main command was started. It wakes the sandbox."""
    return live.output("cat /root/runs 2>/dev/null || true").split().count("ran")


def change(live: LiveSandbox, verb: str, **body: str) -> dict[str, Any]:
    answer = httpx.post(f"{live.base_url}/api/v2/sandboxes/{live.name}/{verb}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def usage(live: LiveSandbox) -> dict[str, Any]:
    return httpx.get(f"{live.base_url}/api/v2/sandboxes/{live.name}/usage", timeout=30).raise_for_status().json()


def kind(live: LiveSandbox) -> tuple[str, str | None]:
    details = live.details()
    return details["state"], details["pause_kind"]


def cgroups(live: LiveSandbox) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/arenite-*/{live.id}"))


def test_a_freeze_keeps_processes(box: LiveSandbox) -> None:
    box.output("echo here > /tmp/note; sleep 900 & echo $! > /tmp/pid")
    frozen = change(box, "pause")
    assert (frozen["state"], frozen["pause_kind"], frozen["processes"]) == ("paused", "freeze", "kept")
    assert change(box, "pause", kind="freeze")["processes"] == "kept"
    held = usage(box)
    assert held["memory_bytes"] > 0 and held["pids"] > 2, held
    resumed = change(box, "resume")
    assert (resumed["state"], resumed["pause_kind"], resumed["processes"]) == ("running", None, "kept")
    assert box.output("kill -0 $(cat /tmp/pid) && echo alive") == "alive" and runs(box) == 1


def test_a_pause_to_disk_ends_processes_and_keeps_files(served: SmallServer, box: LiveSandbox) -> None:
    box.output("echo here > /root/note; sleep 900 & echo $! > /root/pid")
    assert cgroups(box) != []
    done = run(served, "pause", "box", "--kind", "disk")
    assert (done.returncode, done.stdout) == (0, "box\n"), done.stderr
    assert kind(box) == ("paused", "disk")
    assert "paused (disk)" in run(served, "ls").stdout
    assert cgroups(box) == [], "its processes are gone"
    left = usage(box)
    assert (left["memory_bytes"], left["pids"]) == (0, 0) and left["disk_bytes"] is not None, left
    assert change(box, "pause", kind="disk")["processes"] == "ended"
    # What is there stays as it is: nothing can be frozen.
    assert change(box, "pause")["pause_kind"] == "disk"
    assert box.output("cat /root/note; kill -0 $(cat /root/pid) 2>/dev/null || echo gone") == "here\ngone"
    within(10, "its main command runs again", lambda: runs(box) == 2)
    assert kind(box) == ("running", None)
    change(box, "pause", kind="disk")
    assert change(box, "resume")["processes"] == "restarted"
    within(10, "its main command runs again", lambda: runs(box) == 3)
    change(box, "pause", kind="disk")
    assert run(served, "start", "box").returncode == 0
    within(10, "its main command runs again", lambda: runs(box) == 4)
    bad = httpx.post(f"{served.url}/api/v2/sandboxes/box/pause", json={"kind": "sleep"}, timeout=30)
    assert bad.status_code == 400 and "kind" in bad.json()["message"], bad.text


def test_calls_at_once_start_it_once(box: LiveSandbox) -> None:
    for turn in (1, 2):
        change(box, "pause", kind="disk")
        with ThreadPoolExecutor(12) as pool:
            called = list(pool.map(lambda n: LiveSandbox(box.base_url, box.name).output(f"echo {n}"), range(12)))
        assert called == [str(n) for n in range(12)]
        within(10, "its main command runs again", lambda turn=turn: runs(box) == turn + 1)


def test_a_frozen_sandbox_is_paused_to_its_disk(served: SmallServer, box: LiveSandbox) -> None:
    change(box, "pause")
    assert change(box, "pause", kind="disk")["processes"] == "ended"
    assert runs(box) >= 1 and kind(box) == ("running", None)
    set_to = run(served, "set", "box", "--idle-timeout", "1s", "--idle-policy", "freeze", "--disk-after", "2s")
    assert set_to.returncode == 0, set_to.stderr
    within(10, "it is frozen", lambda: kind(box) == ("paused", "freeze"))
    deadline = box.details()["deadline"]
    assert deadline is None or (deadline["reason"], deadline["action"]) == ("paused", "disk")
    within(10, "it is paused to its disk", lambda: kind(box) == ("paused", "disk"))
    assert run(served, "set", "box", "--idle-policy", "disk", "--disk-after", "0").returncode == 0
    assert box.output("echo awake") == "awake"
    within(10, "it is paused to its disk", lambda: kind(box) == ("paused", "disk"))


def test_a_short_host_pauses_frozen_sandboxes_to_their_disks(served: SmallServer) -> None:
    allowed, refuses = served.create("allowed"), served.create("refuses")
    assert run(served, "set", "allowed", "--disk-under-pressure").returncode == 0
    for live in (allowed, refuses):
        live.output("echo kept > /root/note")
        change(live, "pause")
    assert kind(allowed) == kind(refuses) == ("paused", "freeze")
    before = served.args
    served.stop()
    served.args = (*before, "--memory-reserve", "64TiB")
    served.start()
    within(10, "it is paused to its disk", lambda: kind(allowed) == ("paused", "disk"))
    assert kind(refuses) == ("paused", "freeze"), "it does not allow it"
    # Waking needs room.
    assert httpx.post(f"{served.url}/api/v2/sandboxes/allowed/resume", timeout=60).status_code == 429
    served.stop()
    served.args = before
    served.start()
    assert allowed.output("cat /root/note") == refuses.output("cat /root/note") == "kept"
    assert run(served, "set", "allowed", "--disk-under-pressure", "false").returncode == 0
    assert "disk_under_pressure" not in allowed.details()["spec"]


def test_its_life_time_goes_on(served: SmallServer) -> None:
    live = served.create("short", idle_policy="disk")
    record = served.data_dir / "run" / live.id
    assert record.exists()
    change(live, "pause", kind="disk")
    httpx.patch(f"{served.url}/api/v2/sandboxes/short", json={"expires_in_seconds": 1}, timeout=30).raise_for_status()
    within(10, "it is gone", lambda: "short" not in served.states())
    assert not record.exists()


def test_it_outlives_servers_and_keeps_its_volume(served: SmallServer) -> None:
    live = served.create("volume", volumes=[{"name": "data", "path": "/data"}])
    record = served.data_dir / "run" / live.id
    live.output("echo on the host > /data/file; echo inside > /root/file")
    change(live, "pause", kind="disk")
    for end in (served.stop, served.kill):
        end()
        served.start()
        assert kind(live) == ("paused", "disk")
    assert live.output("cat /data/file /root/file; echo more >> /data/file") == "on the host\ninside"
    change(live, "pause", kind="disk")
    served.kill()
    served.start()
    assert live.delete().status_code == 200 and "volume" not in served.states()
    assert not record.exists()


def test_hooks_run_before_the_pause_and_after_it(served: SmallServer) -> None:
    hooks = {"RUN_HOOK_INIT": "echo init >> /root/hooked", "RUN_HOOK_SHUTDOWN": "echo shutdown >> /root/hooked"}
    live = served.create("hooks", env=hooks)
    assert live.output("cat /root/hooked") == "init"
    change(live, "pause", kind="disk")
    assert live.output("cat /root/hooked").split() == ["init", "shutdown", "init"]
    # A frozen one continues for its hooks.
    change(live, "pause")
    change(live, "pause", kind="disk")
    assert live.output("cat /root/hooked").split() == ["init", "shutdown", "init", "shutdown", "init"]
    live.delete()


def test_a_kill_at_any_step_leaves_it_running_or_paused(served: SmallServer, box: LiveSandbox) -> None:
    box.output("echo here > /root/note")
    seen = set()
    for turn in range(6):
        verb = "pause" if turn % 2 == 0 else "resume"
        if verb == "resume":
            change(box, "pause", kind="disk")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(silent, served.url, verb)
            time.sleep(0.01 * turn)
            served.kill()
            asked.result()
        served.start()
        found = kind(box)
        assert found in (("running", None), ("paused", "disk")), f"{found} after a kill in {verb}"
        seen.add(found)
        assert box.output("cat /root/note") == "here"
        assert len(cgroups(box)) > 0
    print(seen)


def silent(url: str, verb: str) -> None:
    try:
        httpx.post(f"{url}/api/v2/sandboxes/box/{verb}", json={"kind": "disk"} if verb == "pause" else {}, timeout=30)
    except httpx.TransportError:
        pass


def test_memory_is_given_back_to_the_quota(module_server: Callable[..., Server]) -> None:  # noqa: F811
    server = module_server(
        kind=SmallServer, args=("--default-image", "tiny", "--tenants", "--tenant-limit", f"memory={512 * MIB},sandboxes=9")
    )
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    acme = tenants.tenant("acme")
    try:
        size = {"resources": {"memory_bytes": 300 * MIB}}
        acme.json("POST", "/api/v2/sandboxes", json={"name": "one", **size})
        used = quota(acme, "disk_bytes")
        assert acme.http.post("/api/v2/sandboxes", json={"name": "two", **size}).status_code == 429
        acme.json("POST", "/api/v2/sandboxes/one/pause", json={})
        assert acme.http.post("/api/v2/sandboxes", json={"name": "two", **size}).status_code == 429, "a freeze keeps its memory"
        acme.json("POST", "/api/v2/sandboxes/one/pause", json={"kind": "disk"})
        assert (quota(acme, "memory_bytes"), quota(acme, "sandboxes"), quota(acme, "disk_bytes")) == (0, 1, used)
        acme.json("POST", "/api/v2/sandboxes", json={"name": "two", **size})
        for path, body in (("/api/v2/sandboxes/one/resume", {}), ("/sandbox/one/v1/bash/exec", {"command": "true"})):
            refused = acme.http.post(path, json=body)
            assert refused.status_code == 429 and "memory" in refused.text, refused.text
        assert acme.json("GET", "/api/v2/sandboxes/one")["pause_kind"] == "disk"
        server.kill()
        server.start()
        assert quota(acme, "memory_bytes") == 300 * MIB
        acme.json("DELETE", "/api/v2/sandboxes/two")
        called = acme.json("POST", "/sandbox/one/v1/bash/exec", json={"command": "echo awake"})
        assert called["data"]["stdout"] == "awake\n", called
        assert quota(acme, "memory_bytes") == 300 * MIB
    finally:
        tenants.operator.json("DELETE", "/api/v2/tenants/acme?force=true")


def quota(tenant: Tenant, name: str) -> int:
    found = [one["used"] for one in tenant.json("GET", "/api/v2/me")["quotas"] if one["quota"] == name]
    return int(found[0]) if found else 0
