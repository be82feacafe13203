"""Secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from .. import _wire as wire
from ..models import SecretInfo

if TYPE_CHECKING:
    from .client import AsyncClient

PATH = "/api/v2/secrets"


class AsyncSecrets:
    """Values of the key's tenant that sandboxes use and never have. No answer shows a value. Changes need the role `admin`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def set(
        self,
        name: str,
        value: str | None = None,
        *,
        hosts: Sequence[str] | None = None,
        places: Sequence[str] | None = None,
        host_keys: Sequence[str] | None = None,
    ) -> SecretInfo:
        """Creates a secret, or changes it: what is absent stays. In effect at once, also in running sandboxes.

        Args:
            value: required for a new secret.
            hosts: the servers that get it, such as `api.example.com` or `*.example.com:8443`.
            places: parts of a request into which it is put: `header`, `query`, `body`; a login to `postgres`; or `ssh`, alone, with a private key of
                OpenSSH as the value. At first `header`.
            host_keys: for `ssh`, keys of the servers, each as `TYPE KEY` or `HOST TYPE KEY`. With one or more, only logins to servers with
                these keys are signed.
        """
        lists = {"hosts": hosts, "places": places, "host_keys": host_keys}
        body = wire.present(value=value, **{key: [*given] for key, given in lists.items() if given is not None})
        return SecretInfo.model_validate(await self._client.request("PUT", self._path(name), json=body))

    async def get(self, name: str) -> SecretInfo:
        return SecretInfo.model_validate(await self._client.request("GET", self._path(name)))

    async def list(self) -> AsyncIterator[SecretInfo]:
        """Lists secrets, without their values."""
        async for info in self._client.pages(PATH, "secrets"):
            yield SecretInfo.model_validate(info)

    async def delete(self, name: str) -> None:
        """Removes a secret. Further requests with its placeholders are refused."""
        await self._client.request("DELETE", self._path(name))

    def _path(self, name: str) -> str:
        return f"{PATH}/{wire.segment(name)}"
