"""Sandboxes of the images `code`, `browser` and `aio`, for the tests of what needs more than `base`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from arenite_server import Server
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox
from sites import Sites

#: Milliseconds for what the server does; a loaded machine takes its time.
PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)


def of_image(server: Server, image: str) -> Iterator[LiveSandbox]:
    name = f"t-{image}-{uuid.uuid4().hex[:8]}"
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": image}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    live = LiveSandbox(server.url, name, 120)
    yield live
    live.delete()


@pytest.fixture(scope="module")
def coder(server: Server) -> Iterator[LiveSandbox]:
    """One for all tests of a file: each has sessions of its own in it."""
    yield from of_image(server, "code")


@pytest.fixture(scope="module")
def browsing(server: Server) -> Iterator[LiveSandbox]:
    """One for all tests of a file: they share its desktop and its browser."""
    yield from of_image(server, "browser")


@pytest.fixture(scope="module")
def aio(server: Server) -> Iterator[LiveSandbox]:
    """One for all tests of a file: they share its VS Code and its JupyterLab."""
    yield from of_image(server, "aio")


@pytest.fixture(scope="module")
def served(browsing: LiveSandbox) -> Sites:
    """The sites of a file's sandbox. The client is as patient as the SDK is by itself: what takes longer was not answered."""
    sites = Sites(LiveSandbox(browsing.base_url, browsing.name, 60))
    sites.serve()
    return sites


@pytest.fixture
def sites(served: Sites) -> Sites:
    """The same, with one empty tab."""
    served.fresh()
    return served


@pytest.fixture
def person(page: Page) -> Iterator[Page]:
    """A page that must not make mistakes: nothing that its policy blocks, no error of its script."""
    mistakes: list[str] = []
    page.set_default_timeout(PATIENCE)
    page.set_default_navigation_timeout(PATIENCE)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text) if "Content Security Policy" in message.text else None)
    yield page
    assert not mistakes
