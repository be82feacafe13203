"""sandbox hooks: registered with the SDK, run before a sandbox is deleted; hooks of the environment."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from sandboxes import LiveSandbox


def test_register_list_and_remove(client: Client) -> None:
    hook = client.sandbox.register_hook(name="save", command="true", priority=5).data
    assert (hook.name, hook.event, hook.timeout, hook.source) == ("save", "shutdown", 10, "api")
    assert [h.name for h in client.sandbox.list_hooks().data] == ["save"]
    client.sandbox.remove_hook("save")
    assert client.sandbox.list_hooks().data == []
    with pytest.raises(ApiError) as error:
        client.sandbox.remove_hook("save")
    assert error.value.status_code == 404


def test_the_environments_hooks_run_before_the_first_call(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(env={"RUN_HOOK_INIT": "sleep 0.3; echo init > ~/hooked", "RUN_HOOK_SHUTDOWN": "true"})
    client = Client(base_url=live.url)
    assert client.bash.exec(command="cat ~/hooked").data.stdout == "init\n"
    [hook] = client.sandbox.list_hooks().data
    assert hook.source == "env"
    with pytest.raises(ApiError):
        client.sandbox.remove_hook(hook.name)


def test_a_delete_waits_for_hooks_and_not_for_ever(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    client = Client(base_url=live.url)
    client.sandbox.register_hook(name="slow", command="sleep 1")
    client.sandbox.register_hook(name="stuck", command="sleep 1000", timeout=2, priority=200)
    begun = time.monotonic()
    live.delete()
    assert 2.9 <= time.monotonic() - begun < 15
