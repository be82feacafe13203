"""Backends that come with AgentFlow. The server has its own `bash`, `code`, `browser`, `vm`, `rag` and `mcp`.

An AgentFlow checkout on the plugin path adds its modules. This package takes the place of the checkout's own `__init__`,
which imports all of them and so needs the libraries of all of them for any one.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

__path__ = pkgutil.extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    """A class that the checkout's `__init__` would export: it is in one of the modules, most of which may not import."""
    if not name.startswith("_"):
        for module in pkgutil.iter_modules(__path__):
            try:
                return getattr(importlib.import_module(f"{__name__}.{module.name}"), name)
            except (ImportError, AttributeError):
                continue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
