"""What models read: the catalogue of tools, and results as text."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import BashResult, ExecuteRequest, ResultFormatter, ToolResult, VMResult, format_tool_result
from sandbox import tool_schemas as schemas


def test_the_catalogue() -> None:
    counts = {"vm": 14, "web": 4, "doc": 2, "ds": 3, "rag": 1, "sql": 3, "bash": 1, "code": 7, "browser": 12}
    for resource, count in counts.items():
        assert len(schemas.get_tools_by_resource(resource)) == count, resource
    names = schemas.get_all_tool_names()
    assert len(names) == len(set(names)) == sum(counts.values())
    assert {"rag-search", "vm-click", "web-visit", "ds_run_python", "doc-read"} <= set(names)
    for schema in schemas.get_tool_schemas():
        assert schema.keys() == {"name", "description", "parameters"}
        for parameter in schema["parameters"]:
            assert {"name", "type", "description", "required"} <= parameter.keys()
            assert ("array_type" in parameter) == (parameter["type"] == "array")
    assert schemas.get_mcp_tool_schemas() == []
    assert schemas.get_tools_by_resource("nothing") == []


@pytest.mark.parametrize(
    ("allowed", "count"),
    [
        (None, 47), ([], 0), (["*"], 47), (["vm:*"], 14), (["vm_*"], 14), (["vm-*"], 14), (["vm"], 14),
        (["vm:click"], 1), (["vm_click", "vm-click"], 1), (["vm.key_*"], 2), (["ds_*"], 3), (["ds:run_python"], 1),
        (["sql:*"], 3), (["text2sql_*"], 3), (["sql-get_schema"], 1), (["web:search", "doc-search"], 2),
        (["mcp:filesystem.*"], 0), (["nothing"], 0), (["web:*", "rag:*", "web-visit"], 5),
    ],
)
def test_what_is_allowed(allowed: list[str] | None, count: int) -> None:
    assert len(schemas.get_tool_schemas(allowed)) == count


def test_a_schema_may_be_changed() -> None:
    schemas.get_tool_schemas(["vm-click"])[0]["parameters"].clear()
    assert schemas.get_tool_schemas(["vm-click"])[0]["parameters"]


def text(tool: str, data: Any, resource: str | None = None, verbose: bool = False) -> str:
    meta = {"tool": tool, "resource_type": resource}
    return format_tool_result({"code": 0, "message": "success", "data": data, "meta": meta}, verbose)


def test_results() -> None:
    assert text("bash:run", {"stdout": "a\n", "stderr": "", "return_code": 0}) == "a"
    assert text("bash:run", {"stdout": "", "stderr": "bad", "return_code": 2}) == "stderr:\nbad\nexit code: 2"
    assert "exit code: 3" in text("bash:run", {"stdout": "", "exit_code": 3})
    assert "successfully" in text("bash:run", {"stdout": "", "return_code": 0})
    assert text("code:read", "   1\u2192x") == "   1\u2192x"
    assert text("web:search", {"result": "# found", "inputs": {}}) == "# found"
    assert text("web:visit", {"result": "page", "warning": "cut", "inputs": {}}) == "page\nwarning: cut"
    assert text("rag:search", {"query": "q", "context": "[t]\nx"}) == "[t]\nx"
    assert text("rag:batch_search", {"count": 2, "contexts": ["x", "y"]}) == "[1]\nx\n\n[2]\ny"
    assert text("ds_run_python", {"result": "3", "images": [], "inputs": {}}, "ds") == "3"
    table = {"result": {"columns": ["x", "y"], "rows": [[1, None]], "row_count": 1, "truncated": False}}
    assert text("text2sql:execute", table) == "x | y\n1 | NULL\n(1 rows)"
    shot = text("vm:screenshot", {"image": "A" * 5000, "size": [1, 2], "accessibility_tree": "tree"})
    assert "AAAA" not in shot
    assert "tree" in shot
    assert text("browser:goto", {"url": "u", "title": "t", "status": 200}) == "t\nu (status 200)"
    assert text("mcp:a.b", {"content": [{"type": "text", "text": "hi"}]}, "mcp") == "hi"
    assert text("mcp:a.b", {"content": [{"type": "text", "text": "no"}], "isError": True}) == "Error: no"
    assert text("demo:x", {"n": 1}) == '{\n  "n": 1\n}'
    assert text("demo:x", None) == "{}"


def test_failures_are_readable() -> None:
    answer = {"code": 5000, "message": "no key", "data": {"inputs": {}, "details": "no key"}, "meta": {}}
    assert format_tool_result(answer) == "Error: no key"
    answer["data"] = {"details": "set it"}
    assert format_tool_result(answer) == "Error: no key (set it)"


def test_forms_of_ones_own() -> None:
    class Own(ToolResult):
        def to_str(self, verbose: bool = False) -> str:
            return f"own {self.raw_data}"

    ResultFormatter.register_formatter("mine", Own)
    ResultFormatter.register_formatter("other:x", Own)
    assert text("mine:x", 1) == "own 1"
    assert text("other:x", 1) == "own 1"
    made = ResultFormatter.format({"code": 0, "data": {}, "meta": {"tool": "vm:click"}})
    assert isinstance(made, VMResult)
    assert made.get_metadata() == {"tool": "vm:click"}
    assert isinstance(ResultFormatter.format({"code": 0, "data": {}, "meta": {"resource_type": "bash"}}), BashResult)


def test_messages() -> None:
    request = ExecuteRequest(worker_id="w", action="vm:click")
    assert (request.get_resource_type(), request.get_action_name()) == ("vm", "click")
    assert ExecuteRequest(worker_id="w", action="ds_x").get_resource_type() is None
    assert ExecuteRequest.from_dict(request.to_dict()) == request
    assert '"action": "vm:click"' in request.to_json()
