"""Files of a sandbox."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from typing_extensions import Self

from .. import _wire as wire
from ..errors import ConnectionFailed, NotFound
from ..models import FileInfo
from ..results import FileChange

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

FileList = list[FileInfo]


class AsyncFiles:
    """Files of a sandbox. Paths are absolute."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> str:
        """The text of a file, in UTF-8."""
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        return (await self._sandbox.client._send(self._download(path))).content

    async def write(self, path: str, content: str | bytes, *, append: bool = False) -> None:
        """Writes a file, and creates the directories above it. `upload` is for large files."""
        text, encoding = content, "utf-8"
        if isinstance(content, bytes):
            text, encoding = base64.b64encode(content).decode(), "base64"
        body = {"file": path, "content": text, "encoding": encoding, "append": append}
        await self._sandbox.request("POST", "/v1/file/write", json=body)

    async def list(self, path: str, *, recursive: bool = False) -> FileList:
        """The content of a directory."""
        found = await self._sandbox.request("POST", "/v1/file/list", json={"path": path, "recursive": recursive})
        return [FileInfo.model_validate(file) for file in found["files"]]

    async def upload(self, source: str | os.PathLike[str] | BinaryIO, path: str) -> None:
        """Copies a local file, or what an open file has left, to a path in the sandbox."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                await self.upload(file, path)
            return
        call = wire.Call(
            "POST",
            f"{self._sandbox._path}/v1/file/upload",
            data={"path": path},
            files={"file": ("file", source, "application/octet-stream")},
            timeout=self._sandbox.client.timeout,
        )
        await self._sandbox.client._call(call)

    async def download(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file of the sandbox to a local path. A copy that fails leaves the target as it was."""
        await self._sandbox.client._save(self._download(path), target)

    def watch(
        self,
        path: str,
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] | None = None,
    ) -> AsyncFileWatch:
        """Watches a file or directory. Use it in a `with` block, and iterate over it.

        Args:
            include: globs of what is reported; empty: everything.
            exclude: names and globs of what is not watched, instead of the default.
        """
        body = {"path": path, "recursive": recursive, "include_patterns": list(include)}
        return AsyncFileWatch(self._sandbox, body if exclude is None else {**body, "exclude": list(exclude)})

    def _download(self, path: str) -> wire.Call:
        client = self._sandbox.client
        return wire.Call("GET", f"{self._sandbox._path}/v1/file/download", {"path": path}, timeout=client.timeout)


class AsyncFileWatch:
    """Changes of files. Iterating over it waits for them."""

    def __init__(self, sandbox: AsyncSandbox, body: dict[str, Any]) -> None:
        self._sandbox = sandbox
        self._body = body
        self._id: str | None = None

    async def __aenter__(self) -> Self:
        made = await self._sandbox.request("POST", "/v1/file/watch", json=self._body)
        self._id = made["watcher_id"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._sandbox.request("DELETE", self._path())
        except NotFound:
            pass

    async def __aiter__(self) -> AsyncIterator[FileChange]:
        client = self._sandbox.client
        call = wire.Call("GET", f"{self._sandbox._path}{self._path()}/events", timeout=client.timeout)
        async for event in client._events(call):
            if event.name == "file_change":
                yield FileChange.model_validate(event.data)
            elif event.name == "overflow":
                raise ConnectionFailed("changes were lost, because they were read too slowly; read the files again")

    def _path(self) -> str:
        if self._id is None:
            raise RuntimeError("use the watch in a `with` block")
        return f"/v1/file/watch/{wire.segment(self._id)}"
