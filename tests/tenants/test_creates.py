"""Creates that are repeated, creates of several, groups, and agents that create from inside: with real sandboxes and a real kill."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest
from tenant import Tenant, TenantsServer


@pytest.fixture(scope="module")
def acme(tenants: TenantsServer) -> Iterator[Tenant]:
    tenant = tenants.tenant("acme")
    yield tenant
    tenants.operator.json("DELETE", "/api/v2/tenants/acme?force=true")


def create(tenant: Tenant, key: str, **body: object) -> httpx.Response:
    return tenant.http.post("/api/v2/sandboxes", json=body, headers={"idempotency-key": key})


def names(tenant: Tenant, query: str = "") -> list[str]:
    return sorted(sandbox["name"] for sandbox in tenant.json("GET", f"/api/v2/sandboxes{query}")["sandboxes"])


def eventually(check: Callable[[], bool], limit: float = 30) -> None:
    end = time.monotonic() + limit
    while not check():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.05)


def is_found_once(tenant: Tenant, key: str, tag: str) -> None:
    """Repeats a create twice: there is one sandbox, and one answer."""
    first, second = create(tenant, key, client_tag=tag), create(tenant, key, client_tag=tag)
    assert (first.status_code, second.status_code) == (201, 201), (first.text, second.text)
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert names(tenant, f"?client_tag={tag}") == [first.json()["name"]]
    tenant.json("DELETE", f"/api/v2/sandboxes/{first.json()['name']}")


def test_a_create_whose_client_left_is_found(tenants: TenantsServer, acme: Tenant) -> None:
    """The connection is cut before admission, while the sandbox is being created, and before the answer."""
    host, port = tenants.url.removeprefix("http://").split(":")
    for wait in (0, 0.001, 0.003, 0.01, 0.03):
        key, tag = str(uuid.uuid4()), str(uuid.uuid4())
        body = f'{{"client_tag": "{tag}"}}'
        head = f"POST /api/v2/sandboxes HTTP/1.1\r\nhost: {host}:{port}\r\nx-api-key: {acme.key}\r\nidempotency-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall((head + body).encode())
            time.sleep(wait)
        is_found_once(acme, key, tag)


def test_a_create_whose_server_was_killed_is_found(tenants: TenantsServer, acme: Tenant) -> None:
    for wait in (0.001, 0.003, 0.006, 0.012, 0.05):
        key, tag = str(uuid.uuid4()), str(uuid.uuid4())

        def lost(key: str = key, tag: str = tag) -> None:
            try:
                create(acme, key, client_tag=tag)
            except httpx.HTTPError:
                pass

        client = threading.Thread(target=lost)
        client.start()
        time.sleep(wait)
        tenants.server.kill()
        client.join()
        tenants.server.start()
        is_found_once(acme, key, tag)


def test_a_key_belongs_to_one_request_and_one_tenant(tenants: TenantsServer, acme: Tenant) -> None:
    other = tenants.tenant("other")
    try:
        first = create(acme, "same", name="one")
        refused = create(acme, "same", name="two")
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
        theirs = create(other, "same", name="one")
        assert theirs.status_code == 201 and theirs.json()["id"] != first.json()["id"]
        acme.json("DELETE", "/api/v2/sandboxes/one")
    finally:
        tenants.operator.json("DELETE", "/api/v2/tenants/other?force=true")


def test_several_at_once(tenants: TenantsServer, acme: Tenant) -> None:
    made = create(acme, "several", name="w", count=4)
    assert made.status_code == 201, made.text
    assert names(acme) == ["w-0", "w-1", "w-2", "w-3"]
    assert create(acme, "several", name="w", count=4).json() == made.json()
    partial = create(acme, "partial", name="w", count=5, min=1)
    assert partial.status_code == 207, partial.text
    assert [error["code"] for error in partial.json()["errors"]] == ["already_exists"] * 4
    assert create(acme, "none", name="w", count=6).status_code == 409
    assert names(acme) == ["w-0", "w-1", "w-2", "w-3", "w-4"]
    for name in names(acme):
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")
    made = tenants.command(acme.key, "create", "c", "--count", "2")
    assert made.stdout.split() == ["c-0", "c-1"], made
    for name in names(acme):
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")


def test_a_group_of_a_dead_owner_ends_also_after_a_kill(tenants: TenantsServer, acme: Tenant) -> None:
    acme.json("POST", "/api/v2/groups", json={"name": "g", "ttl_seconds": 2})
    acme.json("POST", "/api/v2/sandboxes", json={"name": "g", "count": 2, "group": "g"})
    acme.json("POST", "/api/v2/sandboxes", json={"name": "alone"})
    for _ in range(3):
        time.sleep(1)
        acme.json("POST", "/api/v2/groups/g/renew")
    assert names(acme, "?group=g") == ["g-0", "g-1"]
    tenants.server.kill()
    tenants.server.start()
    eventually(lambda: names(acme) == ["alone"])
    eventually(lambda: acme.json("GET", "/api/v2/groups")["groups"] == [])
    acme.json("DELETE", "/api/v2/sandboxes/alone")


def test_groups_on_the_command_line(tenants: TenantsServer, acme: Tenant) -> None:
    for words, out in (
        (("group", "create", "cli", "--ttl", "10m"), "cli"),
        (("create", "x", "--group", "cli"), "x"),
        (("group", "renew", "cli", "--ttl", "20m"), "cli"),
        (("ls", "-q", "--group", "cli"), "x"),
        (("group", "rm", "cli"), "cli"),
    ):
        assert tenants.command(acme.key, *words).stdout.strip() == out
    assert names(acme) == []


def inside(tenant: Tenant, name: str, command: str) -> str:
    done = tenant.json("POST", f"/sandbox/{name}/v1/bash/exec", json={"command": command})["data"]
    assert done["exit_code"] == 0, done
    return done["stdout"]


CALL = """
import json, os, sys, urllib.error, urllib.request
method, path, key, body = sys.argv[1:]
request = urllib.request.Request(os.environ["ARENITE_SERVER"] + path, method=method, data=body.encode() or None)
request.add_header("content-type", "application/json")
if key:
    request.add_header("x-api-key", key)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


class Agent:
    """A program inside a sandbox that calls the server."""

    def __init__(self, tenant: Tenant, name: str):
        self.tenant, self.name = tenant, name
        tenant.json("POST", f"/sandbox/{name}/v1/file/write", json={"file": "/tmp/call.py", "content": CALL})

    def call(self, method: str, path: str, body: str = "", key: str = '"$ARENITE_API_KEY"') -> tuple[int, str]:
        said = inside(self.tenant, self.name, f"python3 /tmp/call.py {method} '{path}' {key} '{body}'")
        status, text = said.split(" ", 1)
        return int(status), text


def test_an_agent_creates_sandboxes_from_inside(tenants: TenantsServer, acme: Tenant) -> None:
    budget = {"sandboxes": 2, "cpu_millis": 8000, "memory_bytes": 8 << 30}
    for name in ("parent", "sibling"):
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": name, "network": "none", "child_budget": budget})
        assert "ARENITE_API_KEY" not in made["spec"]["env"]
    agent, sibling = Agent(acme, "parent"), Agent(acme, "sibling")
    mode = inside(acme, "parent", 'stat -c %a "$ARENITE_API_KEY_FILE"; test "$(cat "$ARENITE_API_KEY_FILE")" = "$ARENITE_API_KEY"')
    assert mode.strip() == "600"
    status, text = agent.call("POST", "/api/v2/sandboxes", '{"name": "kid"}')
    assert status == 201 and '"network":"none"' in text.replace(" ", ""), text
    status, text = agent.call("POST", "/sandbox/kid/v1/bash/exec", '{"command": "echo from the kid"}')
    assert status == 200 and "from the kid" in text, text
    tool = '{"method": "tools/call", "params": {"name": "createSandbox", "arguments": {"name": "second"}}}'
    status, text = agent.call("POST", "/mcp", tool)
    assert status == 200 and "second" in text, text
    assert agent.call("POST", "/api/v2/sandboxes", '{"name": "third"}')[0] == 429
    assert names(acme) == ["kid", "parent", "second", "sibling"]

    # Neither its siblings, nor without its own token.
    assert agent.call("GET", "/api/v2/sandboxes/sibling")[0] == 404
    assert sibling.call("GET", "/api/v2/sandboxes/kid")[0] == 404
    assert sibling.call("GET", "/api/v2/sandboxes", key='""')[0] == 401
    token = inside(acme, "parent", "printenv ARENITE_API_KEY").strip()
    assert sibling.call("GET", "/api/v2/sandboxes", key=token)[0] == 401
    assert httpx.get(f"{tenants.url}/api/v2/sandboxes", headers={"x-api-key": token}).status_code == 401
    assert sibling.call("GET", "/api/v2/sandboxes", key=acme.key)[0] == 401
    rows = acme.json("GET", "/api/v2/audit?limit=1000")["rows"]
    parent = acme.json("GET", "/api/v2/sandboxes/parent")["id"]
    assert any(row["key"] == parent and row["action"] == "sandbox.create" and row["object"] == "kid" for row in rows)

    # It works after a restart of the server, and the tree ends with its root.
    tenants.server.kill()
    tenants.server.start()
    eventually(lambda: agent.call("GET", "/api/v2/sandboxes")[0] == 200)
    acme.json("DELETE", "/api/v2/sandboxes/parent")
    assert names(acme) == ["sibling"]
    assert sibling.call("POST", "/api/v2/sandboxes", '{"name": "kid"}')[0] == 201
    acme.json("DELETE", "/api/v2/sandboxes/sibling")
    assert names(acme) == []
