"""Tools: how they are marked, found and called."""

from .decorators import TOOL_MARKER, get_tool_metadata, is_tool, scan_tools, tool
from .progress import report_progress
from .resource_router import ResourceRouter
from .tool_executor import ToolExecutor

__all__ = [
    "ResourceRouter", "ToolExecutor", "tool", "is_tool", "get_tool_metadata", "scan_tools", "TOOL_MARKER",
    "report_progress",
]
