"""What models are told of the tools, without a running server.

A running server knows better: its `/api/v1/tools?format=agentflow` lists the tools that it really has.
"""

from __future__ import annotations

import copy
import re
from fnmatch import fnmatchcase

from .desktop import BROWSER, VM
from .entry import Schema
from .knowledge import DOC, DS, RAG, SQL, WEB
from .workspace import BASH, CODE

__all__ = [
    "get_tool_schemas", "get_all_tool_names", "get_tools_by_resource", "get_rag_tool_schemas", "get_web_tool_schemas",
    "get_vm_tool_schemas", "get_doc_tool_schemas", "get_ds_tool_schemas", "get_sql_tool_schemas",
    "get_mcp_tool_schemas",
]

_CATALOGUE: dict[str, list[Schema]] = {
    "rag": RAG,
    "web": WEB,
    "vm": VM,
    "doc": DOC,
    "ds": DS,
    "text2sql": SQL,
    "bash": BASH,
    "code": CODE,
    "browser": BROWSER,
}

#: Other names of resource types.
_ALIASES = {"sql": "text2sql"}


def get_tool_schemas(allowed_tools: list[str] | None = None) -> list[Schema]:
    """Those that are allowed, each once and in the catalogue's order; all when nothing is said.

    Args:
        allowed_tools: names in any spelling (`vm-click`, `vm:click`, `vm_click`), patterns (`vm:*`, `vm_*`, `*`), or
            types (`vm`). `sql` is the same as `text2sql`. An empty list allows nothing.
    """
    everything = [schema for schemas in _CATALOGUE.values() for schema in schemas]
    if allowed_tools is None:
        return copy.deepcopy(everything)
    patterns = {_folded(name) for name in allowed_tools}
    patterns |= {f"{pattern}_*" for pattern in patterns if pattern in _CATALOGUE}
    chosen = [s for s in everything if any(fnmatchcase(_folded(s["name"]), pattern) for pattern in patterns)]
    return copy.deepcopy(chosen)


def get_all_tool_names() -> list[str]:
    return [schema["name"] for schema in get_tool_schemas()]


def get_tools_by_resource(resource_type: str) -> list[Schema]:
    return copy.deepcopy(_CATALOGUE.get(_ALIASES.get(resource_type, resource_type), []))


def get_rag_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("rag")


def get_web_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("web")


def get_vm_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("vm")


def get_doc_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("doc")


def get_ds_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("ds")


def get_sql_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("text2sql")


def get_bash_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("bash")


def get_code_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("code")


def get_browser_tool_schemas() -> list[Schema]:
    return get_tools_by_resource("browser")


def get_mcp_tool_schemas() -> list[Schema]:
    """None: the running server knows its MCP tools, and `/api/v1/tools?format=agentflow` lists them."""
    return []


def _folded(name: str) -> str:
    """All spellings of a name as one."""
    folded = re.sub(r"[:.\-]", "_", name.strip().lower())
    prefix, separator, rest = folded.partition("_")
    return f"{_ALIASES.get(prefix, prefix)}{separator}{rest}"
