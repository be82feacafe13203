"""Sandboxes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self, Unpack

from .. import _wire as wire
from ..errors import NotFound
from ..models import (
    CheckpointInfo,
    CreatedSandboxes,
    Differences,
    FailedCreate,
    HistoryInfo,
    NetworkInfo,
    RolledBack,
    SandboxInfo,
    SandboxUsage,
    SnapshotInfo,
    Step,
)
from ..requests import CreateSandbox, ForkSandbox, PauseKind
from ..results import CommandResult
from .browser import AsyncBrowser
from .code import AsyncCode
from .commands import AsyncBashSession, AsyncProcess
from .files import AsyncFiles
from .trajectory import AsyncTrajectory

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncSandboxes:
    """The sandboxes of a server that the key may see."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, *, idempotency_key: str | None = None, **spec: Unpack[CreateSandbox]) -> AsyncSandbox:
        """Creates a sandbox. Leaving its `with` block deletes it.

        If the answer is lost, the request is repeated with the same key, and the server answers with the sandbox that the first
        one created.
        """
        key = idempotency_key or uuid.uuid4().hex
        call = wire.Call("POST", "/api/v2/sandboxes", json=spec, timeout=wire.CREATE_TIMEOUT, idempotency_key=key)
        info = SandboxInfo.model_validate(await self._client._call(call))
        return AsyncSandbox(self._client, info, is_temporary=True)

    async def create_many(
        self,
        number: int,
        *,
        at_least: int | None = None,
        idempotency_key: str | None = None,
        **spec: Unpack[CreateSandbox],
    ) -> AsyncSandboxBatch:
        """Creates equal sandboxes, named `NAME-0` and so on. Leaving the `with` block of the result deletes them.

        Args:
            number: from 1 to 100.
            at_least: if fewer than this number can be created, none are; by default all must be.
        """
        key = idempotency_key or uuid.uuid4().hex
        json = {**spec, "count": number, **wire.present(min=at_least)}
        call = wire.Call("POST", "/api/v2/sandboxes", json=json, timeout=wire.CREATE_TIMEOUT, idempotency_key=key)
        created = CreatedSandboxes.model_validate(await self._client._call(call))
        return AsyncSandboxBatch([AsyncSandbox(self._client, info) for info in created.sandboxes], created.errors)

    async def get(self, name: str) -> AsyncSandbox:
        """Finds a sandbox by its name."""
        found = await self._client.request("GET", f"/api/v2/sandboxes/{wire.segment(name)}")
        return AsyncSandbox(self._client, SandboxInfo.model_validate(found))

    async def list(self, *, limit: int = 100, **filters: Any) -> AsyncIterator[AsyncSandbox]:
        """Lists sandboxes, page by page.

        Args:
            limit: the size of a page.
            filters: parameters of `GET /api/v2/sandboxes`, such as `state=["running", "paused"]` or `label="team=red"`.
        """
        async for info in self._client.pages("/api/v2/sandboxes", "sandboxes", {**filters, "limit": limit}):
            yield AsyncSandbox(self._client, SandboxInfo.model_validate(info))


class AsyncSandboxBatch:
    """The sandboxes of one create."""

    def __init__(self, sandboxes: Sequence[AsyncSandbox], errors: Sequence[FailedCreate]) -> None:
        self.sandboxes = sandboxes
        #: Why the others could not be created.
        self.errors = errors

    def __iter__(self) -> Iterator[AsyncSandbox]:
        return iter(self.sandboxes)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def __getitem__(self, index: int) -> AsyncSandbox:
        return self.sandboxes[index]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.delete()

    async def delete(self) -> None:
        """Deletes those that still exist."""
        for sandbox in self.sandboxes:
            try:
                await sandbox.delete()
            except NotFound:
                pass


class AsyncSandbox:
    """A sandbox: a computer with a shell, files, code, and a browser."""

    def __init__(
        self, client: AsyncClient, info: SandboxInfo, *, is_temporary: bool = False, owns_client: bool = False
    ) -> None:
        self.client = client
        #: As of the last call that returned it; `refresh` renews it.
        self.info = info
        self.files = AsyncFiles(self)
        self.code = AsyncCode(self)
        self.browser = AsyncBrowser(self)
        #: What was done in it.
        self.trajectory = AsyncTrajectory(client, info.id)
        self._is_temporary = is_temporary
        self._owns_client = owns_client

    @classmethod
    async def create(
        cls,
        client: AsyncClient | None = None,
        *,
        idempotency_key: str | None = None,
        **spec: Unpack[CreateSandbox],
    ) -> AsyncSandbox:
        """Creates a sandbox. Leaving its `with` block deletes it. Without `client`, it has a client of the default server."""
        from .client import AsyncClient

        used = client or AsyncClient()
        try:
            sandbox = await used.sandboxes.create(idempotency_key=idempotency_key, **spec)
        except BaseException:
            if client is None:
                await used.aclose()
            raise
        sandbox._owns_client = client is None
        return sandbox

    @classmethod
    async def get(cls, name: str, client: AsyncClient | None = None) -> AsyncSandbox:
        """Finds a sandbox by its name. Leaving its `with` block keeps it."""
        from .client import AsyncClient

        used = client or AsyncClient()
        try:
            sandbox = await used.sandboxes.get(name)
        except BaseException:
            if client is None:
                await used.aclose()
            raise
        sandbox._owns_client = client is None
        return sandbox

    @classmethod
    async def list(cls, client: AsyncClient | None = None, **filters: Any) -> AsyncIterator[AsyncSandbox]:
        """Lists sandboxes, page by page. Filters are parameters of `GET /api/v2/sandboxes`, such as `state="running"`."""
        from .client import AsyncClient

        used = client or AsyncClient()
        async for sandbox in used.sandboxes.list(**filters):
            yield sandbox

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._is_temporary:
                try:
                    await self.delete()
                except NotFound:
                    pass
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections of a sandbox that was created without a client. The sandbox goes on."""
        if self._owns_client:
            await self.client.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} ({self.id}, {self.info.state})>"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def labels(self) -> Mapping[str, str]:
        """As of the last call that returned them."""
        return self.info.spec.labels or {}

    @property
    def url(self) -> str:
        """Its address, to which the paths of its API are appended."""
        return self.client.base_url + self._path

    @property
    def mcp_url(self) -> str:
        """Its address for clients of the Model Context Protocol."""
        return f"{self.url}/mcp"

    def preview_url(self, port: int) -> str:
        """The address of an HTTP server on a port of the sandbox's loopback."""
        return f"{self.url}/proxy/{port}/"

    async def request(self, method: str, path: str, *, json: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Calls any route of the sandbox's own API, such as `POST /v1/shell/exec`, and returns the data of the answer."""
        return await self.client.request(method, self._path + path, json=json, params=params)

    # Commands

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command with bash, and returns its output when it has ended.

        Args:
            env: variables for this command; None removes one.
            input: standard input.
            timeout: seconds after which the command is killed; its result has the status `timed_out`.
            check: raise `CommandFailed` unless the exit code is 0.
        """
        shell = AsyncBashSession(self, None)
        return await shell.run(command, cwd=cwd, env=env, input=input, timeout=timeout, check=check)

    async def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> AsyncProcess:
        """Starts a command, to read its output while it runs, and to write to its standard input."""
        return await AsyncBashSession(self, None).spawn(command, cwd=cwd, env=env, timeout=timeout)

    async def bash(self, *, cwd: str | None = None) -> AsyncBashSession:
        """Creates a session of commands that share a default directory."""
        made = await self.request("POST", "/v1/bash/sessions/create", json=wire.present(exec_dir=cwd))
        return AsyncBashSession(self, made["session_id"])

    # Its life

    async def refresh(self) -> SandboxInfo:
        return self._update(await self.client.request("GET", self._api))

    async def pause(self, kind: PauseKind | None = None) -> SandboxInfo:
        """Pauses it until its next call. `disk` ends its processes and keeps its files; `freeze`, the default, keeps both."""
        return await self._post("pause", **wire.present(kind=kind))

    async def resume(self) -> SandboxInfo:
        return await self._post("resume")

    async def start(self) -> SandboxInfo:
        """Runs it again with its files after it failed or was lost."""
        return await self._post("start")

    async def extend(self, seconds: int) -> SandboxInfo:
        """Adds to its lifetime. If no answer comes, look at `refresh().expires_at` before you repeat it."""
        return await self._post("extend", seconds=seconds)

    async def set_timeout(self, seconds: int | None) -> SandboxInfo:
        """Sets its lifetime from now on; None: unlimited."""
        return await self._change(expires_in_seconds=seconds)

    async def set_labels(self, labels: Mapping[str, str | None]) -> SandboxInfo:
        """Changes labels; None removes one."""
        return await self._change(labels=dict(labels))

    async def network(self) -> NetworkInfo:
        """What it may reach, and what it reached or was refused."""
        return NetworkInfo.model_validate(await self.client.request("GET", f"{self._api}/network"))

    async def set_network(self, network: str | Mapping[str, Any], *, close_open: bool = False) -> SandboxInfo:
        """Replaces what it may reach, while it runs.

        Args:
            network: `open`, `observe`, `allowlist`, or a mode with rules, such as `{"mode": "allowlist", "allow": ["pypi.org"]}`.
            close_open: close connections that it refuses.
        """
        return await self._change(network=network, close_open=close_open)

    async def delete(self) -> None:
        """Deletes it with its files. Its trajectory stays."""
        await self.client.request("DELETE", self._api)
        self._is_temporary = False

    # States of its disk

    async def checkpoint(self, note: str | None = None, *, keep_processes: bool = False) -> CheckpointInfo:
        """Seals its disk as a checkpoint of its history, without waking it.

        Args:
            keep_processes: also keep its processes. Only with the tiers `gvisor` and `machine`; refused elsewhere.
        """
        json = wire.present(note=note, keep_processes=keep_processes or None)
        return CheckpointInfo.model_validate(await self.client.request("POST", f"{self._api}/checkpoints", json=json))

    async def history(self) -> HistoryInfo:
        """Its checkpoints, the oldest first."""
        return HistoryInfo.model_validate(await self.client.request("GET", f"{self._api}/history", params={"limit": 1000}))

    async def delete_checkpoint(self, checkpoint: int | str) -> None:
        """Removes a checkpoint, by number or id."""
        await self.client.request("DELETE", f"{self._api}/checkpoints/{wire.segment(str(checkpoint))}")

    async def rollback(self, to: int | str, *, restart: bool | None = None) -> RolledBack:
        """Returns its disk to a checkpoint, by number or id, or to its `beginning`. All its processes end, and those that the
        checkpoint keeps go on.

        Args:
            restart: True starts its main command again, and False nothing, also if the checkpoint keeps processes.
        """
        return self._returned(await self._return("rollback", restart, to=str(to)))

    async def reset(self, *, snapshot: str | None = None, restart: bool | None = None) -> RolledBack:
        """Returns its disk to what it was created with, or to a snapshot of the same image. All its processes end, and those that
        this state keeps go on."""
        return self._returned(await self._return("reset", restart, **wire.present(snapshot=snapshot)))

    async def diff(self, before: int | str = "beginning", after: int | str = "current", *, limit: int = 1000) -> Differences:
        """Compares two states of its disk by path: checkpoints by number or id, `beginning`, or `current`."""
        params = {"before": str(before), "after": str(after), "limit": limit}
        return Differences.model_validate(await self.client.request("GET", f"{self._api}/diff", params=params))

    async def fork(self, number: int = 1, **spec: Unpack[ForkSandbox]) -> AsyncSandboxBatch:
        """Creates sandboxes with its disk and its spec. Leaving the `with` block of the result deletes them.

        Args:
            number: from 1 to 100.
            spec: what differs, such as `name`, `env`, `labels`, or `min`, the number below which none are created.
        """
        call = wire.Call("POST", f"{self._api}/fork", json={**spec, "count": number}, timeout=wire.CREATE_TIMEOUT)
        forked = CreatedSandboxes.model_validate(await self.client._call(call))
        return AsyncSandboxBatch([AsyncSandbox(self.client, info) for info in forked.sandboxes], forked.errors)

    async def snapshot(
        self, name: str, *, labels: Mapping[str, str] | None = None, note: str | None = None, keep_processes: bool = False
    ) -> SnapshotInfo:
        """Seals its disk as a snapshot, from which sandboxes are created with `Sandbox.create(snapshot=name)`.

        Args:
            keep_processes: also keep its processes. Only with the tiers `gvisor` and `machine`; refused elsewhere.
        """
        return await self.client.snapshots.create(name, self.name, labels=labels, note=note, keep_processes=keep_processes)

    async def _return(self, action: str, restart: bool | None, **fields: Any) -> Any:
        processes = {None: None, True: "restart", False: "end"}[restart]
        json = {**fields, **wire.present(processes=processes)}
        return await self.client.request("POST", f"{self._api}/{action}", json=json)

    def _returned(self, answer: Any) -> RolledBack:
        returned = RolledBack.model_validate(answer)
        self.info = returned.sandbox
        return returned

    async def usage(self) -> SandboxUsage:
        """Measures its use of memory, processor, and disk."""
        return SandboxUsage.model_validate(await self.client.request("GET", f"{self._api}/usage"))

    async def logs(self) -> str:
        """The output of its main command."""
        text: bytes | None = await self.client.request("GET", f"{self._api}/logs")
        return (text or b"").decode(errors="replace")

    def steps(
        self, *, origin: str | None = None, result: str | None = None, after: int = 0, follow: bool = False
    ) -> AsyncIterator[Step]:
        """The recorded steps; see `Trajectory.steps`."""
        return self.trajectory.steps(origin=origin, result=result, after=after, follow=follow)

    @property
    def _path(self) -> str:
        return f"/sandbox/{wire.segment(self.name)}"

    @property
    def _api(self) -> str:
        return f"/api/v2/sandboxes/{wire.segment(self.name)}"

    async def _change(self, **fields: Any) -> SandboxInfo:
        return self._update(await self.client.request("PATCH", self._api, json=fields))

    async def _post(self, action: str, **fields: Any) -> SandboxInfo:
        return self._update(await self.client.request("POST", f"{self._api}/{action}", json=fields))

    def _update(self, info: Any) -> SandboxInfo:
        self.info = SandboxInfo.model_validate(info)
        return self.info

    async def _work(self, path: str, body: Any, seconds: float) -> Any:
        """A call that works for up to `seconds`."""
        return await self.client._call(wire.Call("POST", self._path + path, json=body, timeout=seconds + wire.MARGIN))
