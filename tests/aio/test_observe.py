"""sandbox observe, by hand: version 0.0.30 of the SDK does not know it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
from sandboxes import LiveSandbox

BASE = "/v1/sandbox/observe"


def data(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    return answer.json()["data"]


def test_the_sandboxs_own_cgroup_is_told_of(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(resources={"memory_bytes": 512 << 20})
    with httpx.Client(base_url=live.url, timeout=60) as http:
        http.post("/v1/bash/exec", json={"command": "while :; do :; done", "async_mode": True, "hard_timeout": 60})
        # A busy host may take its time to give the loop a tenth of a second.
        for _ in range(60):
            time.sleep(0.5)
            now = data(http.get(f"{BASE}/live", params={"top_rows": 3}))
            cgroup = now["cgroup"]
            if cgroup["cpu_usage_usec"] > 100_000 and cgroup["cpu_usage_pct"]:
                break
        assert cgroup["mem_max_bytes"] == 512 << 20
        assert 0 < cgroup["mem_current_bytes"] < 512 << 20
        assert cgroup["memory_anon_bytes"] > 0
        assert cgroup["cpu_usage_usec"] > 100_000
        assert cgroup["cpu_usage_pct"] > 0
        assert now["top_processes"]
        assert now["disk"][0]["total_bytes"] > 0


def test_a_capture_sees_a_kill_for_memory(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(resources={"memory_bytes": 256 << 20})
    with httpx.Client(base_url=live.url, timeout=60) as http:
        started = data(http.post(f"{BASE}/start", json={"interval_seconds": 0.2, "idempotency_key": "one"}))
        assert data(http.post(f"{BASE}/start", json={"idempotency_key": "one"})) == started
        assert http.post(f"{BASE}/start", json={}).status_code == 409
        http.post("/v1/bash/exec", json={"command": "tail /dev/zero", "timeout": 30})
        time.sleep(1)
        events = data(http.get(f"{BASE}/live"))["recent_events"]
        assert any(e["type"] == "oom_kill" for e in events), events
        stopped = data(http.post(f"{BASE}/stop", json={}))
        assert stopped == {"session_id": started["session_id"], "stopped": True, "report_ready": True}
        [report] = data(http.get(f"{BASE}/reports"))
        download = http.get(f"{BASE}/reports/{report['report_id']}")
        assert download.headers["content-type"] == "application/gzip"
        lines = [json.loads(line) for line in gzip.decompress(download.content).splitlines()]
        assert sum("sample" in line for line in lines) >= 3
        assert data(http.delete(f"{BASE}/reports/{report['report_id']}"))["report_id"] == report["report_id"]
        assert http.get(f"{BASE}/reports/{report['report_id']}").status_code == 404
