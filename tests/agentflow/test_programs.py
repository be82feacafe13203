"""Programs that people have for AgentFlow, as they start and call its server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary, free_port
from documents import blocks
from workers import DEMO, OURS, Worker

CALLS = 100


class OriginalSyncClient:
    """What AgentFlow's own sync client does: one pool of connections, and a new event loop for each call."""

    def __init__(self, url: str, **headers: str) -> None:
        self.pool = httpx.AsyncClient(base_url=url, headers=headers, timeout=30)

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response:
        return asyncio.run(self.pool.request(method, path, json=body or None))


def calls_in_a_row(client: OriginalSyncClient) -> None:
    assert client.ask("GET", "/health").json()["status"] == "healthy"
    assert client.ask("GET", "/ready").status_code == 200
    body = {"worker_id": "in-a-row", "action": "text2sql:list_databases", "params": {}}
    for _ in range(CALLS):
        assert client.ask("POST", "/api/v1/execute", **body).json()["meta"]["tool"] == "text2sql:list_databases"
        assert client.ask("GET", "/health").status_code == 200
    # Refusals close their connection too.
    assert client.ask("GET", "/api/v1/nothing").status_code == 404
    assert client.ask("GET", "/nothing").status_code == 404
    assert client.ask("GET", "/health").status_code == 200


def test_the_original_sync_client_makes_calls_in_a_row(server: Server) -> None:
    calls_in_a_row(OriginalSyncClient(server.url, **{"X-Worker-ID": "in-a-row"}))


def test_connection_close_reaches_every_route_of_workers(configured: Callable[[dict[str, Any]], Server]) -> None:
    server = configured({"arenite": {"connection_close": True}, "apis": {"text2sql": {"databases": {}}}})
    # Nothing tells that it is the original client.
    client = OriginalSyncClient(server.url, **{"User-Agent": "other/1"})
    for path in ["/health", "/ready", "/api/v1/tools", "/api/v1/warmup/status", "/api/v1/nothing"]:
        assert client.ask("GET", path).headers["connection"] == "close", path
    with server.api() as http:
        assert http.get("/v1/openapi.json").headers.get("connection") != "close"


@contextmanager
def started(folder: Path, words: list[str], data: Path, **environment: str) -> Iterator[str]:
    """The program in a folder, with a command as documents have it and only an address added."""
    port = free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ARENITE_", "PYTHON"))}
    command = [str(binary()), "serve", *words, "--listen", f"127.0.0.1:{port}", "--agentflow-listen", "off", "--data-dir", str(data)]
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env={**kept, **environment}, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def data(server: Server) -> Iterator[Path]:
    """The data directory of the tests' server, which has the images, while that server is down."""
    server.stop()
    yield server.data_dir
    server.start()


def documented(name: str) -> str:
    """A block of code of PLUGINS.md by a part of its text."""
    return next(block.text for block in blocks("docs/PLUGINS.md") if name in block.text)


def test_the_start_command_of_plugins_md_works_as_written(data: Path, tmp_path: Path) -> None:
    plugins, work, library = tmp_path / "plugins", tmp_path / "work", tmp_path / "library"
    for folder in (plugins, work, library):
        folder.mkdir()
    (library / "my_library.py").write_text("STEP = 100\n")
    backend = documented("# counter_backend.py").replace('["count"] += by', '["count"] += by + my_library.STEP')
    (plugins / "counter_backend.py").write_text(f"import my_library\n{backend}")
    (work / "config.json").write_text(documented('"backend_class": "counter_backend.CounterBackend"'))
    (variable, folder), *words = [word.split("=") for word in documented("ARENITE_PLUGIN_PATH=/srv/plugins").split()]
    assert (variable, folder, words[:2]) == ("ARENITE_PLUGIN_PATH", "/srv/plugins", [["arenite"], ["serve"]])
    flags = [word for (word,) in words[2:]]
    assert flags == ["--agentflow-config", "config.json"], "the file's name is bare"
    with started(work, flags, data, ARENITE_PLUGIN_PATH=str(plugins), PYTHONPATH=str(library)) as url:
        worker = Worker(url, "documented")
        worker.create("counter", session_config={"start": 5})
        assert worker.ok("counter:add", by=2) == {"count": 107}


#: A checkout of AgentFlow as far as plugins see it. Every module that is there twice breaks whoever imports it.
BROKEN = "raise ImportError('the checkout has taken the place of the package of this server')\n"
CHECKOUT = {
    "sandbox/__init__.py": BROKEN,
    "sandbox/server/__init__.py": BROKEN,
    "sandbox/server/core/__init__.py": BROKEN,
    "sandbox/server/backends/__init__.py": BROKEN,
    "sandbox/server/backends/base.py": BROKEN,
    "sandbox/server/backends/tools/__init__.py": BROKEN,
    "sandbox/server/backends/resources/__init__.py": "import a_library_that_nobody_has\n",
    "sandbox/server/backends/resources/shelf.py": '''
from ..base import Backend, BackendConfig
from ..error_codes import ErrorCode
from ..response_builder import build_success_response, build_error_response
from sandbox.server.core import tool
from .shelf_labels import label


class ShelfBackend(Backend):
    name = "shelf"

    def __init__(self, config=None):
        super().__init__(config or BackendConfig(default_config={"books": ["a"]}))

    async def initialize(self, worker_id, config):
        return {"books": list(config["books"])}

    @tool("shelf:books")
    async def books(self, session_info=None):
        books = [label(book) for book in session_info["data"]["books"]]
        if not books:
            return build_error_response(ErrorCode.BUSINESS_FAILURE, "empty", tool="shelf:books")
        return build_success_response(books, tool="shelf:books")
''',
    "sandbox/server/backends/resources/shelf_labels.py": "def label(book):\n    return f'<{book}>'\n",
    "sandbox/server/backends/tools/weather.py": '''
from . import register_api_tool
from .base_tool import BaseApiTool, ToolBusinessError
from ..error_codes import ErrorCode


class Weather(BaseApiTool):
    def __init__(self):
        super().__init__(tool_name="weather:today", resource_type="weather")

    async def execute(self, city: str, **kwargs):
        if not self.get_config("key"):
            raise ToolBusinessError("no key", ErrorCode.EXECUTION_ERROR)
        return f"rain in {city}"


weather = register_api_tool("weather:today", config_key="weather")(Weather())
''',
    # As the guide has tools, but in a folder of people's own.
    "mine/tides.py": '''
from . import register_api_tool
from ..error_codes import ErrorCode


@register_api_tool("tides:next", config_key="tides")
def next_tide(port: str):
    return {"code": ErrorCode.SUCCESS, "message": "success", "data": f"six hours at {port}"}
''',
}


@pytest.mark.parametrize("isolation", ["process", "sandbox"])
def test_a_checkout_of_agentflow_brings_its_classes_and_not_its_package(data: Path, tmp_path: Path, isolation: str) -> None:
    for name, text in CHECKOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tools = {
        "modules": ["sandbox.server.backends.tools.weather", "tides"],
        "path": [str(tmp_path), str(tmp_path / "mine")],
        "isolation": isolation,
    }
    # By its module, and as the checkout's package would export it.
    backend = f"{OURS}.shelf.ShelfBackend" if isolation == "process" else f"{OURS}.ShelfBackend"
    configuration = {
        "resources": {"shelf": {"backend_class": backend, "config": {"books": ["x", "y"]}, "isolation": isolation}},
        "apis": {"weather": {"key": "k"}, "tides": {}},
        "plugins": [tools],
    }
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    with started(tmp_path, ["--config", "config.json"], data) as url:
        worker = Worker(url, "checkout")
        assert worker.ok("shelf:books") == ["<x>", "<y>"]
        assert worker.ok("weather:today", city="Rome")["result"] == "rain in Rome"
        assert worker.ok("tides:next", port="Rome") == "six hours at Rome"


def test_a_lost_session_of_a_plugin_is_told_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"resources": {"demo": DEMO["demo"]}}))

    def told_once(worker: Worker) -> None:
        answer = worker.post("execute", action="demo:incr", params={"by": 1})
        said = answer.json()
        assert (answer.status_code, said["code"], said["data"]["error_type"]) == (400, 4007, "session_lost"), said
        assert worker.ok("demo:incr", by=1)["n"] == 1

    with started(tmp_path, ["--config", "config.json"], data) as url:
        worker = Worker(url, "loser")
        worker.create("demo")
        assert [worker.ok("demo:incr", by=1)["n"] for _ in range(2)] == [1, 2]
        # Its process, and nobody else's: the only one with this data directory's package.
        package = str(data / "synthesis/python")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and package in _environment(entry):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.3)
        told_once(worker)
    with started(tmp_path, ["--config", "config.json"], data) as url:
        told_once(Worker(url, "loser"))
        Worker(url, "loser").leave()


def _environment(process: Path) -> str:
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


#: AgentFlow's own configuration of a machine with a screen.
VM = {
    "server": {"url": "http://127.0.0.1:18890", "port": 18890, "session_ttl": 600},
    "resources": {
        "vm": {
            "enabled": True,
            "description": "VM backend - desktop automation",
            "backend_class": f"{OURS}.vm.VMBackend",
            "config": {
                "provider": "docker",
                "region": "",
                "os_type": "Ubuntu",
                "screen_size": [1920, 1080],
                "headless": True,
                "connection_type": "local",
                "pool_size": 1,
                "setup": [],
                "pool_reset": True,
                "snapshot_name": "",
                "use_proxy": False,
                "_comment_required": "Provide local resource paths and passwords via environment variables",
                "client_password": "${VM_CLIENT_PASSWORD:-password}",
                "vm_path": "${VM_IMAGE_PATH}",
                "recording": True,
                "recording_path": "${VM_RECORDING_PATH:-sandbox_recordings}",
            },
        }
    },
    "warmup": {"enabled": True, "resources": ["vm"]},
}


def test_the_configuration_of_vm_starts_as_it_is(data: Path, tmp_path: Path) -> None:
    (tmp_path / "GUI_config.json").write_text(json.dumps(VM))
    with started(tmp_path, ["--config", "GUI_config.json"], data) as url:
        assert httpx.get(f"{url}/api/v1/warmup/status").json()["summary"] == {"total": 1, "warmed_up": 1, "pending": 0}
        worker = Worker(url, "looker")
        made = worker.create("vm")
        shot = worker.ok("vm:screenshot")
        assert shot["size"] in ([1920, 1080], {"width": 1920, "height": 1080}), shot["size"]
        worker.post("session/destroy", resource_type="vm")
        films = [film.name for film in tmp_path.rglob("*.mp4")]
        assert films == [f"{made['session_id']}.mp4"]
        worker.leave()
