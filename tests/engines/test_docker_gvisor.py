"""gVisor as Docker's runtime: what the conformance suite does not see."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockers import Daemon
from engine_servers import EngineServer, runtime_of_gvisor
from small import tiny_image
from tenant import Tenant, TenantsServer

#: Connects to the socket of the guest's calls, sends what is not the proof, and says whether something answers.
KNOCKER = r"""
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/.arenite/calls"};
    char proof[32];
    memset(proof, '0', sizeof proof);
    for (int n = 0; n < 5; n++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *) &at, sizeof at)) return perror("connect"), 1;
        // The last one sends nothing.
        if (n < 4 && write(fd, proof, sizeof proof) < 0) return perror("write"), 1;
        if (read(fd, proof, 1) != 0) return puts("answered"), 1;
        close(fd);
    }
    puts("refused");
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Sockets in a data directory want a short path.
    folder = Path(tempfile.mkdtemp(prefix="arenite-runsc-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    whole = runtime_of_gvisor()
    bare = {**whole, "runtimeArgs": [argument for argument in whole["runtimeArgs"] if "host-uds" not in argument]}
    daemon = Daemon(folder / "docker", {"runsc": whole, "bare": bare})
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def tenants(folder: Path, daemon: Daemon) -> Iterator[TenantsServer]:
    settings = ("--engine", "docker", "--docker-socket", str(daemon.socket), "--default-image", "tiny", "--tenants")
    server = EngineServer(folder / "data", args=(*settings, "--storage-size", "512MiB", "--disk-reserve", "1MiB"))
    server.start()
    try:
        tiny_image(server.data_dir / "pool", more=["busybox"])
        tenants = TenantsServer(server)
        yield tenants
        tenants.operator.json("DELETE", "/api/v2/tenants/acme?force=true")
    finally:
        if server.process is not None:
            server.stop()


@pytest.fixture(scope="module")
def acme(tenants: TenantsServer) -> Tenant:
    acme = tenants.tenant("acme")
    tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"min_tier": "gvisor"})
    return acme


def test_a_tenants_minimum_is_enforced(acme: Tenant, daemon: Daemon) -> None:
    for weaker in ("namespace", "machine"):
        refused = acme.http.post("/api/v2/sandboxes", json={"name": "a", "tier": weaker})
        assert refused.status_code == 403 and refused.json()["code"] == "forbidden", refused.text
    made = acme.json("POST", "/api/v2/sandboxes", json={"name": "a"})
    assert made["tier"] == "gvisor" and any("gVisor" in part for part in made["isolation"]), made
    assert daemon.inspect(made["id"])["HostConfig"]["Runtime"] == "runsc"
    acme.json("DELETE", "/api/v2/sandboxes/a")


def test_a_runtime_that_is_not_there_is_refused_with_what_to_do(tenants: TenantsServer, acme: Tenant) -> None:
    for runtime, reason in (
        ("nowhere", "Docker has no runtime nowhere"),
        ("bare", "Docker's runtime bare lacks --host-uds=open in its runtimeArgs"),
    ):
        tenants.server.restart(extra=("--docker-gvisor-runtime", runtime))
        refused = acme.http.post("/api/v2/sandboxes", json={"name": "a"})
        problem = refused.json()
        assert refused.status_code == 501 and problem["code"] == "unsupported", refused.text
        assert reason in problem["message"] and "docs/ENGINES.md" in problem["hint"], problem
    assert acme.json("GET", "/api/v2/sandboxes")["sandboxes"] == []
    tenants.server.restart()


def test_only_the_guest_gets_the_servers_calls(tenants: TenantsServer, acme: Tenant, tmp_path: Path) -> None:
    source, program = tmp_path / "knocker.c", tmp_path / "knocker"
    source.write_text(KNOCKER)
    subprocess.run(["musl-gcc", "-static", "-O1", "-o", str(program), str(source)], check=True)
    acme.json("POST", "/api/v2/sandboxes", json={"name": "knocked"})
    base = "/sandbox/knocked"
    try:
        with program.open("rb") as file:
            acme.json("POST", f"{base}/v1/file/upload", files={"file": ("knocker", file)}, data={"path": "/root/knocker"})
        run = {"command": "busybox chmod 755 /root/knocker; /root/knocker"}
        for _ in range(2):
            ran = acme.json("POST", f"{base}/v1/bash/exec", json=run)["data"]
            assert (ran["stdout"], ran["exit_code"]) == ("refused\n", 0), ran
            # The next server expects the same proof.
            tenants.server.kill()
            tenants.server.start()
    finally:
        acme.json("DELETE", "/api/v2/sandboxes/knocked")


def test_without_a_server_the_guest_waits_for_the_next(tenants: TenantsServer, acme: Tenant) -> None:
    acme.json("POST", "/api/v2/sandboxes", json={"name": "waits"})
    try:
        run = {"command": "echo here"}
        for end in (tenants.server.kill, tenants.server.stop, tenants.server.kill):
            end()
            tenants.server.start()
            ran = acme.json("POST", "/sandbox/waits/v1/bash/exec", json=run)["data"]
            assert ran["stdout"] == "here\n", ran
    finally:
        acme.json("DELETE", "/api/v2/sandboxes/waits")
