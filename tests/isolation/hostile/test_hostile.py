"""Every kernel resource that can be counted is taken to its end by one sandbox, while a neighbour and the host's root go on.

A case for each resource of `resources.py`. The neighbour and the host's root use a little of the same resource, start a
process, write a file and make a connection, before and during. They must succeed, within twice the time: the fastest of
several rounds is compared, and what stays slow without the hog is not counted. The soak has hogs of the usual size.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("resources.py")
spec = importlib.util.spec_from_file_location("resources", PROGRAM)
assert spec is not None and spec.loader is not None
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)

#: What no sandbox has at all.
DENIED = {
    *("io_setup", "io_uring_setup", "fanotify_init", "userfaultfd", "bpf", "perf_event_open", "add_key"),
    *(f"{kind}_namespaces" for kind in ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")),
}
#: The most that one sandbox may have, where the bound is ours.
MOST = {"inotify_instances": 128, "terminals": 256, "processes": 128, "zombies": 128}
#: Time is counted beyond twice as long, for what is over in microseconds.
SLACK = 0.002


Best = dict[str, float | str]


def on_the_host(names: list[str], rounds: int) -> Best:
    command = [sys.executable, str(PROGRAM), "use", str(rounds), *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def in_a_sandbox(live: LiveSandbox, names: list[str], rounds: int) -> Best:
    return json.loads(live.output(f"sudo python3 /tmp/resources.py use {rounds} {' '.join(names)}", timeout=60))


def with_program(live: LiveSandbox) -> LiveSandbox:
    assert live.client.file.write_file(file="/tmp/resources.py", content=PROGRAM.read_text()).success
    return live


def hog(live: LiveSandbox, name: str, seconds: float) -> dict[str, object]:
    """What it says that it took, with the kernel's answer at the end. It holds that until its sandbox is deleted."""
    command = f"sudo python3 /tmp/resources.py hog {name} {seconds}"
    running = live.bash(command, async_mode=True)
    deadline = time.monotonic() + seconds + 20
    while time.monotonic() < deadline:
        where = {"session_id": running.session_id, "command_id": running.command_id}
        time.sleep(0.05)
        output = live.client.bash.output(**where).data
        if output.stdout:
            return json.loads(output.stdout)
        if output.command.status != "running":
            return {"taken": None, "error": f"{output.command.status}: {output.stderr}"}
    return {"taken": None, "error": "nothing told"}


@pytest.fixture(scope="module")
def neighbour(server: Server) -> Iterator[LiveSandbox]:
    httpx.post(f"{server.url}/api/v1/sandbox", json={"name": "neighbour"}, timeout=120).raise_for_status()
    live = with_program(LiveSandbox(server.url, "neighbour"))
    yield live
    live.delete()


@pytest.fixture(scope="module")
def usual(neighbour: LiveSandbox) -> dict[str, Best]:
    """How long it takes when nobody has taken anything."""
    names = sorted(set(resources.RESOURCES) - DENIED)
    return {"a neighbour": in_a_sandbox(neighbour, names, 4), "the host": on_the_host(names, 4)}


def check(name: str, live: LiveSandbox, neighbour: LiveSandbox, usual: dict[str, Best], seconds: float, rounds: int) -> Best:
    users: dict[str, Callable[[], Best]] = {
        "a neighbour": lambda: in_a_sandbox(neighbour, [name], rounds),
        "the host": lambda: on_the_host([name], rounds),
    }
    taken = hog(live, name, seconds)
    said = f"while a sandbox has {taken['taken']} of {name} ({taken['error']})"
    slower = {}
    for who, use in users.items():
        for what, took in use().items():
            assert isinstance(took, float), f"{who} gets {took} for {what} {said}"
            if took > 2 * float(usual[who][what]) + SLACK:
                slower[who, what] = took
    if slower:
        # Either for want of what was taken, or the host was busy with something else: then it stays so without the hog.
        during = {who: use() for who, use in users.items()}
        assert live.delete().status_code == 200
        after = {who: use() for who, use in users.items()}
        for who, what in slower:
            fast, slow = float(after[who][what]), min(slower[who, what], float(during[who][what]))
            assert slow <= 2 * fast + SLACK, f"{who} takes {slow} s instead of {fast} s for {what} {said}"
    else:
        # The guest has a reserve, and its sandbox can be asked.
        assert live.client.sandbox.get_context().success
    print(name, taken)
    return taken


@pytest.mark.parametrize("name", sorted(set(resources.RESOURCES) - DENIED))
def test_one_sandbox_takes_all_it_gets(
    name: str, sandbox: Callable[..., LiveSandbox], neighbour: LiveSandbox, usual: dict[str, Best]
) -> None:
    live = with_program(sandbox(resources={"memory_bytes": 160 * MIB, "pids": 128, "disk_bytes": 64 * MIB}))
    taken = check(name, live, neighbour, usual, seconds=0.4, rounds=4)
    assert taken["taken"] is None or taken["taken"] <= MOST.get(name, 10**9), taken


@pytest.mark.parametrize("name", sorted(DENIED))
def test_no_sandbox_has(name: str, neighbour: LiveSandbox) -> None:
    answer = json.loads(neighbour.output(f"sudo timeout 2 python3 /tmp/resources.py hog {name} 1; true"))
    assert answer["taken"] == 0
    assert answer["error"] in ("EPERM", "ENOSYS"), answer


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(set(resources.RESOURCES) - DENIED))
def test_one_sandbox_of_the_usual_size_takes_all_it_gets(
    name: str, sandbox: Callable[..., LiveSandbox], neighbour: LiveSandbox, usual: dict[str, Best]
) -> None:
    live = with_program(sandbox(resources={"disk_bytes": 2048 * MIB}))
    taken = check(name, live, neighbour, usual, seconds=60, rounds=50)
    assert taken["error"] != "time", "it did not come to its end"
