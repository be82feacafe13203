"""Sandboxes of the images `code` and `browser`, for the tests of what needs more than `base`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox


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
