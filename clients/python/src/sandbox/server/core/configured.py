"""An API tool together with its part of the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .invoke import run


def configured(func: Callable[..., Any], config: dict[str, Any]) -> Callable[..., Any]:
    """A BaseApiTool is handed its configuration; a function gets it as parameters, see `Configured`."""
    setter = getattr(func, "set_config", None)
    if callable(setter):
        setter(config)
        return func
    return Configured(func, config) if config else func


class Configured:
    """A function some of whose parameters come from the configuration.

    It gets the keys that it names, all keys when it takes `**kwargs`, and the whole as `config` when it names that.
    What the caller sent goes before.
    """

    def __init__(self, func: Callable[..., Any], config: Mapping[str, Any]) -> None:
        self.func = func
        self.__wrapped__ = func
        self.__name__ = getattr(func, "__name__", "tool")
        self.__doc__ = func.__doc__
        parameters = inspect.signature(func).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.added = {key: value for key, value in config.items() if takes_all or key in parameters}
        if "config" in parameters:
            self.added["config"] = dict(config)

    def filled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.added, **params}

    async def __call__(self, **params: Any) -> Any:
        return await run(self.func, (), self.filled(params))
