"""What the client does when the server is slow, gone, or speaks no JSON."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from fake_server import FakeRecordedServer, slowly, success

from sandbox import HTTPClientConfig, HTTPClientError, HTTPServiceClient, Sandbox, SandboxConnectionError


def client_for(fake: FakeRecordedServer, **settings: float) -> HTTPServiceClient:
    config = HTTPClientConfig(base_url=fake.url, retry_delay=0.05, auto_heartbeat=False, worker_id="w")
    for name, value in settings.items():
        setattr(config, name, value)
    return HTTPServiceClient(config=config)


async def test_a_tool_is_not_run_again_when_the_answer_is_late(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute", slowly(1, success({})))
    fake.on("/api/v1/execute/batch", slowly(1, success({})))
    client = client_for(fake, timeout=0.3)
    with pytest.raises(HTTPClientError, match="timed out after 0.3 s; what was asked for may still be running"):
        await client.execute("demo:incr")
    assert fake.count("/api/v1/execute") == 1
    with pytest.raises(HTTPClientError, match="timed out"):
        await client.execute_batch([{"action": "demo:incr"}])
    assert fake.count("/api/v1/execute/batch") == 1
    await client.close()


async def test_what_can_be_asked_twice_is(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/session/list", slowly(1, success({"sessions": []})))
    client = client_for(fake, timeout=0.2)
    with pytest.raises(HTTPClientError, match="Request timed out after 3 attempts"):
        await client.list_sessions()
    assert fake.count("/api/v1/session/list") == 3
    await client.close()


async def test_the_server_has_five_seconds_more_than_the_tool(fake: FakeRecordedServer) -> None:
    late = {"code": 5006, "message": "Tool execution timed out after 1s", "data": {"timeout": 1}, "meta": {}}
    fake.on("/api/v1/execute", slowly(1.3, (500, late)))
    client = client_for(fake, timeout=0.5)
    with pytest.raises(HTTPClientError, match="Tool execution timed out after 1s") as failed:
        await client.execute("demo:sleep", {"s": 9}, timeout=1)
    assert failed.value.response == late
    with pytest.raises(HTTPClientError):
        await client.execute_batch([{"action": "demo:sleep", "timeout": 1}])
    await client.close()


async def test_a_server_that_comes_up_late_is_found() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers: list[FakeRecordedServer] = []

    def begin() -> None:
        server = FakeRecordedServer(port)
        server.on("/api/v1/execute", lambda _: success({"n": 1}))
        servers.append(server)

    threading.Timer(0.15, begin).start()
    config = HTTPClientConfig(base_url=f"http://127.0.0.1:{port}", retry_delay=0.3, auto_heartbeat=False)
    client = HTTPServiceClient(config=config)
    assert (await client.execute("demo:incr"))["data"] == {"n": 1}
    await client.close()
    servers[0].close()


async def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    config = HTTPClientConfig(base_url=url, retry_delay=0.01)
    with pytest.raises(HTTPClientError, match="Request failed after 3 attempts"):
        await HTTPServiceClient(config=config).execute("demo:incr")
    with pytest.raises(HTTPClientError, match="Cannot connect"):
        await HTTPServiceClient(config=config).connect()
    with pytest.raises(SandboxConnectionError, match="no server answers at"):
        await Sandbox(url).start()


async def test_answers_that_are_not_json(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute", lambda _: (500, "Internal Server Error"))
    fake.on("/api/v1/session/create", lambda _: (422, {"detail": [{"type": "missing"}]}))
    fake.on("/api/v1/lifecycle/status", lambda _: (500, {"error": "by another name"}))
    client = client_for(fake)
    with pytest.raises(HTTPClientError, match="status 500, and instead of JSON came: Internal Server Error"):
        await client.execute("demo:incr")
    with pytest.raises(HTTPClientError, match="missing") as refused:
        await client.create_session("demo")
    assert refused.value.status_code == 422
    with pytest.raises(HTTPClientError, match="^Request failed: by another name$"):
        await client.get_status()
    await client.close()


async def test_a_session_that_is_refused_is_an_entry(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/session/create", lambda _: (422, {"detail": [{"type": "missing"}]}))
    async with Sandbox(fake.url) as sandbox:
        created = await sandbox.create_session({"a": {}, "b": {"custom_name": "n"}})
    assert created["status"] == "error"
    assert "missing" in created["sessions"]["b"]["error"]


async def test_cancelling_ends_the_request(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute", slowly(3, success({})))
    client = client_for(fake)
    start = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.execute("demo:incr"), 0.2)
    assert time.monotonic() - start < 1
    await client.close()


def test_a_client_can_be_used_from_one_loop_after_another(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute", lambda _: success({"n": 1}))
    client = client_for(fake)

    async def call() -> None:
        for _ in range(3):
            await client.execute("demo:incr")

    for _ in range(5):
        asyncio.run(call())
    assert fake.count("/api/v1/execute") == 15
