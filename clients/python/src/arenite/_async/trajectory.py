"""Recorded steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from .. import _wire as wire
from ..models import Step, StepPage, TrajectorySummary, Verification

if TYPE_CHECKING:
    from .client import AsyncClient

Format = Literal["jsonl", "agentflow-rollout", "agentflow-synthesis", "atif", "openai-messages", "sharegpt", "asciicast"]
TrajectoryList = list[TrajectorySummary]


class AsyncTrajectories:
    """The trajectories that the key may see."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(
        self, *, worker: str | None = None, task: str | None = None, sandbox: str | None = None
    ) -> TrajectoryList:
        """Lists trajectories, or those of a worker, of a task, and of a sandbox. Those that started last are first."""
        params = {"worker": worker, "task": task, "sandbox": sandbox}
        found = self._client.pages("/api/v1/trajectories", "trajectories", params)
        return [TrajectorySummary.model_validate(one) async for one in found]

    def get(self, id: str) -> AsyncTrajectory:
        """A trajectory by the id or name of its sandbox, or by its own."""
        return AsyncTrajectory(self._client, id)


class AsyncTrajectory:
    """What was done in a sandbox, or by a worker. It outlives the sandbox."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self._client = client
        self.id = id

    async def steps(
        self, *, origin: str | None = None, result: str | None = None, after: int = 0, follow: bool = False
    ) -> AsyncIterator[Step]:
        """Reads the steps in their order.

        Args:
            origin: only steps of these causes: `agent`, `person`, `system`, separated by commas.
            result: only `failed` or `succeeded` steps.
            after: the number of the step before the first one.
            follow: then wait for more until the sandbox is deleted. A step comes when it starts, with the outcome None, and
                again when it has ended.
        """
        params = {"origin": origin, "result": result, "after": after}
        if follow:
            call = wire.Call("GET", self._path, {**params, "follow": True}, timeout=self._client.timeout)
            async for event in self._client._events(call):
                if event.name == "step":
                    yield Step.model_validate(event.data)
                elif event.name == "end":
                    return
            return
        next_after: int | None = after
        while next_after is not None:
            found = await self._client.request("GET", self._path, params={**params, "after": next_after})
            page = StepPage.model_validate(found)
            for step in page.steps:
                yield step
            next_after = page.next_after

    async def export(self, format: Format = "jsonl", *, origin: str | None = None, result: str | None = None) -> bytes:
        """The steps as a file of a format. `origin` is `agent` unless it is set."""
        params = {"format": format, "origin": origin, "result": result}
        call = wire.Call("GET", f"{self._path}/export", params, timeout=self._client.timeout)
        return (await self._client._send(call)).content

    async def verify(self) -> Verification:
        """Checks the record, and lists what was altered."""
        return Verification.model_validate(await self._client.request("GET", f"{self._path}/verify"))

    async def body(self, step: int, part: Literal["arguments", "observation"] = "observation") -> bytes:
        """The arguments or the observation of a step, in full."""
        call = wire.Call("GET", f"{self._path}/steps/{step}/{part}", timeout=self._client.timeout)
        return (await self._client._send(call)).content

    @property
    def _path(self) -> str:
        return f"/api/v1/trajectories/{wire.segment(self.id)}"
