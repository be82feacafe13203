"""Replays that start from the nearest checkpoint or snapshot: the steps before it are not run again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from sandboxes import LiveSandbox


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def replay(server: Server, of: str, *words: str, code: int = 0) -> Any:
    done = run(server, "trajectory", "replay", of, *words, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def checkpoint(api: httpx.Client, box: LiveSandbox) -> Any:
    return api.post(f"/api/v2/sandboxes/{box.name}/checkpoints", json={}).raise_for_status().json()


def test_a_replay_starts_from_the_nearest_state(server: Server, sandbox: Callable[..., LiveSandbox], api: httpx.Client) -> None:
    box = sandbox(image="base")
    # Step 1 creates it. The random line is not the same in another run.
    box.output("od -An -N8 -tx8 /dev/urandom | tee luck")
    first = checkpoint(api, box)
    box.output("echo two >>luck; wc -l <luck")
    checkpoint(api, box)
    box.output("cat luck")
    box.output("rm luck; ls")
    whole = replay(server, box.name, code=1)
    assert (whole["from"], whole["divergence"]["step"]) == (None, 2)
    assert replay(server, box.name, "--until", "7", "--from-start", code=1)["from"] is None
    # What the random line was is on the checkpoint's disk.
    near = replay(server, box.name, "--from-step", "6")
    assert near["from"] == {"after_step": 5, "checkpoint": 2} and (near["replayed"], near["divergence"]) == (2, None)
    until = replay(server, box.name, "--until", "4")
    assert until["from"] == {"after_step": 3, "checkpoint": 1} and until["replayed"] == 1
    # A later step may be asked for than the one that is run first.
    assert replay(server, box.name, "--from-step", "7")["from"] == {"after_step": 5, "checkpoint": 2}
    assert replay(server, box.name, "--from-step", "2", code=1)["from"] is None
    api.delete(f"/api/v2/sandboxes/{box.name}/checkpoints/2").raise_for_status()
    left = replay(server, box.name, "--from-step", "6")
    assert left["from"] == {"after_step": 3, "checkpoint": 1} and left["replayed"] == 3
    told = run(server, "trajectory", "replay", box.name, "--from-step", "6")
    assert f"from checkpoint {first['number']}, after step 3" in told.stderr, told.stderr
    api.delete(f"/api/v2/sandboxes/{box.name}/checkpoints/1").raise_for_status()
    told = run(server, "trajectory", "replay", box.name, "--from-step", "6")
    assert told.returncode == 1 and "from its beginning: no state before step 6" in told.stderr, told.stderr


def test_a_snapshot_outlives_the_sandbox(server: Server, sandbox: Callable[..., LiveSandbox], api: httpx.Client) -> None:
    box, name = sandbox(image="base"), f"replay-{uuid.uuid4().hex[:8]}"
    trajectory = box.id
    box.output("od -An -N8 -tx8 /dev/urandom | tee luck")
    checkpoint(api, box)
    api.post("/api/v2/snapshots", json={"name": name, "sandbox": box.name}).raise_for_status()
    box.output("cat luck")
    box.delete()
    try:
        assert replay(server, trajectory, "--from-step", "5")["from"] == {"after_step": 4, "snapshot": name}
    finally:
        api.delete(f"/api/v2/snapshots/{name}")
    assert replay(server, trajectory, "--from-step", "5", code=1)["from"] is None


def test_automatic_checkpoints_and_sessions(server: Server, sandbox: Callable[..., LiveSandbox], api: httpx.Client) -> None:
    box = sandbox(image="base", checkpoint="auto")
    box.output("od -An -N8 -tx8 /dev/urandom | tee luck")
    box.output("echo more >>luck")
    box.output("cat luck")
    steps = api.get(f"/api/v1/trajectories/{box.id}/steps").json()["steps"]
    assert steps[2]["state"]["before"] != steps[2]["state"]["after"], steps
    told = replay(server, box.name, "--from-step", "4")
    assert told["from"]["after_step"] == 3 and (told["replayed"], told["divergence"]) == (1, None)
    # A step of a session that began earlier can't start from a disk alone.
    session = box.client.bash.create_session().data.session_id
    box.bash("echo kept", session_id=session)
    box.bash("echo here", session_id=session)
    last = api.get(f"/api/v1/trajectories/{box.id}/steps", params={"limit": 1000}).json()["steps"][-1]["step"]
    told = replay(server, box.name, "--from-step", str(last))
    assert 0 < told["from"]["after_step"] < last - 2 and told["divergence"] is None
