"""MCP servers inside a sandbox, seen through its hub; and the protocol's conformance suite, which calls tools that one of them has."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

from .conftest import CLIENTS, TRANSPORTS, connect, node, run
from .names import A

HERE = Path(__file__).parent
OTHER = HERE.parents[1] / "crates/guest/guest/tests/mcp/server.py"


@pytest.fixture(scope="module")
def full(server: Server) -> Iterator[LiveSandbox]:
    """A sandbox with servers of its own: all tools of one under their own names, those of another behind its name."""
    python = {"command": "python3", "args": ["-u", "/tmp/everything.py"], "prefix": ""}
    other = {"command": "python3", "args": ["-u", "/tmp/other.py"]}
    servers = {
        "everything": python,
        "other": other,
        "short": {**other, "prefix": "o2_"},
        "secret": {**other, "hidden": True},
        "broken": {"command": "sh", "args": ["-c", "echo no luck >&2; exit 4"]},
    }
    body = {"name": "hub-servers", "image": "aio", "env": {"EXTRA_MCP_SERVERS": json.dumps(servers)}}
    assert httpx.post(f"{server.url}/api/v1/sandbox", json=body, timeout=120).status_code == 200
    live = LiveSandbox(server.url, "hub-servers", 120)
    live.client.file.write_file(file="/tmp/everything.py", content=(HERE / "everything.py").read_text())
    live.client.file.write_file(file="/tmp/other.py", content=OTHER.read_text())
    yield live
    live.delete()


def call(live: LiveSandbox, name: str, **arguments: Any) -> dict[str, Any]:
    body = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
    answer = live.http.post("/mcp", json=body).json()
    return answer.get("result") or answer["error"]


def test_their_tools_stand_behind_their_prefix(full: LiveSandbox) -> None:
    listed = full.http.post("/mcp", json={"method": "tools/list"}).json()["result"]["tools"]
    names = {tool["name"] for tool in listed}
    assert len(names) == len(listed) and names > A
    assert {"test_simple_text", "other_echo", "o2_echo"} <= names
    assert not {name for name in names if name.startswith(("secret", "broken", "chrome"))}
    assert json.loads(call(full, "other_echo", n=1)["content"][0]["text"]) == {"n": 1}
    assert call(full, "o2_image")["content"][0]["type"] == "image"
    assert call(full, "secret_structured")["structuredContent"] == {"n": [1, 2.5]}
    assert call(full, "other_nothing")["isError"]
    assert "no luck" in call(full, "broken_x")["content"][0]["text"]


def test_one_that_dies_is_started_again_and_its_last_words_are_logged(full: LiveSandbox) -> None:
    died = call(full, "other_die")
    assert died["isError"] and "I am dying" in died["content"][0]["text"]
    assert not call(full, "other_echo")["isError"]
    log = full.output("sudo cat /var/log/arenite/guest.log")
    assert "I am dying" in log


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_their_progress_passes_through(full: LiveSandbox, transport: str) -> None:
    told: list[str | None] = []

    async def scenario() -> None:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        async with connect(transport, full.url) as client:
            await client.call_tool("test_tool_with_progress", {}, progress_callback=note)

    run(scenario())
    assert told == ["0 of 100", "50 of 100", "100 of 100"]


def test_aios_fourth_server_is_there_for_who_knows_it(full: LiveSandbox) -> None:
    assert "chrome-devtools" not in full.client.mcp.list_mcp_servers().data
    full.client.browser_page.navigate(url="data:text/html,<title>Seen by all</title>")
    tools = {tool.name for tool in full.client.mcp.list_mcp_tools("chrome-devtools").data.tools}
    assert {"list_pages", "take_screenshot"} <= tools
    said = full.client.mcp.execute_mcp_tool("chrome-devtools", "list_pages", request={}).data
    assert "Seen%20by%20all" in said.content[0].text or "Seen by all" in said.content[0].text, said


def test_the_conformance_suite(full: LiveSandbox, tmp_path: Path) -> None:
    suite = CLIENTS / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    baseline = ["--expected-failures", str(HERE / "conformance.yml"), "--output-dir", str(tmp_path)]
    command = [node(), str(suite), "server", "--url", f"{full.url}/mcp", "--suite", "active", *baseline]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "tools-call-with-progress" in ran.stdout
