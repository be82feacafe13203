"""The programs in docs/PLUGINS.md work as they are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from host_process import REPOSITORY, PluginProcess, host

DOCUMENT = (REPOSITORY / "docs/PLUGINS.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """A directory with every program that begins with its file's name."""
    for kind, text in BLOCKS:
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / name[1]).write_text(text)
    return tmp_path


@pytest.fixture
def begin(printed: Path) -> Callable[..., PluginProcess]:
    return lambda *arguments: host(*arguments, path=[printed])


def test_json_is_json() -> None:
    assert [json.loads(text) for kind, text in BLOCKS if kind == "json"]


def test_the_backend(begin: Callable[..., PluginProcess]) -> None:
    process = begin("backend", "counter_backend.CounterBackend")
    try:
        told = process.describe({"start": 10})
        schema = {"type": "integer", "default": 1, "description": "how much to add."}
        assert told["tools"][0]["schema"]["properties"] == {"by": schema}
        process.initialize("counter_w1_001_aa", {"start": 5})
        assert process.call("counter:add", {"by": 2}, "counter_w1_001_aa")["data"] == {"count": 7}
        assert process.call("counter:add", {"by": -1}, "counter_w1_001_aa")["code"] == 4000
        process.cleanup("counter_w1_001_aa")
        assert process.end() == 0
        assert b"counted to 7" in process.log
    finally:
        process.kill()


def test_the_api_tools(begin: Callable[..., PluginProcess]) -> None:
    process = begin("tools", "my_tools")
    try:
        told = process.describe({"weather": {"api_key": "k"}, "sums": {"scale": 10}})
        first = {tool["name"]: tool["description"].partition("\n")[0] for tool in told["tools"]}
        assert first == {"weather:today": "The weather of a city.", "add": "Add two numbers."}
        assert [tool["resource_type"] for tool in told["tools"]] == ["weather", None]
        answer = process.call("weather:today", {"city": "Bergen"})
        assert answer["data"] == {"result": "It rains in Bergen.", "inputs": {"city": "Bergen", "worker_id": "w1"}}
        assert process.call("add", {"a": 1, "b": 2})["data"] == 30
    finally:
        process.kill()


def test_the_errors_kinds_are_those_of_the_host() -> None:
    section = DOCUMENT.partition("### Errors")[2].partition("### Bounds")[0]
    kinds = re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE)
    assert set(kinds) == {"exception", "arguments", "not_json", "cancelled", "unknown_tool"}
