"""Buckets of tests: versitygw, a server with S3's protocol that keeps objects as files, and boto3 as the buckets' own client."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from arenite_server import free_port
from botocore.config import Config
from small import within

ACCESS_KEY = "AKIDOFTESTS"
SECRET_KEY = "the-secret-of-these-tests"
BUCKET = "agents"


def path_of_versitygw() -> str:
    path = os.environ.get("ARENITE_TEST_VERSITYGW") or shutil.which("versitygw")
    if path is None:
        pytest.fail("versitygw is not there: `cargo xtask test` builds it, or set ARENITE_TEST_VERSITYGW to its path")
    return path


def path_of_rclone() -> str:
    """The rclone of the tests' environment."""
    return os.environ.get("ARENITE_TEST_RCLONE") or str(Path(sys.executable).parent / "rclone")


class BucketServer:
    """A server with one bucket, which can be stopped and started."""

    def __init__(self, directory: Path):
        self.directory, self.port = directory, free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        config = Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"})
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=config,
        )

    def start(self) -> None:
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        command = [path_of_versitygw(), "--port", f"127.0.0.1:{self.port}", "posix", str(self.directory)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

        def is_up() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        within(30, "the bucket's server answers", is_up)

    @property
    def log(self) -> Path:
        return self.directory.parent / f"{self.directory.name}.log"

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)
        self.process = None

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def size(self, key: str) -> int | None:
        return len(self.read(key)) if key in self.keys() else None

    def has(self, key: str, content: bytes) -> bool:
        return key in self.keys() and self.read(key) == content

    def declare(self, file: Path, **more: str) -> Path:
        """Writes the file that declares the bucket to a server."""
        settings = {"url": f"s3://{BUCKET}/of/tests", "endpoint": self.endpoint, "region": "us-east-1"}
        settings |= {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY} | more
        file.touch(mode=0o600)
        file.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
        return file


@contextmanager
def bucket_server(directory: Path) -> Iterator[BucketServer]:
    server = BucketServer(directory)
    server.start()
    try:
        server.client.create_bucket(Bucket=BUCKET)
        yield server
    finally:
        if server.process is not None:
            server.stop()
