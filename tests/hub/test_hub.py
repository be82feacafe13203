"""The hub of a sandbox, by the protocol's official clients in each of its transports."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from mcp import MCPError
from sandboxes import LiveSandbox

from .conftest import CLIENTS, TRANSPORTS, connect, node, run
from .names import CALLS, HTML, LIFECYCLE, PAGE, A, B, C

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(autouse=True, scope="module")
def page(live: LiveSandbox) -> None:
    live.client.file.write_file(file=PAGE, content=HTML)


@each_transport
def test_every_tool_is_listed_and_called(live: LiveSandbox, transport: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with connect(transport, live.url) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == A
            for tool in tools.values():
                described = tool.input_schema["properties"].values()
                assert tool.description and tool.title and tool.annotations, tool.name
                assert all(argument.get("description") for argument in described), tool.name
            results = {name: await client.call_tool(name, arguments) for name, arguments in CALLS.items()}
            with pytest.raises(MCPError, match="Unknown tool: nope") as unknown:
                await client.call_tool("nope", {})
            assert unknown.value.error.code == -32602
            wrong = await client.call_tool("sandbox_execute_bash", {"cmd": 3})
            assert wrong.is_error and "cmd" in wrong.content[0].text
            return results

    results = run(scenario())
    failed = {name: result.content[0].text for name, result in results.items() if result.is_error}
    assert not failed
    assert results["sandbox_execute_bash"].structured_content["output"] == "hi"
    assert "42" in results["sandbox_execute_code"].content[0].text
    assert any(block.type == "image" for block in results["sandbox_browser_screenshot"].content)
    assert live.name in results["sandbox_get_browser_info"].structured_content["cdp_url"]


@pytest.mark.parametrize("transport", ["http", "sse", "stdio"])
def test_every_tool_by_the_client_from_npm(live: LiveSandbox, server: Server, transport: str) -> None:
    where = {"http": f"{live.url}/mcp", "sse": f"{live.url}/mcp/sse", "stdio": str(binary())}[transport]
    more = ["mcp", "--server", server.url, "--sandbox", live.name] if transport == "stdio" else []
    command = [node(), str(CLIENTS / "mcp.mjs"), transport, where, json.dumps(CALLS), *more]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert seen.returncode == 0, seen.stderr
    said = json.loads(seen.stdout)
    assert set(said["listed"]) == A
    assert {name: result for name, result in said["results"].items() if result["isError"]} == {}
    assert set(said["results"]) == A
    assert said["unknown"] == -32602


def test_every_name_of_three_generations_is_callable(bare: Callable[..., Any]) -> None:
    assert (len(A), len(B), len(C), len(A | B | C)) == (33, 27, 10, 57)
    answers = {name: bare(name, nothing="of the kind") for name in sorted(A | B | C)}
    assert {name for name, answer in answers.items() if "code" in answer} == set()


@each_transport
def test_progress_comes_line_by_line(live: LiveSandbox, transport: str) -> None:
    told: list[tuple[float, float, str | None]] = []

    async def scenario() -> Any:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append((time.monotonic(), progress, message))

        async with connect(transport, live.url) as client:
            line = "for i in 1 2 3 4; do echo step $i; sleep 0.3; done"
            result = await client.call_tool("sandbox_execute_bash", {"cmd": line}, progress_callback=note)
            return result

    result = run(scenario())
    assert result.structured_content["output"] == "step 1\nstep 2\nstep 3\nstep 4"
    assert [message for _, _, message in told] == ["step 1", "step 2", "step 3", "step 4"]
    numbers = [progress for _, progress, _ in told]
    assert numbers == sorted(set(numbers)), "progress grows"
    assert told[-1][0] - told[0][0] > 0.6, "they came while it ran"


def running(live: LiveSandbox, what: str) -> bool:
    return live.bash(f"pgrep -f '^{what}$'").exit_code == 0


def wait(live: LiveSandbox, what: str, *, runs: bool, seconds: float) -> None:
    end = time.monotonic() + seconds
    while running(live, what) != runs:
        assert time.monotonic() < end, f"{what}: {'runs still' if not runs else 'did not start'}"
        time.sleep(0.02)


@each_transport
def test_a_cancelled_call_ends_its_process_within_a_second(live: LiveSandbox, transport: str) -> None:
    seconds = 600 + TRANSPORTS.index(transport)
    what = f"sleep {seconds}"

    async def scenario() -> None:
        async with connect(transport, live.url) as client:
            call = asyncio.create_task(client.call_tool("sandbox_execute_bash", {"cmd": what, "timeout": 900}))
            await asyncio.to_thread(wait, live, what, runs=True, seconds=20)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.to_thread(wait, live, what, runs=False, seconds=1)

    run(scenario())


@pytest.mark.parametrize(("session", "patience"), [(False, 1.0), (True, 7.0)])
def test_a_client_that_vanishes_cancels_its_call(live: LiveSandbox, session: bool, patience: float) -> None:
    what = f"sleep {700 + session}"
    both = {"Accept": "application/json, text/event-stream"}
    headers = dict(both)
    if session:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        answer = live.http.post("/mcp", json=body, headers=both)
        headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        live.http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    arguments = {"cmd": what, "timeout": 900}
    params = {"name": "sandbox_execute_bash", "arguments": arguments, "_meta": {"progressToken": 1}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{live.url}/mcp", json=call, headers=headers, timeout=1.5)
    wait(live, what, runs=False, seconds=patience)


def test_who_comes_back_in_time_gets_the_answer(live: LiveSandbox) -> None:
    both = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    session = live.http.post("/mcp", json=body, headers=both).headers["mcp-session-id"]
    headers = {**both, "Mcp-Session-Id": session}
    live.http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    params = {"name": "sandbox_execute_bash", "arguments": {"cmd": "sleep 4; echo late"}}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    last = None
    with live.http.stream("POST", "/mcp", json=call, headers=headers) as answer:
        for line in answer.iter_lines():
            if line.startswith("id:"):
                last = line.removeprefix("id:").strip()
                break
    assert last is not None
    with live.http.stream("GET", "/mcp", headers={**headers, "Last-Event-ID": last}, timeout=30) as answer:
        said = next(json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data: {"))
    assert (said["id"], said["result"]["structuredContent"]["output"]) == (7, "late")
    # Anything else makes clients log a failure.
    assert live.http.delete("/mcp", headers=headers).status_code == 200
    assert live.http.delete("/mcp", headers=headers).status_code == 404
    assert live.http.post("/mcp", json=call, headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("count", "name", "arguments"),
    [
        (1000, "sandbox_file_operations", {"action": "list", "path": PAGE.rsplit("/", 1)[0]}),
        (200, "sandbox_execute_bash", {"cmd": "echo $((6 * 7))"}),
    ],
)
def test_many_calls_at_once(live: LiveSandbox, count: int, name: str, arguments: dict[str, Any]) -> None:
    async def scenario() -> list[Any]:
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=150, limits=limits) as http:
            body = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
            calls = [http.post(f"{live.url}/mcp", json=body) for _ in range(count)]
            return await asyncio.gather(*calls)

    answers = run(scenario())
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.text for answer in answers if answer.json()["result"]["isError"]][:1] == []


@pytest.mark.parametrize("transport", ["newest", "sessions", "stdio"])
def test_ten_megabytes_come_whole(live: LiveSandbox, transport: str) -> None:
    """Not by the transport of 2024, where each answer is an event, and the client has its own bound of these."""

    async def scenario() -> int:
        async with connect(transport, live.url) as client:
            code = {"cmd": "head -c 9000000 /dev/zero | tr '\\0' x", "truncate": False}
            result = await client.call_tool("sandbox_execute_bash", code)
            return len(result.structured_content["output"])

    assert run(scenario()) == 9_000_000


def test_calls_as_aios_documents_show_them(live: LiveSandbox) -> None:
    call = {"name": "sandbox_execute_bash", "arguments": {"cmd": "echo bare"}}
    for path in ["/mcp", "/v1/mcp", "/mcp/"]:
        answer = live.http.post(path, content=json.dumps({"method": "tools/call", "params": call}))
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["result"]["structuredContent"]["output"] == "bare", path
    listed = live.http.post("/mcp", json={"jsonrpc": "2.0", "id": 5, "method": "tools/list"}).json()
    assert (listed["id"], len(listed["result"]["tools"])) == (5, 33)


def test_what_is_no_message(live: LiveSandbox) -> None:
    for body, code in [("{", -32700), ("[]", -32600), ('"x"', -32600), ("", -32700)]:
        answer = live.http.post("/mcp", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), body
    assert live.http.get("/mcp").status_code == 405
    assert live.http.post("/mcp/messages?session_id=x", content="{}").status_code == 404
    assert live.http.post("/mcp", content=b"x" * (33 << 20)).status_code == 413
    unknown = httpx.post(f"{live.base_url}/sandbox/nobody/mcp", json={"method": "tools/list"})
    assert (unknown.status_code, "nobody" in unknown.text) == (404, True)
    foreign = live.http.post("/mcp", json={"method": "tools/list"}, headers={"Origin": "http://evil.test"})
    assert foreign.status_code == 403


def test_inside_the_sandbox(live: LiveSandbox) -> None:
    call = json.dumps({"method": "tools/call", "params": {"name": "sandbox_execute_bash", "arguments": {"cmd": "hostname"}}})
    said = live.output(f"curl -s localhost:8080/mcp -d '{call}'")
    assert json.loads(said)["result"]["structuredContent"]["output"] == live.name


def steps(live: LiveSandbox, word: str) -> list[dict[str, Any]]:
    """The sandbox's steps whose arguments have a word."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        query = {"after": after}
        page = httpx.get(f"{live.base_url}/api/v1/trajectories/{live.id}", params=query, timeout=30).raise_for_status().json()
        found += [step for step in page["steps"] if word in json.dumps(step.get("arguments"))]
        after = page["next_after"]
    return found


def test_each_call_is_a_step(live: LiveSandbox, bare: Callable[..., Any]) -> None:
    assert bare("sandbox_execute_bash", cmd="echo of-a-step")["structuredContent"]["exit_code"] == 0
    step = steps(live, "of-a-step")[-1]
    assert (step["dialect"], step["action"]) == ("mcp", "POST /v1/mcp/hub/tools/sandbox_execute_bash")


def test_the_servers_of_the_rest_view(live: LiveSandbox) -> None:
    mcp = live.client.mcp
    assert {"browser", "markitdown", "sandbox"} <= set(mcp.list_mcp_servers().data)
    assert {tool.name for tool in mcp.list_mcp_tools("sandbox").data.tools} < A
    assert mcp.execute_mcp_tool("shell", "sandbox_execute_bash", request={"cmd": "echo x"}).data.is_error is False
    said = mcp.execute_mcp_tool("markitdown", "convert_to_markdown", request={"uri": f"file://{PAGE}"}).data
    assert "# Hub" in said.content[0].text


def test_the_readmes_tools(live: LiveSandbox) -> None:
    """Called as AIO's README calls them, and listed by the servers of its table."""
    def do(name: str, **arguments: Any) -> dict[str, Any]:
        answer = httpx.post(f"{live.url}/mcp", json={"method": "tools/call", "params": {"name": name, "arguments": arguments}}, timeout=60)
        result = answer.json()["result"]
        assert not result.get("isError"), result
        return result

    do("browser_navigate", url=f"file://{PAGE}")
    content = do("browser_extract")["content"][0]["text"]
    do("file_write", path="/tmp/content.txt", content=content)
    assert content.splitlines()[0] in do("file_read", path="/tmp/content.txt")["content"][0]["text"]
    assert "content.txt" in do("file_list", path="/tmp")["content"][0]["text"]
    assert do("file_replace", path="/tmp/content.txt", old_str="Hub", new_str="Club")["structuredContent"]["replaced_count"] >= 1
    assert do("file_search", path="/tmp/content.txt", pattern="Cl(?=ub)")["structuredContent"]["match_count"] >= 1
    assert "Linux" in do("terminal_execute", command="uname -a")["structuredContent"]["output"]
    session = do("terminal_session")["structuredContent"]["session_id"]
    do("terminal_execute", command="sleep 60", session_id=session, timeout=0.2)
    assert do("terminal_kill", session_id=session)["structuredContent"]["status"] == "terminated"
    assert "# Hub" in do("markitdown_convert", uri=PAGE)["content"][0]["text"]
    assert "# Hub" in do("markitdown_extract", uri=f"file://{PAGE}")["content"][0]["text"]
    do("browser_type", selector="#name", text="typed")
    assert "typed" in do("browser_evaluate", script="document.querySelector('#name').value")["content"][0]["text"]

    listed = {server: [tool.name for tool in live.client.mcp.list_mcp_tools(server).data.tools] for server in ("file", "shell")}
    assert listed == {"file": ["read", "write", "list", "search", "replace"], "shell": ["exec", "create_session", "kill"]}
    said = live.client.mcp.execute_mcp_tool("file", "read", request={"path": "/etc/hostname"}).data
    assert "hub" in said.content[0].text
    said = live.client.mcp.execute_mcp_tool("shell", "exec", request={"command": "echo x"}).data
    assert said.is_error is False
    # Values as agents write them, and as pydantic takes them.
    assert do("sandbox_execute_bash", cmd="echo hi", timeout="5", new_session="true")["structuredContent"]["exit_code"] == 0


def test_the_servers_own_hub_lists_both(server: Server) -> None:
    listed = httpx.post(f"{server.url}/mcp", json={"method": "tools/list"}).json()["result"]["tools"]
    assert {tool["name"] for tool in listed} == A | LIFECYCLE
