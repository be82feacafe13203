"""Routes to models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from .. import _wire as wire
from ..models import ModelRouteDetails, ModelRouteInfo

if TYPE_CHECKING:
    from .client import AsyncClient

PATH = "/api/v2/models"


class AsyncModels:
    """Routes to models. Their calls are steps of a sandbox or a worker. The role is `admin`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def set(self, name: str, upstream: str, **fields: Any) -> ModelRouteDetails:
        """Adds a route, or replaces it. `fields` are those of `PUT /api/v2/models/{name}`, such as `dialect` and `secret`."""
        body = {"upstream": upstream, **fields}
        return ModelRouteDetails.model_validate(await self._client.request("PUT", self._path(name), json=body))

    async def get(self, name: str) -> ModelRouteDetails:
        """A route, with what it used."""
        return ModelRouteDetails.model_validate(await self._client.request("GET", self._path(name)))

    async def list(self) -> AsyncIterator[ModelRouteInfo]:
        """Lists routes."""
        async for info in self._client.pages(PATH, "models"):
            yield ModelRouteInfo.model_validate(info)

    async def delete(self, name: str) -> None:
        """Deletes a route, with what it used."""
        await self._client.request("DELETE", self._path(name))

    def _path(self, name: str) -> str:
        return f"{PATH}/{wire.segment(name)}"
