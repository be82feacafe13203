"""A backend: the sessions of one resource type, and the tools that work in them."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..app import HTTPServiceServer


@dataclass
class BackendConfig:
    enabled: bool = True
    default_config: dict[str, Any] = field(default_factory=dict)
    description: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class Backend(ABC):
    """Subclass it, give it a name, and mark its tools with `@tool`.

    Every method may be overridden, and none must be. A backend without `initialize` has sessions that hold nothing.
    """

    name: str = "base"
    description: str = "Base Backend"
    version: str = "1.0.0"

    def __init__(self, config: BackendConfig | None = None) -> None:
        self.config = config if config is not None else BackendConfig()
        self.server: HTTPServiceServer | None = None

    async def warmup(self) -> None:
        """Once, before the first session: what all sessions share."""

    async def initialize(self, worker_id: str, config: dict[str, Any]) -> dict[str, Any]:
        """A new session. What is returned is `session_info["data"]` of its calls; it never leaves this process."""
        return {}

    async def cleanup(self, worker_id: str, session_info: dict[str, Any]) -> None:
        """The end of a session."""

    async def shutdown(self) -> None:
        """The end of the backend: what `warmup` made goes."""

    def get_default_config(self) -> dict[str, Any]:
        """What a session's configuration is laid over, key by key."""
        return dict(self.config.default_config)

    def bind_server(self, server: HTTPServiceServer) -> None:
        """Called after the marked tools are registered; the place for `server.register_tool`."""
        self.server = server

    def get_info(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "enabled": self.config.enabled,
            "default_config": self.get_default_config(),
        }
