"""The tree sampler: with forks, and with actions that run again, the tree is the same, and siblings share no files."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

from sandbox.sampler import Action, TreeNode, TreeSampler
from sandbox.sandbox import SandboxSessionError


def run(command: str) -> Action:
    return {"tool_name": "bash:run", "parameters": {"command": command}, "intent": command.split()[0]}


async def propose(path: list[TreeNode], count: int) -> list[Action]:
    at = path[-1].node_id
    assert count == 2 and path[0].action is None
    named = [run(f"echo {at}/{number} >> all; touch own-{len(path)}-{number}; cat all; ls; pwd") for number in range(3)]
    return [run(f"mkdir in-{len(path)}; cd in-{len(path)}; pwd"), *named] if len(path) == 2 else named


def tree(server: Server, **more: Any) -> list[dict[str, Any]]:
    sampler = TreeSampler(propose, server.url, config={"image": "base"}, max_depth=3, branching_factor=2, **more)
    nodes = [node.as_dict() for node in asyncio.run(sampler.sample("a-task"))]
    left = httpx.get(f"{server.url}/api/v2/workers", timeout=30).json()["workers"]
    assert [one["worker_id"] for one in left if one["worker_id"].startswith("tree_")] == []
    return nodes


def same(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what differs from run to run."""
    shown = []
    for node in nodes:
        said = json.loads(node["observation"] or "{}")
        shown.append({**node, "worker_id": "", "observation": {key: said.get(key) for key in ("stdout", "stderr", "return_code")}})
    return shown


@pytest.mark.timeout(300)
def test_forks_give_the_same_tree_as_actions_that_run_again(server: Server) -> None:
    forked = tree(server, branches="fork")
    assert [node["node_id"] for node in forked][:7] == ["root", "0", "1", "0-0", "0-1", "1-0", "1-1"]
    assert len(forked) == 1 + 2 + 4 + 8 and forked[0]["children_ids"] == ["0", "1"]
    assert same(tree(server, branches="replay", parallel=2)) == same(forked)
    # No sibling's files are there, and all of the way are.
    of = {node["node_id"]: json.loads(node["observation"])["stdout"].split() for node in forked[1:]}
    assert of["0-1-1"][:-1] == ["root/0", "0/0", "0-1/1", "all", "own-1-0", "own-2-0", "own-3-1"]
    # The directory of the shell goes on.
    assert of["1-0-1"][:-1] == ["1-0/1", "all", "own-3-1"] and of["1-0-1"][-1].endswith("/in-2")
    # Each branch has a trajectory that names its state and its place.
    worker = next(node["worker_id"] for node in forked if node["node_id"] == "0-1")
    listed = httpx.get(f"{server.url}/api/v1/trajectories", params={"worker": worker}, timeout=30).json()["trajectories"]
    path = f"/api/v1/trajectories/{listed[0]['trajectory']}/sessions"
    sessions = httpx.get(f"{server.url}{path}", timeout=30).json()["sessions"]
    assert sessions[0]["config"]["branch"] == "0-1" and sessions[0]["config"]["fork_of"] == worker.rsplit("-", 1)[0]


def test_a_fork_needs_a_worker_with_a_sandbox(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    def create(worker: str, **config: Any) -> str:
        body = {"worker_id": worker, "resource_type": "bash", "session_config": {"image": "base", **config}}
        answer = httpx.post(f"{server.url}/api/v1/session/create", json=body, timeout=60).json()
        httpx.post(f"{server.url}/api/v1/worker/disconnect", json={"worker_id": worker}, timeout=60)
        return json.dumps(answer)

    assert "no such worker" in create("fork-1", fork_of="nobody")
    assert "the worker itself" in create("fork-2", fork_of="fork-2")
    assert "session's configuration" in create("fork-3", fork_of=3)


def test_where_there_are_no_forks_the_actions_run_again(server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TreeSampler._begin

    async def no_forks(self: TreeSampler, node: TreeNode, parent: Any) -> Any:
        if parent is not None:
            raise SandboxSessionError("the engine seals no states")
        return await begin(self, node, None)

    monkeypatch.setattr(TreeSampler, "_begin", no_forks)
    with caplog.at_level(logging.WARNING):
        found = tree(server, branches="auto")
    assert "can't fork" in caplog.text and len(found) == 15
