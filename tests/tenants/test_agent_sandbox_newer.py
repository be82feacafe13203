"""A client of Agent-Sandbox 0.8, which sends the calls of the original's web interface, within one tenant of two."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tenant import Tenant, TenantsServer

NAME = "newer"


class Client:
    """Agent-Sandbox 0.8 by HTTP. Every answer is an envelope."""

    def __init__(self, tenant: Tenant):
        headers = {"authorization": f"Bearer {tenant.key}", "x-agent-sandbox-version": "0.8"}
        self.http = httpx.Client(base_url=f"{tenant.url}/api/v1", headers=headers, timeout=120)

    def data(self, method: str, path: str, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        envelope = answer.json()
        assert (answer.status_code, envelope.get("code")) == (200, "0"), f"{method} {path}: {answer.status_code} {answer.text}"
        return envelope["data"]


@pytest.fixture(scope="module")
def two(tenants: TenantsServer) -> Iterator[tuple[Client, Client]]:
    pair = [tenants.tenant(name) for name in ("green", "yellow")]
    yield Client(pair[0]), Client(pair[1])
    for tenant in pair:
        tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant.name}?force=true")


def test_a_clients_day(two: tuple[Client, Client]) -> None:
    client, other = two
    body = {"name": NAME, "envVars": {"GREETING": "hi"}, "metadata": {"user": "abc"}, "timeout": 600, "cmd": "sh", "args": ["-c", "echo begun; sleep 600"]}
    made = client.data("POST", "/sandbox", json=body)
    assert (made["name"], made["status"], made["timeout"], made["metadata"]) == (NAME, "running", 600, {"user": "abc"})
    assert [each["id"] for each in client.data("GET", "/sandbox")] == [made["id"]]
    assert client.data("GET", f"/sandbox/{NAME}")["id"] == made["id"]

    ran = client.data("POST", f"/terminal/sandbox/{NAME}", json={"command": "echo \"$GREETING it's\"; echo bad >&2; exit 3"})
    assert (ran["output"], ran["errorOutput"]) == ("hi it's\n", "bad\n")
    assert client.data("GET", f"/terminal/sandbox/{NAME}/detect-shell")["shell"].endswith("/bash")

    content = bytes(range(256)) * 4096
    folder = f"/sandbox/files/{NAME}"
    stored = client.data("POST", f"{folder}/upload", params={"path": "/home/gem"}, files={"file": ("a b;'.bin", content)})
    assert (stored["path"], stored["fileName"]) == ("/home/gem/a b;'.bin", "a b;'.bin")
    listed = client.data("GET", folder, params={"path": "/home/gem"})["entries"]
    entry = next(entry for entry in listed if entry["name"] == "a b;'.bin")
    assert (entry["isDir"], entry["size"]) == (False, len(content))
    loaded = client.http.get(f"{folder}/download", params={"path": stored["path"]})
    assert (loaded.content == content, loaded.headers["content-type"]) == (True, "application/octet-stream")
    assert loaded.headers["content-disposition"] == "attachment; filename=\"ab;'.bin\""
    client.data("DELETE", folder, params={"path": stored["path"]})
    assert client.http.get(f"{folder}/download", params={"path": stored["path"]}).status_code == 404
    assert client.http.delete(folder, params={"path": "/home/gem/nothing"}).status_code == 400

    deadline = time.monotonic() + 20
    while client.data("GET", f"/logs/sandbox/{NAME}", params={"tailLines": 5})["logs"] != "begun":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    item = client.data("POST", "/sandbox/metrics", json={"names": [NAME, "nothing"]})["items"][NAME]
    assert item["memoryBytes"] > 0 and item["cpuMilli"] >= 0

    client.data("POST", f"/sandbox/pause/{NAME}")
    assert client.data("GET", f"/sandbox/{NAME}")["status"] == "paused"
    client.data("POST", f"/sandbox/resume/{NAME}")
    assert client.data("GET", "/ratelimit")["users"][0]["sandbox_current"] == 1

    # Another tenant's sandbox is one that is not there.
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"/sandbox/{NAME}", {}),
        ("DELETE", f"/sandbox/{NAME}", {}),
        ("POST", f"/sandbox/pause/{NAME}", {}),
        ("POST", f"/sandbox/resume/{NAME}", {}),
        ("GET", folder, {}),
        ("DELETE", folder, {"params": {"path": "/home"}}),
        ("POST", f"{folder}/upload", {"files": {"file": ("x", b"x")}}),
        ("GET", f"{folder}/download", {"params": {"path": "/etc/hostname"}}),
        ("GET", f"/logs/sandbox/{NAME}", {}),
        ("POST", f"/terminal/sandbox/{NAME}", {"json": {"command": "true"}}),
        ("GET", f"/terminal/sandbox/{NAME}/detect-shell", {}),
    ]
    for method, path, more in calls:
        assert other.http.request(method, path, **more).status_code == 404, path
    assert other.data("POST", "/sandbox/metrics", json={"names": [NAME]})["items"] == {}
    assert other.data("GET", "/sandbox") == []

    assert client.data("DELETE", f"/sandbox/{NAME}") == f"Sandbox {NAME} deleted successfully"
    assert client.data("GET", "/sandbox") == []


def test_bad_input(two: tuple[Client, Client]) -> None:
    client, _ = two
    client.data("POST", "/sandbox", json={"name": "bad"})
    folder = "/sandbox/files/bad"
    for method, path, more in [
        ("POST", "/terminal/sandbox/bad", {"json": {"command": "  "}}),
        ("POST", "/terminal/sandbox/bad", {"content": b"{"}),
        ("GET", "/logs/sandbox/bad", {"params": {"tailLines": "-1"}}),
        ("GET", f"{folder}/download", {}),
        ("DELETE", folder, {}),
        ("POST", f"{folder}/upload", {"content": b"no form"}),
        ("POST", f"{folder}/upload", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
        ("POST", "/sandbox/metrics", {"json": {"names": [f"n{number}" for number in range(101)]}}),
    ]:
        answer = client.http.request(method, path, **more)
        assert (answer.status_code, answer.json()["code"]) == (400, "400"), f"{path} {answer.text}"
        assert answer.json()["error"]
    # A form that ends early stores nothing.
    form = b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"cut\"\r\n\r\nhalf"
    cut = client.http.post(f"{folder}/upload", params={"path": "/home/gem"}, content=form, headers={"content-type": "multipart/form-data; boundary=B"})
    assert 400 <= cut.status_code < 500, cut.text
    assert all(entry["name"] != "cut" for entry in client.data("GET", folder, params={"path": "/home/gem"})["entries"])
    client.data("DELETE", "/sandbox/bad")
