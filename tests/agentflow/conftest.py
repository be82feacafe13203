"""The Python package as it is in the repository, and servers with AgentFlow's own configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arenite_server import REPOSITORY, Server, binary
from workers import Worker

sys.path.insert(0, str(REPOSITORY / "clients/python/src"))

@pytest.fixture
def worker(server: Server, request: pytest.FixtureRequest) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(name: str = "w") -> Worker:
        # A worker's trajectory outlives the test: no two tests share a name.
        made.append(Worker(server.url, f"{request.node.name[:40]}-{name}-{uuid.uuid4().hex[:8]}"))
        return made[-1]

    yield make
    if server.process is not None:
        for one in made:
            one.leave()


@pytest.fixture
def configured(server: Server, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Server]]:
    """Restarts the server with a configuration of AgentFlow's, and afterwards without."""

    def configure(configuration: dict[str, Any]) -> Server:
        file = tmp_path / "sandbox-server.json"
        file.write_text(json.dumps(configuration))
        # Sessions outlive a server: those of other tests end here.
        with server.api() as api:
            for one in api.get("/api/v2/workers").raise_for_status().json()["workers"]:
                api.post("/api/v1/worker/disconnect", json={"worker_id": one["worker_id"]})
        server.restart(("--config", str(file)))
        return server

    yield configure
    if server.process is not None and server.process.poll() is not None:
        server.process = None
    if server.process is not None:
        server.stop()
    server.start()


@pytest.fixture
def command(server: Server) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [str(binary()), "trajectory", *words, "--server", server.url]
        return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, check=False)

    return run
