"""A server with tenants, on a data directory of its own that has the image `base`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from arenite_server import REPOSITORY, Server, binary, ensure_image
from tenant import TenantsServer

SETTINGS = ("--prepared-slots", "2", "--storage-size", "4GiB", "--disk-reserve", "64MiB", "--default-image", "base")


def copy_base(source: Server, target: Server, file: Path) -> None:
    """Compresses the image's layers, which may take minutes on a busy host."""
    for server, words in ((source, ("save", "base", "-o", str(file))), (target, ("load", str(file)))):
        command = [str(binary()), "image", *words, "--data-dir", str(server.data_dir)]
        subprocess.run(command, check=True, capture_output=True, timeout=900)


@pytest.fixture(scope="module")
def tenants() -> Iterator[TenantsServer]:
    images = Server(Path(os.environ.get("ARENITE_TEST_DATA", REPOSITORY / "target/test-data")).resolve())
    ensure_image(images.data_dir)
    folder = Path(tempfile.mkdtemp(prefix="arenite-tenants-"))
    own = Server(folder / "data", args=(*SETTINGS, "--tenants"))
    try:
        own.data_dir.mkdir()
        copy_base(images, own, folder / "base.tar")
        own.start()
        yield TenantsServer(own)
    finally:
        if own.process is not None:
            own.stop()
            # Without the flag, all its sandboxes would stay on the host.
            own.start(("--remove-sandboxes",))
            own.stop()
        shutil.rmtree(folder)
