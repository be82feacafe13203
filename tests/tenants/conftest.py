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
from consoles import PATIENCE
from playwright.sync_api import Browser, Page, expect
from tenant import Tenant, TenantsServer

SETTINGS = ("--prepared-slots", "2", "--storage-size", "4GiB", "--disk-reserve", "64MiB", "--default-image", "base")


def image(data_dir: Path, *words: str) -> None:
    """A command on images, which may take minutes on a busy host."""
    subprocess.run([str(binary()), "image", *words, "--data-dir", str(data_dir)], check=True, capture_output=True, timeout=900)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image `base` as a file: its layers are compressed once for all servers."""
    data_dir = Path(os.environ.get("ARENITE_TEST_DATA", REPOSITORY / "target/test-data")).resolve()
    ensure_image(data_dir)
    file = tmp_path_factory.mktemp("images") / "base.tar"
    image(data_dir, "save", "base", "-o", str(file))
    return file


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    """Further arguments of the server, for modules that need some."""
    return ()


@pytest.fixture(scope="module")
def tenants(settings: tuple[str, ...], base: Path) -> Iterator[TenantsServer]:
    folder = Path(tempfile.mkdtemp(prefix="arenite-tenants-"))
    own = Server(folder / "data", args=(*SETTINGS, "--tenants", *settings))
    try:
        own.data_dir.mkdir()
        image(own.data_dir, "load", str(base))
        own.start()
        yield TenantsServer(own)
    finally:
        if own.process is not None:
            own.stop()
            # Without the flag, all its sandboxes would stay on the host.
            own.start(("--remove-sandboxes",))
            own.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def acme(tenants: TenantsServer) -> Iterator[Tenant]:
    tenant = tenants.tenant("acme")
    yield tenant
    tenants.operator.json("DELETE", "/api/v2/tenants/acme?force=true")


@pytest.fixture
def person(browser: Browser, tenants: TenantsServer) -> Iterator[Page]:
    """A page that must not make mistakes. Refused requests are none: the browser reports each as an error."""
    mistakes: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.set_default_navigation_timeout(PATIENCE)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text) if message.type == "error" and "Failed to load resource" not in message.text else None)
    expect.set_options(timeout=PATIENCE)
    yield page
    assert page.title() != "owned"
    context.close()
    assert not mistakes
