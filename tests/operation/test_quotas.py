"""Tenants with quotas and metering on both stores: races for the last place, every way to create, kills of the server."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary
from postgres import Postgres
from small import tiny_image, within
from tenant import Tenant, TenantsServer
from workers import Worker

MIB = 1 << 20


@pytest.fixture(params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest, own_server: Callable[..., Server]) -> Iterator[TenantsServer]:
    """A server with tenants and the image `tiny`, on each store."""
    postgres = Postgres() if request.param == "postgres" else None
    server = own_server(args=("--default-image", "tiny", "--tenants", "--tenant-limit", "sandboxes=40,memory=64GiB"))
    if postgres is not None:
        server.environment = {"ARENITE_STORE": postgres.url}
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    tenants.postgres = postgres
    yield tenants
    for tenant in tenants.operator.json("GET", "/api/v2/tenants")["tenants"]:
        if tenant["name"] != "default":
            tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant['name']}?force=true")
    for sandbox in tenants.operator.json("GET", "/api/v2/sandboxes")["sandboxes"]:
        tenants.operator.json("DELETE", f"/api/v2/sandboxes/{sandbox['name']}")
    server.stop()
    if postgres is not None:
        postgres.remove()


def quota(tenant: Tenant, name: str) -> dict[str, int]:
    return next(one for one in tenant.json("GET", "/api/v2/me")["quotas"] if one["quota"] == name)


def create(tenant: Tenant, **body: object) -> httpx.Response:
    return tenant.http.post("/api/v2/sandboxes", json=body)


def refused_for(answer: httpx.Response, name: str) -> bool:
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0, answer.text
    found = answer.json()["quota"]
    assert found["quota"] == name and found["used"] + found["requested"] > found["limit"], found
    return True


def test_every_way_to_create_counts_and_the_last_place_is_given_once(served: TenantsServer) -> None:
    acme, other = served.tenant("acme"), served.tenant("other")
    limited = served.command(served.operator.key, "tenant", "set", "acme", "--limit", "sandboxes=3", "--limit", "memory=3GiB", "--json")
    assert json.loads(limited.stdout)["limits"] == {
        "sandboxes": 3,
        "concurrent_creates": None,
        "cpu_millis": None,
        "memory_bytes": 3 << 30,
        "disk_bytes": None,
        "trajectory_bytes": None,
        "requests_per_second": None,
        "max_timeout_seconds": None,
        "snapshots": None,
        "volumes": None,
        "volume_bytes": None,
    }
    small = {"resources": {"memory_bytes": 128 * MIB}}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: create(acme, **small), range(100)))
    made = [answer.json()["name"] for answer in answers if answer.status_code == 201]
    assert len(made) == 3, [answer.text for answer in answers]
    assert all(refused_for(answer, "sandboxes") for answer in answers if answer.status_code != 201)
    assert quota(acme, "sandboxes") == {"quota": "sandboxes", "limit": 3, "used": 3}
    assert quota(acme, "memory_bytes")["used"] == 3 * 128 * MIB

    # The first call of a sandbox `default`, Agent-Sandbox, and a worker's session.
    assert refused_for(acme.http.post("/v1/bash/exec", json={"command": "true"}), "sandboxes")
    answer = acme.http.post("/api/v1/sandbox", json={"name": "demo", "image": "tiny"})
    assert answer.status_code == 429 and "quota sandboxes of this tenant is 3" in answer.json()["error"], answer.text
    worker = Worker(served.url, "worker")
    worker.http.headers.update(acme.headers)
    session = worker.post("session/create", resource_type="bash")
    assert session.json()["code"] != 0 and "quota sandboxes of this tenant is 3" in session.text, session.text
    assert create(other, **small).status_code == 201

    acme.json("DELETE", f"/api/v2/sandboxes/{made.pop()}")
    never = create(acme, resources={"memory_bytes": 4 << 30})
    assert (never.status_code, never.json()["code"]) == (403, "quota_exceeded"), never.text
    assert never.json()["quota"] == {"quota": "memory_bytes", "limit": 3 << 30, "used": 2 * 128 * MIB, "requested": 4 << 30}
    assert "retry-after" not in never.headers
    assert refused_for(create(acme, resources={"memory_bytes": 3 << 30}), "memory_bytes")
    assert acme.http.post("/v1/bash/exec", json={"command": "true"}).status_code == 200, "the default sandbox takes the last place"
    assert refused_for(create(acme, **small), "sandboxes")
    acme.json("DELETE", "/api/v2/sandboxes/default")

    # Limits and reservations outlive a kill, and dead sandboxes keep only their place.
    assert create(acme, name="last", **small).status_code == 201
    served.server.kill()
    served.server.start()
    assert refused_for(create(acme, **small), "sandboxes")
    assert quota(acme, "memory_bytes")["used"] == 3 * 128 * MIB
    listed = served.command(served.operator.key, "tenant", "ls").stdout
    assert "3 of 3" in listed and "384 MiB of 3.0 GiB" in listed, listed
    served.command(served.operator.key, "tenant", "set", "acme", "--limit", "sandboxes=default", "--limit", "requests=2")
    served.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"memory_bytes": None}})
    found = served.operator.json("GET", "/api/v2/tenants/acme")
    limits = {one["quota"]: one["limit"] for one in found["quotas"] if one["limit"] is not None}
    assert limits == {"sandboxes": 40, "memory_bytes": 64 << 30, "requests_per_second": 2}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: acme.http.get("/api/v2/me"), range(20)))
    assert all(answer.status_code == 200 or refused_for(answer, "requests_per_second") for answer in answers)
    assert 2 <= sum(answer.status_code == 200 for answer in answers) < 20
    served.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"requests_per_second": None}})
    assert served.operator.http.patch("/api/v2/tenants/acme", json={"limits": {"gadgets": 1}}).status_code == 400
    assert served.operator.http.patch("/api/v2/tenants/acme", json={"limits": {"requests_per_second": 0}}).status_code == 400
    assert other.http.patch("/api/v2/tenants/other", json={"limits": {}}).status_code == 403


def used(tenant: Tenant, **query: str) -> list[dict[str, object]]:
    return tenant.json("GET", "/api/v2/usage", params=query)["rows"]


def core_seconds(tenant: Tenant) -> float:
    return sum(row["core_seconds"] for row in used(tenant))


def test_usage_outlives_a_kill_and_is_counted_once(served: TenantsServer) -> None:
    acme = served.tenant("acme")
    name = create(acme, name="busy").json()["name"]

    def burn(seconds: float) -> None:
        line = f"end=$((SECONDS + {seconds})); while [ $SECONDS -lt $end ]; do :; done"
        acme.json("POST", f"/sandbox/{name}/v1/bash/exec", json={"command": line, "timeout": 60})

    def counter() -> float:
        return acme.json("GET", f"/api/v2/sandboxes/{name}/usage")["cpu_nanoseconds"] / 1e9

    burn(3)
    counted = counter()
    within(20, "the work is metered", lambda: core_seconds(acme) >= counted - 0.01)
    served.server.kill()
    time.sleep(1)
    served.server.start()
    burn(2)
    counted = counter()
    within(20, "the work after the kill is metered", lambda: core_seconds(acme) >= counted - 0.01)
    assert core_seconds(acme) <= counter() + 0.01, "it is counted once"
    row = used(acme)[0]
    assert row["memory_gib_seconds"] > 0 and row["disk_gib_hours"] >= 0 and row["tool_calls"] == 2, row
    counted = counter()
    acme.json("DELETE", f"/api/v2/sandboxes/{name}")
    within(20, "its end is metered", lambda: core_seconds(acme) >= counted - 0.01)
    served.server.stop()
    served.server.start()
    [row] = used(acme, group="sandbox")
    assert (row["name"], row["tenant"]) == (name, "acme") and row["core_seconds"] >= counted - 0.01

    answer = acme.http.get("/api/v2/usage?group=hour", headers={"accept": "text/csv"})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"].startswith("text/csv")
    assert sum(float(row["core_seconds"]) for row in rows) == pytest.approx(core_seconds(acme)) and rows[0]["hour"].endswith(":00:00Z")
    # Another tenant sees its own, and an operator all.
    assert used(served.tenant("other")) == []
    assert acme.http.get("/api/v2/usage?tenant=other").status_code == 403
    assert [row["tenant"] for row in used(served.operator)] == ["acme"]
    printed = served.command(acme.key, "usage", "--group", "sandbox")
    assert name in printed.stdout and printed.returncode == 0, printed.stderr
    assert served.command(acme.key, "usage", "--group", "hour", "--csv").stdout.replace("\r\n", "\n") == answer.text.replace("\r\n", "\n")


def test_tenants_move_with_a_backup(served: TenantsServer, own_server: Callable[..., Server], tmp_path: Path) -> None:
    acme = served.tenant("acme")
    served.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"sandboxes": 7}})
    served.tenant("gone")
    served.operator.json("DELETE", "/api/v2/tenants/gone")
    backup = tmp_path / "backup.jsonl"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}

    def store(*words: str, server: Server) -> str:
        command = [str(binary()), "store", *words, "--data-dir", str(server.data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment | server.environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "0 sandboxes, 3 tenants, and 2 keys" in store("export", str(backup), server=served.server)
    assert acme.key not in backup.read_text()
    # To the other store.
    target = own_server(args=("--default-image", "tiny", "--tenants"))
    target.data_dir.mkdir(parents=True)
    postgres = Postgres() if served.postgres is None else None
    try:
        target.environment = {} if postgres is None else {"ARENITE_STORE": postgres.url}
        store("import", str(backup), server=target)
        target.start()
        assert b"operator key" not in target.log_path.read_bytes(), "there is one"
        moved = Tenant(target.url, "acme", acme.key)
        assert quota(moved, "sandboxes")["limit"] == 7
        operator = Tenant(target.url, "default", served.operator.key)
        refused = operator.http.post("/api/v2/tenants", json={"name": "gone"})
        assert refused.status_code == 409, refused.text
        actions = [row["action"] for row in operator.json("GET", "/api/v2/audit", params={"limit": 1000})["rows"]]
        assert actions.count("tenant.remove") == 1 and "tenant.limit" in actions, actions
        target.stop()
    finally:
        if postgres is not None:
            postgres.remove()
