"""All 131 methods of the SDK, by what the tests before this one called: it runs last among them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import sdk_calls
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError

ALL = sorted(name for name, _, _ in sdk_calls.methods())


def test_the_sdk_is_the_one_these_lists_are_of() -> None:
    assert len(ALL) == 131


@pytest.mark.last
def test_every_method_was_called() -> None:
    missing = [name for name in ALL if name not in sdk_calls.SUCCEEDED]
    print("never called:", *missing, sep="\n  ")
    assert not missing


def value_for(parameter: inspect.Parameter) -> Any:
    annotation = str(parameter.annotation)
    for word, value in (("int", 1), ("float", 1.0), ("bool", False), ("Sequence", []), ("Dict", {})):
        if word in annotation:
            return value
    return "x"


# `auth` is the server's own and not a sandbox's.
@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith("auth.")])
def test_every_method_says_when_there_is_no_such_sandbox(base_url: str, name: str) -> None:
    client = Client(base_url=f"{base_url}/sandbox/no-such-sandbox")
    namespace, method = name.split(".")
    call = getattr(getattr(client, namespace), method)
    wanted = [p for p in inspect.signature(call).parameters.values() if p.default is inspect.Parameter.empty]
    arguments = {p.name: value_for(p) for p in wanted if p.kind is not inspect.Parameter.VAR_KEYWORD}
    with pytest.raises(ApiError) as failure:
        answer = call(**arguments)
        list(answer) if inspect.isgenerator(answer) else None
    assert failure.value.status_code == 404, failure.value
    assert "no-such-sandbox" in str(failure.value.body)
