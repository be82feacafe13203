"""How a tool that takes long says where it is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

#: Where the words of the call that runs here go. The plugin host sets it.
listener: ContextVar[Callable[[str], None] | None] = ContextVar("progress_listener", default=None)


def report_progress(message: str) -> None:
    """Tells the caller how far the tool is. Where nobody listens, nothing happens."""
    if (say := listener.get()) is not None:
        say(message)
