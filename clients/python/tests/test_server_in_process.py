"""The in-process server: what unit tests of existing backends use."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from host_process import DEMO, HERE

from sandbox.server import HTTPServiceServer, expand_env_vars, load_config
from sandbox.server.backends.response_builder import ResponseTimer, build_error_response, build_success_response
from sandbox.server.config_loader import ConfigLoader
from sandbox.server.core import ResourceRouter, get_tool_metadata, is_tool, scan_tools, tool


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> HTTPServiceServer:
    monkeypatch.syspath_prepend(str(DEMO))
    from demo_backends import BadInitBackend, DemoBackend

    server = HTTPServiceServer()
    assert server.load_backend(DemoBackend()) == [
        "demo:boom", "demo:hidden_one", "demo:incr", "demo:legacy", "demo:sleep",
    ]
    server.load_backend(BadInitBackend())
    return server


async def test_tools_are_listed(server: HTTPServiceServer) -> None:
    assert len(server.list_tools()) == 5
    assert len(server.list_tools(include_hidden=True)) == 6
    assert server.get_tool_info("incr") == {
        "name": "incr", "full_name": "demo:incr", "resource_type": "demo", "stateless": False,
        "description": "Increment a counter\n\n        Longer text.",
    }
    assert server.get_tool_info("zzz") is None
    assert server.list_backends() == ["demo", "badinit"]
    assert server.get_backend("demo") is not None


@pytest.mark.parametrize("name", ["demo:incr", "demo-incr", "demo.incr", "demo_incr", "incr"])
async def test_names_are_found(server: HTTPServiceServer, name: str) -> None:
    answer = await server.execute(name, {"by": 2}, worker_id="w")
    assert (answer["code"], answer["data"], answer["meta"]["tool"]) == (0, {"n": 2}, "demo:incr")
    assert answer["meta"]["temporary_session"] is True


async def test_names_that_are_not_found(server: HTTPServiceServer) -> None:
    answer = await server.execute("nope", {}, worker_id="w")
    assert (answer["code"], answer["message"], answer["data"]) == (4002, "Tool not found: nope", {"action": "nope"})
    server.register_tool("other:incr", lambda: None)
    answer = await server.execute("incr", {}, worker_id="w")
    assert answer["data"] == {"candidates": ["demo:incr", "other:incr"]}
    with pytest.raises(ValueError, match="worker_id is required"):
        await server.execute("incr", {})


async def test_sessions_and_failures(server: HTTPServiceServer) -> None:
    router = server.resource_router
    session = await router.get_or_create_session("w 1", "demo", {"greeting": "yo"}, custom_name="x y")
    assert session["session_name"] == "demo_w-1_001_x-y"
    assert session["config"] == {"greeting": "yo", "nested": {"a": 1}}
    numbers = [(await server.execute("incr", {}, worker_id="w 1"))["data"]["n"] for _ in range(3)]
    assert numbers == [1, 2, 3]
    spoofed = await server.execute("incr", {"session_info": {"data": {"n": 100}}}, worker_id="w 1")
    assert spoofed["data"] == {"n": 4}
    assert await router.destroy_session("w 1", "demo")
    assert not await router.destroy_session("w 1", "demo")

    boom = await server.execute("boom", {}, worker_id="w")
    assert (boom["code"], boom["message"]) == (5005, "boom")
    legacy = await server.execute("legacy", {}, worker_id="w")
    assert (legacy["code"], legacy["data"]) == (5005, {"returned_type": "dict"})
    late = await server.execute("sleep", {"s": 9}, worker_id="w", timeout=0.05)
    assert late["code"] == 5006
    bad = await server.execute("badinit:x", {}, worker_id="w")
    assert (bad["code"], bad["message"]) == (4007, "Resource initialization failed: init bad")
    wrong = await server.execute("incr", {"zzz": 1}, worker_id="w")
    assert "unexpected keyword argument 'zzz'" in wrong["message"]
    assert await router.list_all_sessions() == []


async def test_batches(server: HTTPServiceServer) -> None:
    todo = [{"action": "incr"}, {"action": "nope"}, {"action": "incr"}]
    answer = await server.execute_batch(todo, worker_id="w")
    assert (answer["code"], answer["message"]) == (5010, "1 out of 2 actions failed")
    answer = await server.execute_batch(todo, worker_id="w", parallel=True)
    assert answer["data"]["executed"] == 3
    assert (await server.execute_batch([], worker_id="w"))["code"] == 0
    assert (await server.execute_batch([{}], worker_id="w"))["code"] == 5009


async def test_warmup(server: HTTPServiceServer) -> None:
    answer = await server.warmup_backends_with_errors(["demo", "badinit", "zz"])
    assert answer["status"] == "partial_error"
    assert answer["results"] == {"demo": True, "badinit": False, "zz": False}
    assert answer["errors"]["zz"] == "Backend not found: zz. Available backends: ['demo', 'badinit']"
    assert server.get_warmup_status()["summary"] == {"total": 2, "warmed_up": 1, "pending": 1}
    assert await server.warmup_backend("demo")
    assert await server.ensure_backend_warmed_up("demo")


async def test_one_slow_start_holds_up_no_other() -> None:
    router = ResourceRouter()

    async def slow(worker_id: str, config: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.2)
        return {}

    router.register_resource_type("slow", slow)
    start = ResponseTimer()
    await asyncio.gather(*(router.get_or_create_session(f"w{n}", "slow") for n in range(5)))
    assert start.get_elapsed_ms() < 800
    session = (await router.list_worker_sessions("w1"))[0]
    session["expires_at"] = "2000-01-01T00:00:00"
    assert await router.cleanup_expired() == 1
    assert await router.refresh_session("w2", "slow")
    assert await router.update_session("w2", "slow", {"a": 1})
    assert await router.get_active_resource_types("w2") == ["slow"]
    assert await router.destroy_worker_sessions("w2") == 1
    assert router.unregister_resource_type("slow")


async def test_asgi(server: HTTPServiceServer) -> None:
    transport = httpx.ASGITransport(app=server.create_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        assert (await client.get("/health")).json()["status"] == "healthy"
        assert (await client.get("/api/v1/tools?include_hidden=True")).json()["count"] == 6
        assert (await client.get("/api/v1/tools/demo:incr/schema")).json()["name"] == "incr"
        asked = {"worker_id": "w", "action": "demo:incr"}
        assert (await client.post("/api/v1/execute", json=asked)).json()["data"] == {"n": 1}
        batch = {"worker_id": "w", "actions": [{"action": "incr"}, {"action": "nope"}]}
        assert (await client.post("/api/v1/execute/batch", json=batch)).status_code == 207
        assert (await client.post("/api/v1/execute", content="{nope")).status_code == 422
        assert (await client.get("/nope")).status_code == 404


def test_marks() -> None:
    @tool
    def bare() -> None:
        """Says what."""

    assert is_tool(bare)
    metadata = get_tool_metadata(bare)
    assert metadata is not None
    assert metadata.to_dict() == {
        "name": "bare", "resource_type": None, "description": "Says what.", "hidden": False, "schema": None,
    }

    class Holder:
        @property
        def trap(self) -> None:
            raise AssertionError("a property is not evaluated")

        @tool()
        def named(self) -> None: ...

        @tool("a:b")
        def other(self) -> None: ...

    assert list(scan_tools(Holder(), "p")) == ["p:named", "a:b"]


def test_envelopes() -> None:
    answer = build_success_response({"a": 1}, "t")
    assert list(answer) == ["code", "message", "data", "meta"]
    assert list(answer["meta"]) == ["tool", "execution_time_ms", "resource_type", "session_id", "trace_id"]
    assert len(answer["meta"]["trace_id"]) == 36
    assert build_error_response(4000, "m", "t", trace_id="x")["meta"]["trace_id"] == "x"


def test_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("SCALE", "7")
    path = tmp_path / "c.json"
    path.write_text(
        json.dumps(
            {
                "$schema": "x",
                "server": {"title": "T", "session_ttl": 9, "url": "http://127.0.0.1:1"},
                "resources": {
                    "_comment": "x",
                    "odd": {"backend_class": "odd_backend.OddBackend", "config": {"v": "${SCALE}", "d": "${NO:-d}"}},
                    "nosuch": {"backend_class": "no.such.Class"},
                    "off": {"enabled": False},
                },
                "apis": {"sums": {"scale": "${SCALE}", "_comment": "x"}},
                "warmup": {"enabled": True, "resources": ["odd", "off"]},
            }
        )
    )
    config = load_config(str(path))
    assert list(config.resources) == ["odd", "nosuch", "off"]
    loader = ConfigLoader()
    loader.load(str(path))
    assert loader.get_warmup_resources() == ["odd"]
    importlib.import_module("api_tools")

    server = loader.create_server()
    assert server.list_backends() == ["odd"], "one that can't be loaded is left out"
    assert server.resource_router.session_ttl == 9
    assert server.registered["adds"].config == {"scale": "7"}
    assert expand_env_vars({"a": ["${SCALE}-${UNSET_X}", "${UNSET_X:-y}", 1]}) == {"a": ["7-${UNSET_X}", "y", 1]}
    with pytest.raises(FileNotFoundError):
        load_config(str(tmp_path / "none.json"))
