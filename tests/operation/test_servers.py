"""Starts and stops: a second server, a server's successor, and what a stop leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary, free_port
from small import tiny_image


def host_objects(data_dir: Path) -> dict[str, list[str]]:
    """What of the host names a data directory."""
    loops = [path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file") if str(data_dir) in path.read_text()]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(data_dir) in line]
    return {"loop devices": loops, "mounts": mounts}


def marked(data_dir: Path) -> set[str]:
    """Links and cgroups of a data directory's server. Servers of other tests have theirs beside them."""
    number = 0xCBF29CE484222325
    for byte in os.fsencode(data_dir):
        number = (number ^ byte) * 0x100000001B3 % 2**64
    tag = "".join("0123456789abcdefghijklmnopqrstuvwxyz"[number // 36**place % 36] for place in range(5))
    links = {f"link {name}" for name in os.listdir("/sys/class/net") if name.startswith(f"ar{tag}-")}
    cgroups = {f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"*/arenite-{tag}*")}
    return links | cgroups | {f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"arenite-{tag}*")}


def run(server: Server, *extra: str, **more) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
    return subprocess.run(server.command_line(extra), capture_output=True, text=True, timeout=60, env=environment, **more)


def test_a_second_server_on_the_port_fails_and_names_the_first(own_server: Callable[..., Server]) -> None:
    first = own_server()
    first.start()
    second = own_server(port=first.port)
    ended = run(second)
    assert ended.returncode == 1
    # docs/OPERATIONS.md quotes it, and the one below.
    assert f"error: could not listen on 127.0.0.1:{first.port}: arenite (pid {first.pid}) listens there\n" in ended.stderr, ended.stderr
    assert "hint:" in ended.stderr
    assert not second.data_dir.exists(), "the second server made its data directory"
    assert host_objects(second.data_dir) == {"loop devices": [], "mounts": []}


def test_a_second_server_on_the_data_directory_fails_and_names_the_first(own_server: Callable[..., Server]) -> None:
    first = own_server()
    first.start()
    before = host_objects(first.data_dir)
    second = own_server(data_dir=first.data_dir)
    ended = run(second)
    assert ended.returncode == 1
    said = f"error: another server has the data directory {first.data_dir} (pid {first.pid}, on {first.url})\n"
    assert said in ended.stderr, ended.stderr
    assert "--take-over" in ended.stderr
    assert host_objects(first.data_dir) == before
    assert httpx.get(f"{first.url}/ready").status_code == 200


def test_a_stop_leaves_nothing_of_a_temporary_data_directory(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.start()
    held = host_objects(server.data_dir)
    assert len(held["loop devices"]) == 1 and held["mounts"], held
    assert server.stop() == 0
    assert host_objects(server.data_dir) == {"loop devices": [], "mounts": []}
    # Commands that open the storage for themselves leave nothing either.
    listed = subprocess.run(
        [str(binary()), "image", "ls", "--json", "--data-dir", str(server.data_dir)], capture_output=True, text=True, timeout=60
    )
    assert listed.returncode == 0 and json.loads(listed.stdout) == {"images": []}, listed.stderr
    assert host_objects(server.data_dir) == {"loop devices": [], "mounts": []}
    # It is there again when it is needed again, also beside a command.
    server.start()
    subprocess.run([str(binary()), "image", "ls", "--data-dir", str(server.data_dir)], check=True, timeout=60)
    assert len(host_objects(server.data_dir)["loop devices"]) == 1
    server.stop()


class Clients:
    """Calls over new connections, one after the other, until it is ended; every failure is kept."""

    def __init__(self, url: str, threads: int = 2):
        self.url = url
        self.ended = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self._call) for _ in range(threads)]

    def _call(self) -> None:
        while not self.ended.is_set():
            try:
                answer = httpx.get(f"{self.url}/api/v2/sandboxes", timeout=60)
            except httpx.TransportError as error:
                self.failures.append(repr(error))
            else:
                self.answered += 1
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {answer.text}")
            time.sleep(0.002)

    def __enter__(self) -> Clients:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def more(self, count: int = 20) -> None:
        """Waits until so many more were answered."""
        goal, deadline = self.answered + count, time.monotonic() + 60
        while self.answered < goal:
            assert time.monotonic() < deadline, self.failures
            time.sleep(0.01)


def test_a_successor_takes_over_and_no_connection_is_refused(own_server: Callable[..., Server]) -> None:
    first = own_server()
    first.start()
    with Clients(first.url) as clients:
        clients.more()
        successor = own_server(data_dir=first.data_dir, port=first.port)
        successor.start(("--take-over",))
        old = first.process
        assert old is not None and old.wait(30) == 0, first.log_tail()
        first.process = None
        clients.more()
    assert clients.failures == []
    # And once more, since the successor took sockets that it had not made.
    third = own_server(data_dir=first.data_dir, port=first.port)
    third.start(("--take-over",))
    assert successor.process is not None and successor.process.wait(30) == 0
    successor.process = None
    assert httpx.get(f"{first.url}/ready").status_code == 200


def test_a_successor_that_can_not_start_leaves_the_first_alone(own_server: Callable[..., Server]) -> None:
    first = own_server()
    first.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = taken.getsockname()[1]
        successor = own_server(data_dir=first.data_dir, port=first.port)
        ended = run(successor, "--listen", f"127.0.0.1:{other}", "--take-over")
    assert ended.returncode == 1 and f"(pid {os.getpid()})" in ended.stderr, ended.stderr
    assert httpx.get(f"{first.url}/ready").status_code == 200


#: Starts the program as a service manager does: with a listening socket as descriptor 3.
PASS_SOCKET = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.timeout(120)
def test_sockets_of_a_service_manager_are_kept_over_a_restart(own_server: Callable[..., Server]) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        kept.listen(1000)
        port = kept.getsockname()[1]
        server = own_server(port=port)
        # The setting is another address: what is passed is served on in its place.
        elsewhere = own_server(data_dir=server.data_dir, port=free_port())

        def start() -> subprocess.Popen[bytes]:
            line = ["python3", "-c", PASS_SOCKET, str(kept.fileno()), *elsewhere.command_line()]
            return subprocess.Popen(line, pass_fds=[kept.fileno()], stderr=subprocess.DEVNULL)

        process = start()
        try:
            with Clients(server.url) as clients:
                clients.more()
                process.terminate()
                assert process.wait(30) == 0
                process = start()
                clients.more()
            assert clients.failures == []
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{elsewhere.url}/ready")
        finally:
            process.terminate()
            assert process.wait(30) == 0


def reset(server: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(binary()), "reset", "--data-dir", str(server.data_dir), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_a_reset_leaves_the_host_as_it_was(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.start()
    tiny_image(server.data_dir / "pool")
    httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": "kept", "image": "tiny"}, timeout=60).raise_for_status()
    assert marked(server.data_dir) and host_objects(server.data_dir)["mounts"]

    listed = reset(server)
    assert listed.returncode == 0, listed.stderr
    assert f"pid {server.pid}" in listed.stdout and "control.sqlite" in listed.stdout and "mounted" in listed.stdout
    assert "nothing was changed" in listed.stderr
    unasked = reset(server, "--all")
    assert unasked.returncode == 1 and "--force" in unasked.stderr, unasked.stderr
    assert httpx.get(f"{server.url}/ready").status_code == 200

    done = reset(server, "--all", "--force")
    assert done.returncode == 0, done.stderr
    assert server.process is not None and server.process.wait(10) == 0
    server.process = None
    assert not server.data_dir.exists(), list(server.data_dir.iterdir())
    assert host_objects(server.data_dir) == {"loop devices": [], "mounts": []}
    assert not marked(server.data_dir)
    again = reset(server, "--all")
    assert again.returncode == 0 and "nothing of" in again.stderr, again.stderr


def test_a_reset_removes_what_a_killed_server_and_a_deleted_directory_left(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.start()
    tiny_image(server.data_dir / "pool")
    httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": "left", "image": "tiny"}, timeout=60).raise_for_status()
    server.kill()
    for path in server.data_dir.iterdir():
        if path.name != "pool":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert marked(server.data_dir) and host_objects(server.data_dir)["mounts"]
    done = reset(server, "--all", "--force")
    assert done.returncode == 0, done.stderr
    assert not server.data_dir.exists() and not marked(server.data_dir)
    assert host_objects(server.data_dir) == {"loop devices": [], "mounts": []}


def test_a_reset_refuses_a_directory_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "letter").touch()
    refused = subprocess.run(
        [str(binary()), "reset", "--all", "--force", "--data-dir", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1 and "data directory of Arenite" in refused.stderr, refused.stderr
    assert (tmp_path / "letter").exists()
