"""Fixtures: the plugin host as a process, and a fake server that answers what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fake_server import FakeRecordedServer
from host_process import HERE, PluginProcess, host


@pytest.fixture
def start() -> Iterator[Callable[..., PluginProcess]]:
    """Starts hosts, and ends those that are left."""
    started: list[PluginProcess] = []

    def begin(*arguments: str) -> PluginProcess:
        process = host(*arguments, path=[HERE])
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def odd(start: Callable[..., PluginProcess]) -> PluginProcess:
    process = start("backend", "odd_backend.OddBackend")
    process.describe()
    return process


@pytest.fixture
def demo(start: Callable[..., PluginProcess]) -> PluginProcess:
    process = start("backend", "demo_backends.DemoBackend")
    process.describe()
    return process


@pytest.fixture
def fake() -> Iterator[FakeRecordedServer]:
    server = FakeRecordedServer()
    yield server
    server.close()
