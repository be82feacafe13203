"""/metrics: what sandboxes, host and storage use, and how long each route takes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

import httpx
from arenite_server import Server
from sandboxes import LiveSandbox

SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def read(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = httpx.get(f"{server.url}/metrics", timeout=60).raise_for_status().text
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = SERIES.fullmatch(line).groups()
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels or ""))] = float(value)
    return found


def test_metrics_tell_of_sandboxes_host_storage_and_routes(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    live.output("head -c 20000000 /dev/urandom > big; sync; timeout 3 sh -c 'while :; do :; done'; true")
    for number in range(3):
        httpx.get(f"{live.url}/v1/made/up/{number}")
    # The file system counts what was written when it writes it back.
    deadline = time.monotonic() + 90
    while not any(
        value > 19_000_000 for (series, has), value in read(server).items()
        if series == "arenite_sandbox_disk_bytes" and ("sandbox", live.name) in has
    ):
        assert time.monotonic() < deadline, "the disk's use is not counted"
        subprocess.run(["sync", "--file-system", str(server.data_dir / "pool")], check=True)
    metrics = read(server)

    def of(name: str, **labels: str) -> float:
        found = [value for (series, has), value in metrics.items() if series == name and has >= set(labels.items())]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    mine = {"sandbox": live.name, "id": live.id, "image": "base"}
    assert of("arenite_sandbox_disk_bytes", **mine) > 19_000_000
    assert of("arenite_sandbox_cpu_seconds_total", **mine) > 0.5
    assert of("arenite_sandbox_memory_bytes", **mine) > 1_000_000
    assert of("arenite_sandbox_processes", **mine) >= 1
    assert of("arenite_sandbox_network_received_bytes_total", **mine) >= 0
    assert of("arenite_sandbox_network_sent_bytes_total", **mine) >= 0
    assert of("arenite_sandboxes_without_series") == 0
    assert of("arenite_host_memory_bytes") > of("arenite_host_memory_available_bytes") > 0
    assert of("arenite_host_cpus") >= 1 and of("arenite_host_cpu_seconds_total", mode="idle") > 0
    assert of("arenite_storage_bytes") >= of("arenite_storage_available_bytes") > 0
    assert {"version", "commit", "profile"} == {label for (name, has) in metrics if name == "arenite_build_info" for label, _ in has}
    # One route, wherever the sandbox is; what clients make up is one series.
    assert of("arenite_http_request_seconds_count", api="aio", route="/v1/bash/exec") >= 1
    made_up = [has for name, has in metrics if name == "arenite_http_request_seconds_count" if ("route", "other") in has]
    assert made_up and not any("made" in str(has) for _, has in metrics)
