"""Creates that are repeated, creates of several, and groups: with real sandboxes and a real kill."""

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
