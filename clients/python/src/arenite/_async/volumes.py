"""Volumes: storage that outlives sandboxes, and that several of them mount."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, BinaryIO

from .. import _wire as wire
from ..models import FileEntry, RemovedFile, RemovedVolume, VolumeInfo

if TYPE_CHECKING:
    from .client import AsyncClient

PATH = "/api/v2/volumes"
#: Bytes of an upload that are read at once.
CHUNK = 1 << 20


class AsyncVolumes:
    """The volumes of the key's tenant."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        *,
        size_bytes: int | None = None,
        bucket: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncVolume:
        """Creates an empty volume. Sandboxes mount it by `volumes=[{"name": ..., "path": ...}]`.

        Args:
            size_bytes: what it may hold; 10 GiB by default.
            bucket: keeps its files in this bucket, which the operator declared.
        """
        key = idempotency_key or uuid.uuid4().hex
        json = wire.present(name=name, size_bytes=size_bytes, bucket=bucket, labels=labels)
        made = await self._client.request("POST", PATH, json=json, idempotency_key=key)
        return AsyncVolume(self._client, VolumeInfo.model_validate(made))

    async def get(self, name: str) -> AsyncVolume:
        """Finds a volume by its name."""
        found = await self._client.request("GET", f"{PATH}/{wire.segment(name)}")
        return AsyncVolume(self._client, VolumeInfo.model_validate(found))

    async def list(self) -> AsyncIterator[AsyncVolume]:
        """Lists volumes."""
        async for info in self._client.pages(PATH, "volumes"):
            yield AsyncVolume(self._client, VolumeInfo.model_validate(info))


class AsyncVolume:
    """A volume, with its files. Their paths are relative to its top."""

    def __init__(self, client: AsyncClient, info: VolumeInfo) -> None:
        self._client = client
        #: As of the last call that returned it.
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    async def refresh(self) -> VolumeInfo:
        """Describes it as it is now."""
        return self._learn(await self._client.request("GET", self._path))

    async def set(
        self, *, size_bytes: int | None = None, labels: Mapping[str, str | None] | None = None
    ) -> VolumeInfo:
        """Changes its size and its labels. A label with the value None is removed."""
        json = wire.present(size_bytes=size_bytes, labels=labels)
        return self._learn(await self._client.request("PATCH", self._path, json=json))

    async def copy(
        self,
        name: str,
        *,
        size_bytes: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncVolume:
        """Creates a copy of it at once: they share their files until one of them changes."""
        key = idempotency_key or uuid.uuid4().hex
        json = wire.present(name=name, size_bytes=size_bytes, labels=labels)
        made = await self._client.request("POST", f"{self._path}/copy", json=json, idempotency_key=key)
        return AsyncVolume(self._client, VolumeInfo.model_validate(made))

    async def delete(self, *, force: bool = False) -> RemovedVolume:
        """Removes it with its files. `force` also takes it from sandboxes that have ended."""
        params = {"force": True} if force else None
        return RemovedVolume.model_validate(await self._client.request("DELETE", self._path, params=params))

    async def files(self, path: str = "") -> AsyncIterator[FileEntry]:
        """Lists a directory."""
        async for entry in self._client.pages(f"{self._path}/files", "files", {"path": path}):
            yield FileEntry.model_validate(entry)

    async def read(self, path: str) -> str:
        """The text of a file, in UTF-8."""
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        return (await self._client._send(self._download(path))).content

    async def write(self, path: str, content: str | bytes) -> FileEntry:
        """Writes a file, and creates the directories above it. The file appears when it is complete."""
        return await self._put(path, content.encode() if isinstance(content, str) else content)

    async def upload(self, source: str | os.PathLike[str] | BinaryIO, path: str) -> FileEntry:
        """Copies a local file, or what an open file has left, to a path in the volume."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                return await self.upload(file, path)
        return await self._put(path, chunks(source))

    async def download(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file to a local path. A copy that fails leaves the target as it was."""
        await self._client._save(self._download(path), target)

    async def remove(self, path: str, *, recursive: bool = False) -> RemovedFile:
        """Removes a file or an empty directory; with `recursive`, a directory with its content."""
        params = {"path": path, "recursive": recursive}
        return RemovedFile.model_validate(await self._client.request("DELETE", f"{self._path}/content", params=params))

    async def _put(self, path: str, content: bytes | AsyncIterator[bytes]) -> FileEntry:
        params = {"path": path, "create_parents": True}
        timeout = self._client.timeout
        call = wire.Call("PUT", f"{self._path}/content", params, content=content, timeout=timeout)
        return FileEntry.model_validate(await self._client._call(call))

    def _download(self, path: str) -> wire.Call:
        return wire.Call("GET", f"{self._path}/content", {"path": path}, timeout=self._client.timeout)

    def _learn(self, found: object) -> VolumeInfo:
        self.info = VolumeInfo.model_validate(found)
        return self.info

    @property
    def _path(self) -> str:
        return f"{PATH}/{wire.segment(self.name)}"


async def chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
