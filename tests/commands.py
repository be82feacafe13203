"""The command line, as a person types it beside a server of the tests."""

from __future__ import annotations

import os
import subprocess

from arenite_server import Server, binary


def environment(server: Server) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
    return inherited | {"ARENITE_SERVER": server.url, "ARENITE_DATA_DIR": str(server.data_dir)}


def run(server: Server, *words: str, **more) -> subprocess.CompletedProcess[str]:
    more.setdefault("stdin", subprocess.DEVNULL)
    more.setdefault("timeout", 120)
    return subprocess.run([str(binary()), *words], capture_output=True, text=True, env=environment(server), **more)
