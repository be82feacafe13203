"""What runs below the guest is killed at random: calls fail by name, and nothing hangs or stays."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from isolation.browsers import browsers_side_by_side
from isolation.kills import killed_under_load
from sandboxes import LiveSandbox


def test_random_kills_under_load(server: Server) -> None:
    killed_under_load(server, 5, sandboxes=1, clients=3)


def test_browsers_that_are_killed_at_work(server: Server) -> None:
    browsers_side_by_side(server, 12, 2, pause=1)


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


def test_a_command_that_was_not_read_of_yet_is_started_by_the_next(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    find = 'pgrep -P 1 -u root -f "arenite|exe" | head -1'
    ends = f"it=$({find}); kill -STOP $it; echo stopped > /tmp/now; sleep 2; kill -KILL $it"
    live.bash(f"sudo sh -c '{ends}'", async_mode=True)
    deadline = time.monotonic() + 20
    # Of files the guest tells by itself.
    while not live.http.post("/v1/file/read", json={"file": "/tmp/now"}).json()["success"]:
        assert time.monotonic() < deadline
    begun = time.monotonic()
    # The first may run in a shell that was started ahead.
    for command in ("first", "second", "third"):
        assert live.output(f"echo {command} | tee -a /tmp/done") == command
    assert time.monotonic() - begun > 0.5, "no command waited for anything: this tests nothing"
    assert live.output("cat /tmp/done") == "first\nsecond\nthird"


def test_the_next_answer_tells_of_a_shell_that_was_killed(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    shell = live.client.shell
    first = shell.exec_command(command="kept=1; echo $$").data
    live.output(f"kill -9 {first.output}")
    after = shell.exec_command(id=first.session_id, command="echo ${kept-none}")
    assert after.data.output == "none"
    assert "killed by signal 9" in after.hint and "new shell" in after.hint
    assert shell.exec_command(id=first.session_id, command="true").hint is None


def test_nodejs_that_is_killed_says_so_and_is_there_again(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="code", env={"PATH": "/tmp/bin:/usr/local/bin:/usr/bin:/bin"}, labels={})
    code = live.client.code
    once = '#!/bin/sh\n[ -e /tmp/asked ] || { touch /tmp/asked; kill -9 $$; }\nexec "$(PATH=/usr/local/bin:/usr/bin command -v node)" "$@"\n'
    live.output(f"mkdir /tmp/bin; cat > /tmp/bin/node <<'END'\n{once}END\nchmod +x /tmp/bin/node")
    with pytest.raises(ApiError) as failure:
        code.execute_code(language="javascript", code="1")
    assert failure.value.status_code == 424 and "killed by signal 9" in failure.value.body["message"]
    assert code.execute_code(language="javascript", code="1").data.status == "ok"
    killed = code.execute_code(language="javascript", code="process.kill(process.pid, 'SIGKILL')")
    assert (killed.data.status, killed.data.exit_code) == ("error", 137)
    assert "signal 9" in killed.message and killed.data.outputs[-1]["ename"] == "ProcessEnded"
