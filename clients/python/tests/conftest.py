"""Fixtures: the plugin host as a process, and a fake server that answers what was recorded."""

from __future__ import annotations

import asyncio
import inspect
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


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set where the tests run must not reach them."""
    for name in ("ARENITE_API_KEY", "ARENITE_BIN", "ARENITE_PLUGIN_PATH"):
        monkeypatch.delenv(name, raising=False)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines, without a plugin for them."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
