"""A Python server of AgentFlow's shape: FastAPI and pydantic, with backends, sessions and tools in the same process and event loop.

Not AgentFlow's code: the registry is that of the Python package here, which has AgentFlow's methods. The backend is that of the
tests. Prints its port, and ends when its standard input does.
"""

import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(REPOSITORY / "clients/python/src"), str(REPOSITORY / "tests/agentflow/plugins")]

from demo_backends import DemoBackend  # noqa: E402
from sandbox.server import HTTPServiceServer  # noqa: E402


class Batch(BaseModel):
    worker_id: str
    actions: list[dict[str, Any]]
    parallel: bool = False
    stop_on_error: bool = True


app = FastAPI()
registry = HTTPServiceServer()
registry.load_backend(DemoBackend())


@app.post("/api/v1/execute/batch")
async def batch(asked: Batch) -> dict[str, Any]:
    return await registry.execute_batch(
        asked.actions, worker_id=asked.worker_id, parallel=asked.parallel, stop_on_error=asked.stop_on_error
    )


class Execute(BaseModel):
    worker_id: str
    action: str
    params: dict[str, Any] = {}
    timeout: int | None = None


@app.post("/api/v1/execute")
async def execute(asked: Execute) -> dict[str, Any]:
    return await registry.execute(asked.action, asked.params, worker_id=asked.worker_id, timeout=asked.timeout)


@app.post("/api/v1/session/create")
async def create(asked: dict[str, Any]) -> dict[str, Any]:
    session = await registry.resource_router.get_or_create_session(asked["worker_id"], asked["resource_type"])
    return {"code": 0, "data": {"session_id": session["session_id"]}}


def watch() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=watch, daemon=True).start()
    uvicorn.run(app, fd=listener.fileno(), log_level="warning", access_log=False)
