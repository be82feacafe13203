# Generated from _async/webhooks.py by generate.py: do not edit.
"""Webhooks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import _wire as wire
from ..models import DeliveryInfo, NewWebhookInfo, WebhookInfo, WebhookTest

if TYPE_CHECKING:
    from .client import Client

PATH = "/api/v2/webhooks"


class Webhooks:
    """Addresses to which the server sends the events of the key's tenant. The role is `admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self, url: str, *, types: Sequence[str] = (), idempotency_key: str | None = None
    ) -> NewWebhookInfo:
        """Creates a webhook for events of these types, or of all. Only this answer has the secret that signs deliveries."""
        key = idempotency_key or uuid.uuid4().hex
        made = self._client.request("POST", PATH, json={"url": url, "types": [*types]}, idempotency_key=key)
        return NewWebhookInfo.model_validate(made)

    def get(self, id: str) -> WebhookInfo:
        return WebhookInfo.model_validate(self._client.request("GET", self._path(id)))

    def list(self) -> Iterator[WebhookInfo]:
        """Lists webhooks."""
        for info in self._client.pages(PATH, "webhooks"):
            yield WebhookInfo.model_validate(info)

    def delete(self, id: str) -> None:
        """Deletes a webhook with its deliveries."""
        self._client.request("DELETE", self._path(id))

    def test(self, id: str) -> WebhookTest:
        """Sends a test once, and returns the result."""
        return WebhookTest.model_validate(self._client.request("POST", f"{self._path(id)}/test", json={}))

    def deliveries(self, id: str, *, state: str | None = None) -> Iterator[DeliveryInfo]:
        """Lists deliveries, the newest first. `state` is `pending`, `delivered`, or `dead`."""
        for info in self._client.pages(f"{self._path(id)}/deliveries", "deliveries", {"state": state}):
            yield DeliveryInfo.model_validate(info)

    def redeliver(self, id: str, number: int) -> DeliveryInfo:
        """Delivers an event again, with all retries."""
        path = f"{self._path(id)}/deliveries/{number}/redeliver"
        return DeliveryInfo.model_validate(self._client.request("POST", path, json={}))

    def _path(self, id: str) -> str:
        return f"{PATH}/{wire.segment(id)}"
