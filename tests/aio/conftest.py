"""Sandboxes of the image `code`, for the tests of what executes code."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox


@pytest.fixture(scope="module")
def coder(server: Server) -> Iterator[LiveSandbox]:
    """One for all tests of a file: each has sessions of its own in it."""
    name = f"t-code-{uuid.uuid4().hex[:8]}"
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": "code"}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    live = LiveSandbox(server.url, name, 120)
    yield live
    live.delete()
