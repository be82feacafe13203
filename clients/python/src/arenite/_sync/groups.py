# Generated from _async/groups.py by generate.py: do not edit.
"""Groups of sandboxes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from typing_extensions import Self, Unpack

from .. import _wire as wire
from ..errors import NotFound
from ..models import DeletedGroup, GroupInfo
from ..requests import CreateSandbox
from .sandbox import Sandbox, SandboxBatch

if TYPE_CHECKING:
    from .client import Client

PATH = "/api/v2/groups"


class Groups:
    """The groups of the key's tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self, name: str | None = None, *, ttl: int | None = None, idempotency_key: str | None = None
    ) -> Group:
        """Creates a group. Leaving its `with` block deletes it with its sandboxes.

        Args:
            ttl: the length of its lease in seconds. Without `renew` in this time, the server deletes it with its sandboxes.
        """
        key = idempotency_key or uuid.uuid4().hex
        json = wire.present(name=name, ttl_seconds=ttl)
        made = self._client.request("POST", PATH, json=json, idempotency_key=key)
        return Group(self._client, GroupInfo.model_validate(made), is_temporary=True)

    def get(self, name: str) -> Group:
        """Finds a group by its name."""
        found = self._client.request("GET", f"{PATH}/{wire.segment(name)}")
        return Group(self._client, GroupInfo.model_validate(found))

    def list(self) -> Iterator[Group]:
        """Lists groups."""
        for info in self._client.pages(PATH, "groups"):
            yield Group(self._client, GroupInfo.model_validate(info))


class Group:
    """Sandboxes with one lease, which end together."""

    def __init__(self, client: Client, info: GroupInfo, *, is_temporary: bool = False) -> None:
        self._client = client
        #: As of the last call that returned it.
        self.info = info
        self._is_temporary = is_temporary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_temporary:
            try:
                self.delete()
            except NotFound:
                pass

    @property
    def name(self) -> str:
        return self.info.name

    def create(self, **spec: Unpack[CreateSandbox]) -> Sandbox:
        """Creates a sandbox in the group."""
        spec["group"] = self.name
        return self._client.sandboxes.create(**spec)

    def create_many(
        self, number: int, *, at_least: int | None = None, **spec: Unpack[CreateSandbox]
    ) -> SandboxBatch:
        """Creates equal sandboxes in the group; see `Sandboxes.create_many`."""
        spec["group"] = self.name
        return self._client.sandboxes.create_many(number, at_least=at_least, **spec)

    def sandboxes(self) -> Iterator[Sandbox]:
        """Lists its sandboxes."""
        return self._client.sandboxes.list(group=self.name)

    def renew(self, ttl: int | None = None) -> GroupInfo:
        """Starts its lease again, with another length if `ttl` is set."""
        found = self._client.request("POST", f"{self._path}/renew", json=wire.present(ttl_seconds=ttl))
        self.info = GroupInfo.model_validate(found)
        return self.info

    def delete(self) -> DeletedGroup:
        """Deletes it with its sandboxes."""
        deleted = DeletedGroup.model_validate(self._client.request("DELETE", self._path))
        self._is_temporary = False
        return deleted

    @property
    def _path(self) -> str:
        return f"{PATH}/{wire.segment(self.name)}"
