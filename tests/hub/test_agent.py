"""An agent that has nothing but the server's own address: it makes a sandbox, works in it, and cleans up."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from arenite_server import Server

from .conftest import TRANSPORTS, connect, run

SERVER_JS = """require('http').createServer((request, answer) => {
  answer.setHeader('Content-Type', 'text/html');
  answer.end('<!doctype html><title>Made by an agent</title><h1>Hello</h1><p>from Node</p>');
}).listen(3000, '127.0.0.1', () => console.log('listening'));
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_agent_with_nothing_but_the_address(server: Server, transport: str) -> None:
    name = f"agent-{transport}"

    async def scenario() -> None:
        async with connect(transport, server.url) as client:
            made = await client.call_tool("createSandbox", {"name": name, "environment": "full"})
            assert not made.is_error, made.content[0].text
            assert made.content[0].text.startswith(f"Sandbox created, Sandbox name:{name}, ")
            assert "sandbox_execute_bash" in made.content[0].text

            async def do(tool: str, **arguments: Any) -> Any:
                call = {"sandbox_name": name, "tool_name": tool, "arguments": arguments}
                result = await client.call_tool("sandboxExecutor", call)
                assert not result.is_error, (tool, result.content[0].text)
                return result

            await do("sandbox_file_operations", action="write", path="/home/gem/server.js", content=SERVER_JS)
            await do("sandbox_execute_bash", cmd="nohup node /home/gem/server.js > /tmp/server.log 2>&1 & sleep 1; cat /tmp/server.log")
            opened = await do("browser_navigate", url="http://127.0.0.1:3000/")
            assert "Made by an agent" in opened.content[0].text
            shot = await do("sandbox_browser_screenshot")
            pictures = [block for block in shot.content if block.type == "image"]
            assert base64.b64decode(pictures[0].data)[1:4] == b"PNG" and len(pictures[0].data) > 5000
            await do("sandbox_file_operations", action="write", path="/home/gem/sum.py", content="print(sum(range(10)))")
            ran = await do("sandbox_execute_bash", cmd="python3 /home/gem/sum.py")
            assert ran.structured_content["output"] == "45"
            saved = await do("sandbox_execute_bash", cmd="curl -s 127.0.0.1:3000 > /home/gem/page.html")
            assert saved.structured_content["exit_code"] == 0
            text = await do("sandbox_convert_to_markdown", uri="file:///home/gem/page.html")
            assert "# Hello" in text.content[0].text
            details = await client.call_tool("getSandbox", {"name": name})
            assert details.content[0].text.startswith("Sandbox details:")
            assert details.structured_content["sandbox"]["name"] == name
            listed = await client.call_tool("listSandbox", {})
            assert name in [sandbox["name"] for sandbox in listed.structured_content["sandboxes"]]
            gone = await client.call_tool("deleteSandbox", {"name": name})
            assert gone.content[0].text == f"Sandbox {name} deleted successfully"
            again = await client.call_tool("sandboxExecutor", {"sandbox_name": name, "tool_name": "browser_get_text"})
            assert again.is_error and name in again.content[0].text

    run(scenario())
    assert httpx.get(f"{server.url}/api/v2/sandboxes/{name}").status_code == 404


def bare(server: Server, tool: str, **arguments: Any) -> dict[str, Any]:
    body = {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return httpx.post(f"{server.url}/mcp", json=body, timeout=60).json()["result"]


def test_what_goes_wrong_is_told(server: Server) -> None:
    for tool, arguments, words in [
        ("createSandbox", {"name": "No Name"}, "name"),
        ("createSandbox", {"name": "x", "environment": "nowhere"}, "nowhere"),
        ("createSandbox", {"name": 3}, "invalid arguments"),
        ("getSandbox", {}, "name"),
        ("getSandbox", {"name": "nobody"}, "sandbox nobody not found"),
        ("deleteSandbox", {"name": "nobody"}, "nobody"),
        ("sandboxExecutor", {"sandbox_name": "nobody", "tool_name": "x"}, "nobody"),
        ("sandboxExecutor", {"sandbox_name": "default", "tool_name": "x"}, "Unknown tool: x"),
        ("sandboxExecutor", {"sandbox_name": "default", "tool_name": "x", "arguments": [1]}, "no JSON object"),
    ]:
        result = bare(server, tool, **arguments)
        assert result["isError"], tool
        assert words in result["content"][0]["text"], result


def test_arguments_may_be_text_and_tools_work_in_the_default_sandbox(server: Server) -> None:
    given = json.dumps({"cmd": "hostname"})
    said = bare(server, "sandboxExecutor", sandbox_name="default", tool_name="sandbox_execute_bash", arguments=given)
    assert said["structuredContent"]["output"] == "default"
    assert bare(server, "sandbox_execute_bash", cmd="hostname")["structuredContent"]["output"] == "default"


def test_templates_are_environments(server: Server) -> None:
    try:
        made = bare(server, "createSandbox", name="agent-plain", template="plain")
        assert not made["isError"], made
        assert bare(server, "getSandbox", name="agent-plain")["structuredContent"]["sandbox"]["image"] == "base"
    finally:
        bare(server, "deleteSandbox", name="agent-plain")
