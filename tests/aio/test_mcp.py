"""MCP servers inside sandboxes, by AIO's own client: a server of the standard library, started by its first call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox

SERVER = Path(__file__).parents[2] / "crates/guest/guest/tests/mcp/server.py"


@pytest.fixture
def mcp(sandbox: Callable[..., LiveSandbox]) -> Client:
    path = "/tmp/server.py"
    servers = {
        "stdio": {"command": "python3", "args": ["-u", path], "env": {"GREETING": "hi"}},
        "hidden": {"command": "python3", "args": ["-u", path], "hidden": True},
        "broken": {"command": "sh", "args": ["-c", "echo no luck >&2; exit 4"]},
        "web": {"url": "http://127.0.0.1:3399/mcp", "headers": {"X-Key": "sekrit"}},
    }
    client = sandbox(env={"EXTRA_MCP_SERVERS": json.dumps(servers)}).client
    client.file.write_file(file=path, content=SERVER.read_text())
    return client


def test_tools_are_listed_and_called_as_the_sandboxs_user(mcp: Client) -> None:
    assert mcp.mcp.list_mcp_servers().data == ["broken", "browser", "markitdown", "sandbox", "stdio", "web"]
    tools = mcp.mcp.list_mcp_tools("stdio").data.tools
    assert {"echo", "fail", "image"} <= {tool.name for tool in tools}
    assert tools[0].input_schema["type"] == "object"
    result = mcp.mcp.execute_mcp_tool("stdio", "echo", request={"text": "ü"}).data
    assert (json.loads(result.content[0].text), result.is_error) == ({"text": "ü"}, False)
    said = json.loads(mcp.mcp.execute_mcp_tool("hidden", "environment", request={}).data.content[0].text)
    assert (said["USER"], said["uid"], said["cwd"], said["GREETING"]) == ("gem", 1000, "/home/gem", None)
    image = mcp.mcp.execute_mcp_tool("stdio", "image", request={}).data.content[0]
    assert (image.type, image.mime_type) == ("image", "image/png")


def test_hidden_ones_are_listed_on_request(mcp: Client) -> None:
    url = f"{mcp._client_wrapper.get_base_url()}/v1/mcp/servers"
    assert "hidden" in httpx.get(url, params={"include_hidden": True}).json()["data"]


def test_over_streamable_http(mcp: Client) -> None:
    start = "sed 's/(\"127.0.0.1\", 0)/(\"127.0.0.1\", 3399)/' /tmp/server.py > /tmp/web.py; python3 /tmp/web.py /tmp/port"
    mcp.bash.exec(command=start, async_mode=True)
    mcp.bash.exec(command="until [ -e /tmp/port ]; do sleep 0.05; done", timeout=30)
    result = mcp.mcp.execute_mcp_tool("web", "echo", request={"n": 1}).data
    assert json.loads(result.content[0].text) == {"n": 1}


def test_failures(mcp: Client) -> None:
    failed = mcp.mcp.execute_mcp_tool("stdio", "fail", request={})
    assert (failed.success, failed.data.is_error) == (True, True)
    for call, status, text in [
        (lambda: mcp.mcp.list_mcp_tools("none"), 404, "none"),
        (lambda: mcp.mcp.list_mcp_tools("broken"), 424, "no luck"),
        (lambda: mcp.mcp.execute_mcp_tool("stdio", "none", request={}), 400, "Unknown tool"),
        (lambda: mcp.mcp.execute_mcp_tool("web", "echo", request={}), 424, "Connection refused"),
    ]:
        with pytest.raises(ApiError) as failure:
            call()
        assert failure.value.status_code == status, failure.value
        assert text in failure.value.body["message"], failure.value
    # It dies under a call, and the next call starts it again.
    with pytest.raises(ApiError) as failure:
        mcp.mcp.execute_mcp_tool("stdio", "die", request={})
    assert "I am dying" in failure.value.body["message"]
    assert mcp.mcp.execute_mcp_tool("stdio", "echo", request={}).success


def test_a_configuration_that_is_wrong_is_told(sandbox: Callable[..., LiveSandbox]) -> None:
    client = sandbox(env={"EXTRA_MCP_SERVERS": "{"}).client
    with pytest.raises(ApiError) as failure:
        client.mcp.list_mcp_servers()
    assert "EXTRA_MCP_SERVERS" in failure.value.body["message"]
