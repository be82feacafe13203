"""Every tool call is a step: who, what, with which arguments, what came of it. No secrets, no holes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from blake3 import blake3
from sandboxes import LiveSandbox


def steps(api: httpx.Client, live: LiveSandbox, at_least: int = 0) -> list[dict[str, Any]]:
    """All steps of a sandbox; the outcome of a call is written before its last byte, so no waiting is needed."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        page = api.get(f"/api/v1/trajectories/{live.details()['id']}", params={"after": after}).raise_for_status().json()
        found += page["steps"]
        if page["next_after"] is None:
            break
        after = page["next_after"]
    assert len(found) >= at_least, found
    return found


def calls(found: list[dict[str, Any]], route: str) -> list[dict[str, Any]]:
    return [step for step in found if step["action"].split("?")[0].endswith(route)]


class TestSteps:
    def test_a_call_of_each_kind(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        live.output("echo observed-output")
        live.client.shell.exec_command(command="echo in-the-shell")
        live.client.file.write_file(file="/home/gem/f", content="the content")
        live.client.file.read_file(file="/home/gem/f")
        live.client.file.read_file(file="/no/such/file")
        live.client.file.str_replace_editor(command="view", path="/home/gem/f")
        live.client.file.list_path(path="/home/gem")
        found = steps(api, live)
        for route, argument, observation in [
            ("/v1/bash/exec", "echo observed-output", "observed-output"),
            ("/v1/shell/exec", "echo in-the-shell", "in-the-shell"),
            ("/v1/file/write", "the content", "bytes_written"),
            ("/v1/file/read", "/home/gem/f", "the content"),
            ("/v1/file/str_replace_editor", "view", "the content"),
            ("/v1/file/list", "/home/gem", "total_count"),
        ]:
            step = calls(found, route)[0]
            assert argument in json.dumps(step), (route, step)
            assert observation in json.dumps(step), (route, step)
            assert step["dialect"] == "aio"
        assert [step["step"] for step in found] == list(range(1, len(found) + 1))

    def test_an_outcome_is_there_when_the_answer_is(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        for i in range(30):
            live.output(f"echo number-{i}")
            last = calls(steps(api, live), "/v1/bash/exec")[-1]
            assert f"number-{i}" in json.dumps(last)
            assert last["outcome"] == "ok"

    def test_failures_are_steps_too(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        live.http.post("/v1/bash/exec", json={})
        live.http.post("/v1/shell/view", json={"id": "nobody"})
        found = steps(api, live)
        assert calls(found, "/v1/bash/exec")[-1]["status"] == 422
        assert calls(found, "/v1/shell/view")[-1]["status"] == 404

    def test_an_upload_is_hashed(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        data = os.urandom(5_000_000)
        request = live.http.build_request("POST", "/v1/file/upload", files={"file": ("f", data)}, data={"path": "/home/gem/f"})
        body = request.read()
        assert live.http.send(request).json()["success"] is True
        step = calls(steps(api, live), "/v1/file/upload")[-1]
        assert blake3(body).hexdigest() in json.dumps(step)
        got = live.http.get("/v1/file/download", params={"path": "/home/gem/f"})
        assert got.content == data
        step = calls(steps(api, live), "/v1/file/download")[-1]
        assert blake3(data).hexdigest() in json.dumps(step)

    def test_a_kept_blob_can_be_read(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        data = os.urandom(300_000)
        live.http.post("/v1/file/write", json={"file": "/home/gem/f", "content": "", "encoding": "utf-8"})
        live.http.post("/v1/file/upload", files={"file": ("f", data)}, data={"path": "/home/gem/f"})
        live.http.get("/v1/file/download", params={"path": "/home/gem/f"})
        digest = blake3(data).hexdigest()
        answer = api.get(f"/api/v1/trajectories/{live.details()['id']}/blobs/{digest}")
        assert (answer.status_code, answer.content) == (200, data)

    def test_secrets_in_headers_are_not_recorded(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], server: Server) -> None:
        live = sandbox()
        secrets = {name: f"sekrit-{name}-{os.urandom(6).hex()}" for name in ("authorization", "cookie", "x-aio-api-key", "x-api-key")}
        live.http.post("/v1/bash/exec", json={"command": "true"}, headers=secrets)
        live.http.post("/v1/bash/exec?api_key=sekrit-query", json={"command": "true"})
        live.http.post("/v1/bash/exec?ticket=sekrit-ticket", json={"command": "true"})
        text = json.dumps(steps(api, live))
        for root, _, names in os.walk(server.data_dir):
            for name in names:
                path = os.path.join(root, name)
                if "trajector" in path and os.path.getsize(path) < 10_000_000:
                    with open(path, "rb") as file:
                        text += file.read().decode(errors="replace")
        for secret in [*secrets.values(), "sekrit-query", "sekrit-ticket"]:
            assert secret not in text

    def test_a_call_that_the_client_left_is_aborted(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        with pytest.raises(httpx.TimeoutException):
            live.http.post("/v1/bash/exec", json={"command": "sleep 5"}, timeout=0.5)
        deadline = time.monotonic() + 20
        while True:
            step = calls(steps(api, live), "/v1/bash/exec")[-1]
            if step.get("outcome"):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert step["outcome"] == "aborted"

    def test_calls_from_inside_are_marked(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        live.output("curl -s -X POST localhost:8080/v1/bash/exec -H 'content-type: application/json' -d '{\"command\": \"echo from-within\"}'")
        deadline = time.monotonic() + 20
        while True:
            inside = [step for step in steps(api, live) if step["dialect"] == "inside"]
            if inside:
                break
            assert time.monotonic() < deadline, "no step marked inside"
            time.sleep(0.1)
        assert "from-within" in json.dumps(inside[0])
        assert inside[0]["client"] == "inside"

    def test_records_outlive_their_sandbox(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        live.output("echo remembered")
        trajectory = live.details()["id"]
        assert live.delete().status_code == 200
        text = api.get(f"/api/v1/trajectories/{trajectory}").text
        assert "echo remembered" in text
        summaries = api.get("/api/v1/trajectories").json()["trajectories"]
        assert trajectory in json.dumps(summaries)

    def test_export(self, api: httpx.Client, sandbox: Callable[..., LiveSandbox], server: Server) -> None:
        import subprocess

        live = sandbox()
        for i in range(5):
            live.output(f"echo exported-{i}")
        trajectory = live.details()["id"]
        streamed = api.get(f"/api/v1/trajectories/{trajectory}", params={"format": "jsonl"}).text
        lines = [json.loads(line) for line in streamed.splitlines()]
        assert len(calls(lines, "/v1/bash/exec")) == 5
        command = [str(binary()), "trajectory", "export", trajectory, "--format", "jsonl"]
        environment = {**os.environ, "ARENITE_SERVER": server.url, "ARENITE_DATA_DIR": str(server.data_dir)}
        exported = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert exported.returncode == 0, exported.stderr
        assert len(calls([json.loads(line) for line in exported.stdout.splitlines()], "/v1/bash/exec")) == 5
