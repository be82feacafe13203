"""`arenite top`: what sandboxes use, the busiest first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import httpx
import pytest
from arenite_server import Server, binary
from sandboxes import LiveSandbox
from small import tiny_image


@pytest.fixture
def served(own_server: Callable[..., Server]) -> Server:
    server = own_server(args=("--default-image", "tiny"))
    server.start()
    tiny_image(server.data_dir / "pool")
    return server


def top(server: Server, *args: str, **more) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")} | {"ARENITE_SERVER": server.url}
    return subprocess.run([str(binary()), "top", *args], capture_output=True, text=True, timeout=60, env=environment, **more)


def test_the_busiest_sandbox_comes_first_and_paused_ones_stay_paused(served: Server) -> None:
    empty = top(served, "--once")
    assert (empty.returncode, empty.stdout.split()) == (0, ["NAME", "STATE", "CPU", "MEMORY", "DISK", "CALLS", "AGE", "IMAGE"]), empty
    for name in ("asleep", "busy", "calm"):
        httpx.post(f"{served.url}/api/v2/sandboxes", json={"name": name}, timeout=60).raise_for_status()
    httpx.post(f"{served.url}/api/v2/sandboxes/asleep/pause", json={}, timeout=60).raise_for_status()
    busy = LiveSandbox(served.url, "busy")
    busy.bash("while :; do :; done", async_mode=True)
    try:
        shown = top(served, "--once")
        lines = [line.split() for line in shown.stdout.splitlines()]
        assert lines[1][:2] == ["busy", "running"] and float(lines[1][2].rstrip("%")) > 5, shown.stdout
        assert {(line[0], line[1]) for line in lines[2:]} == {("asleep", "paused"), ("calm", "running")}, shown.stdout
        one = json.loads(top(served, "--once", "--json").stdout)
        assert one["left_out"] == 0 and one["sandboxes"][0]["name"] == "busy" and one["sandboxes"][0]["cpu_cores"] > 0.05, one
        assert all(s["usage"]["memory_bytes"] > 0 and s["usage"]["limits"]["memory_bytes"] > 0 for s in one["sandboxes"]), one
    finally:
        served.delete_all_sandboxes()


def test_a_stream_has_a_line_for_each_measurement(served: Server) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")} | {"ARENITE_SERVER": served.url}
    running = subprocess.Popen([str(binary()), "top", "--json"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert [json.loads(running.stdout.readline()) for _ in range(2)] == [{"left_out": 0, "sandboxes": []}] * 2
    finally:
        running.kill()
        running.wait(30)
