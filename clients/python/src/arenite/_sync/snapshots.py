# Generated from _async/snapshots.py by generate.py: do not edit.
"""Snapshots: named states of sandboxes' disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .. import _wire as wire
from ..models import FileEntry, SnapshotInfo
from .volumes import chunks

if TYPE_CHECKING:
    from .client import Client

PATH = "/api/v2/snapshots"


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
            keep_processes: also keep its processes. Only with the tiers `gvisor` and `machine`; refused elsewhere.
        """
        json = wire.present(name=name, sandbox=sandbox, labels=labels, note=note, keep_processes=keep_processes or None)
        return SnapshotInfo.model_validate(self._client.request("POST", PATH, json=json))

    def get(self, name: str) -> SnapshotInfo:
        return SnapshotInfo.model_validate(self._client.request("GET", _path(name)))

    def list(self, *, limit: int = 100) -> Iterator[SnapshotInfo]:
        """Lists snapshots, page by page."""
        for info in self._client.pages(PATH, "snapshots", {"limit": limit}):
            yield SnapshotInfo.model_validate(info)

    def delete(self, name: str) -> None:
        """Removes a snapshot. Sandboxes that were created from it stay."""
        self._client.request("DELETE", _path(name))

    def files(self, name: str, path: str = "") -> Iterator[FileEntry]:
        """Lists a directory of a snapshot. No sandbox is needed."""
        for entry in self._client.pages(f"{_path(name)}/files", "files", {"path": path}):
            yield FileEntry.model_validate(entry)

    def read(self, name: str, path: str) -> str:
        """The text of a file of a snapshot, in UTF-8."""
        return (self.read_bytes(name, path)).decode()

    def read_bytes(self, name: str, path: str) -> bytes:
        return (self._client._send(self._content(name, path))).content

    def download(self, name: str, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file of a snapshot to a local path. A copy that fails leaves the target as it was."""
        self._client._save(self._content(name, path), target)

    def export(self, name: str, target: str | os.PathLike[str]) -> None:
        """Writes a snapshot with its image to a local file, an OCI image layout in a tar. Processes that it keeps are left out."""
        call = wire.Call("GET", f"{_path(name)}/archive", timeout=self._client.timeout)
        self._client._save(call, target)

    def import_file(self, source: str | os.PathLike[str], *, name: str | None = None) -> SnapshotInfo:
        """Adds the snapshot of a file that was exported.

        Args:
            name: of the new snapshot; by default that of the exported one.
        """
        with open(source, "rb") as file:
            call = wire.Call(
                "POST",
                f"{PATH}/import",
                None if name is None else {"name": name},
                content=chunks(file),
                headers={"content-type": "application/octet-stream", "content-length": str(os.fstat(file.fileno()).st_size)},
                timeout=self._client.timeout,
            )
            return SnapshotInfo.model_validate(self._client._call(call))

    def _content(self, name: str, path: str) -> wire.Call:
        return wire.Call("GET", f"{_path(name)}/content", {"path": path}, timeout=self._client.timeout)


def _path(name: str) -> str:
    return f"{PATH}/{wire.segment(name)}"
