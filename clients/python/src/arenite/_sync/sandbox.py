# Generated from _async/sandbox.py by generate.py: do not edit.
"""Sandboxes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
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
from .browser import Browser
from .code import Code
from .commands import BashSession, Process
from .files import Files
from .trajectory import Trajectory

if TYPE_CHECKING:
    from .client import Client


class Sandboxes:
    """The sandboxes of a server that the key may see."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, *, idempotency_key: str | None = None, **spec: Unpack[CreateSandbox]) -> Sandbox:
        """Creates a sandbox. Leaving its `with` block deletes it.

        If the answer is lost, the request is repeated with the same key, and the server answers with the sandbox that the first
        one created.
        """
        key = idempotency_key or uuid.uuid4().hex
        call = wire.Call("POST", "/api/v2/sandboxes", json=spec, timeout=wire.CREATE_TIMEOUT, idempotency_key=key)
        info = SandboxInfo.model_validate(self._client._call(call))
        return Sandbox(self._client, info, is_temporary=True)

    def create_many(
        self,
        number: int,
        *,
        at_least: int | None = None,
        idempotency_key: str | None = None,
        **spec: Unpack[CreateSandbox],
    ) -> SandboxBatch:
        """Creates equal sandboxes, named `NAME-0` and so on. Leaving the `with` block of the result deletes them.

        Args:
            number: from 1 to 100.
            at_least: if fewer than this number can be created, none are; by default all must be.
        """
        key = idempotency_key or uuid.uuid4().hex
        json = {**spec, "count": number, **wire.present(min=at_least)}
        call = wire.Call("POST", "/api/v2/sandboxes", json=json, timeout=wire.CREATE_TIMEOUT, idempotency_key=key)
        created = CreatedSandboxes.model_validate(self._client._call(call))
        return SandboxBatch([Sandbox(self._client, info) for info in created.sandboxes], created.errors)

    def get(self, name: str) -> Sandbox:
        """Finds a sandbox by its name."""
        found = self._client.request("GET", f"/api/v2/sandboxes/{wire.segment(name)}")
        return Sandbox(self._client, SandboxInfo.model_validate(found))

    def list(self, *, limit: int = 100, **filters: Any) -> Iterator[Sandbox]:
        """Lists sandboxes, page by page.

        Args:
            limit: the size of a page.
            filters: parameters of `GET /api/v2/sandboxes`, such as `state=["running", "paused"]` or `label="team=red"`.
        """
        for info in self._client.pages("/api/v2/sandboxes", "sandboxes", {**filters, "limit": limit}):
            yield Sandbox(self._client, SandboxInfo.model_validate(info))


class SandboxBatch:
    """The sandboxes of one create."""

    def __init__(self, sandboxes: Sequence[Sandbox], errors: Sequence[FailedCreate]) -> None:
        self.sandboxes = sandboxes
        #: Why the others could not be created.
        self.errors = errors

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self.sandboxes)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def __getitem__(self, index: int) -> Sandbox:
        return self.sandboxes[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    def delete(self) -> None:
        """Deletes those that still exist."""
        for sandbox in self.sandboxes:
            try:
                sandbox.delete()
            except NotFound:
                pass


class Sandbox:
    """A sandbox: a computer with a shell, files, code, and a browser."""

    def __init__(
        self, client: Client, info: SandboxInfo, *, is_temporary: bool = False, owns_client: bool = False
    ) -> None:
        self.client = client
        #: As of the last call that returned it; `refresh` renews it.
        self.info = info
        self.files = Files(self)
        self.code = Code(self)
        self.browser = Browser(self)
        #: What was done in it.
        self.trajectory = Trajectory(client, info.id)
        self._is_temporary = is_temporary
        self._owns_client = owns_client

    @classmethod
    def create(
        cls,
        client: Client | None = None,
        *,
        idempotency_key: str | None = None,
        **spec: Unpack[CreateSandbox],
    ) -> Sandbox:
        """Creates a sandbox. Leaving its `with` block deletes it. Without `client`, it has a client of the default server."""
        from .client import Client

        used = client or Client()
        try:
            sandbox = used.sandboxes.create(idempotency_key=idempotency_key, **spec)
        except BaseException:
            if client is None:
                used.close()
            raise
        sandbox._owns_client = client is None
        return sandbox

    @classmethod
    def get(cls, name: str, client: Client | None = None) -> Sandbox:
        """Finds a sandbox by its name. Leaving its `with` block keeps it."""
        from .client import Client

        used = client or Client()
        try:
            sandbox = used.sandboxes.get(name)
        except BaseException:
            if client is None:
                used.close()
            raise
        sandbox._owns_client = client is None
        return sandbox

    @classmethod
    def list(cls, client: Client | None = None, **filters: Any) -> Iterator[Sandbox]:
        """Lists sandboxes, page by page. Filters are parameters of `GET /api/v2/sandboxes`, such as `state="running"`."""
        from .client import Client

        used = client or Client()
        for sandbox in used.sandboxes.list(**filters):
            yield sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._is_temporary:
                try:
                    self.delete()
                except NotFound:
                    pass
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connections of a sandbox that was created without a client. The sandbox goes on."""
        if self._owns_client:
            self.client.close()

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

    def request(self, method: str, path: str, *, json: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Calls any route of the sandbox's own API, such as `POST /v1/shell/exec`, and returns the data of the answer."""
        return self.client.request(method, self._path + path, json=json, params=params)

    # Commands

    def run(
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
        shell = BashSession(self, None)
        return shell.run(command, cwd=cwd, env=env, input=input, timeout=timeout, check=check)

    def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Starts a command, to read its output while it runs, and to write to its standard input."""
        return BashSession(self, None).spawn(command, cwd=cwd, env=env, timeout=timeout)

    def bash(self, *, cwd: str | None = None) -> BashSession:
        """Creates a session of commands that share a default directory."""
        made = self.request("POST", "/v1/bash/sessions/create", json=wire.present(exec_dir=cwd))
        return BashSession(self, made["session_id"])

    # Its life

    def refresh(self) -> SandboxInfo:
        return self._update(self.client.request("GET", self._api))

    def pause(self, kind: PauseKind | None = None) -> SandboxInfo:
        """Pauses it until its next call. `disk` ends its processes and keeps its files; `freeze`, the default, keeps both."""
        return self._post("pause", **wire.present(kind=kind))

    def resume(self) -> SandboxInfo:
        return self._post("resume")

    def start(self) -> SandboxInfo:
        """Runs it again with its files after it failed or was lost."""
        return self._post("start")

    def extend(self, seconds: int) -> SandboxInfo:
        """Adds to its lifetime. If no answer comes, look at `refresh().expires_at` before you repeat it."""
        return self._post("extend", seconds=seconds)

    def set_timeout(self, seconds: int | None) -> SandboxInfo:
        """Sets its lifetime from now on; None: unlimited."""
        return self._change(expires_in_seconds=seconds)

    def set_labels(self, labels: Mapping[str, str | None]) -> SandboxInfo:
        """Changes labels; None removes one."""
        return self._change(labels=dict(labels))

    def network(self) -> NetworkInfo:
        """What it may reach, and what it reached or was refused."""
        return NetworkInfo.model_validate(self.client.request("GET", f"{self._api}/network"))

    def set_network(self, network: str | Mapping[str, Any], *, close_open: bool = False) -> SandboxInfo:
        """Replaces what it may reach, while it runs.

        Args:
            network: `open`, `observe`, `allowlist`, or a mode with rules, such as `{"mode": "allowlist", "allow": ["pypi.org"]}`.
            close_open: close connections that it refuses.
        """
        return self._change(network=network, close_open=close_open)

    def delete(self) -> None:
        """Deletes it with its files. Its trajectory stays."""
        self.client.request("DELETE", self._api)
        self._is_temporary = False

    # States of its disk

    def checkpoint(self, note: str | None = None, *, keep_processes: bool = False) -> CheckpointInfo:
        """Seals its disk as a checkpoint of its history, without waking it.

        Args:
            keep_processes: also keep its processes. Only with the tiers `gvisor` and `machine`; refused elsewhere.
        """
        json = wire.present(note=note, keep_processes=keep_processes or None)
        return CheckpointInfo.model_validate(self.client.request("POST", f"{self._api}/checkpoints", json=json))

    def history(self) -> HistoryInfo:
        """Its checkpoints, the oldest first."""
        return HistoryInfo.model_validate(self.client.request("GET", f"{self._api}/history", params={"limit": 1000}))

    def delete_checkpoint(self, checkpoint: int | str) -> None:
        """Removes a checkpoint, by number or id."""
        self.client.request("DELETE", f"{self._api}/checkpoints/{wire.segment(str(checkpoint))}")

    def rollback(self, to: int | str, *, restart: bool | None = None) -> RolledBack:
        """Returns its disk to a checkpoint, by number or id, or to its `beginning`. All its processes end, and those that the
        checkpoint keeps go on.

        Args:
            restart: True starts its main command again, and False nothing, also if the checkpoint keeps processes.
        """
        return self._returned(self._return("rollback", restart, to=str(to)))

    def reset(self, *, snapshot: str | None = None, restart: bool | None = None) -> RolledBack:
        """Returns its disk to what it was created with, or to a snapshot of the same image. All its processes end, and those that
        this state keeps go on."""
        return self._returned(self._return("reset", restart, **wire.present(snapshot=snapshot)))

    def diff(self, before: int | str = "beginning", after: int | str = "current", *, limit: int = 1000) -> Differences:
        """Compares two states of its disk by path: checkpoints by number or id, `beginning`, or `current`."""
        params = {"before": str(before), "after": str(after), "limit": limit}
        return Differences.model_validate(self.client.request("GET", f"{self._api}/diff", params=params))

    def fork(self, number: int = 1, **spec: Unpack[ForkSandbox]) -> SandboxBatch:
        """Creates sandboxes with its disk and its spec. Leaving the `with` block of the result deletes them.

        Args:
            number: from 1 to 100.
            spec: what differs, such as `name`, `env`, `labels`, or `min`, the number below which none are created.
        """
        call = wire.Call("POST", f"{self._api}/fork", json={**spec, "count": number}, timeout=wire.CREATE_TIMEOUT)
        forked = CreatedSandboxes.model_validate(self.client._call(call))
        return SandboxBatch([Sandbox(self.client, info) for info in forked.sandboxes], forked.errors)

    def snapshot(
        self, name: str, *, labels: Mapping[str, str] | None = None, note: str | None = None, keep_processes: bool = False
    ) -> SnapshotInfo:
        """Seals its disk as a snapshot, from which sandboxes are created with `Sandbox.create(snapshot=name)`.

        Args:
            keep_processes: also keep its processes. Only with the tiers `gvisor` and `machine`; refused elsewhere.
        """
        return self.client.snapshots.create(name, self.name, labels=labels, note=note, keep_processes=keep_processes)

    def _return(self, action: str, restart: bool | None, **fields: Any) -> Any:
        processes = {None: None, True: "restart", False: "end"}[restart]
        json = {**fields, **wire.present(processes=processes)}
        return self.client.request("POST", f"{self._api}/{action}", json=json)

    def _returned(self, answer: Any) -> RolledBack:
        returned = RolledBack.model_validate(answer)
        self.info = returned.sandbox
        return returned

    def usage(self) -> SandboxUsage:
        """Measures its use of memory, processor, and disk."""
        return SandboxUsage.model_validate(self.client.request("GET", f"{self._api}/usage"))

    def logs(self) -> str:
        """The output of its main command."""
        text: bytes | None = self.client.request("GET", f"{self._api}/logs")
        return (text or b"").decode(errors="replace")

    def steps(
        self, *, origin: str | None = None, result: str | None = None, after: int = 0, follow: bool = False
    ) -> Iterator[Step]:
        """The recorded steps; see `Trajectory.steps`."""
        return self.trajectory.steps(origin=origin, result=result, after=after, follow=follow)

    @property
    def _path(self) -> str:
        return f"/sandbox/{wire.segment(self.name)}"

    @property
    def _api(self) -> str:
        return f"/api/v2/sandboxes/{wire.segment(self.name)}"

    def _change(self, **fields: Any) -> SandboxInfo:
        return self._update(self.client.request("PATCH", self._api, json=fields))

    def _post(self, action: str, **fields: Any) -> SandboxInfo:
        return self._update(self.client.request("POST", f"{self._api}/{action}", json=fields))

    def _update(self, info: Any) -> SandboxInfo:
        self.info = SandboxInfo.model_validate(info)
        return self.info

    def _work(self, path: str, body: Any, seconds: float) -> Any:
        """A call that works for up to `seconds`."""
        return self.client._call(wire.Call("POST", self._path + path, json=body, timeout=seconds + wire.MARGIN))
