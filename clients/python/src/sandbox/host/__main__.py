"""`python3 -m sandbox.host`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pkgutil
import sys
import traceback
from typing import Any

import sandbox

from .channel import Channel, event_loop


class Forward(logging.Handler):
    """What tools log, as notifications."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record).encode("utf-8", "replace").decode()
        except Exception:  # a record whose arguments don't fit its text
            return
        self._channel.notify("log", {"level": record.levelname.lower(), "message": message})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m sandbox.host", description=sys.modules["sandbox.host"].__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    backend = kinds.add_parser("backend", help="a class that derives from sandbox.server.Backend")
    backend.add_argument("dotted", metavar="pkg.mod.Class")
    tools = kinds.add_parser("tools", help="modules whose functions are marked with @register_api_tool or @tool")
    tools.add_argument("modules", metavar="MODULE", nargs="+")
    given = parser.parse_args(argv)

    channel = Channel.take()
    logging.basicConfig(
        level=os.environ.get("ARENITE_PLUGIN_LOG", "INFO").upper(),
        handlers=[Forward(channel)],
        format="%(name)s: %(message)s",
    )
    extend_path(os.environ.get("ARENITE_PLUGIN_PATH", "").split(os.pathsep))
    loop = event_loop()
    asyncio.set_event_loop(loop)
    serving = loop.create_task(_serve(channel, given))
    while True:
        try:
            return loop.run_until_complete(serving)
        except SystemExit:
            # From a task that a tool left behind. It stopped the loop, not the service.
            if serving.done():
                raise
            traceback.print_exc()


def extend_path(entries: list[str]) -> None:
    """Entries come first, as those of PYTHONPATH do. A `sandbox` package among them adds what this one lacks."""
    sys.path[:0] = [entry for entry in entries if entry]
    sandbox.__path__ = pkgutil.extend_path(sandbox.__path__, "sandbox")


async def _serve(channel: Channel, given: Any) -> int:
    # Only now: these modules look at `sys.path` when they are imported.
    from .plugins import BackendPlugin, Plugin, ToolsPlugin
    from .service import Service, exit_now, thread_pool

    executor = thread_pool()
    asyncio.get_running_loop().set_default_executor(executor)
    plugin: Plugin
    plugin = BackendPlugin(executor, given.dotted) if given.kind == "backend" else ToolsPlugin(executor, given.modules)
    await Service(channel, plugin).serve()
    channel.close()
    exit_now(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
