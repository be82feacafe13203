"""Servers of these tests' own: each on a data directory that goes with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from arenite_server import Server
from authority import Authority
from postgres import Postgres
from small import tiny_image

SMALL = ("--prepared-slots", "0", "--storage-size", "512MiB", "--disk-reserve", "1MiB")


@contextmanager
def own_servers() -> Iterator[Callable[..., Server]]:
    """Makes servers without images; what still runs at the end is stopped, and must leave nothing on the host."""
    # Sockets in a data directory want a short path.
    folders: list[Path] = []
    made: list[Server] = []

    def make(
        data_dir: Path | None = None, port: int | None = None, args: tuple[str, ...] = (), kind: type[Server] = Server
    ) -> Server:
        if data_dir is None:
            folders.append(Path(tempfile.mkdtemp(prefix="arenite-operation-")))
            data_dir = folders[-1] / "data"
        server = kind(data_dir, port, (*SMALL, *args))
        made.append(server)
        return server

    yield make
    for server in made:
        if server.process is not None and server.process.poll() is None:
            server.stop()
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    with own_servers() as make:
        yield make


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    postgres = Postgres()
    yield postgres
    postgres.remove()


@pytest.fixture(scope="module")
def module_server() -> Iterator[Callable[..., Server]]:
    """The same for all tests of a file."""
    with own_servers() as make:
        yield make


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    made = Authority(tmp_path)
    # httpx trusts it, and so the SDK does.
    monkeypatch.setenv("SSL_CERT_FILE", str(made.ca))
    return made


@pytest.fixture
def secured(own_server: Callable[..., Server], authority: Authority) -> Iterator[Server]:
    files = ("--tls-cert", str(authority.cert), "--tls-key", str(authority.key))
    server = own_server(args=(*files, "--default-image", "tiny"))
    server.scheme = "https"
    server.start()
    tiny_image(server.data_dir / "pool")
    yield server
    if server.process is not None:
        server.delete_all_sandboxes()
