"""The demo backends that the recorded exchanges with AgentFlow were made with, as plugins."""

import asyncio
import itertools

from sandbox.server.backends import Backend, BackendConfig
from sandbox.server.backends.response_builder import build_success_response
from sandbox.server.core import tool

# Written out, since Python 3.13 takes the indentation out of docstrings.
INCREMENT = "Increment a counter\n\n        Longer text."


class DemoBackend(Backend):
    name = "demo"
    description = "A counter in each session"
    version = "1.0.0"

    def __init__(self, config=None):
        super().__init__(config or BackendConfig(default_config={"greeting": "hi", "nested": {"a": 1}}))

    async def initialize(self, worker_id, config):
        return {"n": 0, "cfg": config}

    @tool("demo:incr", description=INCREMENT)
    async def incr(self, by=1, session_info=None, session_id=None, trace_id=None):
        session_info["data"]["n"] += by
        return build_success_response(
            {"n": session_info["data"]["n"]},
            tool="demo:incr",
            resource_type="demo",
            session_id=session_id,
            trace_id=trace_id,
        )

    @tool("demo:legacy")
    async def legacy(self):
        """legacy return"""
        return {"x": 1}

    @tool("demo:sleep")
    async def sleep(self, s=1.0):
        await asyncio.sleep(s)
        return {"code": 0, "message": "success", "data": {"slept": s}}

    @tool("demo:boom")
    async def boom(self):
        raise RuntimeError("boom")

    @tool("demo:hidden_one", hidden=True)
    async def hidden_one(self):
        return {"code": 0, "message": "success", "data": None}


class BadInitBackend(Backend):
    name = "badinit"
    description = "Fails at each start"

    async def warmup(self):
        raise RuntimeError("warmup bad")

    async def initialize(self, worker_id, config):
        raise RuntimeError("init bad")

    @tool("badinit:x")
    async def x(self):
        return {"code": 0, "message": "success", "data": None}


class SlowBackend(Backend):
    """For measurements of concurrency and of retries."""

    name = "slow"
    description = "Takes its time"

    calls = 0
    _numbers = itertools.count(1)

    async def initialize(self, worker_id, config):
        await asyncio.sleep(2)
        return {}

    @tool("slow:count")
    async def count(self, s=2.0):
        number = SlowBackend.calls = next(SlowBackend._numbers)
        await asyncio.sleep(s)
        return {"code": 0, "message": "success", "data": {"n": number}}

    @tool("slow:peek")
    async def peek(self):
        return {"code": 0, "message": "success", "data": {"calls": SlowBackend.calls}}
