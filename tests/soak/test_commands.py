"""The README's two commands, one beside the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server

PORTS = (8080, 18890)
#: Tests that reach for AgentFlow's default address, and others that create many sandboxes.
TESTS = ("agentflow/test_python_client.py", "agent_sandbox")


def xtask(*words: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
    subprocess.run(["cargo", "xtask", *words], cwd=REPOSITORY, env=environment, check=True, timeout=3600)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_server_of_up_is_left_alone_by_two_test_runs(server: Server, tmp_path: Path) -> None:
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.fail(f"port {port} is in use: stop the server there, this test starts its own")
    # The runs use this data directory.
    server.stop()
    # Sockets' paths have at most 107 bytes, so it is not below tmp_path.
    data_dir = Path(f"/var/tmp/arenite-pair-{os.getpid()}")
    try:
        xtask("up", "--image", "base", "--data-dir", str(data_dir))
        url = f"http://127.0.0.1:{PORTS[0]}"
        try:
            for turn in range(2):
                xtask("test", "--only", "end-to-end", "--", *TESTS)
                name = f"after-{turn}"
                httpx.post(f"{url}/api/v1/sandbox", json={"name": name}, timeout=60).raise_for_status()
                call = httpx.post(f"{url}/sandbox/{name}/v1/bash/exec", json={"command": "echo works"}, timeout=60)
                assert call.json()["data"]["stdout"] == "works\n", call.text
                names = {one["name"] for one in httpx.get(f"{url}/api/v2/sandboxes").json()["sandboxes"]}
                assert names == {f"after-{n}" for n in range(turn + 1)}
                assert httpx.get(f"{url}/api/v2/workers").json()["workers"] == []
        finally:
            for one in httpx.get(f"{url}/api/v2/sandboxes").json()["sandboxes"]:
                httpx.delete(f"{url}/api/v2/sandboxes/{one['name']}", timeout=60)
            target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
            started = json.loads((target / f"server-{PORTS[0]}.json").read_text())
            os.kill(started["pid"], signal.SIGTERM)
    finally:
        subprocess.run(["umount", str(data_dir / "pool")], check=False, capture_output=True)
        shutil.rmtree(data_dir, ignore_errors=True)
        server.start()
