"""Waiting for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(look: Callable[[], Any], what: str = "what was expected", patience: float = 120) -> Any:
    """What `look` finds, once it finds something. `patience` is in seconds: long, since machines of tests are slow."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"after {patience} s still not: {what}"
        time.sleep(0.05)
    return found
