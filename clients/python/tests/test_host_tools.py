"""API tools in the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from host_process import Failed, PluginProcess

APIS = {"websearch": {"serper_api_key": "k", "_comment": "x"}, "sums": {"scale": 10, "other": 1}, "unused": {}}


@pytest.fixture
def tools(start: Callable[..., PluginProcess]) -> PluginProcess:
    process = start("tools", "api_tools")
    process.describe(APIS)
    return process


def test_describe(tools: PluginProcess) -> None:
    told = tools.describe()
    assert (told["kind"], told["name"], told["default_config"]) == ("tools", "api_tools", {})
    listed: dict[str, dict[str, Any]] = {tool["name"]: tool for tool in told["tools"]}
    assert set(listed) == {"web:look", "strict", "adds", "shows", "secret", "marked:one"}
    look = listed["web:look"]
    assert (look["resource_type"], look["config_key"], look["description"]) == ("web", "websearch", "Search the web")
    assert look["schema"] == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for."},
            "top": {"type": "integer", "default": 3},
        },
        "required": ["query"],
    }
    assert (listed["adds"]["resource_type"], listed["adds"]["config_key"]) == (None, "sums")
    # What the configuration gives need not be sent, and its values are nobody's business.
    assert sorted(listed["adds"]["schema"]["properties"]) == ["a", "b"]
    assert listed["strict"]["description"] == "Takes exactly one parameter."
    assert [name for name, tool in listed.items() if tool["hidden"]] == ["secret"]
    assert listed["marked:one"]["resource_type"] == "marked"


def test_sessions_mean_nothing_to_api_tools(tools: PluginProcess) -> None:
    assert tools.ask("warmup") == {}
    tools.initialize("web_w1_001_aa")
    assert tools.call("web:look", {"query": "q"}, session="web_w1_001_aa")["code"] == 0
    tools.cleanup("web_w1_001_aa")
    assert tools.ask("shutdown") == {}


def test_a_result_is_wrapped_with_the_inputs(tools: PluginProcess) -> None:
    answer = tools.call("web:look", {"query": "q"}, session="web_w1_001_aa")
    assert answer["code"] == 0
    added = ["session_id", "session_info", "trace_id", "worker_id"]
    assert answer["data"] == {"result": ["q", 3, "k", added], "inputs": {"query": "q", "worker_id": "w1"}}
    meta = answer["meta"]
    assert (meta["tool"], meta["resource_type"], meta["session_id"], meta["trace_id"]) == (
        "web:look", "websearch", "web_w1_001_aa", "trace-1",
    )
    assert isinstance(meta["execution_time_ms"], float)


def test_a_dict_with_a_result_is_kept_as_it_is(tools: PluginProcess) -> None:
    data = tools.call("web:look", {"query": "dict"})["data"]
    assert data == {"result": "text", "warning": "slow", "inputs": {"query": "dict", "worker_id": "w1"}}


def test_business_errors(start: Callable[..., PluginProcess]) -> None:
    process = start("tools", "api_tools")
    process.describe({"websearch": {"serper_api_key": ""}})
    answer = process.call("web:look", {"query": "hi"})
    assert (answer["code"], answer["message"]) == (5000, "SERPER_API_KEY not configured")
    assert answer["data"] == {
        "inputs": {"query": "hi", "worker_id": "w1"}, "details": "SERPER_API_KEY not configured",
    }


def test_business_errors_with_a_code_and_data(tools: PluginProcess) -> None:
    answer = tools.call("web:look", {"query": "limit"})
    assert (answer["code"], answer["message"], answer["data"]["details"]) == (4000, "too many", {"limit": 1})


def test_other_errors_and_missing_parameters(tools: PluginProcess) -> None:
    answer = tools.call("web:look", {"query": "crash"})
    assert (answer["code"], answer["message"]) == (5000, "Internal system error: disk gone")
    answer = tools.call("web:look", {"words": 1})
    text = "Search.execute() missing 1 required positional argument: 'query'"
    assert (answer["code"], answer["message"]) == (5000, f"Internal system error: {text}")
    assert answer["data"] == {"inputs": {"words": 1, "worker_id": "w1"}, "details": text}


def test_what_the_server_adds_is_kept_from_tools_that_do_not_take_it(tools: PluginProcess) -> None:
    assert tools.call("strict", {"only": "x"})["data"]["result"] == "x"


def test_inputs_are_cut(tools: PluginProcess) -> None:
    params = {
        "query": "q" * 600,
        "few": list(range(3)),
        "many": list(range(11)),
        "nested": {"a": {"b": 1}, "api_key": "s"},
        "wide": {str(n): n for n in range(11)},
        "config": {"x": 1},
        "openai_api_key": "s",
        "flag": True,
    }
    assert tools.call("web:look", params)["data"]["inputs"] == {
        "query": "q" * 500 + "...[Truncated]",
        "few": ["0", "1", "2"],
        "many": "List(len=11)",
        "nested": {"a": "{'b': 1}"},
        "wide": "Dict(len=11)",
        "flag": True,
        "worker_id": "w1",
    }


def test_functions_get_their_configuration_as_parameters(tools: PluginProcess) -> None:
    assert tools.call("adds", {"a": 1, "b": 2})["data"] == 30
    assert tools.call("adds", {"a": 1, "b": 2, "scale": 2})["data"] == 6, "what the caller sends goes before"
    with pytest.raises(Failed, match=r"^adds\(\) missing 1 required positional argument: 'b'$") as failed:
        tools.call("adds", {"a": 1})
    assert failed.value.kind == "arguments"
    shown = tools.call("shows")["data"]
    assert shown["config"] == {"scale": 10, "other": 1}
    assert shown["kwargs"] == ["other", "scale", "trace_id", "worker_id"]


def test_marked_functions_of_a_module(tools: PluginProcess) -> None:
    assert tools.call("marked:one")["data"] == 1
