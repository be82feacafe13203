"""MCP's official clients, on each transport, at the hub of a sandbox and at the server's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from sandboxes import LiveSandbox

CLIENTS = Path(__file__).parent.parent / "clients"


def node() -> str:
    """The Node.js among the clients: newer than the host's may be."""
    assert (CLIENTS / "node_modules").is_dir(), f"run: npm ci, in {CLIENTS}"
    [program] = CLIENTS.glob("node_modules/node-linux-*/bin/node")
    return str(program)


#: The newest protocol, sessions of the one before it, the transport of 2024, and a process of ours.
TRANSPORTS = ["newest", "sessions", "sse", "stdio"]


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: Playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, scenario).result()


def connect(transport: str, base: str, **options: Any) -> Client:
    """A client of the hub at `base`: a server's address, or that of one of its sandboxes."""
    match transport:
        case "newest":
            return Client(f"{base}/mcp", mode="2026-07-28", **options)
        case "sessions":
            # A slow answer is an event, and by default the client takes only small ones.
            return Client(streamable_http_client(f"{base}/mcp", max_sse_event_size=None), mode="legacy", **options)
        case "sse":
            return Client(sse_client(f"{base}/mcp/sse"), mode="legacy", **options)
        case "stdio":
            server, _, name = base.partition("/sandbox/")
            args = ["mcp", "--server", server, *(["--sandbox", name] if name else [])]
            return Client(StdioServerParameters(command=str(binary()), args=args), **options)
    raise ValueError(transport)


@pytest.fixture(scope="package")
def live(server: Server) -> Iterator[LiveSandbox]:
    """One sandbox with everything, for tests that leave it as it was."""
    answer = httpx.post(f"{server.url}/api/v1/sandbox", json={"name": "hub", "image": "aio"}, timeout=120)
    assert answer.status_code == 200, answer.text
    live = LiveSandbox(server.url, "hub", 120)
    yield live
    live.delete()


@pytest.fixture
def bare(live: LiveSandbox) -> Callable[..., Any]:
    """A call without a handshake, as AIO's documents show them; its result, or its error."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        body = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
        answer = live.http.post("/mcp", json=body, headers={"Accept": "application/json"}, timeout=120).json()
        return answer.get("result") or answer["error"]

    return call
