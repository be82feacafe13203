"""Backends in the host: describing, sessions, what is added to calls, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from host_process import Failed, PluginProcess, host

Start = Callable[..., PluginProcess]


def test_describe_tells_what_the_backend_is(start: Start) -> None:
    demo = start("backend", "demo_backends.DemoBackend")
    told = demo.describe({"greeting": "hello", "more": {"b": 2}})
    assert told["protocol"] == 1
    assert told["kind"] == "backend"
    assert (told["name"], told["version"]) == ("demo", "1.0.0")
    assert told["default_config"] == {"greeting": "hello", "more": {"b": 2}}
    assert [tool["name"] for tool in told["tools"]] == [
        "demo:boom", "demo:hidden_one", "demo:incr", "demo:legacy", "demo:sleep",
    ]
    assert {tool["resource_type"] for tool in told["tools"]} == {"demo"}
    assert {tool["config_key"] for tool in told["tools"]} == {None}
    texts = {tool["name"]: tool["description"] for tool in told["tools"]}
    assert texts["demo:incr"] == "Increment a counter\n\n        Longer text."
    assert texts["demo:legacy"] == "legacy return"
    assert texts["demo:boom"] == ""


def test_own_defaults_stand_when_nothing_is_configured(start: Start) -> None:
    assert start("backend", "demo_backends.DemoBackend").describe({})["default_config"] == {
        "greeting": "hi", "nested": {"a": 1},
    }


def test_hidden_by_mark_and_by_docstring(odd: PluginProcess) -> None:
    hidden = {tool["name"] for tool in odd.describe()["tools"] if tool["hidden"]}
    assert hidden == {"odd:typed", "odd:given"}


def test_schema_is_made_of_signature_and_docstring(odd: PluginProcess) -> None:
    assert odd.tool("odd:typed")["schema"] == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "what is said, over two lines."},
            "numbers": {"type": "array", "items": {"type": "integer"}, "description": "some of them."},
            "color": {"enum": ["red", "blue"], "type": "string"},
            "mode": {"enum": ["a", "b"], "type": "string", "default": "a"},
            "limit": {"type": "integer", "description": "how many at most."},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
            "options": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "required": ["text", "numbers"],
    }
    assert odd.tool("odd:given")["schema"] == {"type": "object", "properties": {"own": {}}}
    assert odd.tool("odd:who")["schema"] == {"type": "object", "properties": {}}


def test_tools_that_bind_server_registers(odd: PluginProcess) -> None:
    assert odd.tool("odd:bound")["resource_type"] == "odd"
    assert odd.call("odd:bound")["data"] == "bound"


def test_a_session_keeps_live_objects(odd: PluginProcess) -> None:
    odd.initialize("odd_w1_001_aa", {"a": 1})
    odd.initialize("odd_w1_002_bb")
    assert [odd.call("odd:live", session="odd_w1_001_aa")["data"]["calls"] for _ in range(3)] == [1, 2, 3]
    assert odd.call("odd:live", session="odd_w1_002_bb")["data"]["calls"] == 1


def test_session_info_is_one_dict_that_gets_the_new_times(odd: PluginProcess) -> None:
    odd.initialize("s_1")
    odd.call("odd:live", session="s_1")
    later = {"session_id": "s_1", "last_activity": "2026-01-01T00:09:00.000000", "data": {"live": "not this one"}}
    again = odd.ask("call", {"tool": "odd:live", "params": {}, "session_id": "s_1", "session": later})
    assert again["result"]["data"] == {"calls": 2, "seen": 2, "last": "2026-01-01T00:09:00.000000"}


def test_warmup_cleanup_and_shutdown(odd: PluginProcess) -> None:
    assert odd.ask("warmup") == {}
    odd.initialize("s_1", worker="w9")
    odd.cleanup("s_1")
    assert odd.call("odd:events")["data"] == ["warmup", "cleanup w9 s_1"]
    # The session is gone: what it held is not there for a call that still names it.
    with pytest.raises(Failed, match="live"):
        odd.call("odd:live", session="s_1")
    assert odd.ask("shutdown") == {}
    assert odd.end() == 0
    assert odd.log.count(b"SHUTDOWN REACHED") == 1


def test_a_failed_initialize_leaves_no_session(odd: PluginProcess) -> None:
    with pytest.raises(Failed) as failed:
        odd.initialize("s_1", {"fail": True})
    assert (failed.value.message, failed.value.type, failed.value.kind) == ("no such thing", "ValueError", "exception")
    odd.initialize("s_1")
    assert odd.call("odd:live", session="s_1")["data"]["calls"] == 1


def test_bad_init_backend(start: Start) -> None:
    bad = start("backend", "demo_backends.BadInitBackend")
    assert [tool["name"] for tool in bad.describe()["tools"]] == ["badinit:x"]
    with pytest.raises(Failed, match="^warmup bad$"):
        bad.ask("warmup")
    with pytest.raises(Failed, match="^init bad$"):
        bad.initialize("s_1")


def test_what_the_server_says_is_added(odd: PluginProcess) -> None:
    odd.initialize("s_1")
    worker, trace, session, info, fields = odd.call("odd:who", session="s_1")["data"]
    assert (worker, trace, session, info) == ("w1", "trace-1", "s_1", "s_1")
    assert {"session_name", "config", "status", "data", "expires_at", "auto_created"} <= set(fields)
    kwargs = odd.call("odd:all", {"a": 1, "b": 2}, session="s_1")["data"]["kwargs"]
    assert kwargs == {"b": 2, "worker_id": "w1", "trace_id": "trace-1", "session_id": "s_1", "session_info": None}


def test_callers_cannot_say_who_they_are(demo: PluginProcess, odd: PluginProcess) -> None:
    demo.initialize("demo_w1_001_aa")
    spoof = {"session_info": {"data": {"n": 100}}, "session_id": "spoofed", "worker_id": "someone else"}
    answer = demo.call("demo:incr", spoof, session="demo_w1_001_aa")
    assert answer["data"] == {"n": 1}
    assert answer["meta"]["session_id"] == "demo_w1_001_aa"
    odd.initialize("s_1")
    assert odd.call("odd:who", spoof, session="s_1")["data"][:4] == ["w1", "trace-1", "s_1", "s_1"]
    # Nor where the server says nothing.
    stateless = odd.call("odd:all", {"a": 1, **spoof}, worker_id=None, trace_id=None)["data"]["kwargs"]
    assert stateless == {}


def test_a_trace_id_in_params_is_the_callers_choice(demo: PluginProcess) -> None:
    demo.initialize("demo_w1_001_aa")
    answer = demo.call("demo:incr", {"by": 2, "trace_id": "mine"}, session="demo_w1_001_aa")
    assert answer["meta"]["trace_id"] == "mine"
    assert demo.call("demo:incr", session="demo_w1_001_aa")["meta"]["trace_id"] == "trace-1"


def test_results_go_as_they_are(demo: PluginProcess) -> None:
    assert demo.call("demo:legacy") == {"x": 1}
    assert demo.call("demo:sleep", {"s": 0}) == {"code": 0, "message": "success", "data": {"slept": 0}}
    demo.initialize("demo_w1_001_aa")
    answer = demo.call("demo:incr", {"by": 2}, session="demo_w1_001_aa")
    assert answer["meta"]["execution_time_ms"] is None
    assert answer["data"] == {"n": 2}


@pytest.mark.parametrize(
    ("tool", "params", "text"),
    [
        ("demo:incr", {"zzz": 1}, r"DemoBackend\.incr\(\) got an unexpected keyword argument 'zzz'"),
        ("demo:boom", {"trace_id": "t"}, r"DemoBackend\.boom\(\) got an unexpected keyword argument 'trace_id'"),
    ],
)
def test_wrong_arguments_are_told_in_pythons_words(
    demo: PluginProcess, tool: str, params: dict[str, object], text: str
) -> None:
    with pytest.raises(Failed, match=f"^{text}$") as failed:
        demo.call(tool, params)
    assert (failed.value.kind, failed.value.type) == ("arguments", "TypeError")


@pytest.mark.parametrize("tool", ["odd:plain", "odd:wrapped"])
def test_missing_arguments(odd: PluginProcess, tool: str) -> None:
    with pytest.raises(Failed, match="missing 1 required positional argument: 'text'$") as failed:
        odd.call(tool)
    assert failed.value.kind == "arguments"
    assert failed.value.message.startswith("OddBackend.")


def test_a_type_error_from_inside_is_an_exception(odd: PluginProcess) -> None:
    with pytest.raises(Failed, match="has no len") as failed:
        odd.call("odd:inside")
    assert (failed.value.kind, failed.value.type) == ("exception", "TypeError")


def test_unknown_tools_and_methods(odd: PluginProcess) -> None:
    with pytest.raises(Failed) as failed:
        odd.call("odd:nothing")
    assert failed.value.kind == "unknown_tool"
    with pytest.raises(Failed) as failed:
        odd.ask("dance")
    assert failed.value.code == -32601
    with pytest.raises(Failed, match="call needs tool") as failed:
        odd.ask("call", {"tool": 7})
    assert failed.value.code == -32602


@pytest.mark.parametrize(
    ("dotted", "text"),
    [
        ("no_such_module.Backend", "No module named 'no_such_module'"),
        ("odd_backend.Nothing", "has no class Nothing"),
        ("Plain", "not of the form"),
    ],
)
def test_what_cannot_be_loaded_is_told(start: Start, dotted: str, text: str) -> None:
    process = start("backend", dotted)
    with pytest.raises(Failed, match=text):
        process.describe()
    with pytest.raises(Failed, match="the first request is describe"):
        process.ask("warmup")
    assert process.end() == 0


def test_a_checkout_of_agentflow_adds_what_is_not_here(tmp_path: Path) -> None:
    """Its backends live in packages of the same names, and are written against modules that are here."""
    folder = tmp_path / "sandbox/server/backends/resources"
    folder.mkdir(parents=True)
    for package in (folder, *list(folder.parents)[:3]):
        (package / "__init__.py").write_text("")
    (folder.parents[0] / "base.py").write_text("raise ImportError('ours is used')")
    (folder / "mine.py").write_text(
        "from sandbox.server.backends.base import Backend\n"
        "from ...core import tool\n"
        "class MineBackend(Backend):\n"
        "    name = 'mine'\n"
        "    @tool('mine:x')\n"
        "    def x(self): return {'code': 0}\n"
    )
    dotted = "sandbox.server.backends.resources.mine.MineBackend"
    process = host("backend", dotted, path=[tmp_path])
    try:
        process.describe()
        assert process.call("mine:x") == {"code": 0}
    finally:
        process.kill()
