"""States that keep a VM: what runs in it goes on after a rollback, in forks, and in sandboxes of a snapshot."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from arenite_server import Server
from vms import Vm
from waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

API = "/api/v2/sandboxes"
# A program with a secret in its memory, which counts. What it writes is in the VM's memory, too.
COUNTER = """import os, time
secret, count = os.urandom(16).hex(), 0
while True:
    count += 1
    with open('/dev/shm/new', 'w') as file: file.write(f'{os.getpid()} {secret} {count}')
    os.replace('/dev/shm/new', '/dev/shm/now')
    time.sleep(0.1)
"""
OVERLAY = "/var/lib/machine/state/overlay.qcow2"


def call(server: Server, method: str, path: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.request(method, f"{server.url}{path}", json=None if method == "GET" else body, timeout=300)
    assert answer.status_code == status, answer.text
    return answer.json()


def now(vm: Vm) -> tuple[str, int]:
    """The process and its secret, and how far it has counted."""
    pid, secret, count = vm.inside("cat /dev/shm/now").split()
    assert pid in vm.inside("pgrep -f '[s]ecret, count'").split(), "it runs"
    return f"{pid} {secret}", int(count)


def goes_on(vm: Vm, who: str, before: int) -> None:
    """What counts in this VM is that process, from where it was."""
    found, count = now(vm)
    assert found == who and count >= before, (found, who, count, before)
    time.sleep(0.5)
    assert now(vm)[1] > count, "it counts on"


def states_in_disk(vm: Vm) -> set[str]:
    told = json.loads(vm.output(f"qemu-img info -U --output json {OVERLAY}"))
    return {state["name"] for state in told["snapshots"]}


@pytest.fixture(scope="module")
def counting(vms: Callable[..., Vm]) -> tuple[Vm, str]:
    vm = vms()
    vm.agent("POST", "/setup/launch", json={"command": ["python3", "-c", COUNTER]})
    until(lambda: vm.inside("cat /dev/shm/now 2>/dev/null; true"), "a count")
    return vm, now(vm)[0]


@pytest.fixture
def made(server: Server) -> Iterator[Callable[[str], Vm]]:
    """Sandboxes that a test created by name."""
    held: list[Vm] = []

    def hold(name: str) -> Vm:
        held.append(Vm(server.url, name, 600))
        return held[-1]

    yield hold
    for vm in held:
        vm.delete()


def test_a_vm_goes_on_after_a_rollback(server: Server, counting: tuple[Vm, str]) -> None:
    vm, who = counting
    vm.inside("echo before >/home/user/file; sync")
    vm.output("echo beside >/home/gem/beside; sleep 1000 & disown")
    sealed = call(server, "POST", f"{API}/{vm.name}/checkpoints", 201, keep_processes=True)
    assert sealed["processes"] == "kept" and sealed["memory_bytes"] > 10 << 20, sealed
    assert sealed["frozen_ms"] > 0
    goes_on(vm, who, 1)
    assert states_in_disk(vm) == {"ready"}, "nothing stays of the save"
    count = now(vm)[1]

    vm.inside("pkill -f '[s]ecret, count'; rm /dev/shm/now; echo after >/home/user/file; sync")
    vm.output("echo changed >/home/gem/beside")
    back = call(server, "POST", f"{API}/{vm.name}/rollback", to=sealed["number"])
    assert back["processes"] == "kept" and any(name.startswith("qemu") for name in back["ended"]), back
    assert vm.data("GET", "/v1/vm")["state"] == "ready", "it waits until the VM is there"
    goes_on(vm, who, 1)
    assert now(vm)[1] < count + 600
    assert (vm.inside("cat /home/user/file"), vm.output("cat /home/gem/beside")) == ("before\n", "beside")
    assert vm.output("pgrep -c sleep; true") == "0", "what was beside the VM has ended"
    assert abs(int(vm.inside("date +%s")) - time.time()) < 60, "the clock is that of now"
    assert states_in_disk(vm) == {"ready"}

    # The disk alone: the VM is off, and boots when it is called.
    back = call(server, "POST", f"{API}/{vm.name}/rollback", to=sealed["number"], processes="restart")
    assert back["processes"] == "restarted" and vm.data("GET", "/v1/vm")["state"] == "off"
    refused = call(server, "POST", f"{API}/{vm.name}/checkpoints", 409, keep_processes=True)
    assert "the VM is off" in refused["message"], refused
    assert len(call(server, "GET", f"{API}/{vm.name}/history")["checkpoints"]) == 1, "nothing was sealed"
    call(server, "POST", f"{API}/{vm.name}/rollback", to=sealed["number"])
    goes_on(vm, who, 1)


def test_forks_and_a_snapshot_go_on_apart_from_each_other(
    server: Server, counting: tuple[Vm, str], made: Callable[[str], Vm]
) -> None:
    vm, who = counting
    count = now(vm)[1]
    vm.data("POST", "/v1/shell/sessions/create", json={"id": "beside"})
    vm.data("POST", "/v1/shell/exec", json={"id": "beside", "command": "cd /tmp"})
    prefix = f"t-fork-{uuid.uuid4().hex[:6]}"
    answer = call(server, "POST", f"{API}/{vm.name}/fork", 201, count=2, name=prefix, keep_processes=True)
    assert [fork["processes"] for fork in answer["sandboxes"]] == ["kept", "kept"], answer
    forks = [made(f"{prefix}-{number}") for number in range(2)]
    with ThreadPoolExecutor(3) as together:
        list(together.map(lambda one: goes_on(one, who, count), [vm, *forks]))
    for number, fork in enumerate(forks):
        assert fork.output("hostname") == fork.name
        fork.inside(f"echo {number} >/home/user/own; sync")
        place = fork.data("POST", "/v1/shell/exec", json={"id": "beside", "command": "pwd"})["output"]
        assert "/tmp" in place, "shells beside the VM open in their directory"
    assert [fork.inside("cat /home/user/own") for fork in forks] == ["0\n", "1\n"]
    assert vm.inside("ls /home/user/own 2>&1; true").startswith("ls: ")

    name = f"t-vm-{uuid.uuid4().hex[:6]}"
    made_of_fork = call(server, "POST", "/api/v2/snapshots", 201, name=name, sandbox=forks[1].name, keep_processes=True)
    assert made_of_fork["memory_bytes"] > 10 << 20
    forks[1].delete()
    try:
        limits = {"memory_bytes": 2 << 30}
        refused = call(server, "POST", API, 400, name=f"{name}-c", snapshot=name, resources=limits, args=["true"])
        assert "the processes of the state go on" in refused["message"], refused
        copy = made(f"{name}-a")
        told = call(server, "POST", API, 201, name=copy.name, snapshot=name, resources=limits)
        assert told["processes"] == "kept", told
        goes_on(copy, who, count)
        assert copy.inside("cat /home/user/own") == "1\n"
        # Other settings than those of the saved VM.
        env = {"ARENITE_VM_MEMORY_MB": "512"}
        failed = httpx.post(
            f"{server.url}{API}", json={"name": f"{name}-b", "snapshot": name, "resources": limits, "env": env}, timeout=120
        )
        assert failed.status_code >= 400 and "memory, processors, devices and screen" in failed.text, failed.text
        assert httpx.get(f"{server.url}{API}/{name}-b").status_code == 404
    finally:
        httpx.delete(f"{server.url}/api/v2/snapshots/{name}", timeout=60).raise_for_status()
