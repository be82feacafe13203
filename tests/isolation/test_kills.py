"""What runs below the guest is killed at random: calls fail by name, and nothing hangs or stays."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from isolation.kills import killed_under_load
from sandboxes import LiveSandbox


def test_random_kills_under_load(server: Server) -> None:
    killed_under_load(server, 8, sandboxes=1, clients=3)


def test_what_starts_commands_is_replaced_when_it_is_stopped(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    # The guest's child that is root's and has no terminal or parent of its own: it has started the shell that looks.
    live.bash("sudo sh -c 'kill -STOP $(pgrep -P 1 -u root -f \"arenite|exe\" | head -1)'", async_mode=True)
    begun = time.monotonic()
    failed = 0
    while True:
        try:
            assert live.output("echo on") == "on"
            break
        except ApiError as error:
            failed += 1
            assert error.status_code == 424 and "killed or stopped" in error.body["message"], error
    print(f"{failed} calls failed in {time.monotonic() - begun:.1f} s")
    assert time.monotonic() - begun < 40
