"""Object stores of the tests: a directory, and moto's server, which speaks the protocol of S3 and keeps objects in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import httpx
from arenite_server import free_port
from small import within

XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Directory:
    """A store in a directory."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.url = f"file://{path}"
        self.environment: dict[str, str] = {}

    def names(self, folder: str) -> list[str]:
        """The names of objects that have this folder among those that they are in."""
        names = [str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()]
        return sorted(name for name in names if f"/{folder}/" in name)


class Moto:
    """A bucket in moto's server."""

    def __init__(self, port: int):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.url = "s3://trajectories/of/tests"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def names(self, folder: str) -> list[str]:
        listed = ElementTree.fromstring(httpx.get(f"{self.endpoint}/trajectories?list-type=2", timeout=30).raise_for_status().text)
        names = [key.text or "" for key in listed.iter(f"{XML}Key")]
        return sorted(name for name in names if f"/{folder}/" in name)


@contextmanager
def moto(port: int | None = None) -> Iterator[Moto]:
    bucket = Moto(port or free_port())
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", bucket.endpoint.rsplit(":", 1)[1]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_up() -> bool:
        try:
            return httpx.put(f"{bucket.endpoint}/trajectories", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    try:
        within(60, "moto's server answers", is_up)
        yield bucket
    finally:
        process.kill()
        process.wait(30)
