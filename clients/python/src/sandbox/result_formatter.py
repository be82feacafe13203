"""Answers of tools as text for a model."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

#: Characters of a picture's data that text shows. A model can't read the rest, and pays for it.
SHOWN_BASE64 = 40


class ToolResult(ABC):
    def __init__(self, raw_data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        self.raw_data = raw_data
        self.metadata = metadata or {}

    @abstractmethod
    def to_str(self, verbose: bool = False) -> str:
        """The text. `verbose` adds what is seldom of use."""

    def get_metadata(self) -> dict[str, Any]:
        return self.metadata

    def __str__(self) -> str:
        return self.to_str()

    def _get(self, key: str, default: Any = None) -> Any:
        return self.raw_data.get(key, default) if isinstance(self.raw_data, dict) else default


class PlainResult(ToolResult):
    """For tools that have no form of their own: the field that is text, else everything as JSON."""

    def to_str(self, verbose: bool = False) -> str:
        return as_text(self.raw_data)


class BashResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        if not isinstance(self.raw_data, dict):
            return as_text(self.raw_data)
        out, err = str(self._get("stdout") or ""), str(self._get("stderr") or "")
        code = self._get("return_code", self._get("exit_code", 0))
        parts = [out.rstrip("\n")] if out.strip() else []
        if err.strip():
            parts.append(f"stderr:\n{err.rstrip()}")
        if code:
            parts.append(f"exit code: {code}")
        elif not parts:
            parts.append("Command executed successfully (no output)")
        if verbose and self._get("cwd"):
            parts.append(f"directory: {self._get('cwd')}")
        return "\n".join(parts)


class CodeExecutionResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        # The tools for files in a workspace answer with their text and nothing else.
        if not isinstance(self.raw_data, dict) or not {"stdout", "stderr", "return_code"} & self.raw_data.keys():
            return as_text(self.raw_data)
        text = BashResult(self.raw_data).to_str()
        if result := self._get("result"):
            text = f"{text}\nresult: {as_text(result)}"
        if verbose:
            for key, unit in (("execution_time_ms", "ms"), ("memory_used_mb", "MB")):
                if self._get(key) is not None:
                    text += f"\n{key}: {self._get(key)} {unit}"
        return text


class VMResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        if not isinstance(self.raw_data, dict):
            return as_text(self.raw_data)
        apart = ("accessibility_tree", "image", "session")
        rest = {key: value for key, value in self.raw_data.items() if key not in apart}
        parts = [as_text(rest)] if rest else []
        if self._get("image"):
            parts.append(f"[screenshot, {len(str(self._get('image')))} characters of base64]")
        if tree := self._get("accessibility_tree"):
            parts.append(f"accessibility tree:\n{tree}")
        return "\n".join(parts) or "done"


class BrowserResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        if not isinstance(self.raw_data, dict):
            return as_text(self.raw_data)
        if path := self._get("image_path"):
            return f"screenshot: {path}" + (f" ({self._get('size')})" if self._get("size") else "")
        if self._get("url") is not None and self._get("title") is not None:
            status = f" (status {self._get('status')})" if self._get("status") is not None else ""
            text = f"\n{self._get('text')}" if self._get("text") else ""
            return f"{self._get('title')}\n{self._get('url')}{status}{text}"
        if self._get("text") is not None:
            return str(self._get("text")) + (f"\n{self._get('html')}" if verbose and self._get("html") else "")
        return as_text(self.raw_data)


class WebSearchResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        return as_text(self.raw_data)


class VisitResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        text = as_text(self.raw_data)
        return f"{text}\nwarning: {self._get('warning')}" if self._get("warning") else text


class RAGSearchResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        if contexts := self._get("contexts"):
            return "\n\n".join(f"[{number}]\n{text}" for number, text in enumerate(contexts, 1))
        text = as_text(self.raw_data)
        return f"query: {self._get('query')}\n{text}" if verbose and self._get("query") else text


class DocResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        return as_text(self.raw_data)


class SQLResult(ToolResult):
    def to_str(self, verbose: bool = False) -> str:
        result = self._get("result", self.raw_data)
        if not isinstance(result, dict) or "columns" not in result:
            return as_text(self.raw_data)
        rows = [" | ".join(map(str, result["columns"]))]
        for row in result.get("rows", []):
            rows.append(" | ".join("NULL" if cell is None else str(cell) for cell in row_cells(row, result)))
        cut = ", cut" if result.get("truncated") else ""
        return "\n".join([*rows, f"({result.get('row_count', len(rows) - 1)} rows{cut})"])


def row_cells(row: Any, result: dict[str, Any]) -> list[Any]:
    return [row.get(name) for name in result["columns"]] if isinstance(row, dict) else list(row)


class ResultFormatter:
    """Chooses the form by the tool's full name, its prefix, and the resource type, in this order."""

    _by_tool: dict[str, type] = {
        "web:search": WebSearchResult,
        "web:image_search": WebSearchResult,
        "web:reverse_image_search": WebSearchResult,
        "web:visit": VisitResult,
    }
    _by_type: dict[str, type] = {
        "bash": BashResult,
        "code": CodeExecutionResult,
        "browser": BrowserResult,
        "vm": VMResult,
        "rag": RAGSearchResult,
        "doc": DocResult,
        "ds": DocResult,
        "text2sql": SQLResult,
        "sql": SQLResult,
    }

    @classmethod
    def format(cls, response: dict[str, Any]) -> ToolResult:
        """Of an envelope. A failure becomes the text of its message."""
        meta = response.get("meta") or {}
        if response.get("code", 0) != 0:
            return PlainResult({"result": f"Error: {_failure(response)}"}, meta)
        tool, data = str(meta.get("tool") or ""), response.get("data")
        prefix = tool.partition(":")[0] if ":" in tool else tool.partition("_")[0]
        kind = (
            cls._by_tool.get(tool)
            or cls._by_type.get(prefix)
            or cls._by_type.get(str(meta.get("resource_type") or ""))
            or PlainResult
        )
        return kind({} if data is None else data, meta)  # type: ignore[no-any-return]

    @classmethod
    def format_to_str(cls, response: dict[str, Any], verbose: bool = False) -> str:
        return cls.format(response).to_str(verbose)

    @classmethod
    def register_formatter(cls, tool_type: str, formatter_class: type) -> None:
        """`tool_type` is a full name such as `demo:incr`, or a type such as `demo`."""
        (cls._by_tool if ":" in tool_type else cls._by_type)[tool_type] = formatter_class


def format_tool_result(response: dict[str, Any], verbose: bool = False) -> str:
    return ResultFormatter.format_to_str(response, verbose)


def as_text(data: Any) -> str:
    """The field that is the answer, the parts of an MCP result, or JSON."""
    if isinstance(data, str):
        return data
    if isinstance(data, dict):
        content = data.get("content")
        if isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content):
            text = "\n".join(_part(part) for part in content)
            return f"Error: {text}" if data.get("isError") else text
        for key in ("result", "context", "text", "accessibility_tree"):
            if isinstance(data.get(key), str):
                return str(data[key])
        if "result" in data and set(data) <= {"result", "inputs", "images", "warning"}:
            return as_text(data["result"])
    return json.dumps(_shortened(data), ensure_ascii=False, indent=2, default=str)


def _part(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return str(part.get("text", ""))
    return json.dumps(_shortened(part), ensure_ascii=False, default=str)


def _shortened(data: Any) -> Any:
    """Without the pictures."""
    if isinstance(data, dict):
        return {key: (_picture if key in _PICTURES else _shortened)(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_shortened(item) for item in data]
    return data


_PICTURES = ("image", "base64", "data")


def _picture(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 1000 and not value[:1000].count(" "):
        return f"{value[:SHOWN_BASE64]}... ({len(value)} characters)"
    return _shortened(value)


def _failure(response: dict[str, Any]) -> str:
    data = response.get("data")
    details = data.get("details") if isinstance(data, dict) else None
    message = str(response.get("message") or f"code {response.get('code')}")
    return message if not details or str(details) in message else f"{message} ({details})"
