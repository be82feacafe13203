"""A minimal FastAPI server of the same shape as AgentFlow's execute: sessions in a dictionary, a tool by its name, the envelope.

Prints its port, and ends when its standard input does.
"""

import asyncio
import os
import socket
import sys
import threading
import time
import uuid
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Execute(BaseModel):
    worker_id: str
    action: str
    params: dict[str, Any] = {}
    timeout: int | None = None


app = FastAPI()
sessions: dict[tuple[str, str], str] = {}
lock = asyncio.Lock()


async def list_databases(**_: Any) -> dict[str, Any]:
    return {"databases": []}


TOOLS = {"text2sql:list_databases": list_databases}


@app.post("/api/v1/execute")
async def execute(request: Execute) -> dict[str, Any]:
    begun = time.perf_counter()
    kind = request.action.split(":")[0]
    async with lock:
        session = sessions.setdefault((request.worker_id, kind), f"{kind}_{request.worker_id}_{uuid.uuid4().hex[:8]}")
    result = await TOOLS[request.action](**request.params)
    return {
        "code": 0,
        "message": "success",
        "data": {"result": result, "inputs": {**request.params, "worker_id": request.worker_id}},
        "meta": {
            "tool": request.action,
            "execution_time_ms": (time.perf_counter() - begun) * 1000,
            "resource_type": kind,
            "session_id": session,
            "trace_id": str(uuid.uuid4()),
        },
    }


def watch() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=watch, daemon=True).start()
    uvicorn.run(app, fd=listener.fileno(), log_level="warning", access_log=False)
