"""What can go wrong, as the protocol's errors."""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
PLUGIN_ERROR = -32000


class Refused(Exception):
    """An answer that is an error. `kind` is one of exception, arguments, not_json, cancelled, unknown_tool."""

    def __init__(self, message: str, kind: str, type_name: str | None = None, code: int = PLUGIN_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.type_name = type_name or kind
        self.code = code


def error_object(error: BaseException) -> dict[str, Any]:
    if isinstance(error, Refused):
        code, kind, name, message = error.code, error.kind, error.type_name, error.message
    else:
        code, kind, name, message = PLUGIN_ERROR, "exception", type(error).__name__, words(error)
    return {"code": code, "message": clean(message), "data": {"type": name, "kind": kind}}


def words(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # a __str__ of the tool's own making
        return type(error).__name__


def clean(text: str) -> str:
    """Half a surrogate pair can't be sent as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
