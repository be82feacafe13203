"""How a tool is called: what is added to the caller's parameters, and in which thread it runs."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

#: Said by the server. A caller that sends one of them would be someone else, or work in a session that is not its own.
SERVER_SAYS = ("worker_id", "session_id", "session_info")

#: All that is added to a call. `trace_id` is the caller's choice.
INJECTED = ("worker_id", "trace_id", "session_id", "session_info")


class ArgumentsError(TypeError):
    """The parameters don't fit the tool's signature. The text is Python's own."""


def target(func: Callable[..., Any]) -> Callable[..., Any]:
    """What the caller's parameters must fit: an API tool's `execute`, else the function itself."""
    execute = getattr(func, "execute", None)
    if execute is not None and callable(execute) and not inspect.isroutine(func):
        return execute  # type: ignore[no-any-return]
    return func


def signature(func: Callable[..., Any]) -> inspect.Signature:
    """Remembered: asking Python costs more than the rest of a short call."""
    try:
        return _remembered(func)
    except TypeError:
        # What can't be a key is asked anew; and where there is no signature, this says so.
        return inspect.signature(func)


_remembered = functools.lru_cache(maxsize=4096)(inspect.signature)


@dataclass(frozen=True)
class _Shape:
    """What of a signature decides over a call: worked out once, since each call asks."""

    takes_all: bool
    #: Parameters that can be given by name, and those that have to be given.
    names: frozenset[str]
    needed: frozenset[str]
    #: Some can't be given by name.
    is_odd: bool

    @classmethod
    def of(cls, func: Callable[..., Any]) -> _Shape:
        parameters = signature(func).parameters
        named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        return cls(
            any(p.kind is p.VAR_KEYWORD for p in parameters.values()),
            frozenset(named),
            frozenset(name for name, p in named.items() if p.default is p.empty),
            any(p.kind is p.POSITIONAL_ONLY for p in parameters.values()),
        )

    def takes(self, call: Mapping[str, Any]) -> bool:
        return not self.is_odd and self.needed <= call.keys() and (self.takes_all or call.keys() <= self.names)


def _shape(func: Callable[..., Any]) -> _Shape:
    try:
        return _shapes(func)
    except TypeError:
        return _Shape.of(func)


_shapes = functools.lru_cache(maxsize=4096)(_Shape.of)


def arguments(func: Callable[..., Any], params: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's parameters, with those of `context` that the function names or takes as `**kwargs`."""
    call = {key: value for key, value in params.items() if key not in SERVER_SAYS}
    try:
        shape = _shape(func)
    except (TypeError, ValueError):
        return call
    for key in INJECTED:
        if (shape.takes_all or key in shape.names) and key not in call:
            value = context.get(key)
            if value is not None:
                call[key] = value
    return call


def check_arguments(func: Callable[..., Any], call: Mapping[str, Any]) -> None:
    """Raises ArgumentsError when the call can't begin. A TypeError from inside the tool is something else."""
    try:
        if not _shape(func).takes(call):
            signature(func).bind(**call)
    except TypeError as error:
        raise ArgumentsError(_words(func, call) or f"{_name(func)}() {error}") from None
    except ValueError:
        return


def _words(func: Callable[..., Any], call: Mapping[str, Any]) -> str | None:
    """Python's text for this wrong call, which names the function, and which callers know from AgentFlow.

    The function is called for it, which is safe since none of its body runs: its own signature, not that of a
    wrapper, doesn't take the call either.
    """
    own = func
    if inspect.ismethod(func):
        own = functools.partial(inspect.unwrap(func.__func__), func.__self__)
        plain: Any = own.func
    else:
        own = plain = inspect.unwrap(func)
    if not inspect.isfunction(plain):
        return None
    try:
        inspect.signature(own, follow_wrapped=False).bind(**call)
    except TypeError:
        try:
            own(**call)
        except TypeError as error:
            return str(error)
    return None


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__qualname__", None) or type(func).__qualname__)


def is_async(func: Callable[..., Any]) -> bool:
    while isinstance(func, functools.partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))


async def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    call: Mapping[str, Any] = MappingProxyType({}),
    executor: Executor | None = None,
) -> Any:
    """Calls it: a coroutine function in the loop, any other in a thread, where it can't hold up the others."""
    if is_async(func):
        return await func(*args, **call)
    context = contextvars.copy_context()
    work = functools.partial(context.run, func, *args, **call)
    result = await asyncio.get_running_loop().run_in_executor(executor, _stop_iteration_safe(work))
    if inspect.isawaitable(result):
        return await result
    return result


def _stop_iteration_safe(work: Callable[[], Any]) -> Callable[[], Any]:
    """A future can't carry StopIteration: awaiting it would wait for ever."""

    def safe() -> Any:
        try:
            return work()
        except StopIteration as error:
            raise RuntimeError("the tool raised StopIteration") from error

    return safe
