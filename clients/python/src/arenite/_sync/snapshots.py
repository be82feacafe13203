# Generated from _async/snapshots.py by generate.py: do not edit.
"""Snapshots: named states of sandboxes' disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .. import _wire as wire
from ..models import SnapshotInfo

if TYPE_CHECKING:
    from .client import Client


class Snapshots:
    """The snapshots of a tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        sandbox: str,
        *,
        labels: Mapping[str, str] | None = None,
        note: str | None = None,
        keep_processes: bool = False,
    ) -> SnapshotInfo:
        """Seals the disk of a sandbox under a name, without waking it.

        Args:
            keep_processes: also keep its processes. Only with the tier `gvisor`; refused elsewhere.
        """
        json = wire.present(name=name, sandbox=sandbox, labels=labels, note=note, keep_processes=keep_processes or None)
        return SnapshotInfo.model_validate(self._client.request("POST", "/api/v2/snapshots", json=json))

    def get(self, name: str) -> SnapshotInfo:
        return SnapshotInfo.model_validate(self._client.request("GET", f"/api/v2/snapshots/{wire.segment(name)}"))

    def list(self, *, limit: int = 100) -> Iterator[SnapshotInfo]:
        """Lists snapshots, page by page."""
        for info in self._client.pages("/api/v2/snapshots", "snapshots", {"limit": limit}):
            yield SnapshotInfo.model_validate(info)

    def delete(self, name: str) -> None:
        """Removes a snapshot. Sandboxes that were created from it stay."""
        self._client.request("DELETE", f"/api/v2/snapshots/{wire.segment(name)}")
