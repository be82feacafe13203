# Generated from _async/trajectory.py by generate.py: do not edit.
"""Recorded steps."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from .. import _wire as wire
from ..models import Annotation, Step, StepPage, TrajectorySummary, Verification

if TYPE_CHECKING:
    from .client import Client

Format = Literal["jsonl", "agentflow-rollout", "agentflow-synthesis", "atif", "openai-messages", "sharegpt", "asciicast"]
TrajectoryList = list[TrajectorySummary]
AnnotationList = list[Annotation]


class Trajectories:
    """The trajectories that the key may see."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self,
        *,
        worker: str | None = None,
        task: str | None = None,
        sandbox: str | None = None,
        label: str | Sequence[str] | None = None,
        min_rating: int | None = None,
        annotated: bool | None = None,
        failed: bool | None = None,
    ) -> TrajectoryList:
        """Lists trajectories, or those of a worker, of a task, and of a sandbox. Those that started last are first.

        Args:
            label: only those with this label, or all of these, on them or on one of their steps.
            min_rating: only those with at least this mean rating of the whole trajectory, from 1 to 5.
            annotated: only those with annotations.
            failed: only those with failed steps, or only those without.
        """
        params = {
            "worker": worker,
            "task": task,
            "sandbox": sandbox,
            "label": label,
            "min_rating": min_rating,
            "annotated": annotated,
            "failed": failed,
        }
        found = self._client.pages("/api/v1/trajectories", "trajectories", params)
        return [TrajectorySummary.model_validate(one) for one in found]

    def get(self, id: str) -> Trajectory:
        """A trajectory by the id or name of its sandbox, or by its own."""
        return Trajectory(self._client, id)


class Trajectory:
    """What was done in a sandbox, or by a worker. It outlives the sandbox."""

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self.id = id

    def steps(
        self, *, origin: str | None = None, result: str | None = None, after: int = 0, follow: bool = False
    ) -> Iterator[Step]:
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
            for event in self._client._events(call):
                if event.name == "step":
                    yield Step.model_validate(event.data)
                elif event.name == "end":
                    return
            return
        next_after: int | None = after
        while next_after is not None:
            found = self._client.request("GET", self._path, params={**params, "after": next_after})
            page = StepPage.model_validate(found)
            for step in page.steps:
                yield step
            next_after = page.next_after

    def export(
        self,
        format: Format = "jsonl",
        *,
        origin: str | None = None,
        result: str | None = None,
        annotations: bool | None = None,
    ) -> bytes:
        """The steps as a file of a format. `origin` is `agent` unless it is set.

        It has the annotations, unless `annotations` is False. `openai-messages` and `sharegpt` have them only if it is True.
        """
        params = {"format": format, "origin": origin, "result": result, "annotations": annotations}
        call = wire.Call("GET", f"{self._path}/export", params, timeout=self._client.timeout)
        return (self._client._send(call)).content

    def annotations(self, *, step: int | None = None) -> AnnotationList:
        """Lists the annotations of the trajectory, or of one of its steps, the oldest first."""
        found = self._client.pages(f"{self._path}/annotations", "annotations", {"step": step})
        return [Annotation.model_validate(one) for one in found]

    def annotate(
        self,
        text: str = "",
        *,
        step: int | None = None,
        labels: Sequence[str] = (),
        rating: int | None = None,
        idempotency_key: str | None = None,
    ) -> Annotation:
        """Adds an annotation: a note, labels, or a rating from 1 to 5. Without `step`, it is about the whole trajectory.

        A repetition with the same `idempotency_key` adds nothing. Without one, the client generates a key for its own retries.
        """
        json = {"text": text, "labels": list(labels), **wire.present(step=step, rating=rating)}
        key = idempotency_key or uuid.uuid4().hex
        path = f"{self._path}/annotations"
        return Annotation.model_validate(self._client.request("POST", path, json=json, idempotency_key=key))

    def change_annotation(
        self,
        annotation: str | Annotation,
        *,
        text: str | None = None,
        labels: Sequence[str] | None = None,
        rating: int | None = None,
    ) -> Annotation:
        """Changes an annotation, by its id or as it was read. What is None stays as it is; a rating of 0 removes the rating.

        Given as it was read, it is changed only if nobody has changed it since. Otherwise the error is `PreconditionFailed`.
        """
        json: dict[str, object] = wire.present(text=text, labels=None if labels is None else list(labels))
        if rating is not None:
            json["rating"] = rating or None
        return Annotation.model_validate(self._client._call(self._change("PATCH", annotation, json)))

    def remove_annotation(self, annotation: str | Annotation) -> None:
        """Removes an annotation. Given as it was read, only if nobody has changed it since."""
        self._client._call(self._change("DELETE", annotation))

    def _change(self, method: str, annotation: str | Annotation, json: dict[str, object] | None = None) -> wire.Call:
        if isinstance(annotation, str):
            id, headers = annotation, {}
        else:
            id, headers = annotation.id, {"if-match": f'"{annotation.id}-{annotation.revision}"'}
        path = f"{self._path}/annotations/{wire.segment(id)}"
        return wire.Call(method, path, json=json, headers=headers, timeout=self._client.timeout)

    def verify(self) -> Verification:
        """Checks the record, and lists what was altered."""
        return Verification.model_validate(self._client.request("GET", f"{self._path}/verify"))

    def body(self, step: int, part: Literal["arguments", "observation"] = "observation") -> bytes:
        """The arguments or the observation of a step, in full."""
        call = wire.Call("GET", f"{self._path}/steps/{step}/{part}", timeout=self._client.timeout)
        return (self._client._send(call)).content

    @property
    def _path(self) -> str:
        return f"/api/v1/trajectories/{wire.segment(self.id)}"
