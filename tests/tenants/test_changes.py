"""Changes of labels and times, the longest lifetime of a tenant, and why sandboxes ended: with real sandboxes and real kills."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from blake3 import blake3
from tenant import Tenant, TenantsServer, first_process

SANDBOXES = "/api/v2/sandboxes"
MIB = 1 << 20


@pytest.fixture
def acme(tenants: TenantsServer) -> Iterator[Tenant]:
    tenant = tenants.tenant(f"acme-{time.monotonic_ns()}")
    yield tenant
    tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant.name}?force=true")


def create(tenant: Tenant, name: str, **body: Any) -> dict[str, Any]:
    small = {"memory_bytes": 192 * MIB}
    return tenant.json("POST", SANDBOXES, json={"name": name, "resources": small, **body})


def get(tenant: Tenant, name: str) -> dict[str, Any]:
    return tenant.json("GET", f"{SANDBOXES}/{name}")


def eventually(check: Callable[[], Any], limit: float = 30) -> Any:
    end = time.monotonic() + limit
    while not (found := check()):
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.05)
    return found


def life(sandbox: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(sandbox["expires_at"]) - datetime.fromisoformat(sandbox["created_at"])


def of_another_boot(tenants: TenantsServer, sandbox: dict[str, Any]) -> None:
    """Makes the records of a sandbox say that it ran before the host was restarted."""
    for folder in ("run", "records"):
        path = tenants.server.data_dir / folder / sandbox["id"] / "sandbox.json"
        record = json.loads(path.read_text().splitlines()[-1]) | {"boot": "another"}
        body = json.dumps(record).encode()
        header = {"version": 1, "checksum": blake3((1).to_bytes(4, "little") + body).hexdigest()}
        path.write_bytes(json.dumps(header).encode() + b"\n" + body)


def died(tenant: Tenant, name: str) -> dict[str, Any]:
    return eventually(lambda: get(tenant, name)["died"])


def test_changes_outlive_a_kill_and_a_lost_store(tenants: TenantsServer, acme: Tenant) -> None:
    created = create(acme, "one", labels={"team": "a", "old": "x"}, timeout_seconds=600)
    acme.json("POST", f"{SANDBOXES}/one/pause")
    tag = acme.http.get(f"{SANDBOXES}/one").headers["etag"]
    body = {"labels": {"team": "b", "old": None}, "idle_timeout_seconds": 3000, "idle_policy": "pause"}
    changed = acme.http.patch(f"{SANDBOXES}/one", json=body, headers={"if-match": tag})
    assert changed.status_code == 200 and changed.headers["etag"] != tag, changed.text
    stale = acme.http.patch(f"{SANDBOXES}/one", json=body, headers={"if-match": tag})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    with ThreadPoolExecutor(10) as pool:
        extended = list(pool.map(lambda _: acme.json("POST", f"{SANDBOXES}/one/extend", json={"seconds": 60}), range(10)))
    assert sorted(life(one) for one in extended) == [timedelta(seconds=600 + 60 * count) for count in range(1, 11)]

    kept = ("state", "spec", "expires_at", "revision")
    wanted = {key: get(acme, "one")[key] for key in kept}
    assert wanted["state"] == "paused" and wanted["revision"] == created["revision"] + 11
    tenants.server.kill()
    tenants.server.start()
    assert {key: get(acme, "one")[key] for key in kept} == wanted
    # The engine's record has the change, too.
    record = (tenants.server.data_dir / "records" / created["id"] / "sandbox.json").read_text().splitlines()[-1]
    memo = json.loads(json.loads(record)["memo"])
    assert (memo["spec"]["labels"], memo["revision"]) == ({"team": "b"}, wanted["revision"])
    assert datetime.fromisoformat(memo["expires_at"]) == datetime.fromisoformat(wanted["expires_at"])
    actions = [row["action"] for row in acme.json("GET", "/api/v2/audit?limit=100")["rows"]]
    assert actions.count("sandbox.change") == 2 and actions.count("sandbox.extend") == 10, actions
    steps = acme.json("GET", f"{SANDBOXES}/one/steps?limit=100")["steps"]
    assert [step["class"] for step in steps if step["action"].startswith("PATCH")] == [None, "agent"]


def test_the_command_line_changes_sandboxes(tenants: TenantsServer, acme: Tenant) -> None:
    create(acme, "one", labels={"old": "x"}, timeout_seconds=600)
    changed = tenants.command(acme.key, "set", "one", "--label", "team=a", "--unlabel", "old", "--extend", "10m", "--json")
    assert changed.returncode == 0, changed.stderr
    sandbox = json.loads(changed.stdout)
    assert (sandbox["spec"]["labels"], life(sandbox)) == ({"team": "a"}, timedelta(seconds=1200))
    changed = tenants.command(acme.key, "set", "one", "--timeout", "2h", "--idle-timeout", "10m", "--idle-policy", "pause")
    assert (changed.returncode, changed.stdout) == (0, "one\n") and "ends in" in changed.stderr, changed.stderr
    sandbox = get(acme, "one")
    assert (life(sandbox), sandbox["spec"]["idle_timeout_seconds"]) == (timedelta(hours=2), 600)
    assert tenants.command(acme.key, "set", "one").returncode == 2
    assert tenants.command(acme.key, "set", "one", "--label", "team").returncode == 2
    assert tenants.command(acme.key, "set", "two", "--extend", "1m").returncode == 3


def test_the_longest_life_time_holds_in_every_interface(tenants: TenantsServer, acme: Tenant) -> None:
    limited = tenants.command(tenants.operator.key, "tenant", "set", acme.name, "--limit", "timeout=1h")
    assert limited.returncode == 0, limited.stderr
    refused = acme.http.post(SANDBOXES, json={"name": "one", "timeout_seconds": 3601})
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded") and "3600" in refused.json()["message"], refused.text
    assert life(create(acme, "one")) == timedelta(hours=1)
    assert life(create(acme, "short", timeout_seconds=60)) == timedelta(minutes=1)
    assert acme.http.post("/api/v1/sandbox", json={"name": "seed"}).status_code == 200
    assert life(get(acme, "seed")) <= timedelta(hours=1)
    for path, body in ((f"{SANDBOXES}/one/extend", {"seconds": 1}), (f"{SANDBOXES}/one", {"timeout_seconds": 3601})):
        refused = acme.http.request("POST" if path.endswith("extend") else "PATCH", path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded"), refused.text
    assert life(acme.json("PATCH", f"{SANDBOXES}/short", json={"timeout_seconds": 0})) == timedelta(hours=1)


def test_a_bound_key_follows_labels_and_keeps_its_bounds(acme: Tenant) -> None:
    create(acme, "one", labels={"team": "a"})
    keys = {team: acme.new_key("manage", bound=[f"team={team}"])["key"] for team in ("a", "b")}
    as_team = {team: httpx.Client(base_url=acme.url, headers={"x-api-key": key}, timeout=60) for team, key in keys.items()}
    leaves = as_team["a"].patch(f"{SANDBOXES}/one", json={"labels": {"team": "b"}})
    assert (leaves.status_code, leaves.json()["code"]) == (403, "forbidden"), leaves.text
    assert as_team["b"].patch(f"{SANDBOXES}/one", json={"labels": {"team": "b"}}).status_code == 404
    assert as_team["a"].post(f"{SANDBOXES}/one/extend", json={"seconds": 5}).status_code == 200
    acme.json("PATCH", f"{SANDBOXES}/one", json={"labels": {"team": "b"}})
    for team, seen in (("a", 404), ("b", 200)):
        assert as_team[team].get(f"{SANDBOXES}/one").status_code == seen
        assert as_team[team].post("/sandbox/one/v1/bash/exec", json={"command": "true"}).status_code == seen


def test_extensions_at_the_end_of_the_life_time_are_refused_or_count(acme: Tenant) -> None:
    names = [f"s{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        created = list(pool.map(lambda name: create(acme, name, timeout_seconds=4), names))

        def extend(number: int) -> tuple[str, httpx.Response]:
            end = datetime.fromisoformat(created[number]["expires_at"]).timestamp()
            time.sleep(max(0, end - 0.04 + 0.01 * number - time.time()))
            return names[number], acme.http.post(f"{SANDBOXES}/{names[number]}/extend", json={"seconds": 600})

        answers = list(pool.map(extend, range(len(names))))
    time.sleep(2)
    left = {sandbox["name"] for sandbox in acme.json("GET", SANDBOXES)["sandboxes"]}
    for name, answer in answers:
        assert answer.status_code in (200, 404, 409), answer.text
        assert (answer.status_code == 200) == (name in left), (name, answer.text)
    assert answers[0][1].status_code == 200 and answers[-1][1].status_code != 200


def test_a_killed_guest_is_told(tenants: TenantsServer, acme: Tenant) -> None:
    os.kill(first_process(tenants, create(acme, "killed")), signal.SIGKILL)
    found = died(acme, "killed")
    # Before Linux 6.15, the kernel does not tell.
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    wanted = ("killed", int(signal.SIGKILL)) if release >= (6, 15) else ("unknown", None)
    assert (found["reason"], found["signal"]) == wanted and found["exit_status"] is None, found
    listed = tenants.command(acme.key, "ls").stdout
    assert "killed: its guest was killed with SIGKILL (killed)" in listed or "unknown" in listed, listed
    events = acme.json("GET", "/api/v2/events?type=sandbox.died")["events"]
    assert [event["died"]["reason"] for event in events if event["sandbox"]["name"] == "killed"] == [get(acme, "killed")["died"]["reason"]]
    started = acme.json("POST", f"{SANDBOXES}/killed/start")
    assert (started["state"], started["died"], started["reason"]) == ("running", None, None)


def test_a_guest_without_memory_is_told_and_a_command_without_is_not(tenants: TenantsServer, acme: Tenant) -> None:
    sandbox = create(acme, "hog")
    def call(path: str, **body: Any) -> Any:
        return acme.http.post(f"/sandbox/hog{path}", json=body)

    exits = call("/v1/bash/exec", command="tail /dev/zero").json()
    assert exits["data"]["exit_code"] not in (0, None), exits
    assert (get(acme, "hog")["state"], get(acme, "hog")["died"]) == ("running", None)
    step = acme.json("GET", f"{SANDBOXES}/hog/steps?result=failed")["steps"][-1]
    assert step["class"] == "agent", step
    # The guest's own cgroup gets little more than it has, and a body that it parses is larger.
    files = Path("/sys/fs/cgroup").glob(f"**/{sandbox['id']}/guest/memory.*")
    limits = {file.name: file for file in files if file.name in ("memory.max", "memory.limit_in_bytes", "memory.usage_in_bytes")}
    if "memory.max" in limits:
        limits["memory.max"].write_text("1M")
    else:
        used = int(limits["memory.usage_in_bytes"].read_text())
        limits["memory.limit_in_bytes"].write_text(str(used + MIB))
    try:
        call("/v1/file/write", file="/tmp/f", content="x" * (16 * MIB))
    except httpx.HTTPError:
        pass
    found = died(acme, "hog")
    assert found["reason"] == "oom", found


def test_a_restarted_host_and_a_death_while_no_server_was_there_are_told(tenants: TenantsServer, acme: Tenant) -> None:
    lost, gone = create(acme, "rebooted"), create(acme, "gone")
    pids = [first_process(tenants, sandbox) for sandbox in (lost, gone)]
    tenants.server.kill()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    of_another_boot(tenants, lost)
    tenants.server.start()
    assert get(acme, "gone")["died"]["reason"] == "unknown"
    assert (get(acme, "rebooted")["state"], get(acme, "rebooted")["died"]["reason"]) == ("lost", "host_lost")


def test_a_call_into_a_guest_that_is_killed_fails_by_the_infrastructure(tenants: TenantsServer, acme: Tenant) -> None:
    sandbox = create(acme, "one")
    client = httpx.Client(base_url=acme.url, headers=acme.headers, timeout=60)
    assert client.post("/sandbox/one/v1/bash/exec", json={"command": "exit 3"}).status_code == 200
    assert client.post("/sandbox/one/v1/file/read", json={"file": "/nothing"}).status_code < 500
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/sandbox/one/v1/bash/exec", json={"command": "touch /tmp/on; sleep 60"})
        eventually(lambda: client.post("/sandbox/one/v1/file/read", json={"file": "/tmp/on"}).json().get("success"))
        os.kill(first_process(tenants, sandbox), signal.SIGKILL)
        assert running.result().status_code >= 500
    steps = acme.json("GET", f"{SANDBOXES}/one/steps?limit=1000")["steps"]
    commands = [step for step in steps if step["action"].endswith("/v1/bash/exec")]
    assert [step["class"] for step in commands] == ["agent", "infrastructure"], commands
    chosen = acme.json("GET", f"{SANDBOXES}/one/steps?class=infrastructure")["steps"]
    assert [step["step"] for step in chosen] == [commands[1]["step"]]
    lines = acme.http.get(f"/api/v1/trajectories/{sandbox['id']}/export?class=agent").text.splitlines()
    assert {json.loads(line)["class"] for line in lines} == {"agent"}
    assert acme.http.get(f"{SANDBOXES}/one/steps?class=nobody").status_code == 400


def test_a_reset_keeps_a_sandbox_and_not_its_disk(tenants: TenantsServer, acme: Tenant) -> None:
    sandbox = create(acme, "one")
    run = "/sandbox/one/v1/bash/exec"
    acme.json("POST", run, json={"command": "echo x >/home/gem/probe"})
    stale = acme.http.post(f"{SANDBOXES}/one/reset", headers={"If-Match": '"other-1"'})
    assert stale.status_code == 412, stale.text
    answer = acme.json("POST", f"{SANDBOXES}/one/reset")
    assert (answer["sandbox"]["id"], answer["processes"]) == (sandbox["id"], "restarted")
    assert acme.json("POST", run, json={"command": "ls /home/gem/probe"})["data"]["exit_code"] != 0
    assert tenants.operator.http.post(f"{SANDBOXES}/one/reset").status_code == 404
