"""The engines. A test with the fixture `engine` runs on each of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_servers import ENGINES, Engine, start
from sandboxes import LiveSandbox


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    # Sockets in a data directory want a short path.
    folder = Path(tempfile.mkdtemp(prefix="arenite-engines-"))
    engine = Engine(request.param, folder)
    try:
        start(engine)
        yield engine
    finally:
        engine.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def box(engine: Engine) -> Iterator[Callable[..., LiveSandbox]]:
    """Makes sandboxes that end with the test."""
    if engine.server.process is None:
        engine.server.start()
    yield engine.create
    if engine.server.process is None:
        engine.server.start()
    for live in engine.made:
        live.delete()
    engine.made.clear()
