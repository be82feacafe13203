# Generated from _async/volumes.py by generate.py: do not edit.
"""Volumes: storage that outlives sandboxes, and that several of them mount."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO

from .. import _wire as wire
from ..models import FileEntry, RemovedFile, RemovedVolume, VolumeInfo

if TYPE_CHECKING:
    from .client import Client

PATH = "/api/v2/volumes"
#: Bytes of an upload that are read at once.
CHUNK = 1 << 20


class Volumes:
    """The volumes of the key's tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        *,
        size_bytes: int | None = None,
        bucket: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Volume:
        """Creates an empty volume. Sandboxes mount it by `volumes=[{"name": ..., "path": ...}]`.

        Args:
            size_bytes: what it may hold; 10 GiB by default.
            bucket: keeps its files in this bucket, which the operator declared.
        """
        key = idempotency_key or uuid.uuid4().hex
        json = wire.present(name=name, size_bytes=size_bytes, bucket=bucket, labels=labels)
        made = self._client.request("POST", PATH, json=json, idempotency_key=key)
        return Volume(self._client, VolumeInfo.model_validate(made))

    def get(self, name: str) -> Volume:
        """Finds a volume by its name."""
        found = self._client.request("GET", f"{PATH}/{wire.segment(name)}")
        return Volume(self._client, VolumeInfo.model_validate(found))

    def list(self) -> Iterator[Volume]:
        """Lists volumes."""
        for info in self._client.pages(PATH, "volumes"):
            yield Volume(self._client, VolumeInfo.model_validate(info))


class Volume:
    """A volume, with its files. Their paths are relative to its top."""

    def __init__(self, client: Client, info: VolumeInfo) -> None:
        self._client = client
        #: As of the last call that returned it.
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    def refresh(self) -> VolumeInfo:
        """Describes it as it is now."""
        return self._learn(self._client.request("GET", self._path))

    def set(
        self, *, size_bytes: int | None = None, labels: Mapping[str, str | None] | None = None
    ) -> VolumeInfo:
        """Changes its size and its labels. A label with the value None is removed."""
        json = wire.present(size_bytes=size_bytes, labels=labels)
        return self._learn(self._client.request("PATCH", self._path, json=json))

    def copy(
        self,
        name: str,
        *,
        size_bytes: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Volume:
        """Creates a copy of it at once: they share their files until one of them changes."""
        key = idempotency_key or uuid.uuid4().hex
        json = wire.present(name=name, size_bytes=size_bytes, labels=labels)
        made = self._client.request("POST", f"{self._path}/copy", json=json, idempotency_key=key)
        return Volume(self._client, VolumeInfo.model_validate(made))

    def delete(self, *, force: bool = False) -> RemovedVolume:
        """Removes it with its files. `force` also takes it from sandboxes that have ended."""
        params = {"force": True} if force else None
        return RemovedVolume.model_validate(self._client.request("DELETE", self._path, params=params))

    def files(self, path: str = "") -> Iterator[FileEntry]:
        """Lists a directory."""
        for entry in self._client.pages(f"{self._path}/files", "files", {"path": path}):
            yield FileEntry.model_validate(entry)

    def read(self, path: str) -> str:
        """The text of a file, in UTF-8."""
        return (self.read_bytes(path)).decode()

    def read_bytes(self, path: str) -> bytes:
        return (self._client._send(self._download(path))).content

    def write(self, path: str, content: str | bytes) -> FileEntry:
        """Writes a file, and creates the directories above it. The file appears when it is complete."""
        return self._put(path, content.encode() if isinstance(content, str) else content)

    def upload(self, source: str | os.PathLike[str] | BinaryIO, path: str) -> FileEntry:
        """Copies a local file, or what an open file has left, to a path in the volume."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                return self.upload(file, path)
        return self._put(path, chunks(source))

    def download(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file to a local path. A copy that fails leaves the target as it was."""
        self._client._save(self._download(path), target)

    def remove(self, path: str, *, recursive: bool = False) -> RemovedFile:
        """Removes a file or an empty directory; with `recursive`, a directory with its content."""
        params = {"path": path, "recursive": recursive}
        return RemovedFile.model_validate(self._client.request("DELETE", f"{self._path}/content", params=params))

    def _put(self, path: str, content: bytes | Iterator[bytes]) -> FileEntry:
        params = {"path": path, "create_parents": True}
        timeout = self._client.timeout
        call = wire.Call("PUT", f"{self._path}/content", params, content=content, timeout=timeout)
        return FileEntry.model_validate(self._client._call(call))

    def _download(self, path: str) -> wire.Call:
        return wire.Call("GET", f"{self._path}/content", {"path": path}, timeout=self._client.timeout)

    def _learn(self, found: object) -> VolumeInfo:
        self.info = VolumeInfo.model_validate(found)
        return self.info

    @property
    def _path(self) -> str:
        return f"{PATH}/{wire.segment(self.name)}"


def chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
