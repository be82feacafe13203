"""MCP's tools for states of sandboxes' disks, and for files of snapshots and volumes."""

from __future__ import annotations

import uuid
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


def test_an_agent_reads_files_of_snapshots_and_moves_them_through_a_volume(server: Server) -> None:
    shelf, kept, again = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("shelf", "kept", "again"))

    async def scenario() -> None:
        async with connect("newest", server.url) as client:

            async def call(tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, (tool, result.content[0].text)
                return result.structured_content

            async def refused(tool: str, **arguments: Any) -> str:
                result = await client.call_tool(tool, arguments)
                assert result.is_error, (tool, result.structured_content)
                return result.content[0].text

            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert listed["readVolumeFile"].annotations.read_only_hint and not listed["importSnapshot"].annotations.read_only_hint
            with server.api() as api:
                api.post("/api/v2/volumes", json={"name": shelf, "size_bytes": 1 << 30}).raise_for_status()
                there = {"path": "a b/ü", "create_parents": "true"}
                api.put(f"/api/v2/volumes/{shelf}/content", params=there, content=b"of a volume\n").raise_for_status()
            await client.call_tool("createSandbox", {"name": kept, "environment": "plain"})
            fill = "mkdir data; printf %s hello >data/text; printf 'a\\377b' >data/raw; : >data/empty; yes é | tr -d '\\n' | head -c 70000 >data/long"
            await call("sandboxExecutor", sandbox_name=kept, tool_name="sandbox_execute_bash", arguments={"cmd": fill})
            await call("createSnapshot", name=kept, sandbox=kept)
            await client.call_tool("deleteSandbox", {"name": kept})
            files = (await call("listSnapshotFiles", name=kept, path="/home/gem/data"))["files"]
            assert [one["name"] for one in files] == ["empty", "long", "raw", "text"]

            async def content(path: str, **more: Any) -> Any:
                return await call("readSnapshotFile", name=kept, path=f"home/gem/data/{path}", **more)

            found = await content("text")
            assert (found["text"], found["size_bytes"], found["next_offset"]) == ("hello", 5, None)
            assert (await content("text", offset=3))["text"] == "lo"
            raw = await content("raw")
            assert (raw["encoding"], raw["base64"]) == ("base64", "Yf9i")
            assert (await content("empty"))["text"] == ""
            whole, offset = "", 0
            while offset is not None:
                part = await content("long", offset=offset)
                assert len(part["text"].encode()) <= 32 << 10 and part["encoding"] == "utf-8"
                whole, offset = whole + part["text"], part["next_offset"]
            assert whole == "é" * 35_000
            assert "home/gem/no" in await refused("readSnapshotFile", name=kept, path="home/gem/no")
            assert "no snapshot" in await refused("listSnapshotFiles", name="missing")
            assert (await call("listVolumeFiles", name=shelf))["files"][0]["name"] == "a b"
            assert (await call("readVolumeFile", name=shelf, path="a b/ü"))["text"] == "of a volume\n"
            written = await call("exportSnapshot", name=kept, volume=shelf, path="kept/it.tar")
            assert written["size_bytes"] > 1 << 20
            await call("deleteSnapshot", name=kept)
            assert "a b" in await refused("importSnapshot", volume=shelf, path="a b")
            made = await call("importSnapshot", volume=shelf, path="kept/it.tar", name=again)
            assert (made["name"], made["sandbox"]) == (again, kept)
            found = await call("readSnapshotFile", name=again, path="home/gem/data/text")
            assert found["text"] == "hello"
            await call("deleteSnapshot", name=again)
            with server.api() as api:
                api.delete(f"/api/v2/volumes/{shelf}").raise_for_status()

    run(scenario())
