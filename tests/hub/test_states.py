"""MCP's tools for states of sandboxes' disks: an agent tries something, and takes it back."""

from __future__ import annotations

from typing import Any

from arenite_server import Server

from .conftest import connect, run


def test_an_agent_tries_something_and_takes_it_back(server: Server) -> None:
    async def scenario() -> None:
        async with connect("newest", server.url) as client:

            async def call(tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, (tool, result.content[0].text)
                return result.structured_content

            async def bash(sandbox: str, command: str) -> str:
                call_of_tool = {"sandbox_name": sandbox, "tool_name": "sandbox_execute_bash", "arguments": {"cmd": command}}
                return (await call("sandboxExecutor", **call_of_tool))["output"]

            await client.call_tool("createSandbox", {"name": "states", "environment": "plain"})
            await bash("states", "echo 1 >/home/gem/file")
            assert (await call("checkpointSandbox", name="states", note="one"))["number"] == 1
            await bash("states", "echo 2 >/home/gem/file")
            changed = await call("diffSandbox", name="states", before=1)
            assert ("modified", "/home/gem/file") in [(path["change"], path["path"]) for path in changed["paths"]]
            fork = (await call("forkSandbox", name="states"))["sandboxes"][0]["name"]
            assert await bash(fork, "cat /home/gem/file") == "2"
            assert (await call("rollbackSandbox", name="states", to=1))["processes"] == "restarted"
            assert await bash("states", "cat /home/gem/file") == "1"
            assert [one["note"] for one in (await call("listCheckpoints", name="states"))["checkpoints"]] == ["one"]
            await call("createSnapshot", name="states-ready", sandbox="states")
            assert "states-ready" in [one["name"] for one in (await call("listSnapshots"))["snapshots"]]
            assert (await call("deleteSnapshot", name="states-ready"))["deleted"]
            await call("resetSandbox", name="states")
            assert "No such file" in await bash("states", "cat /home/gem/file 2>&1; true")
            wrong = await client.call_tool("rollbackSandbox", {"name": "states", "to": 9})
            assert wrong.is_error and "arenite history" in wrong.content[0].text
            for name in ("states", fork):
                await client.call_tool("deleteSandbox", {"name": name})

    run(scenario())
