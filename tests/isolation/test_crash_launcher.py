"""What fails on a host, and what follows: the launcher, descriptors, the processes of a sandbox."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import leaks
import pytest
from arenite_server import binary
from sandboxes import LiveSandbox
from small import SmallServer, limited_descriptors, open_descriptors, tiny_image, within

#: How long an answer of the launcher is awaited, and a moment for what follows.
REPLACED = 5 + 3


def stopped_launcher(server: SmallServer) -> int:
    """The server's launcher, stopped while it waits for its next request."""
    # The prepared sandbox is ready by then, so that the launcher is idle.
    time.sleep(0.5)
    within(5, "there is a launcher", server.launcher)
    pid = server.launcher()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_creates_do_not_wait_for_a_launcher_that_hangs(fresh: SmallServer) -> None:
    hung = stopped_launcher(fresh)
    started = time.monotonic()
    # More than are prepared, all at once: each of them needs the launcher.
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(fresh.create, [f"waiting-{number}" for number in range(6)]))
    took = time.monotonic() - started
    assert [sandbox.output("echo made") for sandbox in made] == ["made"] * 6
    assert took < REPLACED, f"{took:.1f} s"
    assert gone(hung)


def test_a_hung_launcher_is_replaced_before_anybody_asks(fresh: SmallServer) -> None:
    hung = stopped_launcher(fresh)
    within(2 + REPLACED, "it is replaced", lambda: gone(hung) and fresh.launcher())
    started = time.monotonic()
    for number in range(3):
        assert fresh.create(f"later-{number}").output("echo made") == "made"
    assert time.monotonic() - started < 3


def test_a_stop_does_not_wait_for_a_hung_launcher(fresh: SmallServer) -> None:
    kept = fresh.create("kept")
    hung = stopped_launcher(fresh)
    started = time.monotonic()
    assert fresh.stop() == 0
    assert time.monotonic() - started < 4
    assert gone(hung), "one that does not notice the end of its server stays behind"
    fresh.start()
    assert kept.output("echo there") == "there"


def test_a_launcher_that_ends_in_the_middle_of_a_create_costs_nothing(fresh: SmallServer) -> None:
    """A launcher that can't leave a sandbox's network ends itself, and looks the same to the server."""
    # All that is prepared is taken, and what is prepared next waits for the launcher.
    pid = stopped_launcher(fresh)
    made: list[str] = []
    names = [f"cut-{number}" for number in range(3)]
    creates = [threading.Thread(target=lambda name=name: made.append(fresh.create(name).output("echo made"))) for name in names]
    for create in creates:
        create.start()
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    for create in creates:
        create.join(10)
    assert made == ["made"] * 3


def test_nothing_is_left_of_what_a_lost_launcher_was_making(fresh: SmallServer) -> None:
    before = leaks.steady(fresh)
    for _ in range(3):
        pid = stopped_launcher(fresh)
        with ThreadPoolExecutor(3) as pool:
            creates = [pool.submit(fresh.create, f"left-{number}") for number in range(3)]
            time.sleep(0.3)
            # Killed somewhere in the middle of the first of them.
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)
            os.kill(pid, signal.SIGKILL)
            for create in creates:
                create.result()
        fresh.delete_all_sandboxes()
    leaks.settle(before, fresh)
    within(10, f"the half-made sandboxes are gone: {half_made()}", lambda: not half_made())


def half_made() -> list[str]:
    """Copies of a launcher that are nobody's children: first processes of sandboxes whose launcher ended."""
    copies = [path for path in os.listdir("/proc") if path.isdigit() and "arenite launcher" in leaks.read(f"/proc/{path}/cmdline")]
    return [pid for pid in copies if "PPid:\t1\n" in leaks.read(f"/proc/{pid}/status") and "/arenite-" not in leaks.read(f"/proc/{pid}/cgroup")]


def test_a_server_takes_all_the_descriptors_that_it_may(fresh: SmallServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        fresh.restart()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert fresh.create("limits").output("ulimit -n") == str(min(hard, 65536))


def test_few_descriptors_refuse_creates_and_then_calls_but_never_deletes(fresh: SmallServer) -> None:
    sandboxes = [fresh.create(f"many-{number:02}") for number in range(20)]
    logged = len(fresh.log_path.read_bytes())
    leaks.steady(fresh)
    with limited_descriptors(fresh, open_descriptors(fresh) + 40):
        refused = httpx.post(f"{fresh.url}/api/v2/sandboxes", json={"name": "one-more", "image": "tiny"}, timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (429, "exhausted"), refused.text
        assert "descriptors" in refused.json()["message"] and refused.headers["retry-after"]
        assert sandboxes[0].output("echo there") == "there", "those that are there go on"

        # Callers that keep their connections take what is left.
        callers = []
        while len(callers) < 200:
            caller = httpx.Client(base_url=fresh.url, timeout=30)
            callers.append(caller)
            if caller.get("/api/v2/sandboxes").headers.get("connection") == "close":
                break
        call = httpx.post(f"{sandboxes[1].url}/v1/bash/exec", json={"command": "true"}, timeout=30)
        assert (call.status_code, call.json()["code"]) == (503, "exhausted"), call.text
        assert "descriptors" in call.json()["message"] and call.headers["retry-after"]
        for path in ("/healthz", "/health", "/ready"):
            assert httpx.get(f"{fresh.url}{path}", timeout=30).status_code == 200
        assert sandboxes[2].delete().status_code < 300
        log = fresh.log_path.read_bytes()[logged:].decode()
        assert log.count("few descriptors are left") == 1 and "could not be accepted" not in log
        for caller in callers:
            caller.close()
    # Connections that clients closed are closed here a moment later.
    within(10, "creates work again", lambda: fresh.create(f"later-{time.monotonic_ns()}").output("echo made") == "made")


def test_without_any_descriptor_health_is_still_answered(fresh: SmallServer) -> None:
    kept = fresh.create("kept")
    leaks.steady(fresh)
    silent = []
    with limited_descriptors(fresh, open_descriptors(fresh)):
        for _ in range(3):
            assert httpx.get(f"{fresh.url}/healthz", timeout=10).text == "OK"
            call = httpx.post(f"{kept.url}/v1/bash/exec", json={"command": "true"}, timeout=10)
            assert (call.status_code, call.json()["code"]) == (503, "exhausted"), call.text
        # Nor do connections that say nothing take these last places for long.
        for _ in range(20):
            silent.append(socket.create_connection(("127.0.0.1", fresh.port)))
        assert httpx.get(f"{fresh.url}/healthz", timeout=20).text == "OK"
    for connection in silent:
        connection.close()
    # The server sees a moment later that it has descriptors again.
    within(10, "calls are taken", lambda: httpx.post(f"{kept.url}/v1/bash/exec", json={"command": "true"}, timeout=10).status_code == 200)
    assert kept.output("echo there") == "there"


def first_process(server: SmallServer, sandbox: LiveSandbox) -> int:
    # Below its header.
    record = (server.data_dir / "run" / sandbox.id / "sandbox.json").read_text().splitlines()[-1]
    return int(json.loads(record)["pid"])


def state(server: SmallServer, sandbox: LiveSandbox) -> str:
    return server.states()[sandbox.name]


def fail(server: SmallServer, sandbox: LiveSandbox) -> None:
    os.kill(first_process(server, sandbox), signal.SIGKILL)
    within(10, "it failed", lambda: state(server, sandbox) == "failed")


def lose(server: SmallServer, sandbox: LiveSandbox) -> None:
    pid = first_process(server, sandbox)
    server.kill()
    os.kill(pid, signal.SIGKILL)
    server.start()
    assert state(server, sandbox) == "lost"


def start(server: SmallServer, sandbox: LiveSandbox) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v2/sandboxes/{sandbox.name}/start", timeout=60)


@pytest.mark.parametrize("end", [fail, lose])
def test_a_sandbox_that_ended_starts_again_with_its_files(
    fresh: SmallServer, end: Callable[[SmallServer, LiveSandbox], None]
) -> None:
    main = ["bash", "-c", "echo run >> /root/runs; exec sleep 1000"]
    sandbox = fresh.create("again", env={"COLOUR": "ochre"}, hostname="quarry", args=main, labels={"of": "a test"})
    neighbour = fresh.create("neighbour")
    sandbox.output("echo kept > /root/file; mkdir /srv; echo $$ > /srv/shell; sync; rm /bin/touch")
    before = sandbox.details()
    for round in (1, 2):
        end(fresh, sandbox)
        refused = sandbox.http.post("/v1/bash/exec", json={"command": "true"})
        assert refused.status_code >= 400 and "arenite start again" in refused.json()["hint"]
        started = start(fresh, sandbox)
        assert (started.status_code, started.json()["state"], started.json()["reason"]) == (200, "running", None), started.text
        assert sandbox.output("cat /root/file; echo $COLOUR; cat /etc/hostname; test -e /bin/touch || echo removed").split() == [
            "kept", "ochre", "quarry", "removed",
        ]
        within(10, "the main command ran again", lambda: sandbox.output("cat /root/runs").split() == ["run"] * (round + 1))
        assert sandbox.output("aio --help > /dev/null; echo aio") == "aio"
        assert neighbour.output("echo there") == "there"
    after = sandbox.details()
    for key in ("id", "name", "created_at", "spec", "isolation", "expires_at"):
        assert after[key] == before[key], key
    steps = httpx.get(f"{fresh.url}/api/v1/trajectories/{sandbox.id}", timeout=30).json()["steps"]
    actions = [step["action"] for step in steps]
    assert actions.count("POST /api/v2/sandboxes/again/start") == 2 and actions[0] == "POST /api/v2/sandboxes"
    assert sandbox.delete().status_code == 200
    assert not (fresh.in_pool() / "uppers" / before["id"]).exists()


def test_starting_is_idempotent_and_resumes_what_is_paused(fresh: SmallServer) -> None:
    sandbox = fresh.create("twice")
    assert start(fresh, sandbox).json()["state"] == "running"
    sandbox.output("echo here > /tmp/process")
    httpx.post(f"{fresh.url}/api/v2/sandboxes/twice/pause", timeout=30).raise_for_status()
    assert start(fresh, sandbox).json()["state"] == "running"
    fail(fresh, sandbox)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: start(fresh, sandbox), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4, [answer.text for answer in answers]
    assert sandbox.output("cat /tmp/process") == "here"
    assert len(first_processes(fresh, sandbox)) == 1


def first_processes(server: SmallServer, sandbox: LiveSandbox) -> set[str]:
    """The pid namespaces of what runs in the sandbox's cgroups."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if f"/{sandbox.id}" in leaks.read(f"/proc/{pid}/cgroup"):
            found.add(leaks.link(f"/proc/{pid}/ns/pid"))
    return found - {""}


def test_a_sandbox_whose_image_is_gone_keeps_its_state_and_its_disk(fresh: SmallServer) -> None:
    tiny_image(fresh.in_pool(), "fleeting")
    sandbox = LiveSandbox(fresh.url, "orphan")
    made = httpx.post(f"{fresh.url}/api/v2/sandboxes", json={"name": "orphan", "image": "fleeting"}, timeout=60)
    assert made.status_code == 201, made.text
    sandbox.output("echo kept > /root/file")
    fail(fresh, sandbox)
    manifest = fresh.in_pool() / "images" / "fleeting.json"
    text = manifest.read_text()
    manifest.unlink()
    refused = start(fresh, sandbox)
    assert refused.status_code == 404 and "fleeting" in refused.json()["message"] and refused.json()["hint"], refused.text
    details = sandbox.details()
    assert details["state"] == "failed" and "fleeting" in details["reason"]
    fresh.restart()
    assert sandbox.details()["state"] == "failed"
    manifest.write_text(text)
    assert start(fresh, sandbox).status_code == 200
    assert sandbox.output("cat /root/file") == "kept"


def test_links_that_a_sandbox_left_lead_the_server_nowhere(fresh: SmallServer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "hosts").write_text("the host's")

    def files(upper: Path) -> None:
        for name in ("hosts", "hostname"):
            (upper / "etc" / name).unlink()
            (upper / "etc" / name).symlink_to(outside / "hosts")
        (upper / "etc/resolv.conf").unlink()
        (upper / "etc/resolv.conf").mkdir()
        (upper / "etc/.arenite-hosts").symlink_to(outside / "new")

    def directory(upper: Path) -> None:
        (upper / "etc").rename(upper / "old")
        (upper / "etc").symlink_to(outside)

    def command(upper: Path) -> None:
        (upper / "usr/local/bin").rename(upper / "usr/local/old")
        (upper / "usr/local/bin").symlink_to(outside)

    for number, change in enumerate([files, directory, command]):
        sandbox = fresh.create(f"links-{number}")
        fail(fresh, sandbox)
        # Not all of this can be done from inside; what a sandbox can do is not what the server relies on.
        change(fresh.in_pool() / "uppers" / sandbox.id / "upper")
        started = start(fresh, sandbox)
        assert started.status_code == 200, started.text
        assert sandbox.output("echo there") == "there"
        assert sandbox.delete().status_code == 200
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"hosts": "the host's"}


def test_a_start_while_it_is_deleted_leaves_nothing(fresh: SmallServer) -> None:
    before = leaks.steady(fresh)
    for number in range(3):
        sandbox = fresh.create(f"race-{number}")
        sandbox.id
        fail(fresh, sandbox)
        with ThreadPoolExecutor(2) as pool:
            started, deleted = pool.submit(start, fresh, sandbox), pool.submit(sandbox.delete)
            assert deleted.result().status_code == 200
            assert started.result().status_code in (200, 404, 409), started.result().text
    leaks.settle(before, fresh)


def test_the_command_starts_sandboxes(fresh: SmallServer) -> None:
    sandbox = fresh.create("by-command")
    fail(fresh, sandbox)
    done = subprocess.run([str(binary()), "start", "by-command", "--server", fresh.url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "by-command\n"), done.stderr
    assert sandbox.output("echo there") == "there"
