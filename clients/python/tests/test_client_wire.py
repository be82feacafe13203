"""What the client sends is what AgentFlow's client sends, request by request."""

from __future__ import annotations

import pytest
from fake_server import FakeRecordedServer, recorded

from sandbox import HTTPClientConfig, HTTPClientError, HTTPServiceClient, Sandbox


async def everything(sandbox: Sandbox) -> None:
    """The calls that were recorded, in their order."""
    await sandbox.start(["demo"])
    created = await sandbox.create_session("demo", {"greeting": "g", "custom_name": "x y"})
    assert created["status"] == "success"
    assert created["sessions"]["demo"]["session_id"] == "demo_cw1_001_x-y_76ad2dcf"
    assert created["sessions"]["demo"]["config_applied"] == {"greeting": "g"}

    again = await sandbox.create_session("demo")
    assert again["status"] == "success", "a session that exists is as good as a new one"
    assert again["sessions"]["demo"]["session_name"] == "demo_cw1_001_x-y"

    several = await sandbox.create_session(["bash", "badinit"])
    assert (several["status"], several["total"], several["success"]) == ("partial", 2, 1)
    assert several["sessions"]["bash"]["compatibility_mode"] is True
    assert several["sessions"]["badinit"]["status"] == "error"
    assert several["sessions"]["badinit"]["error"] == "init bad"
    assert several["sessions"]["badinit"]["session_id"] == "badinit_cw1_001_2ad46db0"

    assert (await sandbox.execute("demo:incr", {"by": 3}))["data"] == {"n": 3}
    assert (await sandbox.execute("demo:incr", by=4))["data"] == {"n": 7}
    with pytest.raises(HTTPClientError, match="^Request failed: Tool not found: nope$") as refused:
        await sandbox.execute("nope")
    assert refused.value.status_code == 400
    assert refused.value.response is not None
    assert refused.value.response["code"] == 4002

    assert [s["resource_type"] for s in await sandbox.list_sessions()] == ["demo", "bash", "badinit"]
    assert (await sandbox.refresh_sessions("demo"))["data"]["resource_type"] == "demo"
    assert (await sandbox.refresh_sessions())["data"]["refreshed_count"] == 3

    new = await sandbox.reinitialize("demo", {"a": 1})
    assert new["status"] == "success"
    assert (new["old_session_id"], new["new_session_id"], new["new_session_name"]) == (
        "demo_cw1_001_x-y_76ad2dcf", "demo_cw1_002_c01e822e", "demo_cw1_002",
    )
    assert len(await sandbox.get_tools()) == 18
    assert (await sandbox.get_status())["data"]["tools_available"] == 18
    assert (await sandbox.warmup("demo"))["results"] == {"demo": True}
    assert (await sandbox.get_warmup_status())["backends"]["badinit"]["warmed_up"] is False

    client = sandbox.client
    some = await client.execute_batch([{"action": "demo:incr"}, {"action": "nope"}], stop_on_error=False)
    assert some["code"] == 5010
    with pytest.raises(HTTPClientError, match="All actions failed") as failed:
        await client.execute_batch([{"action": "nope"}])
    assert failed.value.response is not None
    assert failed.value.response["data"]["results"][0]["code"] == 4002
    await client.init_resource("demo", {"z": 1})
    await client.init_batch({"demo": {"content": {}}})
    assert (await client.get_tool_schema("demo:incr"))["name"] == "incr"
    await client._send_heartbeat()

    gone = await sandbox.destroy_session()
    assert (gone["status"], gone["total"]) == ("success", 3)
    assert gone["sessions"]["demo"]["session_id"] == "demo_cw1_002_c01e822e"
    nothing = await sandbox.destroy_session()
    assert (nothing["status"], nothing["total"], nothing["sessions"]) == ("success", 0, {})
    missing = await sandbox.destroy_session("demo")
    assert (missing["status"], missing["sessions"]["demo"]["status"]) == ("error", "error")
    await client.destroy_all_sessions()
    await sandbox.close()


async def test_the_wire_is_agentflows(fake: FakeRecordedServer) -> None:
    fake.replay()
    await everything(Sandbox(fake.url, worker_id="cw1"))
    assert fake.wrong == []
    assert fake.rest == []
    assert len(fake.seen) == len(recorded())


async def test_fields_of_ours_are_sent_only_if_given(fake: FakeRecordedServer) -> None:
    fake.on("/api/v1/execute", lambda body: (200, {"code": 0, "message": "success", "data": body, "meta": {}}))
    async with Sandbox(fake.url, worker_id="w") as sandbox:
        sent = await sandbox.execute("demo:incr", {"by": 1}, 7, seed="s", trace_id="t", task_id="k", parent="p")
        assert sent["data"] == {
            "worker_id": "w", "action": "demo:incr", "params": {"by": 1, "seed": "s"}, "timeout": 7,
            "trace_id": "t", "task_id": "k", "parent": "p",
        }
        plain = await sandbox.client.execute("demo:incr", task_id="k")
        assert plain["data"] == {"worker_id": "w", "action": "demo:incr", "params": {}, "timeout": None, "task_id": "k"}


async def test_other_calls_of_the_client(fake: FakeRecordedServer) -> None:
    for path in ("init/from-config", "server/shutdown", "execute/batch"):
        fake.on(f"/api/v1/{path}", lambda body: (200, {"code": 0, "data": body}))
    async with HTTPServiceClient(fake.url, worker_id="w") as client:
        sent = await client.init_from_config("f.json", {"a": 1})
        assert sent["data"] == {"worker_id": "w", "config_path": "f.json", "override_params": {"a": 1}}
        assert (await client.shutdown_server(force=True))["data"] == {"force": True, "cleanup_sessions": True}
        sent = await client.execute_batch([{"action": "a"}], parallel=True, stop_on_error=False)
        assert sent["data"]["parallel"] is True


async def test_the_key_is_sent_as_a_bearer_token(fake: FakeRecordedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with HTTPServiceClient(fake.url):
        assert "authorization" not in fake.last().headers
    monkeypatch.setenv("ARENITE_API_KEY", "from-environment")
    async with HTTPServiceClient(fake.url):
        assert fake.last().headers["authorization"] == "Bearer from-environment"
    async with HTTPServiceClient(fake.url, api_key="given"):
        assert fake.last().headers["authorization"] == "Bearer given"
    async with Sandbox(fake.url, api_key="given"):
        assert fake.last().headers["authorization"] == "Bearer given"


async def test_heartbeats(fake: FakeRecordedServer) -> None:
    import asyncio

    fake.on("/api/v1/lifecycle/heartbeat", lambda _: (200, {"code": 0}))
    config = HTTPClientConfig(base_url=fake.url, heartbeat_interval=0.05)
    async with HTTPServiceClient(config=config) as client:
        assert client.worker_id.startswith("worker_")
        await asyncio.sleep(0.4)
    beats = fake.count("/api/v1/lifecycle/heartbeat")
    assert beats >= 3
    await asyncio.sleep(0.2)
    assert fake.count("/api/v1/lifecycle/heartbeat") == beats
