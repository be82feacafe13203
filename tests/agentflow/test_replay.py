"""Recorded steps of a sandbox, run again in a fresh one by the real command; and their exports by the real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import atif
import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

FORMATS = ("jsonl", "agentflow-rollout", "agentflow-synthesis", "atif", "openai-messages", "sharegpt", "asciicast")


def work(live: LiveSandbox) -> None:
    """Steps of several kinds, with what differs from run to run in their answers."""
    session = live.client.bash.create_session().data.session_id
    live.bash("echo state > /tmp/kept; pwd; date; mktemp; echo $$", session_id=session)
    live.bash("cat /tmp/kept; time true; uuidgen || cat /proc/sys/kernel/random/uuid", session_id=session)
    live.bash("exit 3")
    live.client.shell.exec_command(command="cd /tmp && ls -la kept")
    live.client.file.write_file(file="/tmp/f", content="one\ntwo\n")
    live.client.file.str_replace_editor(command="str_replace", path="/tmp/f", old_str="two", new_str="three")
    live.client.file.read_file(file="/tmp/f")
    live.client.file.read_file(file="/no/such/file")
    live.client.file.list_path(path="/tmp")
    live.client.bash.close_session(session_id=session)


def replays(server: Server) -> list[str]:
    found = httpx.get(f"{server.url}/api/v2/sandboxes", timeout=30).json()["sandboxes"]
    return [s["name"] for s in found if s["name"].startswith("replay-")]


class TestReplay:
    def test_the_same_steps_have_the_same_answers(
        self, server: Server, sandbox: Callable[..., LiveSandbox], command: Callable[..., Any]
    ) -> None:
        live = sandbox()
        work(live)
        done = command("replay", live.name, "--json")
        told = json.loads(done.stdout)
        assert (done.returncode, told["divergence"]) == (0, None), done
        assert told["replayed"] >= 10
        assert told["skipped"] == []
        assert replays(server) == []

    def test_the_first_difference_is_named(
        self, server: Server, sandbox: Callable[..., LiveSandbox], command: Callable[..., Any]
    ) -> None:
        live = sandbox()
        live.bash("echo fine")
        live.bash("head -c 8 /dev/urandom | sha256sum | tr -d -c 0-9a-f")
        live.bash("echo never-again")
        done = command("replay", live.name)
        assert done.returncode == 1, done
        assert "step 3 (bash_exec) differs at /data/" in done.stdout
        assert "2 steps were run again up to there" in done.stdout
        assert command("replay", live.name, "--until", "2").returncode == 0
        assert replays(server) == []
        kept = command("replay", live.name, "--until", "2", "--keep")
        assert kept.returncode == 0
        (left,) = replays(server)
        assert httpx.delete(f"{server.url}/api/v2/sandboxes/{left}", timeout=60).is_success

    def test_it_says_when_it_cannot(self, command: Callable[..., Any]) -> None:
        done = command("replay", "no-such-trajectory")
        assert done.returncode == 2
        assert "nothing was recorded" in done.stderr


def test_exports_of_every_format(sandbox: Callable[..., LiveSandbox], api: httpx.Client, command: Callable[..., Any]) -> None:
    live = sandbox()
    work(live)
    for name in FORMATS:
        done = command("export", live.name, "--format", name)
        assert done.returncode == 0, (name, done.stderr)
        answer = api.get(f"/api/v1/trajectories/{live.id}/export", params={"format": name})
        assert answer.text == done.stdout
        assert answer.headers["content-disposition"].startswith(f'attachment; filename="{live.id}.')
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, name
        assert "three" in done.stdout or name == "asciicast"
    read = atif.Trajectory.model_validate_json(command("export", live.name, "--format", "atif").stdout)
    assert read.steps[-1].step_id == len(read.steps) >= 10
    (talk,) = [json.loads(line) for line in command("export", live.name, "--format", "openai-messages").stdout.splitlines()]
    calls = [call["id"] for message in talk["messages"] for call in message.get("tool_calls", [])]
    assert calls == [message["tool_call_id"] for message in talk["messages"] if message["role"] == "tool"]
