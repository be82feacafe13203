"""Which methods of AIO's SDK the tests have called, and whether each was seen to succeed and to fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from agent_sandbox import Sandbox

SUCCEEDED: set[str] = set()
FAILED: set[str] = set()


def namespaces() -> Iterator[tuple[str, type]]:
    client = Sandbox(base_url="http://127.0.0.1:1")
    for name in dir(type(client)):
        if not name.startswith("_") and type(getattr(client, name)).__module__.startswith("agent_sandbox."):
            yield name, type(getattr(client, name))


def methods() -> Iterator[tuple[str, type, str]]:
    """`namespace.method`, its class and its name there."""
    for namespace, owner in namespaces():
        for name, value in vars(owner).items():
            if not name.startswith("_") and callable(value):
                yield f"{namespace}.{name}", owner, name


def watch() -> None:
    """From now on calls are noted."""
    for name, owner, method in list(methods()):
        setattr(owner, method, watched(name, getattr(owner, method)))


def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def parts(stream: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from stream
        except Exception:
            FAILED.add(name)
            raise
        SUCCEEDED.add(name)

    @functools.wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = call(*args, **kwargs)
        except Exception:
            FAILED.add(name)
            raise
        if isinstance(answer, Iterator):
            return parts(answer)
        (FAILED if getattr(answer, "success", True) is False else SUCCEEDED).add(name)
        return answer

    return noted
