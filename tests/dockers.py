"""Debian's Docker daemon as a process of the test run: on its own directories, without bridge and firewall rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

#: Another Docker may be earlier on the PATH.
PROGRAM = "/usr/sbin/dockerd"
CLIENT = "/usr/bin/docker"


class Daemon:
    def __init__(self, folder: Path, runtimes: dict[str, Any] | None = None):
        self.folder = folder
        #: Other runtimes than Docker's own, as in daemon.json.
        self.runtimes = runtimes or {}
        self.socket = folder / "docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: float = 60) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "daemon.json"
        configuration.write_text(json.dumps({"runtimes": self.runtimes}))
        command = [PROGRAM, "--config-file", str(configuration), "--host", f"unix://{self.socket}"]
        command += ["--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
        command += ["--pidfile", str(self.folder / "pid"), "--userland-proxy=false"]
        # Nothing of the host's network is changed: sandboxes' networks are not Docker's.
        command += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            try:
                if self.get("/_ping").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None, (self.folder / "log").read_text()[-4000:]
            time.sleep(0.05)
        raise RuntimeError(f"dockerd was not ready within {wait} s")

    def stop(self) -> None:
        """Ends it and its containerd, which it started."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None
        # Unmounted by the daemon; what is left would be a leak of the test.
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}{os.sep}")]):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=60) as client:
            return client.request(method, f"http://docker{path}", **more)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def command(self, *words: str) -> str:
        """What Docker's command line prints. It must succeed."""
        env = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_CONFIG": str(self.folder)}
        done = subprocess.run([CLIENT, *words], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def containers(self) -> list[dict[str, Any]]:
        return self.get("/containers/json?all=1").raise_for_status().json()

    def inspect(self, sandbox: str) -> dict[str, Any]:
        """The container of a sandbox, by the sandbox's id."""
        filters = json.dumps({"label": [f"arenite.sandbox={sandbox}"]})
        listed = self.request("GET", "/containers/json", params={"all": 1, "filters": filters}).raise_for_status().json()
        assert len(listed) == 1, listed
        return self.get(f"/containers/{listed[0]['Id']}/json").raise_for_status().json()


@contextmanager
def in_memory() -> Iterator[Daemon]:
    """A daemon with its images in memory: to remove their files takes as long as a test."""
    # Sockets in a data directory want a short path.
    folder = Path(tempfile.mkdtemp(prefix="arenite-docker-"))
    daemon = Daemon(folder / "docker")
    data = folder / "docker/data"
    data.mkdir(parents=True)
    # The daemon's end unmounts it.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3g,mode=711", "docker", str(data)], check=True)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
