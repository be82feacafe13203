"""The sessions of workers: at most one for a worker and a type. Small, and in this process."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from .invoke import run

log = logging.getLogger(__name__)

Session = dict[str, Any]

COMPATIBILITY = (
    "Resource type '{0}' does not require session initialization. "
    "This session was created for compatibility but no initialization was performed."
)


@dataclass
class ResourceType:
    initializer: Callable[..., Any] | None = None
    cleaner: Callable[..., Any] | None = None
    default_config: dict[str, Any] = field(default_factory=dict)


class ResourceRouter:
    def __init__(self, session_ttl: int = 300, auto_create: bool = True) -> None:
        self.session_ttl = session_ttl
        self.auto_create = auto_create
        self._types: dict[str, ResourceType] = {}
        self._sessions: dict[str, dict[str, Session]] = {}
        self._counters: dict[tuple[str, str], int] = {}
        # A lock for each session, so that one worker's slow start holds up no other.
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    def register_resource_type(
        self,
        resource_type: str,
        initializer: Callable[..., Any] | None = None,
        cleaner: Callable[..., Any] | None = None,
        default_config: dict[str, Any] | None = None,
    ) -> None:
        """`initializer(worker_id, config)` makes a session's data, `cleaner(worker_id, session_info)` ends it."""
        self._types[resource_type] = ResourceType(initializer, cleaner, dict(default_config or {}))

    def unregister_resource_type(self, resource_type: str) -> bool:
        return self._types.pop(resource_type, None) is not None

    def get_registered_types(self) -> list[str]:
        return list(self._types)

    async def get_or_create_session(
        self,
        worker_id: str,
        resource_type: str,
        config: dict[str, Any] | None = None,
        auto_created: bool = False,
        custom_name: str | None = None,
    ) -> Session:
        """The session that is there, else a new one. When its start fails it has status `error` and is not kept."""
        async with self._lock(worker_id, resource_type):
            if (found := self._sessions.get(worker_id, {}).get(resource_type)) is not None:
                return found
            session = self._named(worker_id, resource_type, custom_name)
            kind = self._types.get(resource_type, ResourceType())
            session["auto_created"] = auto_created
            session["config"] = {**kind.default_config, **(config or {})}
            if kind.initializer is None:
                session["compatibility_mode"] = True
                session["compatibility_message"] = COMPATIBILITY.format(resource_type)
            else:
                try:
                    session["data"] = await run(kind.initializer, (worker_id, session["config"])) or {}
                except Exception as error:  # the failure is the session's state
                    log.warning("session of %s for %s did not start", resource_type, worker_id, exc_info=True)
                    session["status"] = "error"
                    session["error"] = str(error) or type(error).__name__
                    return session
            session["status"] = "active"
            self._sessions.setdefault(worker_id, {})[resource_type] = session
            return session

    async def get_session(self, worker_id: str, resource_type: str) -> Session | None:
        return self._sessions.get(worker_id, {}).get(resource_type)

    async def update_session(self, worker_id: str, resource_type: str, data: dict[str, Any]) -> bool:
        """Lays `data` over the session's data."""
        if (session := await self.get_session(worker_id, resource_type)) is None:
            return False
        session["data"].update(data)
        self._touch(session)
        return True

    async def destroy_session(self, worker_id: str, resource_type: str) -> bool:
        """A cleaner that fails is logged, and the session is gone all the same."""
        async with self._lock(worker_id, resource_type):
            session = self._sessions.get(worker_id, {}).pop(resource_type, None)
            if session is None:
                return False
            if not self._sessions[worker_id]:
                del self._sessions[worker_id]
            kind = self._types.get(resource_type, ResourceType())
            if kind.cleaner is not None:
                try:
                    await run(kind.cleaner, (worker_id, session))
                except Exception:
                    log.warning("cleanup of session %s failed", session["session_id"], exc_info=True)
        self._locks.pop((worker_id, resource_type), None)
        return True

    async def destroy_worker_sessions(self, worker_id: str) -> int:
        types = list(self._sessions.get(worker_id, {}))
        return sum(await asyncio.gather(*(self.destroy_session(worker_id, kind) for kind in types)))

    async def list_worker_sessions(self, worker_id: str) -> list[Session]:
        return list(self._sessions.get(worker_id, {}).values())

    async def list_all_sessions(self) -> list[Session]:
        return [session for sessions in self._sessions.values() for session in sessions.values()]

    async def cleanup_expired(self) -> int:
        now = _now()
        late = [s for s in await self.list_all_sessions() if datetime.fromisoformat(s["expires_at"]) <= now]
        return sum([await self.destroy_session(s["worker_id"], s["resource_type"]) for s in late])

    async def get_active_resource_types(self, worker_id: str) -> list[str]:
        return list(self._sessions.get(worker_id, {}))

    async def refresh_session(self, worker_id: str, resource_type: str) -> bool:
        if (session := await self.get_session(worker_id, resource_type)) is None:
            return False
        self._touch(session)
        return True

    def _lock(self, worker_id: str, resource_type: str) -> asyncio.Lock:
        return self._locks.setdefault((worker_id, resource_type), asyncio.Lock())

    def _touch(self, session: Session) -> None:
        now = _now()
        session["last_activity"] = now.isoformat()
        session["expires_at"] = (now + timedelta(seconds=self.session_ttl)).isoformat()

    def _named(self, worker_id: str, resource_type: str, custom_name: str | None) -> Session:
        number = self._counters.get((worker_id, resource_type), 0) + 1
        self._counters[(worker_id, resource_type)] = number
        name = f"{resource_type}_{_plain(worker_id, '-') or 'worker'}_{number:03d}"
        if custom_name and (suffix := _plain(custom_name, "-_")):
            name = f"{name}_{suffix}"
        session: Session = {
            "session_id": f"{name}_{uuid.uuid4().hex[:8]}",
            "session_name": name,
            "worker_id": worker_id,
            "resource_type": resource_type,
            "config": {},
            "created_at": _now().isoformat(),
            "last_activity": "",
            "expires_at": "",
            "status": "initializing",
            "auto_created": False,
            "data": {},
            "custom_name": custom_name,
        }
        self._touch(session)
        return session


def _plain(text: str, ends: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).strip(ends)[:32]


def _now() -> datetime:
    # AgentFlow's times are UTC without a zone.
    return datetime.now(timezone.utc).replace(tzinfo=None)
