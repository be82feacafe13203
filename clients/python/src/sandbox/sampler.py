"""AgentFlow's tree of trajectories, with a sandbox for each branch.

AgentFlow's sampler expands siblings at the same time in one session, so they change each other's files. Here, each
child is a worker with a sandbox. It starts as a fork of its parent's sandbox, if the server can fork: no action runs
twice then. Otherwise, it runs the actions of its path again. The tree is the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .client import HTTPClientError
from .sandbox import Sandbox, SandboxSessionError

log = logging.getLogger("sandbox")

#: An action: `tool_name`, `parameters`, and maybe `intent`.
Action = dict[str, Any]


@dataclass
class TreeNode:
    """A node as AgentFlow writes it, and its worker. Its trajectory is that of the worker."""

    node_id: str
    observation: str
    intent: str
    action: Action | None
    parent_id: str | None
    depth: int
    children_ids: list[str] = field(default_factory=list)
    worker_id: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Returns the actions to try at the last node of a path from the root, at most `count`.
Propose = Callable[[list[TreeNode], int], Awaitable[list[Action]]]


class TreeSampler:
    """Expands a tree level by level, siblings side by side."""

    def __init__(
        self,
        propose: Propose,
        server_url: str = "http://localhost:18890",
        resource_type: str = "bash",
        config: dict[str, Any] | None = None,
        max_depth: int = 3,
        branching_factor: int = 2,
        parallel: int = 4,
        branches: Literal["auto", "fork", "replay"] = "auto",
        **settings: Any,
    ) -> None:
        """What a sampler does.

        Args:
            config: the configuration of each session.
            parallel: children that are expanded at once.
            branches: `auto` forks if the server can.
            settings: those of `Sandbox`, such as `api_key`.
        """
        self.propose, self.server_url, self.resource_type = propose, server_url, resource_type
        self.config, self.settings = dict(config or {}), settings
        self.max_depth, self.branching_factor = max_depth, branching_factor
        self.branches = branches
        self._places = asyncio.Semaphore(parallel)

    async def sample(self, task_id: str | None = None) -> list[TreeNode]:
        """The nodes of a tree, the root first, level by level. No worker is left."""
        name = f"tree_{uuid.uuid4().hex[:8]}"
        root = TreeNode("root", "", "", None, None, 0, worker_id=name)
        nodes, level = {root.node_id: root}, [root]
        workers = {root.node_id: await self._begin(root, None)}
        try:
            for depth in range(1, self.max_depth + 1):
                proposed = await asyncio.gather(*(self.propose(_path(nodes, node), self.branching_factor) for node in level))
                children = []
                for parent, actions in zip(level, proposed, strict=True):
                    for number, action in enumerate(actions[: self.branching_factor]):
                        node_id = str(number) if parent is root else f"{parent.node_id}-{number}"
                        child = TreeNode(
                            node_id, "", action.get("intent", ""), action, parent.node_id, depth, worker_id=f"{name}.{node_id}"
                        )
                        parent.children_ids.append(node_id)
                        nodes[node_id] = child
                        children.append(child)
                # A parent is not changed while its children start as it is.
                expand = [self._expand(_path(nodes, child), workers, task_id) for child in children]
                failed = [one for one in await asyncio.gather(*expand, return_exceptions=True) if one]
                for parent in level:
                    await _end(workers.pop(parent.node_id))
                if failed:
                    raise failed[0]
                level = children
        finally:
            for worker in workers.values():
                await _end(worker)
        return list(nodes.values())

    async def _begin(self, node: TreeNode, parent: Sandbox | None) -> Sandbox:
        """A worker for a node, as a fork of its parent's, or as a new one."""
        config = {**self.config, "branch": node.node_id}
        if parent is not None:
            config["fork_of"] = parent.worker_id
            if self.resource_type == "bash":
                # The shell of a fork is another one.
                config["cwd"] = (await parent.execute("bash:pwd"))["data"]["stdout"].rstrip("\n")
        worker = Sandbox(self.server_url, worker_id=node.worker_id, **self.settings)
        created = await worker.create_session(self.resource_type, config)
        session = created["sessions"][self.resource_type]
        if session["status"] != "success":
            await _end(worker)
            raise SandboxSessionError(session["message"])
        return worker

    async def _expand(self, path: list[TreeNode], workers: dict[str, Sandbox], task_id: str | None) -> None:
        node, parent = path[-1], path[-2]
        async with self._places:
            worker, again = await self._branch(node, workers[parent.node_id], path[1:-1])
            workers[node.node_id] = worker
            for before in again:
                await self._run(worker, before, task_id)
            node.observation = await self._run(worker, node, task_id)

    async def _branch(
        self, node: TreeNode, parent: Sandbox, before: list[TreeNode]
    ) -> tuple[Sandbox, list[TreeNode]]:
        """A worker for a child, and the nodes with actions that it has to run again."""
        if self.branches != "replay":
            try:
                return await self._begin(node, parent), []
            except SandboxSessionError as error:
                if self.branches == "fork":
                    raise
                log.warning("branches run their actions again, because the server can't fork: %s", error)
                self.branches = "replay"
        return await self._begin(node, None), before

    async def _run(self, worker: Sandbox, node: TreeNode, task_id: str | None) -> str:
        assert node.action is not None, "the root has no action"
        more: dict[str, Any] = {"task_id": task_id} if task_id else {}
        try:
            answer = await worker.execute(node.action["tool_name"], node.action.get("parameters") or {}, **more)
        except HTTPClientError as error:
            answer = error.response or {"message": str(error)}
        data = answer.get("data")
        return data if isinstance(data, str) else json.dumps(data if data else answer.get("message"), sort_keys=True)


def _path(nodes: dict[str, TreeNode], node: TreeNode) -> list[TreeNode]:
    path = [node]
    while path[-1].parent_id is not None:
        path.append(nodes[path[-1].parent_id])
    return path[::-1]


async def _end(worker: Sandbox) -> None:
    try:
        if worker.is_connected:
            await worker.client.destroy_all_sessions()
    finally:
        await worker.close()
