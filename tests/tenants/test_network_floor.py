"""A tenant's default network and its floor: what a floor refuses is refused in all of its sandboxes, however they came to be."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from isolation.test_network import PUBLIC, world  # noqa: F401
from tenant import Tenant, TenantsServer
from tenants.test_creates import Agent, inside
from waiting import until

ADDRESS = PUBLIC[0]
#: The world's server, and another port of it that answers nobody: it is refused before that.
WEB, OTHER = f"{ADDRESS}:8123", f"{ADDRESS}:8124"
FLOOR = {"mode": "allowlist", "allow": [WEB]}
#: Its status; `refused` by the proxy, which says so; `none` without a connection.
ASK = f"curl -sS -m 5 -o /tmp/answer -w '%%{{http_code}}' http://{ADDRESS}:%d/ || true"


@pytest.fixture(scope="module")
def acme(tenants: TenantsServer, world: None) -> Iterator[Tenant]:  # noqa: F811
    tenant = tenants.tenant("floors")
    yield tenant
    tenants.operator.json("DELETE", "/api/v2/tenants/floors?force=true")


@pytest.fixture
def floor(tenants: TenantsServer, acme: Tenant) -> Iterator[None]:
    change(tenants, network_floor=FLOOR)
    yield
    change(tenants, network_floor=None, network_default=None)


def change(tenants: TenantsServer, status: int = 200, **networks: Any) -> Any:
    answer = tenants.operator.http.patch("/api/v2/tenants/floors", json=networks)
    assert answer.status_code == status, answer.text
    return answer.json()


def create(acme: Tenant, **body: Any) -> str:
    return acme.json("POST", "/api/v2/sandboxes", json=body)["name"]


def status(acme: Tenant, name: str, port: int) -> str:
    return inside(acme, name, ASK % port).strip()


def is_under_floor(acme: Tenant, name: str) -> bool:
    """What it allows works, and the rest is refused, for this reason."""
    reached = (status(acme, name, 8123), status(acme, name, 8124))
    assert reached == ("200", "403"), (name, reached)

    def reasons() -> set[str]:
        network = acme.json("GET", f"/api/v2/sandboxes/{name}/network")
        assert network["floor"]["allow"] == [WEB]
        return {event["reason"] for event in network["events"] if not event["allowed"] and event["port"] == 8124}

    until(lambda: reasons() == {"floor"})
    return True


def remove(acme: Tenant, *names: str) -> None:
    for name in names:
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")


@pytest.mark.parametrize("network", [None, "open", "observe", {"mode": "allowlist", "allow": [f"{ADDRESS}/32:*"]}], ids=str)
def test_no_policy_is_wider_than_the_floor(acme: Tenant, floor: None, network: Any) -> None:
    name = create(acme, **({"network": network} if network else {}))
    assert is_under_floor(acme, name)
    acme.json("PATCH", f"/api/v2/sandboxes/{name}", json={"network": {"mode": "allowlist", "allow": [WEB, OTHER]}})
    assert is_under_floor(acme, name)
    acme.json("PATCH", f"/api/v2/sandboxes/{name}", json={"network": "open"})
    assert is_under_floor(acme, name)
    # A policy can be narrower.
    acme.json("PATCH", f"/api/v2/sandboxes/{name}", json={"network": {"mode": "allowlist", "allow": [OTHER]}})
    assert (status(acme, name, 8123), status(acme, name, 8124)) == ("403", "403")
    remove(acme, name)


def test_all_ways_of_creating_are_under_the_floor(acme: Tenant, floor: None) -> None:
    budget = {"sandboxes": 3, "cpu_millis": 8000, "memory_bytes": 8 << 30}
    first = create(acme, name="first", network="open", child_budget=budget)
    agent = Agent(acme, first)
    assert agent.call("POST", "/api/v2/sandboxes", '{"name": "child", "network": "open"}')[0] == 201
    tool = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "createSandbox", "arguments": {"name": "by-mcp"}}}
    made = acme.http.post("/mcp", json=tool, headers={"accept": "application/json, text/event-stream"})
    assert made.is_success and "by-mcp" in made.text, made.text
    acme.json("POST", "/api/v1/sandbox", json={"name": "by-dialect"})
    fork = acme.json("POST", f"/api/v2/sandboxes/{first}/fork", json={})["sandboxes"][0]["name"]
    acme.json("POST", "/api/v2/snapshots", json={"name": "kept", "sandbox": first})
    create(acme, name="by-snapshot", snapshot="kept")
    all_of_them = [first, "child", "by-mcp", "by-dialect", fork, "by-snapshot"]
    assert [name for name in all_of_them if not is_under_floor(acme, name)] == []
    acme.json("POST", f"/api/v2/sandboxes/{fork}/reset", json={})
    acme.json("POST", "/api/v2/sandboxes/by-mcp/pause", json={"kind": "disk"})
    acme.json("POST", "/api/v2/sandboxes/by-mcp/start")
    assert is_under_floor(acme, fork) and is_under_floor(acme, "by-mcp")
    acme.json("DELETE", "/api/v2/snapshots/kept")
    remove(acme, *[name for name in all_of_them if name != "child"])


def test_steps_of_builds_are_under_the_floor(acme: Tenant, floor: None) -> None:
    steps = f"FROM base\nRUN curl -sS -m 5 -f http://{WEB}/ >/dev/null\nRUN ! curl -sS -m 5 -f http://{OTHER}/\nRUN curl -sS -m 5 http://{OTHER}/ | grep floor\n"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(steps)
        tar.addfile(info, io.BytesIO(steps.encode()))
    answer = acme.http.post("/api/v2/images/build", params={"image": "policed"}, content=file.getvalue(), headers={"content-type": "application/x-tar"})
    assert answer.is_success, answer.text
    acme.json("DELETE", "/api/v2/images/policed")


TALK = f"""python3 -c '
import socket, sys, time
s = socket.create_connection(("{ADDRESS}", 8123), 5)
open("/tmp/open", "w")
try:
    while True:
        time.sleep(0.2); s.sendall(b"x")
except OSError as error:
    open("/tmp/closed", "w").write(str(error))
' >/dev/null 2>&1 &"""


def test_a_floor_is_in_effect_at_once_in_running_sandboxes(tenants: TenantsServer, acme: Tenant) -> None:
    opened, policed = create(acme, network="open"), create(acme, network={"mode": "allowlist", "allow": [WEB, OTHER]})
    for name in (opened, policed):
        inside(acme, name, TALK)
        inside(acme, name, "timeout 10 sh -c 'until test -e /tmp/open; do sleep 0.1; done'")
    change(tenants, network_floor="allowlist")
    for name in (opened, policed):
        assert status(acme, name, 8123) == "403"
        # What was open is closed.
        inside(acme, name, "timeout 10 sh -c 'until test -e /tmp/closed; do sleep 0.1; done'; cat /tmp/closed")
    change(tenants, network_floor=FLOOR)
    assert is_under_floor(acme, opened) and is_under_floor(acme, policed)
    tenants.server.kill()
    tenants.server.start()
    assert is_under_floor(acme, opened) and is_under_floor(acme, policed)
    change(tenants, network_floor=None)
    assert status(acme, opened, 8123) == "200" and acme.json("GET", f"/api/v2/sandboxes/{opened}/network")["floor"] is None
    remove(acme, opened, policed)


def test_a_default_is_for_creates_that_name_no_network(tenants: TenantsServer, acme: Tenant) -> None:
    default = {"mode": "allowlist", "allow": [WEB], "deny": []}
    assert change(tenants, network_default=default)["network_default"] == default
    silent, loud = create(acme), create(acme, network="open")
    network = acme.json("GET", f"/api/v2/sandboxes/{silent}/network")
    assert (network["mode"], network["allow"]) == ("allowlist", [WEB])
    assert acme.json("GET", f"/api/v2/sandboxes/{loud}/network")["mode"] == "open"
    assert (status(acme, silent, 8123), status(acme, silent, 8124)) == ("200", "403")
    change(tenants, network_default="none")
    assert acme.json("GET", f"/api/v2/sandboxes/{create(acme, name='closed')}/network")["mode"] == "none"
    change(tenants, network_default=None)
    remove(acme, silent, loud, "closed")


def test_networks_of_tenants_on_the_command_line(tenants: TenantsServer, acme: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "floor.json"
    file.write_text(json.dumps(FLOOR))
    operator = tenants.operator.key
    done = tenants.command(operator, "tenant", "set", "floors", "--network-floor", f"@{file}", "--network-default", "observe", "--json")
    assert done.returncode == 0, done.stderr
    changed = json.loads(done.stdout)
    assert changed["network_floor"]["allow"] == [WEB] and changed["network_default"]["mode"] == "observe"
    name = create(acme)
    shown = tenants.command(acme.key, "network", "show", name).stdout
    assert "mode: observe\nfloor of the tenant: allowlist\n" in shown and f"floor allow: {WEB}" in shown
    remove(acme, name)
    done = tenants.command(operator, "tenant", "set", "floors", "--network-floor", "default", "--network-default", "default", "--json")
    assert (json.loads(done.stdout)["network_floor"], json.loads(done.stdout)["network_default"]) == (None, None)


def test_only_operators_set_floors_and_bad_ones_are_refused(tenants: TenantsServer, acme: Tenant) -> None:
    assert acme.http.patch("/api/v2/tenants/floors", json={"network_floor": None}).status_code == 403
    for bad in ("open", "none", {"mode": "allowlist", "allow": ["https://a"]}, {"mode": "open", "deny": ["a.example"]}, {"allow": []}):
        assert change(tenants, 400, network_floor=bad)["code"] in ("bad_request", "invalid_request"), bad
    assert tenants.operator.json("GET", "/api/v2/tenants/floors")["network_floor"] is None
    assert httpx.patch(f"{tenants.url}/api/v2/tenants/floors", json={"network_floor": FLOOR}).status_code == 401
