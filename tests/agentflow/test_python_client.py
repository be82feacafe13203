"""Programs written to AgentFlow's documentation, with the package as it is in the repository, against the real server."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from arenite_server import REPOSITORY, Server, binary, free_port
from default_address import default_address
from workers import OF_SANDBOXES

PACKAGE = REPOSITORY / "clients/python/src"

QUICK_START = """
import asyncio
from sandbox import Sandbox, SandboxConfig

async def main():
    async with Sandbox() as sandbox:
        made = await sandbox.create_session({"bash": {"cwd": "/tmp"}, "code": {"custom_name": "mine"}})
        assert made["status"] == "success", made
        again = await sandbox.create_session(["bash", "code"])
        assert again["status"] == "success", again
        done = await sandbox.execute("bash:run", {"command": "echo hello > a; cat a; pwd"})
        assert done["code"] == 0 and done["data"]["stdout"] == "hello\\n/tmp\\n", done
        merged = await sandbox.execute("code:execute", code="print(6 * 7)")
        assert merged["data"]["stdout"] == "42\\n", merged
        assert {one["resource_type"] for one in await sandbox.list_sessions()} == {"bash", "code"}
        await sandbox.refresh_sessions()
        tools = await sandbox.get_tools()
        assert any(tool["full_name"] == "bash:run" for tool in tools), tools
        new = await sandbox.reinitialize("bash", {"cwd": "/var"})
        assert new["status"] == "success", new
        assert (await sandbox.execute("bash:pwd", {}))["data"]["stdout"] == "/var\\n"
        ended = await sandbox.destroy_session()
        assert ended["status"] == "success", ended
    print("quick start done")

asyncio.run(main())
"""

BATCH = """
from sandbox import Sandbox

with Sandbox(worker_id="batches") as sandbox:
    sandbox.create_session_sync("bash")
    actions = [{"action": "bash:run", "params": {"command": f"echo {n}"}} for n in range(300)]
    answer = sandbox.batch_sync(actions, stop_on_error=False, progress=True, chunk_size=100)
    assert [one["data"]["stdout"] for one in answer["data"]["results"]] == [f"{n}\\n" for n in range(300)], answer["message"]
    sandbox.destroy_session_sync()
    print("batch done")
"""

SYNC = """
from sandbox import Sandbox

sandbox = Sandbox(worker_id="in-sync")
sandbox.start_sync()
sandbox.create_session_sync("bash")
for n in range(100):
    assert sandbox.execute_sync("bash:run", {"command": f"echo {n}"})["data"]["stdout"] == f"{n}\\n"
sandbox.destroy_session_sync()
sandbox.close_sync()
print("sync done")
"""

#: A backend and tools as people write them for AgentFlow.
PLUGINS = '''
import time
from sandbox.server.backends.base import Backend, BackendConfig
from sandbox.server.backends.error_codes import ErrorCode
from sandbox.server.backends.response_builder import ResponseTimer, build_error_response, build_success_response
from sandbox.server.backends.tools import register_api_tool
from sandbox.server.backends.tools.base_tool import BaseApiTool, ToolBusinessError
from sandbox.server.core import tool


class NotesBackend(Backend):
    name = "notes"
    description = "Remembers notes"

    def __init__(self, config=None):
        super().__init__(config or BackendConfig(default_config={"limit": 2}))
        self.warm = False

    async def warmup(self):
        self.warm = True

    async def initialize(self, worker_id, config):
        return {"notes": [], "limit": config["limit"], "live": object(), "worker": worker_id}

    async def cleanup(self, worker_id, session_info):
        print("cleaned", session_info["data"]["notes"])

    @tool("notes:add", description="Add a note")
    async def add(self, text: str, session_info: dict = None, **kwargs):
        """Add a note.

        Args:
            text: What to remember.
        """
        with ResponseTimer() as timer:
            notes = session_info["data"]["notes"]
            if len(notes) >= session_info["data"]["limit"]:
                return build_error_response(ErrorCode.BUSINESS_FAILURE, "full", tool="notes:add", data={"n": len(notes)})
            notes.append(text)
        return build_success_response({"notes": notes, "warm": self.warm}, tool="notes:add", execution_time_ms=timer.get_elapsed_ms())

    @tool("notes:slow")
    def slow(self, s: float = 0.3):
        time.sleep(s)
        return {"code": 0, "message": "success", "data": {"slept": s}}


@register_api_tool("words:count", config_key="words", description="Count words")
async def count(text: str, **kwargs):
    return {"code": 0, "message": "success", "data": {"count": len(text.split())}}


class Shout(BaseApiTool):
    def __init__(self):
        super().__init__(tool_name="words:shout", resource_type="words")

    async def execute(self, text: str, **kwargs):
        if not text:
            raise ToolBusinessError("nothing to shout", ErrorCode.INVALID_INPUT)
        return {"result": text.upper() + self.get_config("mark", "!")}


register_api_tool("words:shout", config_key="words", description="Shout")(Shout())
'''

CUSTOM = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from sandbox import HTTPClientError, Sandbox

async def main():
    async with Sandbox(worker_id="custom") as sandbox:
        await sandbox.warmup("notes")
        await sandbox.create_session("notes", {"limit": 3})
        for n in range(3):
            answer = await sandbox.execute("notes:add", {"text": f"n{n}"})
            assert answer["data"] == {"notes": [f"n{i}" for i in range(n + 1)], "warm": True}, answer
        try:
            await sandbox.execute("notes:add", {"text": "more"})
            raise SystemExit("it was not full")
        except HTTPClientError as error:
            assert error.status_code == 400 and error.response["code"] == 4001, error.response
        several = await asyncio.gather(*(sandbox.execute("notes:slow", {"s": 0.5}) for _ in range(4)))
        assert all(one["data"] == {"slept": 0.5} for one in several)
        counted = await sandbox.execute("words:count", {"text": "a b c"})
        assert counted["data"]["count"] == 3, counted
        loud = await sandbox.execute("words-shout", {"text": "hey"})
        assert loud["data"]["result"] == "HEY?" and loud["meta"]["resource_type"] == "words", loud
        await sandbox.destroy_session()
    print("custom done")

asyncio.run(main())
"""


Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def at_home(server: Server, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Restarts the server with AgentFlow's address and the given arguments.

    The result runs programs that name no address, where AgentFlow's default address leads to this server.
    """
    with ExitStack() as stack:

        def begin(*more: str) -> Run:
            port = free_port()
            server.agentflow = f"127.0.0.1:{port}"
            server.restart(more)
            inside = stack.enter_context(default_address(port))

            def run(program: str) -> subprocess.CompletedProcess[str]:
                path = tmp_path / "program.py"
                path.write_text(program)
                environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
                line = [*inside, sys.executable, str(path)]
                return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)

            return run

        yield begin
    server.agentflow = "off"
    if server.process is None:
        server.start()
    else:
        server.restart()


@pytest.mark.parametrize(("program", "said"), [(QUICK_START, "quick start done"), (BATCH, "batch done"), (SYNC, "sync done")])
def test_the_documents_programs_run_without_naming_an_address(
    program: str, said: str, at_home: Callable[..., Run]
) -> None:
    done = at_home()(program)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


def test_a_backend_and_tools_of_ones_own(server: Server, at_home: Callable[..., Run], tmp_path: Path) -> None:
    import json

    (tmp_path / "my_plugins.py").write_text(PLUGINS)
    configuration = {
        "resources": {"notes": {"backend_class": "my_plugins.NotesBackend", "config": {"limit": 1}}, **OF_SANDBOXES},
        "apis": {"words": {"mark": "?"}},
        "plugins": [{"modules": ["my_plugins"], "path": ["."]}],
    }
    file = tmp_path / "server.json"
    file.write_text(json.dumps(configuration))
    done = at_home("--config", str(file))(CUSTOM)
    assert done.returncode == 0 and "custom done" in done.stdout, done.stdout + done.stderr + server.log_tail()
    tools = {tool["full_name"]: tool for tool in server.api().get("/api/v1/tools").json()["tools"]}
    assert tools["notes:add"]["parameters"]["properties"]["text"]["description"] == "What to remember."
    assert list(tools["notes:add"]["parameters"]["properties"]) == ["text"]


def test_a_server_that_is_not_there_is_started(server: Server, tmp_path: Path) -> None:
    port = free_port()
    program = f"""
from sandbox import Sandbox, SandboxConfig

config = SandboxConfig(auto_start_server=True, server_url="http://127.0.0.1:{port}", server_startup_timeout=60)
with Sandbox(config=config, worker_id="starts") as sandbox:
    print(sandbox.execute_sync("bash:run", {{"command": "echo started"}})["data"]["stdout"])
    assert sandbox.shutdown_server_sync()["status"] == "success"
"""
    server.stop()
    try:
        path = tmp_path / "program.py"
        path.write_text(program)
        # Its data directory is this one's, where the images are.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
        environment |= {"PYTHONPATH": str(PACKAGE), "ARENITE_BIN": str(binary()), "ARENITE_DATA_DIR": str(server.data_dir)}
        environment["ARENITE_AGENTFLOW_LISTEN"] = "off"
        done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "started" in done.stdout, done.stdout + done.stderr
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.2)
        # It lets go of the directory a moment after its port.
        time.sleep(3)
    finally:
        server.start()


def test_sync_calls_work_inside_a_running_loop(server: Server) -> None:
    from sandbox import Sandbox

    async def main() -> str:
        with Sandbox(server_url=server.url, worker_id="in-a-loop") as sandbox:
            return str(sandbox.execute_sync("bash:run", {"command": "echo in"})["data"]["stdout"])

    # In a thread of its own: Playwright's loop runs in this one after its tests.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, main()).result() == "in\n"


@pytest.mark.parametrize("resource", ["bash", "browser"])
def test_results_read_well_to_a_model(resource: str, server: Server) -> None:
    from sandbox import Sandbox, format_tool_result

    with Sandbox(server_url=server.url, worker_id=f"reads-{resource}") as sandbox:
        if resource == "bash":
            good = format_tool_result(sandbox.execute_sync("bash:run", {"command": "echo fine"}))
            bad = format_tool_result(sandbox.execute_sync("bash:run", {"command": "echo broken >&2; exit 7"}))
            assert "fine" in good and "broken" in bad and "7" in bad
        else:
            sandbox.create_session_sync("browser")
            shown = format_tool_result(sandbox.execute_sync("browser:screenshot", {}))
            assert "/tmp/screenshots/" in shown and len(shown) < 2000, shown[:300]
            sandbox.destroy_session_sync()
