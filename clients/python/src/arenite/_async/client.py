"""The connection to a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from typing_extensions import Self

from .. import _wire as wire
from ..errors import AreniteError
from ..models import EventInfo, EventPage, Me, ServerInfo
from ..results import EventGap
from .groups import AsyncGroups
from .model_routes import AsyncModels
from .sandbox import AsyncSandboxes
from .secrets import AsyncSecrets
from .snapshots import AsyncSnapshots
from .trajectory import AsyncTrajectories
from .volumes import AsyncVolumes
from .webhooks import AsyncWebhooks


class AsyncClient:
    """A client of one server. It keeps connections open, so use one for many calls and close it."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 3,
        ca: str | None = None,
    ) -> None:
        """
        Args:
            base_url: the server's address; default: `ARENITE_SERVER`, otherwise `http://127.0.0.1:8080`.
            api_key: default: `ARENITE_API_KEY`.
            timeout: seconds to wait for an answer. Commands and code have their own.
            retries: how often a request that is safe to repeat is repeated.
            ca: a PEM file with the certificate authorities to trust; default: `ARENITE_CA`.
        """
        self.base_url = wire.base_url(base_url)
        self.timeout = timeout
        self.retries = retries
        self.sandboxes = AsyncSandboxes(self)
        self.groups = AsyncGroups(self)
        self.models = AsyncModels(self)
        self.secrets = AsyncSecrets(self)
        self.snapshots = AsyncSnapshots(self)
        self.trajectories = AsyncTrajectories(self)
        self.volumes = AsyncVolumes(self)
        self.webhooks = AsyncWebhooks(self)
        self._http = httpx.AsyncClient(headers=wire.headers(api_key), verify=wire.trust(self.base_url, ca))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def info(self) -> ServerInfo:
        """Describes the server."""
        return ServerInfo.model_validate(await self.request("GET", "/api/v2/info"))

    async def me(self) -> Me:
        """Describes the caller: its tenant and its rights."""
        return Me.model_validate(await self.request("GET", "/api/v2/me"))

    async def events(
        self,
        *,
        types: Sequence[str] = (),
        sandboxes: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        after: str | None = None,
        follow: bool = False,
    ) -> AsyncIterator[EventInfo | EventGap]:
        """What happened to sandboxes, the oldest event first. An `EventGap` stands for events that the server lost.

        Args:
            types: only these, such as `sandbox.died`.
            sandboxes: only these, by name or id.
            labels: only sandboxes with all of these.
            after: the id of the event before the first one.
            follow: wait for more. Without `after`, it starts with the next one.
        """
        params = {
            "type": ",".join(types) or None,
            "sandbox": [*sandboxes] or None,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()] or None,
            "after": after,
        }
        if follow:
            call = wire.Call("GET", "/api/v2/events", {**params, "follow": True}, timeout=self.timeout)
            async for event in self._events(call):
                if event.name == "gap":
                    yield EventGap()
                elif isinstance(event.data, dict) and "sandbox" in event.data:
                    yield EventInfo.model_validate(event.data)
            return
        while True:
            page = EventPage.model_validate(await self.request("GET", "/api/v2/events", params=params))
            if page.gap:
                yield EventGap()
            for one in page.events:
                yield one
            if not page.events:
                return
            params = {**params, "after": page.next_after}

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Calls any route. Returns the data of the answer: JSON, or bytes.

        Only reads, and requests with an idempotency key, are repeated after a failure.
        """
        call = wire.Call(
            method, path, params, json, timeout=self.timeout, idempotency_key=idempotency_key
        )
        return await self._call(call)

    async def pages(
        self, path: str, entries: str, params: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The entries of any list of the server, page by page.

        Args:
            entries: the field of the answer that has them, such as `sandboxes`.
            params: filters, and `limit` for the size of a page.
        """
        cursor: str | None = None
        while True:
            page = await self.request("GET", path, params={**(params or {}), "cursor": cursor})
            for entry in page[entries]:
                yield entry
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    async def _call(self, call: wire.Call) -> Any:
        return wire.content(await self._send(call))

    async def _send(self, call: wire.Call, *, stream: bool = False) -> httpx.Response:
        """Returns an answer with a status of success. With `stream`, its body is not read yet."""
        attempts = wire.Attempts(call, self.retries)
        while True:
            failure: AreniteError
            try:
                request = self._http.build_request(call.method, self.base_url + call.path, **wire.arguments(call))
                response = await self._http.send(request, stream=True)
                if not (response.is_success and stream):
                    await response.aread()
                if response.is_success:
                    return response
                failure = wire.refusal(response)
            except httpx.TransportError as error:
                failure = wire.broken(error, self.base_url)
            pause = attempts.pause(failure)
            if pause is None:
                raise failure
            await asyncio.sleep(pause)

    async def _chunks(self, call: wire.Call) -> AsyncIterator[bytes]:
        """The body of an answer, as it arrives."""
        response = await self._send(call, stream=True)
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx.TransportError as error:
            raise wire.broken(error, self.base_url) from error
        finally:
            await response.aclose()

    async def _save(self, call: wire.Call, target: str | os.PathLike[str]) -> None:
        """Writes the body of an answer to a local path. If that fails, the target stays as it was."""
        part = Path(f"{os.fspath(target)}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                async for chunk in self._chunks(call):
                    file.write(chunk)
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    async def _events(self, call: wire.Call) -> AsyncIterator[wire.Event]:
        """The events of a stream. After a broken connection, it continues where it stopped."""
        last: str | None = None
        failures = 0
        while True:
            headers = {"accept": "text/event-stream", **({} if last is None else {"last-event-id": last})}
            response = await self._send(replace(call, headers=headers), stream=True)
            events = wire.Events()
            is_over = True
            try:
                async for line in response.aiter_lines():
                    event = events.feed(line)
                    if event is not None:
                        failures = 0
                        last = event.id or last
                        is_over = event.name not in wire.RECONNECT_AFTER
                        yield event
            except httpx.TransportError as error:
                failures += 1
                is_over = False
                if failures > self.retries:
                    raise wire.broken(error, self.base_url) from error
            finally:
                await response.aclose()
            if is_over:
                return
            await asyncio.sleep(wire.backoff(failures + 1))
