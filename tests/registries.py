"""Debian's docker-registry as a process of one test, a relay before it that breaks off, and images for both."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import platform
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from arenite_server import free_port

#: The user `tester` with the password `secret`, as htpasswd -B writes it.
HTPASSWD = "tester:$2b$05$81RHcxVlQkDsmzbXJrd.0.gqbNl2jPWCf1kQpfLtw4uSTeASoPN2S\n"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


class Registry:
    def __init__(self, folder: Path, signs_in: bool = False):
        self.host = f"127.0.0.1:{free_port()}"
        self.blobs = folder / "registry/docker/registry/v2/blobs/sha256"
        config = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
            "http": {"addr": self.host},
        }
        if signs_in:
            users = folder / "users"
            users.write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(users)}}
        # JSON is YAML too.
        file = folder / "registry.yml"
        file.write_text(json.dumps(config))
        self.log = (folder / "registry.log").open("wb")
        self.process = subprocess.Popen(
            ["docker-registry", "serve", str(file)], stdout=self.log, stderr=self.log, cwd=folder
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                assert httpx.get(f"http://{self.host}/v2/").status_code == (401 if signs_in else 200)
                return
            except httpx.TransportError:
                assert time.monotonic() < deadline and self.process.poll() is None, (folder / "registry.log").read_text()

    def blob(self, digest: str) -> Path:
        """The file of a blob on the registry's disk."""
        digest = digest.removeprefix("sha256:")
        return self.blobs / digest[:2] / digest / "data"

    def requests(self, path: str) -> int:
        """How many times a path was read."""
        return (self.blobs.parents[5] / "registry.log").read_text().count(f'"GET {path} ')

    def push(self, name: str, layers: list[bytes], config: dict | None = None, user: tuple[str, str] | None = None) -> str:
        """Pushes an image as `name:1`; returns the digest of its manifest."""
        with httpx.Client(base_url=f"http://{self.host}", auth=user, timeout=60) as http:

            def blob(content: bytes, media_type: str) -> dict:
                place = http.post(f"/v2/{name}/blobs/uploads/").raise_for_status().headers["location"]
                url = httpx.URL(place).copy_merge_params({"digest": f"sha256:{digest(content)}"})
                http.put(url, content=content).raise_for_status()
                return {"mediaType": media_type, "digest": f"sha256:{digest(content)}", "size": len(content)}

            described = {
                "architecture": ARCHITECTURE,
                "os": "linux",
                "config": config or {},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(data)}" for data in layers]},
            }
            oci = "application/vnd.oci.image"
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{oci}.manifest.v1+json",
                "config": blob(json.dumps(described).encode(), f"{oci}.config.v1+json"),
                "layers": [blob(gzip.compress(data, 1, mtime=0), f"{oci}.layer.v1.tar+gzip") for data in layers],
            }
            headers = {"content-type": manifest["mediaType"]}
            answer = http.put(f"/v2/{name}/manifests/1", content=json.dumps(manifest), headers=headers)
            return answer.raise_for_status().headers["docker-content-digest"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def docker_config(folder: Path, host: str, password: str = "secret") -> Path:
    """What `docker login` leaves for a registry with users."""
    auth = base64.b64encode(f"tester:{password}".encode()).decode()
    path = folder / f"{password}.json"
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return path


@contextmanager
def registry(folder: Path, signs_in: bool = False) -> Iterator[Registry]:
    running = Registry(folder, signs_in)
    try:
        yield running
    finally:
        running.stop()


class Relay:
    """Passes connections on to a registry. After `limit` bytes of answers, it sends nothing more and keeps them open."""

    def __init__(self, target: str):
        self.target = target
        self.limit: int | None = None
        self.passed = 0
        self.stuck = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        self.host = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            host, port = self.target.split(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            self.connections += [client, server]
            for source, sink, counts in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.pass_on, args=(source, sink, counts), daemon=True).start()

    def pass_on(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(64 << 10):
                if counts:
                    if self.limit is not None and self.passed + len(data) > self.limit:
                        self.stuck.set()
                        return
                    self.passed += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        # A thread that waits for the next client would hold a socket that is only closed.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()


def layer(files: dict[str, bytes | str | None], programs: tuple[str, ...] = (), modes: dict[str, int] | None = None) -> bytes:
    """A layer's tar: content by name, a link's target as text, and directories as None."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode = (modes or {}).get(name, 0o755 if content is None or name in programs else 0o644)
            if content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def docker_archive(file: Path, name: str, layers: list[bytes], config: dict | None = None, compressed: bool = False) -> Path:
    """An image as `docker save` writes it."""
    described = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(data)}" for data in layers]},
    }
    image = json.dumps(described).encode()
    stored = [gzip.compress(data, 1) if compressed else data for data in layers]
    parts = {f"blobs/sha256/{digest(data)}": data for data in [*stored, image]}
    manifest = [
        {
            "Config": f"blobs/sha256/{digest(image)}",
            "RepoTags": [name],
            "Layers": [f"blobs/sha256/{digest(data)}" for data in stored],
        }
    ]
    parts["manifest.json"] = json.dumps(manifest).encode()
    file.write_bytes(layer(parts))
    return file
