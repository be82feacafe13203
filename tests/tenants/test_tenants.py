"""Two tenants on one server: each works as if it were alone, and neither sees the other."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websockets.exceptions
from agent_sandbox import Sandbox
from tenant import Tenant, TenantsServer
from websockets.sync.client import connect

SAME = "same"


@pytest.fixture(scope="module")
def two(tenants: TenantsServer) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants, each with a sandbox of the same name."""
    pair = (tenants.tenant("red"), tenants.tenant("blue"))
    for tenant in pair:
        tenant.json("POST", "/api/v2/sandboxes", json={"name": SAME})
    yield pair
    for tenant in pair:
        tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant.name}?force=true")


def names(tenant: Tenant) -> list[str]:
    return sorted(sandbox["name"] for sandbox in tenant.json("GET", "/api/v2/sandboxes")["sandboxes"])


def test_agent_sandboxs_steps_work_in_each(tenants: TenantsServer, two: tuple[Tenant, Tenant]) -> None:
    """The README of Agent-Sandbox, by curl and by AIO's SDK, with a key in a header."""
    for tenant in two:
        curl = ["curl", "--silent", "--location", "--header", f"x-api-key: {tenant.key}"]
        body = ["--header", "Content-Type: application/json", "--data", json.dumps({"name": "demo"})]
        made = subprocess.run([*curl, f"{tenants.url}/api/v1/sandbox", *body], capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(made.stdout) == {"code": "0", "data": "Sandbox demo created successfully"}
        client = Sandbox(base_url=f"{tenants.url}/sandbox/demo", headers=tenant.headers)
        home = client.sandbox.get_context().home_dir
        assert client.shell.exec_command(command="ls -la").data.output
        client.file.write_file(file=f"{home}/whose", content=tenant.name)
        tools = tenant.json("POST", "/sandbox/demo/mcp", json={"method": "tools/list"})
        assert tools["result"]["tools"]
    for tenant in two:
        client = Sandbox(base_url=f"{tenants.url}/sandbox/demo", headers=tenant.headers)
        assert client.bash.exec(command="cat ~/whose").data.stdout == tenant.name
        curl = ["curl", "--silent", "--location", "--header", f"x-api-key: {tenant.key}", "--request", "DELETE"]
        gone = subprocess.run([*curl, f"{tenants.url}/api/v1/sandbox/demo"], capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(gone.stdout) == {"code": "0", "data": "Sandbox demo deleted successfully"}


def test_lists_are_disjoint_and_ids_lead_nowhere_else(tenants: TenantsServer, two: tuple[Tenant, Tenant]) -> None:
    red, blue = two
    ids = []
    for tenant in two:
        assert SAME in names(tenant)
        tenant.json("POST", f"/sandbox/{SAME}/v1/bash/exec", json={"command": f"echo {tenant.name} > ~/whose"})
        tenant.json("POST", "/v1/bash/exec", json={"command": "true"})
        assert "default" in names(tenant)
        ids.append({sandbox["id"] for sandbox in tenant.json("GET", "/api/v2/sandboxes")["sandboxes"]})
    assert not ids[0] & ids[1]
    port = tenants.url.rsplit(":", 1)[1]
    for tenant, own, others in ((red, *ids), (blue, *reversed(ids))):
        trajectories = {one["trajectory"] for one in tenant.json("GET", "/api/v1/trajectories")["trajectories"]}
        assert not trajectories & others
        for one in own:
            assert tenant.http.get("/v1/sandbox", headers={"host": f"{one}.localhost:{port}"}).status_code == 200
        for one in others:
            for headers in ({"host": f"{one}.localhost:{port}"}, {"host": f"3000-{one}.localhost:{port}"}):
                answer = tenant.http.get("/v1/sandbox", headers=headers)
                assert answer.status_code == 404, answer.text
            assert tenant.http.get(f"/api/v1/trajectories/{one}").status_code == 404
    seen = [tenant.json("POST", f"/sandbox/{SAME}/v1/bash/exec", json={"command": "cat ~/whose"})["data"]["stdout"] for tenant in two]
    assert seen == ["red\n", "blue\n"]


def test_workers_of_one_name_never_meet(two: tuple[Tenant, Tenant]) -> None:
    red, blue = two
    for tenant in two:
        made = tenant.json("POST", "/api/v1/session/create", json={"worker_id": "w", "resource_type": "bash", "config": {}})
        assert made["code"] == 0, made
    for tenant in two:
        action = {"worker_id": "w", "action": "bash:run", "params": {"command": f"echo {tenant.name} > /tmp/whose"}}
        assert tenant.json("POST", "/execute", json=action)["code"] == 0
    for tenant in two:
        action = {"worker_id": "w", "action": "bash:run", "params": {"command": "cat /tmp/whose"}}
        done = json.dumps(tenant.json("POST", "/execute", json=action))
        other = blue if tenant is red else red
        assert tenant.name in done and other.name not in done, done
        workers = tenant.json("GET", "/api/v2/workers")["workers"]
        assert [worker["worker_id"] for worker in workers] == ["w"]
    red.json("POST", "/api/v1/worker/disconnect", json={"worker_id": "w"})
    assert not red.json("GET", "/api/v2/workers")["workers"]
    assert blue.json("GET", "/api/v2/workers")["workers"][0]["sessions"]
    blue.json("POST", "/api/v1/worker/disconnect", json={"worker_id": "w"})


def test_a_stream_and_a_terminal_end_when_their_key_is_revoked(tenants: TenantsServer, two: tuple[Tenant, Tenant]) -> None:
    red, _ = two
    key = red.new_key("use")
    headers = {"x-api-key": key["key"]}
    ended: dict[str, float] = {}
    ready = threading.Barrier(4, timeout=60)

    def follow(path: str, name: str) -> None:
        try:
            with httpx.stream("GET", f"{tenants.url}{path}", headers=headers, timeout=60) as stream:
                assert stream.status_code == 200
                pieces = stream.iter_raw()
                next(pieces)
                ready.wait()
                for _ in pieces:
                    pass
        except httpx.RemoteProtocolError:
            pass
        ended[name] = time.monotonic()

    def terminal() -> None:
        url = f"ws{tenants.url.removeprefix('http')}/sandbox/{SAME}/v1/shell/ws"
        with connect(url, additional_headers=headers, open_timeout=60) as socket:
            socket.recv(timeout=60)
            ready.wait()
            try:
                while True:
                    socket.recv(timeout=60)
            except websockets.exceptions.ConnectionClosed:
                ended["websocket"] = time.monotonic()

    threads = [
        threading.Thread(target=follow, args=("/api/v2/sandboxes?follow=true", "changes")),
        threading.Thread(target=follow, args=(f"/sandbox/{SAME}/steps?follow=true", "steps")),
        threading.Thread(target=terminal),
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    revoked = time.monotonic()
    red.json("DELETE", f"/api/v2/keys/{key['id']}")
    for thread in threads:
        thread.join(30)
    assert set(ended) == {"changes", "steps", "websocket"}
    assert max(ended.values()) - revoked < 2, ended
    assert httpx.get(f"{tenants.url}/api/v2/me", headers=headers).status_code == 401


def test_the_command_line_manages_tenants(tenants: TenantsServer) -> None:
    name = f"t-{uuid.uuid4().hex[:6]}"
    operator = tenants.operator.key
    assert tenants.command(operator, "tenant", "create", name).stdout == f"{name}\n"
    made = tenants.command(operator, "key", "create", "--tenant", name, "--role", "admin", "its first key")
    assert (made.returncode, made.stdout.count("\n")) == (0, 1), made.stderr
    admin = made.stdout.strip()
    reader = json.loads(tenants.command(admin, "key", "create", "--role", "read", "--expires", "1d", "reader", "--json").stdout)
    assert tenants.command(reader["key"], "ls").returncode == 0
    refused = tenants.command(reader["key"], "create", "x")
    assert refused.returncode == 4 and "role manage" in refused.stderr, refused.stderr
    assert tenants.command(admin, "tenant", "ls").returncode == 4
    assert tenants.command(admin, "create", "x").returncode == 0
    rotated = tenants.command(admin, "key", "rotate", reader["id"], "--overlap", "1h")
    assert tenants.command(rotated.stdout.strip(), "ls", "-q").stdout == "x\n"
    assert tenants.command(admin, "key", "revoke", reader["id"]).stdout == f"{reader['id']}\n"
    assert tenants.command(reader["key"], "ls").returncode == 4
    keys = json.loads(tenants.command(admin, "key", "ls", "--json").stdout)["keys"]
    assert sorted(key["state"] for key in keys) == ["revoked", "valid", "valid"]
    rows = json.loads(tenants.command(admin, "audit", "--json").stdout)["rows"]
    actions = [(row["action"], row["outcome"]) for row in rows]
    for wanted in (("sandbox.create", "ok"), ("key.rotate", "ok"), ("key.revoke", "ok"), ("request", "forbidden"), ("request", "unauthorized")):
        assert wanted in actions, actions
    assert all(row["tenant"] == name for row in rows)
    listed = tenants.command(operator, "tenant", "ls")
    assert name in listed.stdout
    assert tenants.command(operator, "tenant", "set", name, "--disabled", "true").returncode == 0
    assert tenants.command(admin, "ls").returncode == 4
    refused = tenants.command(operator, "tenant", "rm", name)
    assert refused.returncode == 4 and "--force" in refused.stderr, refused.stderr
    assert tenants.command(operator, "tenant", "rm", name, "--force").stdout == f"{name}\n"
    assert tenants.command(operator, "tenant", "create", name).returncode == 4


def test_keys_and_tenants_survive_a_kill_of_the_server(tenants: TenantsServer, two: tuple[Tenant, Tenant]) -> None:
    red, blue = two
    revoked = red.new_key("use")
    red.json("DELETE", f"/api/v2/keys/{revoked['id']}")
    before = [names(tenant) for tenant in two]
    log = Path(tenants.server.log_path)
    tenants.server.kill()
    tenants.server.start()
    assert [names(tenant) for tenant in two] == before
    assert httpx.get(f"{tenants.url}/api/v2/me", headers={"x-api-key": revoked["key"]}).status_code == 401
    assert log.read_bytes().count(b"operator key: ") == 1, "the key is printed once"
    for tenant in two:
        assert blue.key.encode() not in log.read_bytes() and tenant.json("GET", "/api/v2/me")["tenant"] == tenant.name
