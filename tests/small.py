"""A server of a test's own on a small disk: an ext4 in a file, and an image of a few megabytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from arenite_server import Server, binary
from sandboxes import LiveSandbox

MIB = 1 << 20
PROGRAMS = ["bash", "cat", "dd", "echo", "ls", "rm", "sleep", "sync", "true", "touch", "mkdir", "mv", "stat", "sh", "kill", "sha256sum"]


def tiny_image(pool: Path, name: str = "tiny", more: Sequence[str] = ()) -> None:
    """An image of this host's bash and a few programs, put into the pool of a server that runs."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    layer = pool / "layers" / digest
    tiny_files(layer / "files", more)
    created = {"created_at": "2026-01-01T00:00:00Z"}
    (layer / "layer.json").write_text(json.dumps({"bytes": 20 * MIB, "created_by": "a test", **created}))
    config = {"env": {"PATH": "/usr/bin"}, "labels": {}, "workdir": "/root", "user": "root"}
    manifest = {"version": 1, "name": name, "digest": digest, "layers": [digest], "config": config, **created}
    (pool / "images" / f"{name}.json").write_text(json.dumps(manifest))


def tiny_files(files: Path, more: Sequence[str] = ()) -> None:
    """The files of that image, in a new folder."""
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "root", "var", "run", "proc", "sys", "dev"):
        (files / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (files / link).symlink_to(f"usr/{link}")
    (files / "tmp").chmod(0o1777)
    (files / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (files / "etc/group").write_text("root:x:0:\n")
    needed = set()
    for program in [*PROGRAMS, *more]:
        path = shutil.which(program) or f"/bin/{program}"
        shutil.copy(path, files / "usr/bin" / program)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        needed |= set(re.findall(r"(/\S+)", listed))
    for library in needed:
        target = files / Path("/usr" + library if not library.startswith("/usr") else library).relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream: their names and data."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


class SmallServer(Server):
    def create(self, name: str, **more: object) -> LiveSandbox:
        answer = httpx.post(f"{self.url}/api/v2/sandboxes", json={"name": name, "image": "tiny", **more}, timeout=60)
        assert answer.status_code == 201, answer.text
        return LiveSandbox(self.url, name)

    def http_delete(self, name: str) -> httpx.Response:
        return httpx.delete(f"{self.url}/api/v2/sandboxes/{name}", timeout=60)

    def states(self) -> dict[str, str]:
        with self.api() as api:
            return {s["name"]: s["state"] for s in api.get("/api/v2/sandboxes").raise_for_status().json()["sandboxes"]}

    def free(self) -> int:
        about = os.statvfs(self.data_dir.parent)
        return about.f_bavail * about.f_frsize

    def fill(self, leave: int = 0) -> Path:
        """Fills the disk that the data directory is on, up to `leave` bytes. Removing what is returned empties it again."""
        filler = self.data_dir.parent / "filler"
        with filler.open("ab") as file:
            while (more := min(64 * MIB, self.free() - leave)) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), more)
                except OSError:
                    break
                file.seek(0, os.SEEK_END)
        return filler

    def empty(self) -> None:
        """Takes back what `fill` did."""
        (self.data_dir.parent / "filler").unlink(missing_ok=True)

    def in_pool(self) -> Path:
        return self.data_dir / "pool"


def within(seconds: float, what: str, done: Callable[[], object]) -> None:
    """Waits until it is done."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.05)


@contextmanager
def limited_descriptors(server: Server, limit: int) -> Iterator[None]:
    """Lets a server that runs have so many descriptors, and those that it has already."""
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)


def open_descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@contextmanager
def small_server(tmp: Path, mib: int = 1200, args: tuple[str, ...] = (), pool: str = "512MiB") -> Iterator[SmallServer]:
    """A server whose data directory is on a file system of so many MiB, with the image `tiny`."""
    disk, top = tmp / "disk.img", tmp / "disk"
    with disk.open("wb") as file:
        file.truncate(mib * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", str(disk)], check=True)
    top.mkdir()
    subprocess.run(["mount", "-o", "loop", str(disk), str(top)], check=True)
    settings = ("--storage-size", pool, "--disk-reserve", "64MiB", "--prepared-slots", "1", "--default-image", "tiny")
    server = SmallServer(top / "data", args=(*settings, *args))
    try:
        server.start()
        tiny_image(server.in_pool())
        # What is still to be written would be lost when a test fills the disk.
        subprocess.run(["sync", "-f", str(server.in_pool())], check=True)
        yield server
    finally:
        tidy(server, top)
        disk.unlink(missing_ok=True)


def tidy(server: SmallServer, top: Path) -> None:
    """Leaves no mount, loop device or process, whatever state a test left the server in."""
    server.empty()
    for image in (server.data_dir / "pool.img", server.data_dir / "control.sqlite"):
        subprocess.run(["chattr", "-i", str(image)], capture_output=True)
    try:
        if server.process is None:
            server.start(ready=False)
        server.delete_all_sandboxes()
        server.stop()
    except Exception:
        if server.process is not None:
            server.kill()
        subprocess.run([str(binary()), "recover-storage", "--data-dir", str(server.data_dir)], capture_output=True)
        raise
    finally:
        subprocess.run(["umount", "--lazy", str(server.in_pool())], capture_output=True)
        for _ in range(50):
            if subprocess.run(["umount", str(top)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "--lazy", str(top)], check=False)
