"""The server on a small disk that the tests of faults share within a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small import SmallServer, small_server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    with small_server(tmp_path_factory.mktemp("small")) as server:
        yield server


@pytest.fixture
def fresh(small: SmallServer) -> Iterator[SmallServer]:
    """The small server, running, without sandboxes and with room on its disk."""
    if small.process is None:
        small.start()
    small.delete_all_sandboxes()
    yield small
    small.empty()
