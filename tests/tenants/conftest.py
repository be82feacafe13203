"""A server with tenants, on a data directory of its own that has the image `base`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from arenite_server import Server
from commands import run
from tenant import TenantsServer

SETTINGS = ("--prepared-slots", "2", "--storage-size", "4GiB", "--disk-reserve", "64MiB", "--default-image", "base")


@pytest.fixture(scope="module")
def tenants(server: Server) -> Iterator[TenantsServer]:
    folder = Path(tempfile.mkdtemp(prefix="arenite-tenants-"))
    own = Server(folder / "data", args=(*SETTINGS, "--tenants"))
    try:
        assert run(server, "image", "save", "base", "-o", str(folder / "base.tar")).returncode == 0
        own.data_dir.mkdir()
        loaded = run(own, "image", "load", str(folder / "base.tar"))
        assert loaded.returncode == 0, loaded.stderr
        own.start()
        yield TenantsServer(own)
    finally:
        if own.process is not None:
            own.stop()
            # Without the flag, all its sandboxes would stay on the host.
            own.start(("--remove-sandboxes",))
            own.stop()
        shutil.rmtree(folder)
