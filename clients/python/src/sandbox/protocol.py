"""The messages of AgentFlow's API as models, and its paths. Needs pydantic."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

__all__ = [
    "MessageType", "BaseMessage", "ExecuteRequest", "ExecuteBatchRequest", "SessionCreateRequest",
    "SessionDestroyRequest", "SessionListRequest", "SessionRefreshRequest", "WorkerDisconnectRequest",
    "InitResourceRequest", "InitBatchRequest", "InitFromConfigRequest", "HTTPEndpoints",
]


class MessageType(str, Enum):
    EXECUTE = "execute"
    EXECUTE_BATCH = "execute:batch"
    SESSION_CREATE = "session:create"
    SESSION_DESTROY = "session:destroy"
    SESSION_LIST = "session:list"
    SESSION_REFRESH = "session:refresh"
    INIT_RESOURCE = "init:resource"
    INIT_BATCH = "init:batch"
    INIT_FROM_CONFIG = "init:from_config"


def _now() -> str:
    return datetime.now(timezone.utc).replace(tzinfo=None).isoformat()


class BaseMessage(BaseModel):
    message_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    message_type: str = ""
    timestamp: str = Field(default_factory=_now)
    worker_id: str | None = None
    session_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BaseMessage:
        return cls(**data)


class ExecuteRequest(BaseMessage):
    message_type: str = MessageType.EXECUTE.value
    worker_id: str
    action: str
    params: dict[str, Any] = Field(default_factory=dict)
    timeout: int | None = None
    async_mode: bool = False

    def get_resource_type(self) -> str | None:
        """What stands before the colon of the action."""
        return self.action.partition(":")[0] if ":" in self.action else None

    def get_action_name(self) -> str:
        return self.action.partition(":")[2] if ":" in self.action else self.action


class ExecuteBatchRequest(BaseMessage):
    message_type: str = MessageType.EXECUTE_BATCH.value
    worker_id: str
    actions: list[dict[str, Any]]
    parallel: bool = False
    stop_on_error: bool = True


class SessionCreateRequest(BaseMessage):
    message_type: str = MessageType.SESSION_CREATE.value
    worker_id: str
    resource_type: str
    session_config: dict[str, Any] = Field(default_factory=dict)
    ttl: int = 300
    auto_extend: bool = True


class SessionDestroyRequest(BaseMessage):
    message_type: str = MessageType.SESSION_DESTROY.value
    worker_id: str
    resource_type: str
    target_session_id: str | None = None


class SessionListRequest(BaseMessage):
    message_type: str = MessageType.SESSION_LIST.value
    resource_type: str | None = None


class SessionRefreshRequest(BaseMessage):
    message_type: str = MessageType.SESSION_REFRESH.value
    target_session_id: str | None = None
    extend_ttl: int = 300


class WorkerDisconnectRequest(BaseMessage):
    worker_id: str


class InitResourceRequest(BaseMessage):
    message_type: str = MessageType.INIT_RESOURCE.value
    worker_id: str
    resource_type: str
    init_config: dict[str, Any] = Field(default_factory=dict)


class InitBatchRequest(BaseMessage):
    message_type: str = MessageType.INIT_BATCH.value
    worker_id: str
    resource_configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    allocated_resources: dict[str, Any] = Field(default_factory=dict)
    task_session_id: str | None = None


class InitFromConfigRequest(BaseMessage):
    message_type: str = MessageType.INIT_FROM_CONFIG.value
    worker_id: str
    config_path: str
    override_params: dict[str, Any] = Field(default_factory=dict)


class HTTPEndpoints:
    HEARTBEAT = "/api/v1/lifecycle/heartbeat"
    STATUS = "/api/v1/lifecycle/status"
    EXECUTE = "/api/v1/execute"
    EXECUTE_BATCH = "/api/v1/execute/batch"
    SESSION_CREATE = "/api/v1/session/create"
    SESSION_DESTROY = "/api/v1/session/destroy"
    SESSION_LIST = "/api/v1/session/list"
    SESSION_REFRESH = "/api/v1/session/refresh"
    INIT_RESOURCE = "/api/v1/init/resource"
    INIT_BATCH = "/api/v1/init/batch"
    INIT_FROM_CONFIG = "/api/v1/init/from-config"
    TOOLS_LIST = "/api/v1/tools"
    HEALTH = "/health"
    READY = "/ready"
