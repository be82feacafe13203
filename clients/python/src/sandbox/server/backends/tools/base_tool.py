"""BaseApiTool: an API tool with a configuration, whose results and errors are put into envelopes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ...core.invoke import INJECTED, arguments, run
from ..error_codes import ErrorCode
from ..response_builder import ResponseTimer, build_error_response, build_success_response

log = logging.getLogger(__name__)

UNKNOWN_TOOL = "unknown_tool"
UNKNOWN_RESOURCE = "unknown"

#: Characters of a text, and entries of a list or object, that `inputs` shows in full.
SHOWN_CHARACTERS = 500
SHOWN_ENTRIES = 10


class ToolBusinessError(Exception):
    """The tool can't do what was asked, and says why. The text goes to the caller as it is."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.EXECUTION_ERROR, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data


class BaseApiTool(ABC):
    """Subclass it with an async `execute`, and register an instance with `@register_api_tool` or by calling it."""

    def __init__(self, tool_name: str = UNKNOWN_TOOL, resource_type: str = UNKNOWN_RESOURCE) -> None:
        self.tool_name = tool_name
        self.resource_type = resource_type
        self._config: dict[str, Any] = {}

    def set_config(self, config: dict[str, Any]) -> None:
        self._config = dict(config or {})

    def get_config(self, key: str, default: Any = None) -> Any:
        return self._config.get(key, default)

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """The tool's work. What it returns becomes `data.result`, unless it is a dict that has a `result` itself."""

    async def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        timer = ResponseTimer()
        context = {key: kwargs[key] for key in INJECTED if key in kwargs}
        inputs = shown_inputs(kwargs)
        try:
            # What the server adds reaches only those who take it; the rest is the caller's, and a misfit is his error.
            own = {key: value for key, value in kwargs.items() if key not in INJECTED}
            result = await run(self.execute, args, arguments(self.execute, own, context))
        except ToolBusinessError as error:
            details = error.message if error.data is None else error.data
            return self._failed(error.code, error.message, inputs, details, timer, kwargs)
        except Exception as error:  # every failure of a tool is an answer
            log.warning("tool %s failed", self.tool_name, exc_info=True)
            message = f"Internal system error: {error}"
            return self._failed(ErrorCode.EXECUTION_ERROR, message, inputs, str(error), timer, kwargs)
        data = {**result, "inputs": inputs} if isinstance(result, dict) and "result" in result else None
        return build_success_response(
            data if data is not None else {"result": result, "inputs": inputs},
            tool=self.tool_name,
            execution_time_ms=timer.get_elapsed_ms(),
            resource_type=self.resource_type,
            session_id=kwargs.get("session_id"),
            trace_id=kwargs.get("trace_id"),
        )

    def _failed(
        self,
        code: int,
        message: str,
        inputs: dict[str, Any],
        details: Any,
        timer: ResponseTimer,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        return build_error_response(
            code,
            message,
            tool=self.tool_name,
            data={"inputs": inputs, "details": details},
            execution_time_ms=timer.get_elapsed_ms(),
            resource_type=self.resource_type,
            session_id=kwargs.get("session_id"),
            trace_id=kwargs.get("trace_id"),
        )


def shown_inputs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for the answer: keys and what the server added are left out, long ones are cut."""
    return {key: _shown(value) for key, value in kwargs.items() if not _is_kept_back(key)}


def _is_kept_back(key: str) -> bool:
    lower = key.lower()
    return (
        lower in ("config", "trace_id", "api_key", "apikey")
        or lower.startswith("session_")
        or lower.endswith(("_api_key", "_config"))
    )


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "...[Truncated]"
    if isinstance(value, (list, tuple)):
        return [_inner(item) for item in value] if len(value) <= SHOWN_ENTRIES else f"List(len={len(value)})"
    if isinstance(value, dict):
        if len(value) > SHOWN_ENTRIES:
            return f"Dict(len={len(value)})"
        return {str(key): _inner(item) for key, item in value.items() if not _is_kept_back(str(key))}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _inner(value)


def _inner(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...[Truncated]"
